"""Claim and ack one by one from 16 connections, out of a backlog."""

from __future__ import annotations

from bench import pgbench
from bench.lab import Lab
from bench.peers import counter_log, ours, pgmq, skip_locked
from bench.plan import Plan
from bench.rows import Row, at_least
from bench.workloads import backlog

# Backlog per second of the run: more than any contestant consumes, because an empty claim ends a client.
_BACKLOG = 20_000


def run(lab: Lab, plan: Plan) -> list[Row]:
    def rate(script: str) -> float:
        return pgbench.rate(lab.tcp_url, script, clients=plan.consumers, seconds=plan.seconds)

    drains = backlog.Drains(
        queue=lambda name: rate(ours.claim_ack_script(name)),
        pgmq=lambda: rate(pgmq.claim_ack_script()),
        table=lambda relaxed: rate(skip_locked.claim_ack_script(relaxed=relaxed)),
        log=lambda: rate(counter_log.claim_script()),
    )
    messages = int(_BACKLOG * max(1, plan.seconds))
    return backlog.run(lab, plan, "claim_ack_single", drains, messages=messages, goal=at_least(1.2), pgmq_goal=at_least(1.2))
