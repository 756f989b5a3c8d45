"""Consumers: members of groups, consumers of queues, and readers that follow a log on their own."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import msgspec
import psycopg

from tests.chaos.session import Session

_IDLE_SECONDS = 0.05


class QueueConsumerSpec(msgspec.Struct, frozen=True, tag="queue_consumer"):
    queue: str
    lease: float = 1.0
    backoff_base: float = 0.1
    jitter: float = 0.1
    ordered: bool = False
    # asks for some of these labels only, now and then
    labels: tuple[str, ...] = ()
    # calm: only acks, and sends poison back at once
    calm: bool = False
    # some claims are in transactions that stay open; of these, some are prepared and some are rolled back
    transactions: bool = False


class QueueConsumer:
    """Claims and settles in every way there is, right and wrong ones. Messages that end in "x" are poison: never acked."""

    def __init__(self, session: Session, spec: QueueConsumerSpec) -> None:
        self.session = session
        self.spec = spec
        self.random = session.random

    def run(self) -> None:
        while not self.session.stopped:
            limit = 100 if self.spec.calm else self.random.choice((1, 10, 50, 100))
            lease = self.spec.lease * self.random.choice((1, 2))
            labels = self._labels()
            relaxed = self.random.random() < 0.3
            rows = self.session.claim(self.spec.queue, limit, lease, relaxed=relaxed, labels=labels, **self._how())
            if not rows:
                time.sleep(_IDLE_SECONDS)
            elif self.spec.calm:
                self._calm(rows)
            else:
                self._handle(rows)

    def _how(self) -> dict[str, Any]:
        """Some claims stay open, up to beyond their lease, and some of these do not happen."""
        if not self.spec.transactions or self.random.random() < 0.85:
            return {}
        ends = ("commit", "commit", "rollback", "rollback to one", "close", "commit prepared", "rollback prepared")
        return {"how": self.random.choice(ends), "hold": self.random.choice((0.0, 0.1, 0.5, self.spec.lease * 1.3))}

    def _labels(self) -> list[str] | None:
        labels = self.spec.labels
        if not labels or self.random.random() < 0.7:
            return None
        return self.random.sample(labels, self.random.randint(1, len(labels)))

    def _calm(self, rows: list[list[Any]]) -> None:
        good = [row[0] for row in rows if not row[3].endswith("x")]
        poison = [row[0] for row in rows if row[3].endswith("x")]
        if good:
            self.session.settle("ack", good)
        if poison:
            self.session.settle("nack", poison, seconds=0.0, delay=0.0)

    def _handle(self, rows: list[list[Any]]) -> None:
        session, fate = self.session, self.random.random()
        good = [row[0] for row in rows if not row[3].endswith("x")]
        poison = [row for row in rows if row[3].endswith("x")]
        if fate < 0.04:
            return  # the lease ends by itself
        if fate < 0.08:
            session.settle("extend", [row[0] for row in rows], seconds=self.spec.lease + 1, delay=self.spec.lease + 1)
            time.sleep(self.random.uniform(0, self.spec.lease * 1.5))
        elif fate < 0.10:
            time.sleep(self.spec.lease * 2.1)
        if self.spec.ordered:
            cut = self.random.randrange(len(rows) + 1) if fate < 0.3 else len(rows)
            self._in_order(rows[:cut])
            return
        self._retry_later(poison)
        if not good:
            return
        kept, rest = good, []
        if fate > 0.7:
            cut = self.random.randrange(len(good) + 1)
            kept, rest = good[:cut], good[cut:]
        if kept:
            self._ack(kept)
        if rest:
            others = [row for row in rows if row[0] in set(rest)]
            choice = self.random.random()
            if choice < 0.5:
                self._retry_later(others)
            elif choice < 0.8:
                session.settle("release", rest)
            elif choice < 0.85:
                session.settle("bury", rest[:2])
        if kept and fate > 0.92:
            # too late for all of these: it must be refused, and change nothing
            verb = self.random.choice(("nack", "release", "bury", "extend", "ack"))
            length = 1.0 if verb == "extend" else None
            session.settle(verb, kept, seconds=length, delay=length)

    def _in_order(self, rows: list[list[Any]]) -> None:
        """Up to the first poison one, which sends the rest back with it."""
        stop = next((number for number, row in enumerate(rows) if row[3].endswith("x")), len(rows))
        if stop:
            self.session.settle("ack", [row[0] for row in rows[:stop]])
        if stop < len(rows):
            self._retry_later(rows[stop : stop + 1])

    def _ack(self, receipts: list[str]) -> None:
        fate = self.random.random()
        if fate < 0.1:
            self.session.settle("ack", receipts, hold=self.random.uniform(0, 0.4), keep=fate < 0.07)
        elif fate < 0.4:
            half = len(receipts) // 2
            for some in (receipts[:half], receipts[half:]):
                if some:
                    self.session.settle("ack", some)
        else:
            self.session.settle("ack", receipts)

    def _retry_later(self, rows: list[list[Any]]) -> None:
        """Nack with an explicit delay or with the queue's backoff, which depends on the attempt."""
        if not rows:
            return
        if self.random.random() < 0.5:
            delay = self.random.choice((0.0, 0.2, 0.7))
            self.session.settle("nack", [row[0] for row in rows], seconds=delay, delay=delay)
            return
        by_attempt: dict[int, list[str]] = defaultdict(list)
        for row in rows:
            by_attempt[row[1]].append(row[0])
        for attempt, receipts in by_attempt.items():
            least = self.spec.backoff_base * 2 ** (attempt - 1) * (1 - self.spec.jitter)
            self.session.settle("nack", receipts, seconds=least)


