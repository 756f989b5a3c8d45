"""Publishers: single messages and batches, in transactions that wait before they commit, roll back or use savepoints."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import psycopg

from tests.chaos.session import Session

_MODES = {"plain": 40, "transaction": 28, "rollback": 10, "savepoint": 8, "keyed": 14}


class Target(msgspec.Struct, frozen=True):
    """Where to publish: a topic or a queue's inbox."""

    kind: str
    name: str
    keys: int = 0
    routing_keys: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    delays: bool = False
    readback: bool = False

    @property
    def log(self) -> str:
        return f"{self.kind}:{self.name}"


class PublisherSpec(msgspec.Struct, frozen=True, tag="publisher"):
    """`messages` must be accepted. Rolled-back ones and those without a response are not counted."""

    targets: tuple[Target, ...]
    messages: int
    per_second: float
    poison: float = 0.01


class Publisher:
    """Publish until the required number is accepted, at about the given rate.

    Awaits each response, so its order is known.
    """

    def __init__(self, session: Session, spec: PublisherSpec) -> None:
        self.session = session
        self.spec = spec
        self.random = session.random
        self.made = 0
        self.accepted = 0

    def run(self) -> None:
        begun = time.monotonic()
        while self.accepted < self.spec.messages and not self.session.stopped:
            mode = self.random.choices(list(_MODES), list(_MODES.values()))[0]
            getattr(self, f"_{mode}")()
            ahead = self.accepted / self.spec.per_second - (time.monotonic() - begun)
            if ahead > 0:
                time.sleep(min(ahead, 0.5))

    def _part(self, size: int | None = None) -> dict[str, Any]:
        target = self.random.choice(self.spec.targets)
        size = size or self.random.choice((1, 1, 5, 20, 60))
        values = []
        for _ in range(size):
            self.made += 1
            values.append(f"{self.session.proc}.{self.made}{'x' if self.random.random() < self.spec.poison else ''}")
        part: dict[str, Any] = {"target": target.log, "values": values}
        if target.routing_keys:
            part["routing_key"] = self.random.choice(target.routing_keys)
        if target.labels and self.random.random() < 0.8:
            part["label"] = self.random.choice(target.labels)
        if target.keys:
            part["keys"] = [f"k{self.random.randrange(target.keys)}" for _ in values]
        if target.delays and self.random.random() < 0.15:
            part["delay"] = self.random.choice((0.3, 1.0, 2.5))
        return part

    def _send(self, part: dict[str, Any], *, idempotent: bool = False) -> float:
        """Call the server; the time just before, by its clock."""
        kind, _, name = part["target"].partition(":")
        values = part["values"]
        delay = f"{part['delay']} seconds" if part.get("delay") else None
        once = [f"once {value}" for value in values] if idempotent else None
        if len(values) == 1:
            verb = "publish_bytes" if kind == "topic" else "enqueue_bytes"
            call = (
                "(%s, %s, p_key => %s, p_routing_key => %s, p_label => %s, p_idempotency_key => %s, p_delay => %s::interval)"
            )
            key = part["keys"][0] if "keys" in part else None
            fields = (part.get("routing_key"), part.get("label"), once and once[0], delay)
            args: tuple[Any, ...] = (name, values[0].encode(), key, *fields)
        else:
            verb = "publish_many" if kind == "topic" else "enqueue_many"
            call = (
                "(%s, %s, p_keys => %s::text[], p_routing_keys => %s::text[], p_labels => %s::text[],"
                " p_idempotency_keys => %s::text[], p_delays => %s::interval[])"
            )
            many = len(values)
            routing_keys = [part["routing_key"]] * many if "routing_key" in part else None
            labels = [part["label"]] * many if "label" in part else None
            payloads = [value.encode() for value in values]
            args = (name, payloads, part.get("keys"), routing_keys, labels, once, [delay] * many if delay else None)
        query = f"select extract(epoch from trunkline.clock())::float8, (select count(*) from trunkline.{verb}{call})"
        before, count = self.session.rows(query, args)[0]
        assert count == len(values)
        return float(before)

    def _record(self, *parts: dict[str, Any]) -> int:
        kept = [{name: value for name, value in part.items() if name != "keys"} for part in parts]
        return self.session.recorder.invoke("publish", parts=kept)

    def _accept(self, op: int, parts: list[dict[str, Any]], before: float | None) -> None:
        self.session.recorder.done(op, "ok", **({"before": before} if before is not None else {}))
        self.accepted += sum(len(part["values"]) for part in parts)

    def _plain(self) -> None:
        part = self._part()
        readback = next((t for t in self.spec.targets if t.readback and t.log == part["target"]), None)
        if readback and "delay" not in part and self.random.random() < 0.5:
            self._publish_and_look(readback.name, part)
            return
        op = self._record(part)
        try:
            self._accept(op, [part], self._send(part))
        except psycopg.Error as error:
            self.session.settle_outcome(op, error)

    def _publish_and_look(self, topic: str, part: dict[str, Any]) -> None:
        """A read that starts after a publish returned finds it (promise G3)."""
        head = self.session.head(topic, 0)
        op = self._record(part)
        try:
            self._accept(op, [part], self._send(part))
        except psycopg.Error as error:
            self.session.settle_outcome(op, error)
            return
        if head is not None:
            self.session.read(topic, 0, head + 1, 10_000, part["values"])

    def _transaction(self, *, commit: bool = True, savepoint: bool = False) -> None:
        """Several publishes, then a pause, then the end: all or nothing."""
        parts = [self._part() for _ in range(self.random.choice((1, 1, 2, 3)))]
        dropped = self._part(3) if savepoint else None
        op = self._record(*parts)
        dropped_op = self._record(dropped) if dropped else None
        sent = False
        before = None
        try:
            conn = self.session.connect()
            conn.execute("begin")
            for part in parts:
                before = before or self._send(part)
                if part is not parts[0]:
                    self._send(part)
                if dropped and part is parts[0]:
                    conn.execute("savepoint maybe")
                    self._send(dropped)
                    conn.execute("rollback to savepoint maybe")
            time.sleep(self.random.uniform(0.5, 2.0) if self.random.random() < 0.02 else self.random.uniform(0, 0.3))
            sent = commit
            conn.execute("commit" if commit else "rollback")
            if commit:
                self._accept(op, parts, before)
            else:
                self.session.recorder.done(op, "fail")
        except psycopg.Error as error:
            self.session.settle_outcome(op, error, sent=sent)
            self.session.drop()
        if dropped_op is not None:
            self.session.recorder.done(dropped_op, "fail")

    def _rollback(self) -> None:
        self._transaction(commit=False)

    def _savepoint(self) -> None:
        self._transaction(savepoint=True)

    def _keyed(self) -> None:
        """Publish with idempotency keys: retry until a response arrives, and store each message once."""
        part = self._part()
        op = self._record(part)
        lost = False
        while True:
            try:
                self._send(part, idempotent=True)
                self._accept(op, [part], None)  # an earlier try may have been the one
                return
            except psycopg.Error as error:
                if error.sqlstate is not None and not error.sqlstate.startswith("57P"):
                    outcome = "info" if lost else "fail"
                    self.session.recorder.done(op, outcome, code=error.sqlstate, message=str(error).splitlines()[0])
                    return
                lost = True
                self.session.drop()
