"""Rules of groups (promises G4 to G6 and G8)."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from msgspec.structs import replace

from tests.chaos.history import Op
from tests.chaos.log_rules import Logs, check_rows, fields_of
from tests.chaos.report import Report

# Seconds after its start during which a seek without a response may still have taken effect.
_LINGER = 30.0
# (topic, group, partition)
Place = tuple[str, str, int]


def check_groups(logs: Logs, by_call: dict[str, list[Op]], report: Report) -> None:
    fetches: dict[Place, list[Op]] = defaultdict(list)
    commits: dict[Place, list[Op]] = defaultdict(list)
    seeks: dict[Place, list[Op]] = defaultdict(list)
    keys = fields_of(by_call["publish"], "routing_key")
    for op in by_call["fetch"]:
        if op.outcome == "ok" and op.result["rows"]:
            fetches[op.args["topic"], op.args["group"], op.result["partition"]].append(op)
    for op in by_call["commit"]:
        if op.outcome == "info" or (op.outcome == "ok" and op.result["answer"] == "done"):
            commits[op.args["topic"], op.args["group"], op.args["partition"]].append(op)
    for op in by_call["seek"]:
        if op.outcome != "fail":
            seeks[op.args["topic"], op.args["group"], op.args["partition"]].append(op)
            report.totals["seeks"] += 1
    for final in by_call["final_group"]:
        for (target, partition), values in logs.items():
            if target != f"topic:{final.args['topic']}":
                continue
            place = (final.args["topic"], final.args["group"], partition)
            effects = sorted(e[1:] for e in final.args["effects"] or () if e[0] == partition)
            log = Reading(place, values, fetches[place], commits[place], seeks[place], effects)
            if final.args.get("keys") is not None:
                log = log.filtered([keys.get((target, value)) in final.args["keys"] for value in values], report)
            log.fetches.sort(key=lambda op: op.start)
            _check_coverage(place, log.fetches, log.values, report)
            _check_generations(place, log.fetches, log.commits, log.seeks, report)
            if final.args["effects"] is not None:
                _check_effects(place, log.effects, len(log.values), report)


@dataclass
class Reading:
    """The known state of a group in one partition."""

    place: Place
    values: list[str]
    fetches: list[Op]
    commits: list[Op]
    seeks: list[Op]
    effects: list[list[int]]

    def filtered(self, hits: list[bool], report: Report) -> Reading:
        """The same as if the log had only the messages that are for the group: offsets become their numbers among these."""
        numbers = list(accumulate(hits, initial=0))

        def fetched(op: Op) -> Op:
            for offset, value in op.result["rows"]:
                if offset <= len(hits) and not hits[offset - 1]:
                    report.add("unexpected", f"{op.proc} in group {self.place} got {value}, which does not match")
            rows = [[numbers[min(offset, len(hits))], value] for offset, value in op.result["rows"]]
            return replace(op, result=op.result | {"rows": rows})

        def moved(op: Op, by: int) -> Op:
            """A commit has the last offset that is done (by 0), a seek the next one (by 1)."""
            return replace(op, args=op.args | {"offset": numbers[min(op.args["offset"] - by, len(hits))] + by})

        return Reading(
            self.place,
            [value for value, hit in zip(self.values, hits, strict=True) if hit],
            [fetched(op) for op in self.fetches],
            [moved(op, 0) for op in self.commits],
            [moved(op, 1) for op in self.seeks],
            [[numbers[first], numbers[last]] for first, last in self.effects],
        )


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


def _check_generations(place: Place, fetches: list[Op], commits: list[Op], seeks: list[Op], report: Report) -> None:
    """Every fetch starts right after the last commit or at a seek, and a generation ends when the next begins."""
    born: dict[str, Op] = {}
    ended: dict[str, float] = {}
    position = _Position(commits, seeks)
    for op in fetches:
        first, low, high = op.result["rows"][0][0], position.surely(op), position.perhaps(op)
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
        if any(s.outcome == "ok" and ended.get(mine, 0.0) < s.start and s.end < commit.start for s in seeks):
            report.add("stale_commit", f"group {place}: {commit.proc} committed {commit.args['offset']} after a seek")
            continue
        for other, birth in births:
            if birth.end >= commit.start:
                break
            if other != mine and birth.start > ended.get(mine, 0.0):
                report.add(
                    "stale_commit",
                    f"group {place}: {commit.proc} committed {commit.args['offset']} after {birth.proc} took over",
                )
                break


class _Position:
    """Check a group's position at a fetch against its minimum and maximum. A seek voids the commits before it."""

    def __init__(self, commits: list[Op], seeks: list[Op]) -> None:
        self._commits = commits
        self._seeks = seeks
        self._known: dict[tuple[bool, float], _Highest] = {}

    def surely(self, fetch: Op) -> int:
        """The commits after every seek that may have come before the fetch."""
        since = max(
            (s.end if s.outcome == "ok" else s.start + _LINGER for s in self._seeks if s.start < fetch.end), default=0.0
        )
        return self._highest(True, since).before(fetch.start)

    def perhaps(self, fetch: Op) -> int:
        """The commits, and seeks, that did not end before a seek that was over before the fetch."""
        since = max((s.start for s in self._seeks if s.outcome == "ok" and s.end < fetch.start), default=0.0)
        return self._highest(False, since).before(fetch.end)

    def _highest(self, sure: bool, since: float) -> _Highest:
        if (sure, since) not in self._known:
            if sure:
                done = [c for c in self._commits if c.outcome == "ok" and c.start >= since]
                self._known[sure, since] = _Highest((c.end, c.args["offset"]) for c in done)
            else:
                moves = [(c.start, c.args["offset"]) for c in self._commits if c.end >= since]
                moves += [(s.start, s.args["offset"] - 1) for s in self._seeks if s.end >= since]
                self._known[sure, since] = _Highest(moves)
        return self._known[sure, since]


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
