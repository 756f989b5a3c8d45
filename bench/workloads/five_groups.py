"""Five groups that read all messages, 1 kB payloads, 100 per batch: messages in and out per second, and CPU use."""

from __future__ import annotations

import ctypes
import multiprocessing
from collections.abc import Callable
from statistics import median
from typing import Any

from bench import crew
from bench.lab import Lab
from bench.machine import CpuMeter
from bench.peers import counter_log, ours
from bench.plan import Plan
from bench.rounds import say
from bench.rows import Row, ratio
from bench.session import Session

_PAYLOAD = 1024
_BATCH = 100
_GROUPS = 5
# Reference figures on 4 vCPU: 5,000 in, 25,000 out.
_IN, _OUT = 5_000, 25_000
# A publisher waits while the slowest group lags this far behind, so that "in" is a rate that the groups can sustain.
_LAG = 2_000


class _Followed:
    """A publish step that waits for the slowest group."""

    def __init__(self, step: crew.Step, counts: Any) -> None:
        self.latencies: list[float] = []
        self._step = step
        self._counts = counts

    def __call__(self) -> int:
        if self._counts[_GROUPS] - min(self._counts[:_GROUPS]) > _LAG:
            return 0
        moved = self._step()
        with self._counts.get_lock():
            self._counts[_GROUPS] += moved
        return moved


class _Counted:
    """A fetch step that records its group's position.

    Like a woken consumer, it fetches only if messages are available.
    """

    def __init__(self, step: crew.Step, counts: Any, group: int) -> None:
        self.latencies: list[float] = []
        self._step = step
        self._counts = counts
        self._group = group

    def __call__(self) -> int:
        if self._counts[self._group] >= self._counts[_GROUPS]:
            return 0
        moved = self._step()
        self._counts[self._group] += moved
        return moved


class _Flow:
    """Result of one run: messages per second in and out, and CPU use of the machine."""

    def __init__(self, in_rate: float, out_rate: float, cpu: float) -> None:
        self.in_rate = in_rate
        self.out_rate = out_rate
        self.cpu = cpu


def run(lab: Lab, plan: Plan) -> list[Row]:
    flows: dict[str, list[_Flow]] = {}
    contestants: dict[str, Callable[[], _Flow]] = {
        ours.NAME: lambda: _ours(lab, plan, None),
        "trunkline, at 5,000/s in": lambda: _ours(lab, plan, _IN),
        counter_log.NAME: lambda: _counter(lab, plan),
    }
    for number in range(plan.rounds):
        for name, measure in contestants.items():
            flow = measure()
            flows.setdefault(name, []).append(flow)
            say(
                f"  five_groups, round {number + 1}/{plan.rounds}: {name}"
                f" {flow.in_rate:,.0f} in, {flow.out_rate:,.0f} out, CPU {flow.cpu:.0f} %"
            )
    return _rows(flows)


def _rows(flows: dict[str, list[_Flow]]) -> list[Row]:
    rows = []
    for name, rounds in flows.items():
        cpu = f"CPU {median(flow.cpu for flow in rounds):.0f} % of the machine, load generator included"
        for direction, values, reference in (
            ("in", [flow.in_rate for flow in rounds], _IN),
            ("out", [flow.out_rate for flow in rounds], _OUT),
        ):
            best = [flow.in_rate if direction == "in" else flow.out_rate for flow in flows[ours.NAME]]
            ratios = ratio(best, values) if name == counter_log.NAME else []
            rows.append(
                Row(
                    workload="five_groups",
                    payload=_PAYLOAD,
                    name=f"{name}, {direction}",
                    value=median(values),
                    unit="msg/s",
                    rounds=values,
                    ratio=median(ratios) if ratios else None,
                    ratios=ratios,
                    note=f"{cpu}; reference {reference:,} on 4 vCPU" if name == ours.NAME else cpu,
                )
            )
    return rows


def _ours(lab: Lab, plan: Plan, rate: int | None) -> _Flow:
    topic = "five-groups"
    number = ours.make_topic(lab, topic)
    for group in range(_GROUPS):
        lab.conn.execute("select trunkline.create_group(%s, %s)", (topic, f"group-{group}"))
    ours.calm(lab, number)
    flow = _measure(
        lab,
        plan,
        rate,
        publish=lambda session: ours.PublishMany(session, "publish_many", topic, batch=_BATCH, payload=_PAYLOAD),
        read=lambda session, group: ours.FetchCommit(session, topic, f"group-{group}", batch=_BATCH),
    )
    lab.value("select trunkline.delete_topic(%s, p_force => true)", topic)
    return flow


def _counter(lab: Lab, plan: Plan) -> _Flow:
    counter_log.make(lab, groups=_GROUPS)
    counter_log.calm(lab)
    return _measure(
        lab,
        plan,
        None,
        publish=lambda session: counter_log.PublishMany(session, batch=_BATCH, payload=_PAYLOAD),
        read=lambda session, group: counter_log.ClaimFetch(session, group, batch=_BATCH),
    )


def _measure(
    lab: Lab,
    plan: Plan,
    rate: int | None,
    *,
    publish: Callable[[Session], crew.Step],
    read: Callable[[Session, int], crew.Step],
) -> _Flow:
    # The last element counts published messages, the others the messages read by each group.
    counts = multiprocessing.get_context("fork").Array(ctypes.c_int64, _GROUPS + 1)
    publishers = 4
    jobs = [
        crew.Job(
            name="publish",
            make=lambda session, _: _Followed(publish(session), counts),
            connections=publishers,
            processes=1,
            empty=0.002,
            warm_up=0,
            every=None if rate is None else publishers * _BATCH / rate,
        ),
        crew.Job(
            name="read",
            make=lambda session, group: _Counted(read(session, group), counts, group),
            connections=_GROUPS,
            processes=_GROUPS,
            empty=0.002,
            warm_up=0,
        ),
    ]
    meter = CpuMeter()
    tallies = crew.run(lab.url, jobs, plan.seconds)
    return _Flow(tallies["publish"].rate, tallies["read"].rate, meter.percent())
