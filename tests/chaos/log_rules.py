"""Rules of the log (promises P1 to P4 and G1 to G3): what was published against what can be read."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.chaos.history import Op
from tests.chaos.redrives import Redriven
from tests.chaos.report import Report

# (target, partition) -> contents in offset order; a target is "topic:<name>" or "queue:<name>"
Logs = dict[tuple[str, int], list[str]]


def collect_logs(finals: list[Op], report: Report) -> Logs:
    """The final content, read twice: both must agree, and offsets must be 1, 2, 3 ..."""
    passes: dict[int, dict[tuple[str, int], list[list[Any]]]] = defaultdict(lambda: defaultdict(list))
    for op in finals:
        passes[op.args["number"]][op.args["target"], op.args["partition"]].extend(op.args["rows"])
    logs: Logs = {}
    for place, rows in passes[1].items():
        logs[place] = [value for _, value in rows]
        for expected, (offset, value) in enumerate(rows, 1):
            if offset != expected:
                report.add("gap", f"final read of {place}: offset {offset} ({value}) where {expected} was next")
                break
        again = passes[2][place]
        for one, two in zip(rows, again, strict=False):
            if one != two:
                report.add("divergent", f"two final reads of {place}: {one} and {two}")
        if len(again) < len(rows):
            report.add("divergent", f"second final read of {place} is shorter: {len(again)} of {len(rows)}")
    return logs


def fields_of(publishes: list[Op], name: str) -> dict[tuple[str, str], str | None]:
    """A field of each message, by target and content."""
    return {
        (part["target"], value): part.get(name) for op in publishes for part in op.args["parts"] for value in part["values"]
    }


def check_log(logs: Logs, by_call: dict[str, list[Op]], redriven: Redriven, report: Report) -> None:
    check_publishes(logs, by_call["publish"], redriven, report)
    check_reads(logs, by_call["read"] + by_call["head"], report)


def check_publishes(logs: Logs, publishes: list[Op], redriven: Redriven, report: Report) -> None:
    """Accepted: there once. Failed: absent. Unknown: all of it or nothing. And once more for each redrive."""
    found_at: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for (target, partition), values in logs.items():
        for offset, value in enumerate(values, 1):
            found_at[target, value].append((partition, offset))
    again = {(f"queue:{queue}", value): count for queue in redriven.lives for value, count in redriven.again(queue).items()}
    for (target, value), count in again.items():
        if len(found_at[target, value]) < count:
            report.add("lost", f"{value} was redriven {count} times and is in {target} at {found_at[target, value]}")
    places: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for (target, value), found in found_at.items():
        published = len(found) - again.get((target, value), 0)
        if published > 1:
            report.add("duplicate", f"{value} in {target} at {found}, and redriven {len(found) - published} times")
        if published > 0:
            places[target, value] = found
    sent: set[tuple[str, str]] = set()
    last: dict[tuple[str, str, int], int] = {}
    for op in publishes:
        arrived = total = 0
        for part in op.args["parts"]:
            target = part["target"]
            for value in part["values"]:
                total += 1
                sent.add((target, value))
                if (target, value) not in places:
                    if op.outcome == "ok":
                        report.add("lost", f"{value} of {op.proc} is not in {target}")
                    continue
                arrived += 1
                # Of several, it is unknown which one is the first.
                place, *redrives = places[target, value]
                if op.outcome == "fail":
                    report.add("unexpected", f"{value} of {op.proc} failed and is in {target} at {place}")
                elif op.outcome == "ok" and not part.get("delay") and not redrives:
                    writer = (op.proc, target, place[0])
                    if place[1] < last.get(writer, 0):
                        report.add("order", f"{value} of {op.proc} is in {target} at {place}, before an earlier one")
                    last[writer] = place[1]
        if op.outcome == "info" and 0 < arrived < total:
            report.add(
                "torn", f"{arrived} of {total} messages of a publish by {op.proc}, first {op.args['parts'][0]['values'][0]}"
            )
        report.totals[f"messages {_WORDS[op.outcome]}"] += total
    for target, value in places.keys() - sent:
        report.add("unexpected", f"nobody sent {value}, and it is in {target} at {places[target, value]}")
    report.totals["messages in logs"] += len(places)


_WORDS = {"ok": "accepted", "fail": "rolled back", "info": "without answer"}


def check_reads(logs: Logs, reads: list[Op], report: Report) -> None:
    """Each reader: dense, the same as in the end, and never again less than it knew of."""
    known: dict[tuple[str, str, int], int] = defaultdict(int)
    for op in sorted(reads, key=lambda op: op.start):
        if op.outcome != "ok":
            continue
        target, partition = op.args["target"], op.args["partition"]
        session = (op.proc, target, partition)
        final = logs.get((target, partition), [])
        if op.f == "head":
            head = op.result["head"]
            if head < known[session]:
                report.add("late_arrival", f"{op.proc} was told head {head} of {target}/{partition} after {known[session]}")
            known[session] = max(known[session], head)
            continue
        rows = op.result["rows"]
        first = op.args["first"]
        check_rows(rows, first, final, f"{op.proc} on {target}/{partition}", report)
        due = min(known[session], first + op.args["limit"] - 1)
        if len(rows) < due - first + 1:
            report.add(
                "late_arrival", f"{op.proc} read {len(rows)} from {first} of {target}/{partition}, knowing offset {due}"
            )
        missing = set(op.args.get("expect", ())) - {value for _, value in rows}
        if missing:
            report.add(
                "late_arrival", f"{op.proc} published {sorted(missing)[0]} and did not find it in {target}/{partition}"
            )
        if rows:
            known[session] = max(known[session], rows[-1][0])
        report.totals["reads of messages"] += len(rows)


def check_rows(rows: list[list[Any]], first: int, final: list[str], who: str, report: Report) -> None:
    """Rows that a reader got from offset `first` on must be dense and equal those in the final log."""
    for expected, (offset, value) in enumerate(rows, first):
        if offset != expected:
            report.add("gap", f"{who}: offset {offset} where {expected} was next")
            return
        if offset > len(final):
            report.add("divergent", f"{who}: {value} at offset {offset} was seen, and is gone")
        elif final[offset - 1] != value:
            report.add("divergent", f"{who}: offset {offset} was {value}, and is {final[offset - 1]}")
