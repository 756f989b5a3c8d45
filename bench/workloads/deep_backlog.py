"""Claim latency with a deep backlog, compared with a backlog of a thousand messages.

Calls alternate between both queues.
"""

from __future__ import annotations

import time
from statistics import median, quantiles

from bench import crew
from bench.lab import Lab
from bench.peers import ours
from bench.plan import Plan
from bench.rounds import say
from bench.rows import Row, at_most, compare
from bench.session import Session

_PAYLOAD = 300
_SMALL = 1000


def run(lab: Lab, plan: Plan) -> list[Row]:
    numbers = {name: ours.make_queue(lab, name) for name in ("deep", "small")}
    say(f"  deep_backlog: loading {plan.deep:,} messages")
    began = time.monotonic()
    _load_deep(lab, plan, numbers["deep"])
    loaded = time.monotonic()
    ours.load(lab, numbers["small"], messages=_SMALL, payload=_PAYLOAD)
    for number in numbers.values():
        _sequence(lab, number)
    sequenced = time.monotonic()
    ours.calm(lab, numbers["deep"])
    ours.calm(lab, numbers["small"])
    say(
        f"  deep_backlog: loaded in {loaded - began:.0f} s, sequenced in {sequenced - loaded:.0f} s,"
        f" vacuumed in {time.monotonic() - sequenced:.0f} s"
    )
    rows: list[Row] = []
    # Batches first: single claims leave ticks of one message, which only the small queue would reach again.
    for batch in (100, 1):
        deep, small = f"{plan.deep:,} behind", f"{_SMALL:,} behind"
        measured: dict[str, list[float]] = {deep: [], small: []}
        tails: dict[str, list[float]] = {deep: [], small: []}
        for number in range(plan.rounds):
            taken = _take_turns(lab, numbers, batch, plan.seconds)
            for name, latencies in ((deep, taken["deep"]), (small, taken["small"])):
                measured[name].append(median(latencies) * 1000)
                tails[name].append(quantiles(latencies, n=100)[98] * 1000)
            say(
                f"  deep_backlog, claim {batch}, round {number + 1}/{plan.rounds}:"
                f" {measured[deep][-1]:.3f} and {measured[small][-1]:.3f} ms"
            )
        notes = {name: f"p99 {median(values):.2f} ms" for name, values in tails.items()}
        workload = f"deep_backlog, claim {batch}"
        rows += compare(workload, _PAYLOAD, "ms p50", measured, goals={small: at_most(1.3)}, notes=notes)
    rows.append(_explain(lab, plan, numbers["deep"]))
    for name in numbers:
        lab.value("select trunkline.delete_queue(%s)", name)
    return rows


def _explain(lab: Lab, plan: Plan, number: int) -> Row:
    """Measure explain_message for messages at random offsets of the log."""
    took: list[float] = []
    for place in range(1, 202):
        offset = 1 + (plan.deep - 1) * place // 202
        id = lab.value("select id from trunkline._read(%s, 0, 1048576, %s, %s)", number, offset, offset)
        start = time.perf_counter()
        explanation = lab.value("select trunkline.explain_message(%s)", id)
        took.append((time.perf_counter() - start) * 1000)
        if explanation.get("offset") != offset:
            raise RuntimeError(f"explain_message must report offset {offset}, got {explanation}")
    return Row(
        workload="deep_backlog, explain",
        payload=_PAYLOAD,
        name=f"explain_message, {plan.deep:,} in the log",
        value=median(took),
        unit="ms p50",
        rounds=took[:10],
        goal=at_most(5),
        note=f"p99 {quantiles(took, n=100)[98]:.2f} ms",
    )


def _load_deep(lab: Lab, plan: Plan, number: int) -> None:
    """Fill the log from two connections: one alone leaves the disk idle half of the time."""

    class Append:
        def __init__(self, session: Session, batches: int) -> None:
            self.latencies: list[float] = []
            self._session = session
            self._left = batches
            session.prepare(
                "append",
                f"select count(*) from trunkline.topics t cross join lateral trunkline._append(t, array_fill(convert_to("
                f"repeat('m', {_PAYLOAD}), 'UTF8'), array[10000]), null, null, null, null, null,"
                f" array_fill('application/octet-stream'::text, array[10000]), null) where t.topic_id = {int(number)}",
            )

        def __call__(self) -> int:
            if self._left == 0:
                return 0
            self._left -= 1
            self._session.call("append")
            return 10_000

    batches = plan.deep // 10_000
    job = crew.Job(
        name="load",
        make=lambda session, index: Append(session, batches // 2 + (index < batches % 2)),
        connections=2,
        processes=2,
    )
    crew.run(lab.url, [job], 3600)


def _sequence(lab: Lab, number: int) -> None:
    """Sequence all messages before the measurement: otherwise claims of the small queue would include that cost."""
    lab.value("select trunkline._tick(%s, 0, 1048576)", number)


def _take_turns(lab: Lab, numbers: dict[str, int], batch: int, seconds: float) -> dict[str, list[float]]:
    """Claim and ack from both queues in turn, enqueueing as many messages again to keep both depths constant."""
    session = Session(lab.url)
    other = Session(lab.url)
    steps = {name: ours.ClaimAck(session if name == "deep" else other, name, batch=batch) for name in ("deep", "small")}
    refill = {
        name: ours.PublishMany(session if name == "deep" else other, "enqueue_many", name, batch=batch, payload=_PAYLOAD)
        for name in steps
    }
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(steps["deep"].latencies) < 20:
        for name, step in steps.items():
            refill[name]()
            _sequence(lab, numbers[name])
            # A claim may return fewer messages than its limit, because it may end at a tick boundary.
            if step() == 0:
                raise RuntimeError(f"a claim of queue {name} returned no message")
    session.close()
    other.close()
    return {name: step.latencies for name, step in steps.items()}
