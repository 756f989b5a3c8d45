"""A queue at 2,000 msg/s while another transaction stays open, compared with a SKIP LOCKED table."""

from __future__ import annotations

from collections.abc import Callable
from statistics import quantiles

import msgspec
import psycopg

from bench import crew
from bench.lab import Lab
from bench.peers import ours, skip_locked
from bench.plan import Plan
from bench.rounds import say
from bench.rows import Goal, Row, at_least, at_most
from bench.session import Session

_PAYLOAD = 300
_RATE = 2_000
_BATCH = 10
_PUBLISHERS = 2
_CONSUMERS = 4


class _Phase(msgspec.Struct, frozen=True):
    """Result of one phase.

    Dead rows are counted after its connections are closed, when their statistics are complete.
    """

    acked: float
    p50: float
    p99: float
    dead: int


class _Contestant(msgspec.Struct, frozen=True):
    name: str
    publish: Callable[[Session], crew.Step]
    consume: Callable[[Session], crew.Step]
    calm: Callable[[], None]
    tables: str


def run(lab: Lab, plan: Plan) -> list[Row]:
    queue = "held-xmin"
    inbox = ours.make_queue(lab, queue)
    skip_locked.make(lab)
    contestants = (
        _Contestant(
            ours.NAME,
            lambda session: ours.PublishMany(session, "enqueue_many", queue, batch=_BATCH, payload=_PAYLOAD),
            lambda session: ours.ClaimAck(session, queue, batch=100),
            lambda: ours.calm(lab, inbox),
            "trunkline.%",
        ),
        _Contestant(
            skip_locked.NAME,
            lambda session: skip_locked.Enqueue(session, batch=_BATCH, payload=_PAYLOAD),
            lambda session: skip_locked.ClaimAck(session, batch=100),
            lambda: skip_locked.calm(lab),
            skip_locked.TABLE,
        ),
    )
    rows: list[Row] = []
    for contestant in contestants:
        # The SKIP LOCKED table degrades early, so a quick run gives it less time.
        seconds = plan.minutes * 60 / (4 if plan.quick and contestant.name != ours.NAME else 1)
        around = max(2.0, min(seconds / 5, 120))
        # "before" is the steady state: filled, vacuumed and analyzed.
        _phase(lab, contestant, min(around, 10))
        contestant.calm()
        phases = {"before": _phase(lab, contestant, around)}
        with psycopg.connect(lab.url) as held:
            held.execute("set transaction isolation level repeatable read")
            held.execute("select pg_current_xact_id(), count(*) from trunkline.topics")
            phases["held"] = _phase(lab, contestant, seconds)
        phases["after"] = _phase(lab, contestant, around)
        for name, phase in phases.items():
            say(
                f"  held_xmin, {contestant.name}, {name}: {phase.acked:,.0f} msg/s,"
                f" claim p50 {phase.p50:.2f} p99 {phase.p99:.2f} ms, {phase.dead:,} dead rows"
            )
        rows += _rows(contestant.name, phases, seconds, judged=contestant.name == ours.NAME)
    lab.value("select trunkline.delete_queue(%s)", queue)
    return rows


def _phase(lab: Lab, contestant: _Contestant, seconds: float) -> _Phase:
    jobs = [
        crew.Job(
            name="publish",
            make=lambda session, _: contestant.publish(session),
            connections=_PUBLISHERS,
            every=_PUBLISHERS * _BATCH / _RATE,
        ),
        crew.Job(
            name="consume",
            make=lambda session, _: contestant.consume(session),
            connections=_CONSUMERS,
            processes=_CONSUMERS,
            empty=0.005,
        ),
    ]
    done = crew.run(lab.url, jobs, seconds)["consume"]
    cuts = quantiles(done.latencies, n=100) if len(done.latencies) > 1 else [float("inf")] * 99
    return _Phase(done.messages / seconds, cuts[49] * 1000, cuts[98] * 1000, _dead_rows(lab, contestant.tables))


def _dead_rows(lab: Lab, tables: str) -> int:
    lab.conn.execute("select pg_stat_force_next_flush()")
    query = "select coalesce(sum(n_dead_tup), 0) from pg_stat_user_tables where schemaname || '.' || relname like %s"
    return int(lab.value(query, tables))


def _rows(name: str, phases: dict[str, _Phase], seconds: float, *, judged: bool) -> list[Row]:
    def row(what: str, value: float, unit: str, *, compared: float | None, goal: Goal | None, note: str) -> Row:
        share = None if not compared else value / compared
        return Row(
            workload="held_xmin",
            payload=_PAYLOAD,
            name=f"{name}, {what}",
            value=value,
            unit=unit,
            rounds=[value],
            ratio=share,
            ratios=[] if share is None else [share],
            goal=goal if judged else None,
            note=note,
        )

    before, held, after = phases["before"], phases["held"], phases["after"]
    span = f"{seconds:.0f} s held; ratio to before"
    again = "after the release, nothing done; ratio to before"
    return [
        row("before", before.acked, "msg/s", compared=None, goal=None, note=""),
        row("held", held.acked, "msg/s", compared=before.acked, goal=at_least(0.97), note=span),
        row("after", after.acked, "msg/s", compared=before.acked, goal=at_least(0.97), note=again),
        row("claim before", before.p99, "ms p99", compared=None, goal=None, note=f"p50 {before.p50:.2f} ms"),
        row("claim held", held.p99, "ms p99", compared=before.p99, goal=at_most(1.5), note=f"p50 {held.p50:.2f} ms; {span}"),
        row("claim after", after.p99, "ms p99", compared=before.p99, goal=None, note=f"p50 {after.p50:.2f} ms; {again}"),
        row("dead rows held", held.dead, "rows", compared=None, goal=at_most(999), note="in all its tables"),
        row("dead rows after", after.dead, "rows", compared=None, goal=None, note=""),
    ]
