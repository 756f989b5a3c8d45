"""History in, report out: pure functions, no database.

Where two calls overlapped in time, either order is allowed; a rule only counts what no order explains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.chaos.group_rules import check_groups
from tests.chaos.history import Op
from tests.chaos.log_rules import check_log, collect_logs
from tests.chaos.queue_rules import check_queues
from tests.chaos.redrives import collect_redriven
from tests.chaos.report import Report

# What a crash, a lock time-out and a serialization failure look like, in SQL and over HTTP; anything else is a finding.
FAULTS = {"57P01", "57P02", "57P03", "55P03", "40001", "08006", "08001", "08003"}
FAULTS |= {"database_unavailable", "outcome_unknown", "busy", "retryable_conflict", "stopping"}
# What a member hears whose lease, or whose last fetch, was forgotten.
FAULTS |= {"lease_lost", "offset_ahead"}


def check(history: Iterable[Op]) -> Report:
    """All rules over one history that ends with a full drain and the final reads."""
    report = Report()
    by_call: dict[str, list[Op]] = defaultdict(list)
    for op in history:
        by_call[op.f].append(op)
        if op.result.get("code") not in (None, *FAULTS):
            report.add("error", f"{op.proc} {op.f}: {op.result['code']} {op.result.get('message')}")
    logs = collect_logs(by_call["final_log"], report)
    redriven = collect_redriven(by_call, report)
    check_log(logs, by_call, redriven, report)
    check_groups(logs, by_call, report)
    check_queues(logs, by_call, redriven, report)
    report.totals["calls"] = sum(len(ops) for ops in by_call.values())
    report.totals["calls without answer"] = sum(op.outcome == "info" for ops in by_call.values() for op in ops)
    report.totals["rotations"] = len({op.result["rotated"] for op in by_call["upkeep"] if op.outcome == "ok"})
    leases = {op.result["leases"] for op in by_call["upkeep"] if op.outcome == "ok" and "leases" in op.result}
    report.totals["rotations of leases"] = len(leases)
    report.totals["sealed segments"] = sum(op.args["sealed"] for op in by_call["final_store"])
    report.totals["crashes of Postgres"] = len(by_call["crash"])
    return report
