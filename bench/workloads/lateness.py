"""Lateness with an idle consumer: redelivery after a lease expires (contract Q5), and delayed messages (Q6)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from bench.alone import Reports, Send, beside
from bench.lab import Lab
from bench.plan import Plan
from bench.rounds import say
from bench.rows import Row, at_most, figure, percentile
from trunkline import Client

# Creates messages and returns the due moment of each.
Prepare = Callable[[Lab, int], dict[str, float]]

_QUEUE = "lateness"
# Average interval between the moments, so that they are spread over many upkeep runs.
_SPACING = 0.05
_HEAD_START = timedelta(seconds=3)


def run(lab: Lab, plan: Plan) -> list[Row]:
    return [*_measure(lab, plan, "lease ended", _hold, 1500), *_measure(lab, plan, "due", _schedule, 1000)]


def _measure(lab: Lab, plan: Plan, what: str, prepare: Prepare, limit: float) -> list[Row]:
    lab.conn.execute("select trunkline.create_queue(%s)", (_QUEUE,))
    moments: dict[str, float] = prepare(lab, plan.samples)
    span = max(moments.values()) - time.time()
    with beside(partial(_consume, lab.url)) as reports:
        late = _late(reports, moments, span)
    lab.conn.execute("select trunkline.delete_queue(%s)", (_QUEUE,))
    p50, p99, early = percentile(late, 50), percentile(late, 99), sum(value < 0 for value in late)
    say(f"  lateness, {what}: p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {max(late):.0f} ms, {early} early")
    note = f"{len(late)} samples, p50 {p50:.0f} ms, longest {max(late):.0f} ms"
    return [
        figure("lateness", f"{what}, p99", p99, "ms", rounds=late, goal=at_most(limit), note=note),
        figure("lateness", f"{what}, too early", early, "messages", goal=at_most(0)),
    ]


def _late(reports: Reports, moments: dict[str, float], span: float) -> list[float]:
    """Return the lateness of each message in ms. Raises RuntimeError if a message is delivered twice or not at all."""
    late: dict[str, float] = {}
    for identifier, at in reports.take(len(moments), max(0.0, span) + 30):
        if identifier in late:
            raise RuntimeError(f"message {identifier} was delivered twice")
        late[identifier] = 1000 * (at - moments[identifier])
    return list(late.values())


async def _consume(url: str, send: Send) -> None:
    async with Client(url) as mq, mq.queue(_QUEUE).claims(max_in_flight=100) as deliveries:
        send("ready")
        async for delivery in deliveries:
            # The server runs on this machine, so both use the same clock.
            send((str(delivery.id), time.time()))
            await delivery.ack()


def _hold(lab: Lab, samples: int) -> dict[str, float]:
    """Lease all messages before the consumer starts and never settle them. The leases expire one after the other."""
    payloads = [b"held"] * samples
    lab.conn.execute("select count(*) from trunkline.enqueue_many(%s, %s)", (_QUEUE, payloads))
    moments: dict[str, float] = {}
    for number in range(samples):
        lease = _HEAD_START + timedelta(seconds=_SPACING * number)
        row = lab.conn.execute("select id, deadline from trunkline.claim(%s, 1, %s)", (_QUEUE, lease)).fetchone()
        if row is None:
            raise RuntimeError("an enqueued message could not be claimed")
        moments[str(row[0])] = row[1].timestamp()
    return moments


def _schedule(lab: Lab, samples: int) -> dict[str, float]:
    moments: dict[str, float] = {}
    for number in range(samples):
        delay = _HEAD_START + timedelta(seconds=_SPACING * number)
        row = lab.conn.execute(
            "with d as (select trunkline.clock() + %s as at)"
            " select e.id, d.at from d, trunkline.enqueue_bytes(%s, %s, p_deliver_at => d.at) e",
            (delay, _QUEUE, b"due"),
        ).fetchone()
        if row is None:
            raise RuntimeError("a message with a due time was not accepted")
        moments[str(row[0])] = row[1].timestamp()
    return moments
