"""Claim and per-message ack in batches of 100 from 16 connections, out of a backlog."""

from __future__ import annotations

from collections.abc import Callable

from bench import crew
from bench.lab import Lab
from bench.peers import counter_log, ours, pgmq, skip_locked
from bench.plan import Plan
from bench.rows import Row, at_least
from bench.session import Session
from bench.workloads import backlog

_BATCH = 100
# Backlog per second of the run. A contestant that drains it earlier is measured up to its last message.
_BACKLOG = 120_000


def run(lab: Lab, plan: Plan) -> list[Row]:
    def drain(make: Callable[[Session, int], crew.Step]) -> float:
        job = crew.Job(name="drain", make=make, connections=plan.consumers, processes=4)
        return crew.run(lab.url, [job], plan.seconds)["drain"].rate

    drains = backlog.Drains(
        queue=lambda name: drain(lambda session, _: ours.ClaimAck(session, name, batch=_BATCH)),
        receipts=lambda name: drain(lambda session, _: ours.ClaimAckReceipts(session, name, batch=_BATCH)),
        pgmq=lambda: drain(lambda session, _: pgmq.ClaimAck(session, batch=_BATCH)),
        table=lambda relaxed: drain(lambda session, _: skip_locked.ClaimAck(session, batch=_BATCH, relaxed=relaxed)),
        log=lambda: drain(lambda session, _: counter_log.ClaimFetch(session, 0, batch=_BATCH)),
    )
    messages = int(_BACKLOG * plan.seconds)
    return backlog.run(lab, plan, "claim_ack_batch", drains, messages=messages, goal=at_least(4), pgmq_goal=at_least(3))
