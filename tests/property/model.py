"""A model of the SQL functions in a few lines of Python: one topic, one queue, one group and a stopped clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from uuid import UUID

Place = tuple[str | None, int, int]
"""Topic (None for the inbox), partition and offset."""


class State(Enum):
    """State of a delivered message; undelivered ones are only counted."""

    LEASED = "leased"
    PENDING = "pending"
    ACKED = "acked"
    DEAD = "dead"
    PURGED = "purged"


@dataclass(frozen=True)
class Message:
    """A published message and its target."""

    id: UUID
    topic: str | None
    payload: bytes
    label: str | None
    routing_key: str | None


@dataclass
class Item:
    """A message of the queue that was delivered at least once."""

    message: Message
    state: State
    attempt: int
    receipt: str
    # the end of the lease, or the time from which the message may be delivered again
    until: datetime


@dataclass
class Receipt:
    """A delivery that was handed out: for which place, and how many rotations there had been."""

    place: Place
    rotations: int
    acked: bool = False


@dataclass
class Queue:
    """The states of messages in a queue. Methods say what must happen; they do not ask the database."""

    lease: timedelta
    backoff: timedelta
    max_attempts: int
    waiting: Counter[Message] = field(default_factory=Counter)
    delayed: list[tuple[datetime, Message]] = field(default_factory=list)
    items: dict[Place, Item] = field(default_factory=dict)
    receipts: dict[str, Receipt] = field(default_factory=dict)
    rotations: int = 0
    deaths: int = 0
    purged: int = 0

    def claimable(self, now: datetime, labels: list[str] | None) -> list[Message]:
        """Everything that a claim must be able to find now."""
        found = list(self.waiting.elements())
        found += [message for due, message in self.delayed if due <= now]
        found += [item.message for item in self.items.values() if self._returns(item, now)]
        return [message for message in found if labels is None or message.label in labels]

    def _returns(self, item: Item, now: datetime) -> bool:
        if item.state is State.PENDING:
            return item.until <= now
        return item.state is State.LEASED and item.until <= now and item.attempt < self.max_attempts

    def deliver(
        self, place: Place, message_id: UUID, attempt: int, receipt: str, deadline: datetime, now: datetime
    ) -> Message:
        """Check that a claim may return this delivery, and return its expected content."""
        item = self.items.get(place)
        assert receipt not in self.receipts, f"receipt {receipt} was given out twice"
        assert deadline == now + self.lease
        if item is None:
            message = self._take_new(place[0], message_id, now)
            assert attempt == 1, f"first delivery of {message_id} is attempt {attempt}"
            item = self.items[place] = Item(message, State.LEASED, attempt, receipt, deadline)
        else:
            assert item.message.id == message_id
            assert self._returns(item, now), f"{place} was delivered while {item.state.value} until {item.until} (now {now})"
            assert attempt == item.attempt + 1, f"attempt {attempt} after {item.attempt}"
            item.state, item.attempt, item.receipt, item.until = State.LEASED, attempt, receipt, deadline
        assert attempt <= self.max_attempts
        self.receipts[receipt] = Receipt(place, self.rotations)
        return item.message

    def _take_new(self, topic: str | None, message_id: UUID, now: datetime) -> Message:
        for message in self.waiting:
            if message.id == message_id and message.topic == topic:
                self.waiting[message] -= 1
                self.waiting += Counter()
                return message
        for entry in self.delayed:
            if entry[1].id == message_id:
                assert entry[0] <= now, f"{message_id} was delivered before its time"
                self.delayed.remove(entry)
                return entry[1]
        raise AssertionError(
            f"{message_id} was delivered but is not waiting: it was rolled back, purged or delivered before"
        )

    def settle(self, verb: str, receipts: list[str], now: datetime, delay: timedelta | None) -> list[set[str]]:
        """Apply a settle call and return, per receipt, the valid results."""
        expected = [self._expect(verb, receipt, now) for receipt in receipts]
        for receipt, results in zip(receipts, expected, strict=True):
            known = self.receipts[receipt]
            item = self.items[known.place]
            if results == {"done"} and item.state is State.LEASED and item.receipt == receipt:
                self._apply(verb, item, known, now, delay)
        return expected

    def _expect(self, verb: str, receipt: str, now: datetime) -> set[str]:
        known = self.receipts[receipt]
        item = self.items[known.place]
        if item.state is State.LEASED and item.receipt == receipt and item.until > now:
            return {"done"}
        answer = "done" if verb == "ack" and known.acked else "lost"
        # two rotations forget a lease that is finished: then it is only known that it has ended
        return {answer, "lost", "unknown"} if self.rotations - known.rotations >= 2 else {answer}

    def _apply(self, verb: str, item: Item, known: Receipt, now: datetime, delay: timedelta | None) -> None:
        if verb == "ack":
            item.state = State.ACKED
            known.acked = True
        elif verb == "extend":
            assert delay is not None
            item.until = max(item.until, now + delay)
        elif verb == "bury" or (verb == "nack" and item.attempt >= self.max_attempts):
            self.die(item)
        else:
            item.state = State.PENDING
            item.until = now + ((self.backoff if delay is None else delay) if verb == "nack" else timedelta(0))
            item.attempt -= verb == "release"

    def die(self, item: Item) -> None:
        item.state = State.DEAD
        self.deaths += 1

    def found_dead(self, place: Place, now: datetime) -> None:
        """The database shows a dead letter: either we know, or its last lease has ended."""
        item = self.items[place]
        if item.state is State.LEASED and item.until <= now and item.attempt >= self.max_attempts:
            self.die(item)
        assert item.state is State.DEAD, f"{place} is a dead letter but should be {item.state.value}"

    def end_overdue(self, now: datetime) -> None:
        """The expire task ran: every expired lease was returned or is dead."""
        for item in self.items.values():
            if item.state is State.LEASED and item.until <= now:
                if item.attempt >= self.max_attempts:
                    self.die(item)
                else:
                    item.state, item.until = State.PENDING, now

    def purge(self) -> int:
        """Remove all messages that are not leased; return the number of messages in the log by then."""
        pending = [item for item in self.items.values() if item.state is State.PENDING]
        for item in pending:
            item.state = State.PURGED
        count = self.waiting.total() + len(pending)
        self.waiting.clear()
        self.purged += count
        return count

    def count(self, state: State) -> int:
        return sum(item.state is state for item in self.items.values())

    def unsettled(self, topic: str | None) -> list[int]:
        """Offsets that retention must keep."""
        open_states = (State.LEASED, State.PENDING)
        return [place[2] for place, item in self.items.items() if place[0] == topic and item.state in open_states]


@dataclass
class Group:
    """The position of a group on a topic with one partition."""

    lease: timedelta
    committed: int
    fetched: int
    member: str | None = None
    generation: UUID | None = None
    deadline: datetime | None = None
    # of the batch at hand; what follows it, up to fetched, is passed with it
    last_match: int = 0

    def held(self, now: datetime) -> bool:
        return self.deadline is not None and self.deadline > now

    def held_by(self, member: str, now: datetime) -> bool:
        return self.held(now) and self.member == member

    def free(self) -> None:
        self.member = self.generation = self.deadline = None
        self.fetched = self.committed
