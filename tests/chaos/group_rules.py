"""Rules of groups (promises G4 to G6 and G8)."""

from __future__ import annotations

from collections import defaultdict

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
    """A generation reads on without a step back or a jump, starts after the last commit, and ends when the next begins.
    A process that did not get what came before in its generation starts after the last commit too."""
    last: dict[tuple[str, str], int] = {}
    born: dict[str, Op] = {}
    ended: dict[str, float] = {}
    for op in fetches:
        generation, rows = op.result["generation"], op.result["rows"]
        first, before = rows[0][0], last.get((generation, op.proc))
        if before is None:
            _check_start(place, op, first, commits, report)
        elif first != before + 1:
            rule = "gap" if first > before + 1 else "order"
            report.add(rule, f"group {place}: {op.proc} got offset {first} after {before} in one generation")
        born.setdefault(generation, op)
        last[generation, op.proc] = rows[-1][0]
        ended[generation] = op.end
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


def _check_start(place: Place, fetch: Op, first: int, commits: list[Op], report: Report) -> None:
    surely = max((c.args["offset"] for c in commits if c.outcome == "ok" and c.end < fetch.start), default=0)
    perhaps = max((c.args["offset"] for c in commits if c.start < fetch.end), default=0)
    if first <= surely:
        report.add("commit_regress", f"group {place}: {fetch.proc} started at {first}, though {surely} was committed")
    if first > perhaps + 1:
        report.add("gap", f"group {place}: {fetch.proc} started at {first}, though only {perhaps} was committed")


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
