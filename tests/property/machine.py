"""The state machine: each rule calls one SQL function and tells the model; after each rule the two must agree."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.conftest import Connection
from tests.property.model import Group, Message, Place, Queue, State
from tests.sql.calls import READS, sequence

LEASE = timedelta(seconds=30)
BACKOFF = timedelta(seconds=10)
_runs = itertools.count()
_payloads = itertools.count()

labels = st.sampled_from([None, "x", "y"])
routing_keys = st.sampled_from(["a.1", "a.2", "b.1"])
targets = st.sampled_from(["topic", "queue"])
members = st.sampled_from(["one", "two"])
seconds = st.sampled_from([5, 10, 20, 40])
settlements = st.sampled_from(["ack", "ack", "nack", "nack", "release", "bury", "extend"])


class Sessions:
    """The connections of a test: one for single calls, two that publish in transactions, and the clock of the database."""

    def __init__(self, main: Connection, publishers: list[Connection]) -> None:
        self.main = main
        self.publishers = publishers
        for conn in (main, *publishers):
            # No session has to wait for another; if one does, fail instead of hanging.
            conn.execute("set lock_timeout = '5s'")
        # Each run of its upkeep task rotates.
        main.execute("update trunkline.settings set value = '0' where name = 'rotate_bytes'")
        main.execute("create table public.model_clock (at timestamptz not null)")
        main.execute("insert into public.model_clock values (date_trunc('day', clock_timestamp()) + interval '1 hour')")
        main.execute(
            "create or replace function trunkline.clock() returns timestamptz language sql volatile as"
            " $$ select at from public.model_clock $$"
        )

    def now(self) -> datetime:
        [[now]] = self.main.execute("select at from public.model_clock").fetchall()
        return now  # type: ignore[no-any-return]

    def advance(self, by: timedelta) -> None:
        self.main.execute("update public.model_clock set at = at + %s", (by,))

    def rewind(self) -> None:
        """Each run starts at the same hour, so that no run reaches the end of an idempotency window."""
        self.main.execute("update public.model_clock set at = date_trunc('day', clock_timestamp()) + interval '1 hour'")


class Kernel(RuleBasedStateMachine):
    """Topic -> group, and topic + inbox -> queue."""

    def __init__(self, sessions: Sessions) -> None:
        super().__init__()
        self.sessions = sessions
        sessions.rewind()
        sessions.main.execute("select setseed(0.5)")
        self.now = sessions.now()
        run = next(_runs)
        self.topic, self.queue_name, self.group_name = f"topic.{run}", f"queue.{run}", f"group.{run}"
        # per log: every offset ever seen, and which committed messages must be in it
        self.seen: dict[tuple[str | None, int], dict[int, tuple[UUID, bytes]]] = {}
        self.logged: Counter[Message] = Counter()
        self.unlogged: list[tuple[datetime, Message]] = []
        self.open: dict[int, list[Message]] = {}
        self.keys: dict[str, tuple[UUID, bytes]] = {}
        self.pattern: str | None = None
        self.group: Group | None = None
        self.generations: list[tuple[UUID, int]] = []
        # a claim was rolled back: until passes have found what it drew, that counts as leased and is not delivered
        self.undone = False

    def sql(self, query: str, *params: Any) -> list[tuple[Any, ...]]:
        main = self.sessions.main
        # functions that only read, and batches that are compared as a whole: upkeep has given offsets before
        if READS.search(query) or "trunkline.fetch(" in query or "trunkline.claim_range(" in query:
            sequence(main)
        return main.execute(query, params).fetchall()  # type: ignore[arg-type]

    def one(self, query: str, *params: Any) -> Any:
        [[value]] = self.sql(query, *params)
        return value

    def run_upkeep(self, name: str) -> int:
        return self.one("select trunkline.run_upkeep(%s)", name)  # type: ignore[no-any-return]

    @initialize(
        rows=st.integers(16, 64),
        shared=st.booleans(),
        partitions=st.integers(1, 2),
        max_attempts=st.integers(1, 4),
        group_pattern=st.sampled_from([None, "a.*", "b.#"]),
    )
    def create(self, rows: int, shared: bool, partitions: int, max_attempts: int, group_pattern: str | None) -> None:
        self.group_pattern = group_pattern
        self.sql("select trunkline.create_topic(%s, p_segment_rows => %s, p_retention => '15 seconds')", self.topic, rows)
        self.sql(
            "select trunkline.create_queue(%s, p_lease => %s, p_max_attempts => %s, p_backoff_base => %s,"
            " p_backoff_factor => 1, p_backoff_jitter => 0, p_partitions => %s,"
            " p_retention => '15 seconds', p_segment_rows => %s)",
            self.queue_name, LEASE, max_attempts, BACKOFF, partitions, None if shared else rows,
        )  # fmt: skip
        self.sql("update trunkline.topics set retention = '15 seconds' where kind = 'store' returning 1")
        self.queue = Queue(LEASE, BACKOFF, max_attempts)
        self.partitions = {self.topic: 1, None: partitions}

    # publishing

    def _publish(
        self, conn: Connection, into: str, n: int, label: str | None, routing_key: str, **more: Any
    ) -> list[Message]:
        payloads = [b"%d" % next(_payloads) for _ in range(n)]
        verb, name = ("publish_many", self.topic) if into == "topic" else ("enqueue_many", self.queue_name)
        rows = conn.execute(
            f"select id from trunkline.{verb}(%s, %s, p_labels => %s, p_routing_keys => %s, p_delays => %s) order by ord",  # type: ignore[arg-type]
            (name, payloads, [label] * n, [routing_key] * n, more.get("delays")),
        ).fetchall()
        topic = self.topic if into == "topic" else None
        return [Message(row[0], topic, payload, label, routing_key) for row, payload in zip(rows, payloads, strict=True)]

    def _committed(self, messages: list[Message]) -> None:
        for message in messages:
            self.logged[message] += 1
            if self._feeds(message):
                self.queue.waiting[message] += 1

    def _feeds(self, message: Message) -> bool:
        if message.topic is None or self.pattern == "#":
            return True
        return self.pattern == "a.*" and message.routing_key in ("a.1", "a.2")

    @rule(into=targets, n=st.sampled_from([1, 1, 2, 7, 20]), label=labels, routing_key=routing_keys)
    def publish(self, into: str, n: int, label: str | None, routing_key: str) -> None:
        self._committed(self._publish(self.sessions.main, into, n, label, routing_key))

    def publish_delayed(self, into: str, delay: int, label: str | None, routing_key: str) -> None:
        [message] = self._publish(self.sessions.main, into, 1, label, routing_key, delays=[timedelta(seconds=delay)])
        entry = (self.now + timedelta(seconds=delay), message)
        if into == "topic":
            self.unlogged.append(entry)
        else:
            self.queue.delayed.append(entry)

    def publish_with_key(self, key: str, same: bool) -> None:
        first = self.keys.get(key)
        payload = first[1] if first and same else b"%d" % next(_payloads)
        call = "select id, duplicate from trunkline.enqueue_bytes(%s, %s, p_idempotency_key => %s)"
        if first and not same:
            with pytest.raises(psycopg.Error) as refused:
                self.sql(call, self.queue_name, payload, key)
            assert refused.value.sqlstate == "TL022"
            return
        [(message_id, duplicate)] = self.sql(call, self.queue_name, payload, key)
        assert duplicate == (first is not None)
        if first:
            assert message_id == first[0]
        else:
            self.keys[key] = (message_id, payload)
            self._committed([Message(message_id, None, payload, None, None)])

    @rule(data=st.data(), into=targets, label=labels, routing_key=routing_keys)
    def publish_specially(self, data: st.DataObject, into: str, label: str | None, routing_key: str) -> None:
        if data.draw(st.booleans()):
            self.publish_delayed(into, data.draw(st.sampled_from([5, 15, 60])), label, routing_key)
        else:
            self.publish_with_key(data.draw(st.sampled_from(["k1", "k2"])), data.draw(st.booleans()))

    @rule(
        who=st.integers(0, 1),
        into=targets,
        n=st.sampled_from([1, 3, 10]),
        label=labels,
        undo=st.sampled_from([False, False, True]),
        overtaken=st.integers(0, 3),
    )
    def publish_in_transaction(self, who: int, into: str, n: int, label: str | None, undo: bool, overtaken: int) -> None:
        """The transaction stays open, and others that come after it get their offsets before it."""
        conn = self.sessions.publishers[who]
        # a transaction that makes a segment itself lets others wait; upkeep is ahead of them normally
        self.sql("select trunkline._make_segments(topic_id) from trunkline.topics where kind = 'topic'")
        if who not in self.open:
            conn.execute("begin")
            self.open[who] = []
        conn.execute("savepoint one")
        messages = self._publish(conn, into, n, label, "a.1")
        if undo:
            conn.execute("rollback to one")
        else:
            self.open[who] += messages
        for _ in range(overtaken):
            self.publish(into, 1, label, "a.2")
            self.sequence()

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commit=st.sampled_from([True, True, False]))
    def end_transaction(self, data: st.DataObject, commit: bool) -> None:
        who = data.draw(st.sampled_from(sorted(self.open)))
        messages = self.open.pop(who)
        self.sessions.publishers[who].execute("commit" if commit else "rollback")
        if commit:
            self._committed(messages)

    # the queue

    @rule(n=st.sampled_from([1, 2, 5, 50]), wanted=st.sampled_from([None, None, ["x"], ["x", "y"]]))
    def claim(self, n: int, wanted: list[str] | None) -> None:
        self._claim(n, wanted)

    @rule(n=st.sampled_from([1, 5, 50]), wanted=st.sampled_from([None, ["x"]]), savepoint=st.booleans())
    def claim_that_is_undone(self, n: int, wanted: list[str] | None, savepoint: bool) -> None:
        """Its draw leaves a hole, and is delivered later with the same attempt."""
        main = self.sessions.main
        main.execute("begin")
        main.execute("savepoint one")
        main.execute("select from trunkline.claim(%s, %s, p_labels => %s)", (self.queue_name, n, wanted))
        self.undone = True
        if savepoint:
            main.execute("rollback to one")
            main.execute("commit")
        else:
            main.execute("rollback")

    def _claim(self, n: int, wanted: list[str] | None = None) -> list[str]:
        call = (
            "select topic, partition, log_offset, id, attempt, receipt, deadline, payload, label"
            " from trunkline.claim(%s, %s, p_labels => %s)"
        )
        rows = self.sql(call, self.queue_name, n, wanted)
        if not rows and self.undone:
            self.sequence()
            self.expire()
            rows = self.sql(call, self.queue_name, n, wanted)
        assert len(rows) <= n
        if not rows:
            assert self.queue.claimable(self.now, wanted) == [], "claim answered nothing although messages are ready"
        for topic, partition, offset, message_id, attempt, receipt, deadline, payload, label in rows:
            message = self.queue.deliver((topic, partition, offset), message_id, attempt, receipt, deadline, self.now)
            assert (payload, label) == (message.payload, message.label)
            assert wanted is None or label in wanted
            if topic is None:
                self.logged[message] = max(1, self.logged[message])
        return [row[5] for row in rows]

    @rule(data=st.data(), verb=settlements)
    def settle_leased(self, data: st.DataObject, verb: str) -> None:
        """Some of what is leased now, or of what was leased until a moment ago."""
        leased = [item.receipt for item in self.queue.items.values() if item.state is State.LEASED]
        if leased:
            self._settle(data, verb, leased[:20])
        else:
            self.claim(5, None)

    @precondition(lambda self: self.queue.receipts)
    @rule(data=st.data(), verb=settlements)
    def settle_anything(self, data: st.DataObject, verb: str) -> None:
        """Receipts that were given out at any time."""
        self._settle(data, verb, list(self.queue.receipts)[-12:])

    def _settle(self, data: st.DataObject, verb: str, receipts: list[str]) -> None:
        # what there is to choose from may differ from run to run: a claim takes the partitions in a random order
        chosen = [receipts[i % len(receipts)] for i in data.draw(st.lists(st.integers(0, 19), min_size=1, max_size=8))]
        delay = None
        if verb == "nack":
            delay = data.draw(st.sampled_from([None, timedelta(0), timedelta(seconds=20)]))
        elif verb == "extend":
            delay = data.draw(st.sampled_from([timedelta(seconds=1), timedelta(seconds=60)]))
        expected = self.queue.settle(verb, chosen, self.now, delay)
        if verb == "nack":
            rows = self.sql("select receipt, result from trunkline.nack(%s, %s)", chosen, delay)
        elif verb == "extend":
            rows = self.sql("select receipt, result from trunkline.extend(%s, %s)", chosen, delay)
        else:
            rows = self.sql(f"select receipt, result from trunkline.{verb}(%s)", chosen)
        assert [row[0] for row in rows] == chosen
        for (receipt, result), allowed in zip(rows, expected, strict=True):
            assert result in allowed, f"{verb} of {receipt} answered {result}, not {allowed}"

    def empty_dead_letters(self, count: int | None, verb: str) -> None:
        dead = self.sql("select id, topic, partition, log_offset from trunkline.list_dead_letters(%s)", self.queue_name)
        taken = dead if count is None else dead[:count]
        done = self.one(f"select trunkline.{verb}(%s, p_limit => %s)", self.queue_name, count or 1000)
        assert done == len(taken)
        for message_id, topic, partition, offset in taken:
            item = self.queue.items[topic or None, partition, offset]
            if verb == "redrive":
                copy = Message(message_id, None, item.message.payload, item.message.label, item.message.routing_key)
                self._committed([copy])

    @rule(data=st.data(), what=st.sampled_from(["subscribe", "redrive", "redrive", "purge_dead_letters", "purge_queue"]))
    def manage(self, data: st.DataObject, what: str) -> None:
        if what == "subscribe":
            if self.pattern is None:
                self.subscribe(data.draw(st.sampled_from(["#", "a.*"])), data.draw(st.sampled_from(["earliest", "latest"])))
        elif what == "purge_queue":
            self.purge_queue()
        else:
            self.empty_dead_letters(data.draw(st.sampled_from([None, 1])), what)

    def purge_queue(self) -> None:
        # settles what is overdue and due first, so that it is known what is in the log by now
        self.expire()
        self.release_due()
        assert self.one("select trunkline.purge_queue(%s)", self.queue_name) >= self.queue.purge()
        self.queue.delayed.clear()

    def subscribe(self, pattern: str, start: str) -> None:
        base = self._base(self.topic, 0)
        self.one("select trunkline.head(%s)", self.topic)
        self._look(self.topic, 0)
        self.sql("select trunkline.subscribe(%s, %s, %s, p_start => %s)", self.queue_name, self.topic, pattern, start)
        self.pattern = pattern
        if start == "earliest":
            replayed = {content[0] for offset, content in self.seen.get((self.topic, 0), {}).items() if offset >= base}
            for message, times in self.logged.items():
                if message.topic == self.topic and message.id in replayed and self._feeds(message):
                    self.queue.waiting[message] += times

    # the group

    def _start_group(self) -> Group:
        if self.group is None:
            base = self._base(self.topic, 0)
            self.group = Group(LEASE, base - 1, base - 1)
            if self.group_pattern is not None:
                call = "select trunkline.create_group(%s, %s, p_pattern => %s)"
                self.sql(call, self.topic, self.group_name, self.group_pattern)
        return self.group

    def _for_group(self, first: int, n: int, empty: bool) -> tuple[list[int], int]:
        """Return the offsets of the next fetch, and the last one that it examines."""
        if self.group_pattern is None:
            last = min(self._in_topic(), first + n - 1)
            return list(range(first, last + 1)), last
        self._look(self.topic, 0)
        known = self.seen.get((self.topic, 0), {})
        keys = {message.id: message.routing_key or "" for message in self.logged}
        head = max(known, default=0)
        assert not empty or head == self._in_topic(), "a fetch without an answer did not look at all messages"
        wanted = [offset for offset in range(first, head + 1) if keys[known[offset][0]].startswith(self.group_pattern[:2])][
            :n
        ]
        return wanted, wanted[-1] if len(wanted) == n else head

    def _in_topic(self) -> int:
        return sum(times for message, times in self.logged.items() if message.topic == self.topic)

    @rule(member=members, n=st.sampled_from([1, 3, 50]), again=st.booleans())
    def fetch(self, member: str, n: int, again: bool) -> None:
        """With its generation a member gets its open batch again, without it only a new one."""
        group = self._start_group()
        rows = self.sql(
            "select log_offset, generation, deadline, id, payload"
            " from trunkline.fetch(%s, %s, %s, %s, %s, p_generation => %s)",
            self.topic, self.group_name, member, n, LEASE, group.generation if again else None,
        )  # fmt: skip
        mine = group.held_by(member, self.now)
        if group.held(self.now) and not mine:
            assert rows == [], "two members own the partition"
            return
        if mine and group.fetched > group.committed and not again:
            assert rows == [], "a member got a second batch before it committed the first"
            return
        wanted, last = self._for_group(group.committed + 1, n, not rows)
        assert [row[0] for row in rows] == wanted
        if not rows and last > group.committed:
            # passed by, and the partition is the member's
            group.committed = group.fetched = last
            group.member, group.deadline = member, self.now + LEASE
            group.generation = self.one(
                "select p.generation from trunkline.positions p join trunkline.cursors using (cursor_id)"
                " join trunkline.subscriptions s using (subscription_id) where s.name = %s order by state_no desc limit 1",
                self.group_name,
            )
            return
        if not rows:
            if mine and group.deadline is not None and group.deadline < self.now + LEASE * 0.66:
                group.deadline = self.now + LEASE
            return
        assert {row[1:3] for row in rows} == {(rows[0][1], self.now + LEASE)}
        assert (rows[0][1] == group.generation) == mine
        for offset, _, _, message_id, payload in rows:
            self._remember((self.topic, 0), offset, (message_id, payload))
        group.member, group.generation, group.deadline, group.fetched = member, rows[0][1], self.now + LEASE, last
        group.last_match = wanted[-1]
        if self.group_pattern is not None:
            group.committed = wanted[0] - 1
        self.generations.append((rows[0][1], last))

    @rule(data=st.data(), member=members, n=st.sampled_from([3, 50]), wait=st.sampled_from([0, 0, 10, 40]))
    def fetch_and_commit(self, data: st.DataObject, member: str, n: int, wait: int) -> None:
        """Run a member's loop; sometimes it takes too long."""
        self.fetch(member, n, False)
        if wait:
            self.advance(wait)
        if self.generations:
            self.commit(data, data.draw(st.sampled_from([0, 0, 1])), False)

    @precondition(lambda self: self.generations)
    @rule(data=st.data(), back=st.sampled_from([0, 0, 1, 5]), beyond=st.booleans())
    def commit(self, data: st.DataObject, back: int, beyond: bool) -> None:
        group = self._start_group()
        generation, fetched = self.generations[-1 - data.draw(st.integers(0, 2)) % len(self.generations)]
        offset = fetched + 1000 if beyond else max(0, fetched - back)
        call = "select trunkline.commit(%s, %s, 0, %s, %s)"
        if generation != group.generation or not group.held(self.now):
            assert self.one(call, self.topic, self.group_name, generation, offset) == "lost"
        elif offset > group.fetched:
            with pytest.raises(psycopg.Error) as refused:
                self.one(call, self.topic, self.group_name, generation, offset)
            assert refused.value.sqlstate == "TL007"
        else:
            assert self.one(call, self.topic, self.group_name, generation, offset) == "done"
            group.committed = max(group.committed, group.fetched if offset >= group.last_match else offset)

    @precondition(lambda self: self.group)
    @rule(data=st.data(), verb=st.sampled_from(["leave", "seek", "claim_range"]))
    def move_group(self, data: st.DataObject, verb: str) -> None:
        if verb == "leave":
            self.leave(data.draw(members))
        elif verb == "seek":
            self.seek(data, data.draw(st.sampled_from(["earliest", "latest", "offset"])))
        else:
            self.claim_range(data.draw(st.sampled_from([1, 10, 1000])))

    def leave(self, member: str) -> None:
        group = self._start_group()
        owned = group.member == member and group.deadline is not None
        assert self.one("select trunkline.leave(%s, %s, %s)", self.topic, self.group_name, member) == owned
        if owned:
            group.free()

    def seek(self, data: st.DataObject, to: str) -> None:
        group = self._start_group()
        head = self.one("select trunkline.head(%s)", self.topic)
        base = self._base(self.topic, 0)
        place = {"earliest": base, "latest": head + 1}.get(to)
        if place is None:
            place = 1 + data.draw(st.integers(0, 200)) % (head + 2)
        call = "select next_offset from trunkline.seek(%s, %s, %s)"
        text = str(place) if to == "offset" else to
        if place < base or place > head + 1:
            with pytest.raises(psycopg.Error) as refused:
                self.one(call, self.topic, self.group_name, text)
            assert refused.value.sqlstate == ("TL006" if place < base else "TL007")
        else:
            assert self.one(call, self.topic, self.group_name, text) == place
            group.committed = place - 1
            group.free()

    def claim_range(self, n: int) -> None:
        group = self._start_group()
        call = "select first_offset, last_offset from trunkline.claim_range(%s, %s, %s)"
        if self.group_pattern is not None:
            with pytest.raises(psycopg.Error) as refused:
                self.sql(call, self.topic, self.group_name, n)
            assert refused.value.sqlstate == "TL023"
            return
        rows = self.sql(call, self.topic, self.group_name, n)
        last = min(self._in_topic(), group.committed + n)
        if group.held(self.now) or last <= group.committed:
            assert rows == []
        else:
            assert rows == [(group.committed + 1, last)]
            group.committed = last
            group.free()

    # time and upkeep

    @rule(by=seconds)
    def advance(self, by: int) -> None:
        self.sessions.advance(timedelta(seconds=by))
        self.now = self.sessions.now()
        if any(due <= self.now for due, _ in self.unlogged):
            # any call that gives offsets may let them into the topic, and what subscribes to the latest begins behind them
            self.release_due()

    @rule(
        task=st.sampled_from(["expire", "due", "sequence", "sequence", "rotate", "rotate", "retain"]),
        times=st.integers(1, 3),
    )
    def upkeep(self, task: str, times: int) -> None:
        for _ in range(times):
            {
                "expire": self.expire,
                "due": self.release_due,
                "sequence": self.sequence,
                "rotate": self.rotate,
                "retain": self.retain,
            }[task]()

    def expire(self) -> None:
        self.run_upkeep("pass")
        if self.undone:
            # what such a claim drew of messages that its own transaction had returned takes as many again
            for _ in range(8):
                self.run_upkeep("pass")
            self.undone = False
        self.queue.end_overdue(self.now)

    def release_due(self) -> None:
        self.expire()
        self._committed([message for due, message in self.unlogged if due <= self.now])
        self.unlogged = [entry for entry in self.unlogged if entry[0] > self.now]
        for due, message in list(self.queue.delayed):
            if due <= self.now:
                self.queue.delayed.remove((due, message))
                self._committed([message])

    def sequence(self) -> None:
        self.run_upkeep("sequence")

    def rotate(self) -> None:
        assert self.run_upkeep("rotate") > 0, "nobody holds a lock, so the rotation must succeed"
        self.queue.rotations += 1

    def retain(self) -> None:
        self.expire()
        self.run_upkeep("segments")
        self.run_upkeep("retention")
        self.advance(20)

    # what must hold after each step

    def _base(self, topic: str | None, partition: int) -> int:
        kind, name = ("inbox", self.queue_name) if topic is None else ("topic", topic)
        return self.one(  # type: ignore[no-any-return]
            "select base_offset from trunkline.logs join trunkline.topics using (topic_id)"
            " where kind = %s and name = %s and partition = %s",
            kind, name, partition,
        )  # fmt: skip

    def _remember(self, log: tuple[str | None, int], offset: int, content: tuple[UUID, bytes]) -> None:
        known = self.seen.setdefault(log, {}).setdefault(offset, content)
        assert known == content, f"the content of offset {offset} of {log} changed"

    def _look(self, topic: str | None, partition: int) -> None:
        """All that has an offset: dense, unchanged, committed, each message as often as it was published."""
        kind, name = ("inbox", self.queue_name) if topic is None else ("topic", topic)
        rows = self.sql(
            "select r.log_offset, r.id, r.payload from trunkline.topics t join trunkline.logs l using (topic_id),"
            " trunkline._head(l.log) head, trunkline._read(t.topic_id, l.partition, t.segment_rows, l.base_offset, head) r"
            " where t.kind = %s and t.name = %s and l.partition = %s",
            kind, name, partition,
        )  # fmt: skip
        base = self._base(topic, partition)
        assert [row[0] for row in rows] == list(range(base, base + len(rows))), "offsets have a hole"
        for offset, message_id, payload in rows:
            self._remember((topic, partition), offset, (message_id, payload))

    @invariant()
    def logs_are_dense_and_never_change(self) -> None:
        if not hasattr(self, "partitions"):
            return
        for topic, partitions in self.partitions.items():
            found: Counter[tuple[UUID, bytes]] = Counter()
            for partition in range(partitions):
                self._look(topic, partition)
                offsets = self.seen.get((topic, partition), {})
                assert sorted(offsets) == list(range(1, len(offsets) + 1)) or self._base(topic, partition) > 1
                found.update(offsets.values())
            allowed: Counter[tuple[UUID, bytes]] = Counter()
            for message, times in self.logged.items():
                if message.topic == topic:
                    allowed[message.id, message.payload] += times
            for due, message in self.queue.delayed:
                if message.topic == topic and due <= self.now:
                    allowed[message.id, message.payload] += 1
            assert found <= allowed, f"the log has what was not committed: {found - allowed}"

    @invariant()
    def dead_letters_are_those_of_the_model(self) -> None:
        if not hasattr(self, "queue"):
            return
        rows = self.sql(
            "select topic, partition, log_offset, id, payload, attempts from trunkline.list_dead_letters(%s)",
            self.queue_name,
        )
        places: set[Place] = set()
        for topic, partition, offset, message_id, payload, attempts in rows:
            place = (topic or None, partition, offset)
            self.queue.found_dead(place, self.now)
            item = self.queue.items[place]
            assert (item.message.id, item.message.payload, item.attempt) == (message_id, payload, attempts)
            places.add(place)
        assert len(places) == len(rows)

    @invariant()
    def queue_conserves_messages(self) -> None:
        if not hasattr(self, "queue"):
            return
        with self.sessions.main.transaction():
            self.sessions.main.execute("set transaction isolation level repeatable read")
            [(accepted, ready, pending, leased, acked, dead, expired, purged)] = self.sql(
                "select * from trunkline.audit_queue(%s)", self.queue_name
            )
        assert accepted == ready + pending + leased + acked + dead + expired + purged
        overdue = sum(item.state is State.LEASED and item.until <= self.now for item in self.queue.items.values())
        assert (acked, expired) == (self.queue.count(State.ACKED), 0)
        assert self.queue.count(State.LEASED) - overdue <= leased
        assert self.undone or leased <= self.queue.count(State.LEASED)
        assert self.queue.deaths <= dead <= self.queue.deaths + overdue

    @invariant()
    def retention_keeps_what_readers_need(self) -> None:
        if not hasattr(self, "queue"):
            return
        base = self._base(self.topic, 0)
        assert self.group is None or base <= self.group.committed + 1
        assert base <= min(self.queue.unsettled(self.topic), default=base)

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        for who in list(self.open):
            self.sessions.publishers[who].execute("rollback")
        self.open.clear()
        try:
            self._drain()
        finally:
            self.sql("select trunkline.delete_queue(%s, true)", self.queue_name)
            self.sql("select trunkline.delete_topic(%s, true)", self.topic)

    def _drain(self) -> None:
        """All that was accepted can still be delivered, and every log ends up with exactly what was committed."""
        self.advance(3600)
        self.expire()
        self.release_due()
        while receipts := self._claim(100):
            expected = self.queue.settle("ack", receipts, self.now, None)
            rows = self.sql("select result from trunkline.ack(%s)", receipts)
            assert [{row[0]} for row in rows] == expected
        assert self.queue.claimable(self.now, None) == []
        self.dead_letters_are_those_of_the_model()
        assert self.queue.count(State.LEASED) == self.queue.count(State.PENDING) == 0
        self.sequence()
        self.logs_are_dense_and_never_change()
        for topic, partitions in self.partitions.items():
            wanted = sum(times for message, times in self.logged.items() if message.topic == topic)
            heads = [self.one("select trunkline._head(l.log) from trunkline.logs l join trunkline.topics using (topic_id)"
                              " where kind = %s and name = %s and partition = %s",
                              "inbox" if topic is None else "topic", topic or self.queue_name, partition)
                     for partition in range(partitions)]  # fmt: skip
            assert sum(heads) == wanted, (
                f"{wanted} messages were committed to {topic or 'the inbox'}, the log has {sum(heads)}"
            )
        self.queue_conserves_messages()
