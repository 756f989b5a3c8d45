"""Claim and per-message ack in batches of 100 from 16 connections, out of a backlog."""

from __future__ import annotations

from collections.abc import Callable

from bench import crew
from bench.lab import Lab
from bench.peers import counter_log, ours, skip_locked
from bench.plan import Plan
from bench.rounds import interleave
from bench.rows import Row, at_least, compare
from bench.session import Session

_BATCH = 100
# The backlog per second of the run. A contestant that drains it earlier is measured up to its last message.
_BACKLOG = 60_000


def run(lab: Lab, plan: Plan) -> list[Row]:
    rows: list[Row] = []
    backlog = int(_BACKLOG * plan.seconds)
    for payload in plan.payloads:

        def drain(make: Callable[[Session, int], crew.Step]) -> float:
            job = crew.Job(name="drain", make=make, connections=plan.consumers, processes=4)
            return crew.run(lab.url, [job], plan.seconds)["drain"].rate

        def queue(payload: int = payload) -> float:
            name = f"batch-{payload}"
            number = ours.make_queue(lab, name)
            ours.load(lab, number, messages=backlog, payload=payload)
            ours.calm(lab, number)
            rate = drain(lambda session, _: ours.ClaimAck(session, name, batch=_BATCH))
            lab.value("select trunkline.delete_queue(%s)", name)
            return rate

        def table(relaxed: bool, payload: int = payload) -> float:
            skip_locked.make(lab)
            skip_locked.load(lab, messages=backlog, payload=payload)
            skip_locked.calm(lab)
            return drain(lambda session, _: skip_locked.ClaimAck(session, batch=_BATCH, relaxed=relaxed))

        def log(payload: int = payload) -> float:
            counter_log.make(lab)
            counter_log.load(lab, messages=backlog, payload=payload)
            counter_log.calm(lab)
            return drain(lambda session, _: counter_log.ClaimFetch(session, 0, batch=_BATCH))

        measured = interleave(
            f"claim_ack_batch {payload} B",
            "msg/s",
            {
                ours.NAME: queue,
                skip_locked.NAME: lambda: table(False),
                skip_locked.RELAXED: lambda: table(True),
                counter_log.NAME: log,
            },
            rounds=plan.rounds,
        )
        rows += compare(
            "claim_ack_batch",
            payload,
            "msg/s",
            measured,
            goals={skip_locked.NAME: at_least(6)},
            notes={
                skip_locked.RELAXED: "claim not flushed, as ours",
                counter_log.NAME: "claim is final: no ack, no redelivery",
            },
        )
    return rows