class GroupMemberSpec(msgspec.Struct, frozen=True, tag="group_member"):
    topic: str
    group: str
    lease: float = 1.0
    effects: bool = False
    calm: bool = False


class GroupMember:
    """Fetches and commits; with `effects`, an insert and the commit are one transaction."""

    def __init__(self, session: Session, spec: GroupMemberSpec) -> None:
        self.session = session
        self.spec = spec
        self.random = session.random
        # The same for each restart of the role: a restarted consumer must read what its predecessor had not committed.
        self.member = session.proc.rpartition("-")[0]
        # Of the last batch: presenting it returns the rest of the batch without waiting for the lease to expire.
        self.generation: str | None = None

    def run(self) -> None:
        while not self.session.stopped:
            batch = self._fetch()
            if batch is None or not batch["rows"]:
                time.sleep(_IDLE_SECONDS)
                continue
            first, last = batch["rows"][0][0], batch["rows"][-1][0]
            self.generation = batch["generation"]
            fate = 1.0 if self.spec.calm else self.random.random()
            if fate < 0.03:
                time.sleep(self.spec.lease * 1.3)
            elif fate < 0.08:
                continue
            self._commit(batch, first, last if fate > 0.25 else self.random.randint(first, last))
            if fate < 0.1:
                self._leave()

    def _fetch(self) -> dict[str, Any] | None:
        spec = self.spec
        limit = self.random.choice((1, 20, 100, 300))
        shown = self.generation if spec.calm or self.random.random() < 0.8 else None
        op = self.session.recorder.invoke("fetch", topic=spec.topic, group=spec.group, member=self.member)
        try:
            found = self.session.rows(
                "select partition, generation::text, log_offset, convert_from(payload, 'UTF8')"
                " from trunkline.fetch(%s, %s, %s, %s::int, make_interval(secs => %s), p_relaxed => %s,"
                " p_generation => %s::uuid)",
                (spec.topic, spec.group, self.member, limit, spec.lease, self.random.random() < 0.5, shown),
            )
        except psycopg.Error as error:
            self.session.settle_outcome(op, error)
            return None
        result = {"rows": [[row[2], row[3]] for row in found]}
        if found:
            result |= {"partition": found[0][0], "generation": found[0][1]}
        self.session.recorder.done(op, "ok", **result)
        return result

    def _commit(self, batch: dict[str, Any], first: int, upto: int) -> None:
        spec, partition, generation = self.spec, batch["partition"], batch["generation"]
        op = self.session.recorder.invoke(
            "commit", topic=spec.topic, group=spec.group, partition=partition, generation=generation, offset=upto
        )
        sent = not spec.effects
        try:
            conn = self.session.connect()
            if spec.effects:
                conn.execute("begin")
                conn.execute(
                    "insert into public.effects values (%s, %s, %s, %s, %s)",
                    (spec.topic, spec.group, partition, first, upto),
                )
                if not spec.calm and self.random.random() < 0.2:
                    time.sleep(self.random.uniform(0, 0.3))
            answer = self.session.rows(
                "select trunkline.commit(%s, %s, %s, %s, %s)", (spec.topic, spec.group, partition, generation, upto)
            )[0][0]
            if spec.effects:
                sent = answer == "done"
                conn.execute("commit" if sent else "rollback")
        except psycopg.Error as error:
            self.session.settle_outcome(op, error, sent=sent)
            self.session.drop()
            return
        self.session.recorder.done(op, "ok", answer=answer)

    def _leave(self) -> None:
        try:
            self.session.rows("select trunkline.leave(%s, %s, %s)", (self.spec.topic, self.spec.group, self.member))
        except psycopg.Error:
            self.session.drop()


class TailReaderSpec(msgspec.Struct, frozen=True, tag="tail_reader"):
    topic: str
    partitions: int


class TailReader:
    """Follows every partition, and looks back now and then: what it saw must stay as it was."""

    def __init__(self, session: Session, spec: TailReaderSpec) -> None:
        self.session = session
        self.spec = spec
        self.next = [1] * spec.partitions

    def run(self) -> None:
        while not self.session.stopped:
            partition = self.session.random.randrange(self.spec.partitions)
            fate = self.session.random.random()
            if fate < 0.05:
                self.session.head(self.spec.topic, partition)
            elif fate < 0.15 and self.next[partition] > 1:
                first = self.session.random.randrange(max(1, self.next[partition] - 2000), self.next[partition])
                self.session.read(self.spec.topic, partition, first, 50)
            else:
                rows = self.session.read(self.spec.topic, partition, self.next[partition], 500)
                if rows:
                    self.next[partition] = rows[-1][0] + 1
            time.sleep(self.session.random.uniform(0.005, 0.05))
