"""Bugs to plant into the kernel, and the world in which a script provokes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos.checker import check
from tests.chaos.history import load
from tests.chaos.report import Report
from tests.chaos.run import create, read_everything
from tests.chaos.session import Session
from tests.chaos.workloads import Group, Queue, Workload


@dataclass(frozen=True)
class Change:
    """One place of an installed function."""

    function: str
    old: str
    new: str

    def apply(self, conn: psycopg.Connection[tuple[Any, ...]]) -> None:
        found = conn.execute(
            "select pg_get_functiondef(p.oid) from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
            " where n.nspname = 'trunkline' and p.proname = %s",
            (self.function,),
        ).fetchall()
        assert len(found) == 1, f"function {self.function} was found {len(found)} times"
        source: str = found[0][0]
        assert self.old in source, f"function {self.function} has no {self.old!r}"
        conn.execute(source.replace(self.old, self.new).encode())


class World:
    """Sessions of a directed script on one database, all recorded; `verdict` reads everything and checks."""

    def __init__(
        self, url: str, directory: Path, workload: Workload, advance: Callable[[float], None] | None = None
    ) -> None:
        self.url = url
        self.workload = workload
        self._advance = advance
        self._directory = directory
        self._sessions: list[Session] = []
        self.main = self.session("main")
        create(self.main, workload)
        # no service runs: a claim that finds nothing runs passes itself
        self.main.connect().execute("update trunkline.settings set value = '0' where name = 'sequence_alone_after'")

    def session(self, name: str) -> Session:
        session = Session(self.url, self._directory, name)
        self._sessions.append(session)
        return session

    def sequence(self) -> None:
        self.main.connect().execute("call trunkline.sequence()")

    def passes(self, count: int) -> None:
        for _ in range(count):
            self.main.rows("select trunkline.run_upkeep('pass')")

    def change(self, *changes: Change) -> None:
        """Plant what a script needs to stop a session at a certain place."""
        for change in changes:
            change.apply(self.main.connect())

    def advance(self, seconds: float) -> None:
        assert self._advance is not None, "this world has no clock to move"
        self._advance(seconds)

    def verdict(self) -> Report:
        for session in self._sessions:
            session.drop()
        read_everything(self.main, self.workload)
        for session in self._sessions:
            session.close()
        return check(load(self._directory))


TOPIC = Workload("topic", topics={"t": 1}, groups=(Group("t", "g"),))
FILTERED = Workload("filtered", topics={"t": 1}, groups=(Group("t", "g", pattern="yes", keys=("yes",)),))
QUEUE = Workload("queue", queues=(Queue("q"),))
SUBSCRIBED = Workload("subscribed", topics={"t": 1}, queues=(Queue("q", feeds=(("t", "yes", ("yes",)),)),))
BRIEF = Workload("brief", queues=(Queue("q", ttl=5.0),))
ORDERED = Workload("ordered", queues=(Queue("q", ordered=True),))


class Publish:
    """A publish in a transaction that stays open until `commit`."""

    def __init__(
        self,
        session: Session,
        values: Sequence[str],
        *,
        send: Sequence[str] | None = None,
        routing_key: str | None = None,
        target: str = "topic:t",
        delay: float | None = None,
    ) -> None:
        """`values` are those of the whole transaction; `send` are the first of them, if not all are sent at once."""
        self.session = session
        self.routing_key = routing_key
        self.target = target
        self.delay = delay
        part = {"target": target, "values": list(values), "routing_key": routing_key, "delay": delay}
        self.op = session.recorder.invoke("publish", parts=[part])
        session.connect().execute("begin")
        self.add(values if send is None else send)

    def add(self, values: Sequence[str]) -> None:
        kind, name = self.target.split(":")
        function = "publish_many" if kind == "topic" else "enqueue_many"
        self.session.rows(
            f"select count(*) from trunkline.{function}(%s, %s, p_routing_keys => %s::text[],"
            " p_delays => array_fill(make_interval(secs => %s), array[%s]))",
            (name, [value.encode() for value in values], [self.routing_key] * len(values), self.delay, len(values)),
        )

    def commit(self) -> None:
        self.session.connect().execute("commit")
        self.session.recorder.done(self.op, "ok")


def publish(session: Session, *values: str, routing_key: str | None = None) -> None:
    Publish(session, values, routing_key=routing_key).commit()


def enqueue(session: Session, *values: str, label: str | None = None) -> None:
    op = session.recorder.invoke("publish", parts=[{"target": "queue:q", "values": list(values), "label": label}])
    session.rows(
        "select count(*) from trunkline.enqueue_many('q', %s, p_labels => %s::text[])",
        ([value.encode() for value in values], [label] * len(values)),
    )
    session.recorder.done(op, "ok")


class Claim:
    """A claim in a transaction that stays open: it happened if and when `commit` returns."""

    def __init__(self, session: Session, limit: int = 1, lease: float = 10.0) -> None:
        self.session = session
        self.op = session.recorder.invoke("claim", queue="q", lease=lease, relaxed=False)
        session.connect().execute("begin")
        found = session.rows(
            "select receipt, attempt, extract(epoch from deadline)::float8, convert_from(payload, 'UTF8'),"
            " coalesce(topic, '') || '/' || partition, log_offset"
            " from trunkline.claim('q', %s::int, make_interval(secs => %s))",
            (limit, lease),
        )
        self.rows = [list(row) for row in found]

    @property
    def receipts(self) -> list[str]:
        return [row[0] for row in self.rows]

    def commit(self) -> None:
        self.session.connect().execute("commit")
        self.session.recorder.done(self.op, "ok", rows=self.rows)

    def rollback(self) -> None:
        self.session.connect().execute("rollback")
        self.session.recorder.done(self.op, "fail")


def fetch(session: Session, member: str | None = None) -> dict[str, Any]:
    member = member or session.proc
    op = session.recorder.invoke("fetch", topic="t", group="g", member=member)
    found = session.rows(
        "select partition, generation::text, log_offset, convert_from(payload, 'UTF8')"
        " from trunkline.fetch('t', 'g', %s, 100, '1 second')",
        (member,),
    )
    result: dict[str, Any] = {"rows": [[row[2], row[3]] for row in found]}
    if found:
        result |= {"partition": found[0][0], "generation": found[0][1]}
    session.recorder.done(op, "ok", **result)
    return result


def commit(session: Session, batch: dict[str, Any], offset: int) -> str:
    args = {"partition": batch["partition"], "generation": batch["generation"], "offset": offset}
    op = session.recorder.invoke("commit", topic="t", group="g", **args)
    answer: str = session.rows(
        "select trunkline.commit('t', 'g', %(partition)s, %(generation)s, %(offset)s)",
        args,  # type: ignore[arg-type]
    )[0][0]
    session.recorder.done(op, "ok", answer=answer)
    return answer


def finish_queue(world: World) -> None:
    """Ack whatever is left, so that the script ends in a drained queue."""
    for _ in range(20):
        rows = world.main.claim("q", 100, 1.0)
        if not rows:
            return
        world.main.settle("ack", [row[0] for row in rows])


def finish_group(world: World) -> None:
    last = world.session("last")
    world.advance(3)
    while (batch := fetch(last))["rows"]:
        commit(last, batch, batch["rows"][-1][0])


class Background:
    """A call that may have to wait for another one."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=call, daemon=True)
        self._thread.start()

    def join(self, seconds: float = 20.0) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the call still waits"
