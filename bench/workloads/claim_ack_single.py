"""Claim and ack one by one from 16 connections, out of a backlog."""

from __future__ import annotations

from bench import pgbench
from bench.lab import Lab
from bench.peers import counter_log, ours, skip_locked
from bench.plan import Plan
from bench.rounds import interleave
from bench.rows import Row, at_least, compare

# The backlog per second of the run: more than anybody consumes one by one, because an empty claim ends a client.
_BACKLOG = 20_000


def run(lab: Lab, plan: Plan) -> list[Row]:
    rows: list[Row] = []
    backlog = int(_BACKLOG * max(1, plan.seconds))
    for payload in plan.payloads:

        def rate(script: str) -> float:
            return pgbench.rate(lab.tcp_url, script, clients=plan.consumers, seconds=plan.seconds)

        def queue(payload: int = payload) -> float:
            name = f"single-{payload}"
            number = ours.make_queue(lab, name)
            ours.load(lab, number, messages=backlog, payload=payload)
            ours.calm(lab, number)
            value = rate(ours.claim_ack_script(name))
            lab.value("select trunkline.delete_queue(%s)", name)
            return value

        def table(relaxed: bool, payload: int = payload) -> float:
            skip_locked.make(lab)
            skip_locked.load(lab, messages=backlog, payload=payload)
            skip_locked.calm(lab)
            return rate(skip_locked.claim_ack_script(relaxed=relaxed))

        def log(payload: int = payload) -> float:
            counter_log.make(lab)
            counter_log.load(lab, messages=backlog, payload=payload)
            counter_log.calm(lab)
            return rate(counter_log.claim_script())

        measured = interleave(
            f"claim_ack_single {payload} B",
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
            "claim_ack_single",
            payload,
            "msg/s",
            measured,
            goals={skip_locked.NAME: at_least(1.2)},
            notes={
                skip_locked.RELAXED: "claim not flushed, as ours",
                counter_log.NAME: "claim is final: no ack, no redelivery",
            },
        )
    return rows
