"""Rules of groups (promises G4 to G6 and G8)."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate

from tests.chaos.history import Op
from tests.chaos.log_rules import Logs, check_rows
from tests.chaos.report import Report

# (topic, group, partition)
Place = tuple[str, str, int]


def check_groups(logs: Logs, by_call: dict[str, list[Op]], report: Report) -> None:
    fetches: dict[Place, list[Op]] = defaultdict(list)
    commits: dict[Place, list[Op]] = defaultdict(list)
    for op in by_call["fetch"]:
        if op.outcome == "ok" and op.result["rows"]:
            fetches[op.args["topic"], op.args["group"], op.result["partition"]].append(op)
    for op in by_call["commit"]:
        if op.outcome == "info" or (op.outcome == "ok" and op.result["answer"] == "done"):
            commits[op.args["topic"], op.args["group"], op.args["partition"]].append(op)
    for final in by_call["final_group"]:
        for (target, partition), values in logs.items():
            if target != f"topic:{final.args['topic']}":
                continue
            place = (final.args["topic"], final.args["group"], partition)
            fetches[place].sort(key=lambda op: op.start)
            _check_coverage(place, fetches[place], values, report)
            _check_generations(place, fetches[place], commits[place], report)
            if final.args["effects"] is not None:
                effects = sorted(e[1:] for e in final.args["effects"] if e[0] == partition)
                _check_effects(place, effects, len(values), report)


def _check_coverage(place: Place, fetches: list[Op], values: list[str], report: Report) -> None:
    """Every message at least once, each with its one content."""
    seen = bytearray(len(values))
    for op in fetches:
        rows = op.result["rows"]
        check_rows(rows, rows[0][0], values, f"{op.proc} in group {place}", report)
        for offset, _ in rows:
            if offset <= len(seen):
                seen[offset - 1] = 1
        report.totals["group deliveries"] += len(rows)
    if missed := seen.count(0):
        report.add("lost", f"group {place} never got offset {seen.index(0) + 1}", missed)


def _check_generations(place: Place, fetches: list[Op], commits: list[Op], report: Report) -> None:
    """Every fetch starts right after the last commit, and a generation ends when the next begins."""
    born: dict[str, Op] = {}
    ended: dict[str, float] = {}
    surely = _Highest((c.end, c.args["offset"]) for c in commits if c.outcome == "ok")
    perhaps = _Highest((c.start, c.args["offset"]) for c in commits)
    for op in fetches:
        first, low, high = op.result["rows"][0][0], surely.before(op.start), perhaps.before(op.end)
        if first <= low:
            report.add("commit_regress", f"group {place}: {op.proc} started at {first}, though {low} was committed")
        if first > high + 1:
            report.add("gap", f"group {place}: {op.proc} started at {first}, though only {high} was committed")
        born.setdefault(op.result["generation"], op)
        ended[op.result["generation"]] = op.end
    births = sorted(born.items(), key=lambda item: item[1].end)
    for commit in commits:
        if commit.outcome != "ok":
            continue
        mine = commit.args["generation"]
        for other, birth in births:
            if birth.end >= commit.start:
                break
            if other != mine and birth.start > ended.get(mine, 0.0):
                report.add(
                    "stale_commit",
                    f"group {place}: {commit.proc} committed {commit.args['offset']} after {birth.proc} took over",
                )
                break


class _Highest:
    """The highest offset up to a time."""

    def __init__(self, timed: Iterable[tuple[float, int]]) -> None:
        ordered = sorted(timed)
        self._times = [time for time, _ in ordered]
        self._offsets = list(accumulate((offset for _, offset in ordered), max))

    def before(self, time: float) -> int:
        at = bisect_left(self._times, time)
        return self._offsets[at - 1] if at else 0


def _check_effects(place: Place, effects: list[list[int]], head: int, report: Report) -> None:
    """Ranges written together with the commit: each offset in exactly one."""
    expected = 1
    for first, last in effects:
        if first < expected:
            report.add("duplicate", f"group {place}: effect of offset {first} happened twice", expected - first)
        elif first > expected:
            report.add("lost", f"group {place}: effect of offset {expected} is missing", first - expected)
        expected = max(expected, last + 1)
    if expected <= head:
        report.add("lost", f"group {place}: effect of offset {expected} is missing", head - expected + 1)
    report.totals["effects"] += head
