"""Typed jobs: no-op jobs in one process compared with other libraries, batch enqueues, pickup, cost of a limit."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from statistics import median

from bench.alone import Send, alone, beside
from bench.lab import Lab
from bench.peers import celery, solo
from bench.peers.solo import Solo
from bench.plan import Plan
from bench.rounds import interleave, say
from bench.rows import Goal, Row, at_least, at_most, compare, figure, percentile
from bench.workloads.peers import measure_batch, measure_consume
from trunkline.jobs import App, Worker

_PAYLOAD = 300
_GOALS = {"Procrastinate": at_least(10), "PgQueuer": at_least(2), "graphile-worker": at_least(1), "pg-boss": at_least(1)}
_PAUSE = 0.05


def run(lab: Lab, plan: Plan) -> list[Row]:
    lab.conn.execute("select trunkline.ensure_queue('jobs')")
    ours = solo.jobs("jobs")
    ours.run(lab, "install", solo.Options())
    rows = [*_run_noops(lab, plan, ours), *_enqueue(lab, plan, ours), *_limit(lab, plan, ours), *_pickup(lab, plan)]
    ours.empty(lab)
    return rows


def _run_noops(lab: Lab, plan: Plan, ours: Solo) -> list[Row]:
    contestants = [ours, *solo.peers(lab)]
    measures = {contestant.name: partial(measure_consume, lab, plan, contestant) for contestant in contestants}
    notes = {contestant.name: contestant.consume_note for contestant in contestants}
    if outsider := celery.name():
        measures[outsider] = partial(celery.measure, plan, _PAYLOAD)
        notes[outsider] = celery.NOTE
    measured = interleave("jobs, run", "jobs/s", measures, rounds=plan.rounds)
    goals: dict[str, Goal] = {
        contestant.name: goal
        for contestant in contestants
        for name, goal in _GOALS.items()
        if contestant.name.startswith(name)
    }
    return compare("jobs, run", _PAYLOAD, "jobs/s", measured, goals=goals, notes=notes)


def _enqueue(lab: Lab, plan: Plan, ours: Solo) -> list[Row]:
    measured = interleave(
        "jobs, enqueue 1,000",
        "jobs/s",
        {ours.name: partial(measure_batch, lab, plan, ours)},
        rounds=plan.rounds,
    )[ours.name]
    value = median(measured)
    note = "arguments checked and encoded, in one process"
    return [
        figure(
            "jobs, enqueue 1,000",
            ours.name,
            value,
            "jobs/s",
            payload=_PAYLOAD,
            rounds=measured,
            goal=at_least(80_000),
            note=note,
        )
    ]


def _limit(lab: Lab, plan: Plan, ours: Solo) -> list[Row]:
    limited = solo.jobs("limited")
    measured = interleave(
        "jobs, limit",
        "jobs/s",
        {
            "with a limit": partial(measure_consume, lab, plan, limited),
            "without": partial(measure_consume, lab, plan, ours),
        },
        rounds=plan.rounds,
    )
    return compare("jobs, limit over all processes", _PAYLOAD, "jobs/s", measured, goals={"without": at_least(0.9)})


def _app(url: str, send: Send | None = None) -> App:
    app = App(url, queue="jobs")

    @app.job
    async def stamp(sent: float) -> None:
        if send is not None:
            send(time.monotonic() - sent)

    return app


async def _work(url: str, send: Send) -> None:
    app = _app(url, send)
    async with app, Worker(app):
        send("ready")
        await asyncio.Event().wait()


def _pickup(lab: Lab, plan: Plan) -> list[Row]:
    """Measure from the enqueue call in one process to the handler in another, with both idle before."""

    async def enqueue() -> None:
        app = _app(lab.url)
        async with app:
            for _ in range(plan.samples):
                await asyncio.sleep(_PAUSE)
                await app.get("stamp").enqueue(time.monotonic())

    with beside(partial(_work, lab.url)) as reports:
        time.sleep(1)
        alone(enqueue)
        taken = [1000 * seconds for seconds in reports.take(plan.samples, 30)]
    p50, p99 = percentile(taken, 50), percentile(taken, 99)
    say(f"  jobs, pickup: p50 {p50:.2f} ms, p99 {p99:.2f} ms, longest {max(taken):.1f} ms")
    note = f"enqueue to handler, two processes, {plan.samples} samples"
    return [
        figure("jobs, pickup", "p50", p50, "ms", goal=at_most(5), note=note),
        figure("jobs, pickup", "p99", p99, "ms", note=f"longest {max(taken):.1f} ms"),
    ]
