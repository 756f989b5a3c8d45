"""Claiming from a backlog: common setup of all contestants. The workload supplies the consumers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from bench.lab import Lab
from bench.peers import counter_log, ours, pgmq, skip_locked
from bench.plan import Plan
from bench.rounds import interleave
from bench.rows import Goal, Row, compare


class Drains(msgspec.Struct, frozen=True):
    """Functions that measure the drain rate of each contestant: queue, pgmq, table (claims relaxed or not), log."""

    queue: Callable[[str], float]
    pgmq: Callable[[], float]
    table: Callable[[bool], float]
    log: Callable[[], float]
    receipts: Callable[[str], float] | None = None
    """The queue again, through the plain SQL functions."""


def run(lab: Lab, plan: Plan, workload: str, drains: Drains, *, messages: int, goal: Goal, pgmq_goal: Goal) -> list[Row]:
    """Measure all contestants in interleaved rounds, each with a backlog of `messages`."""
    rows: list[Row] = []
    for payload in plan.payloads:

        def queue(drain: Callable[[str], float], payload: int = payload) -> float:
            number = ours.make_queue(lab, workload)
            ours.load(lab, number, messages=messages, payload=payload)
            lab.conn.execute("call trunkline.sequence(array[%s], '{}')", (workload,))
            ours.calm(lab, number)
            rate = drain(workload)
            lab.value("select trunkline.delete_queue(%s, true)", workload)
            return rate

        def table(relaxed: bool, payload: int = payload) -> float:
            skip_locked.make(lab)
            skip_locked.load(lab, messages=messages, payload=payload)
            skip_locked.calm(lab)
            return drains.table(relaxed)

        def real_pgmq(payload: int = payload) -> float:
            pgmq.make(lab)
            pgmq.load(lab, messages=messages, payload=payload)
            pgmq.calm(lab)
            return drains.pgmq()

        def log(payload: int = payload) -> float:
            counter_log.make(lab)
            counter_log.load(lab, messages=messages, payload=payload)
            counter_log.calm(lab)
            return drains.log()

        plain_sql = {} if drains.receipts is None else {ours.RECEIPTS: partial(queue, drains.receipts)}
        measured = interleave(
            f"{workload} {payload} B",
            "msg/s",
            {
                ours.NAME: partial(queue, drains.queue),
                **plain_sql,
                pgmq.NAME: real_pgmq,
                skip_locked.NAME: lambda: table(False),
                skip_locked.RELAXED: lambda: table(True),
                counter_log.NAME: log,
            },
            rounds=plan.rounds,
        )
        rows += compare(
            workload,
            payload,
            "msg/s",
            measured,
            goals={skip_locked.NAME: goal, pgmq.NAME: pgmq_goal},
            notes={
                ours.RECEIPTS: "plain SQL: claim by name, ack by receipt",
                skip_locked.RELAXED: "claim not flushed, as ours",
                counter_log.NAME: "claim is final: no ack, no redelivery",
            },
        )
    return rows
