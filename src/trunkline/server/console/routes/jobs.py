"""Jobs: the list by state, kinds, workers and limits. One job is in job.py."""

from __future__ import annotations

from typing import Any

from trunkline.db.calls.job_records import JobRow, WorkerRow
from trunkline.errors import TrunklineError
from trunkline.filters import Selector
from trunkline.server.console import charts, copying, matching
from trunkline.server.console.reads import jobs as reads
from trunkline.server.console.web import Panel, Panels, Values, View, page
from trunkline.server.response import Response
from trunkline.types import SeriesPoint

_LIST, _KINDS, _WORKERS, _LIMITS = "jobs.html", "kinds.html", "workers.html", "limits.html"
STATES = ("running", "ready", "delayed", "blocked", "dead", "done")
_FIELDS = ("kind", "queue", "state", "id", "worker", "error", "attempt", "age", "text")
_READ_BY_DATABASE = ("kind", "queue", "state")
_PAGE, _SCANNED = 100, 1000
_SILENT = 60.0
listing = Panels("/jobs", _LIST)
of_kinds = Panels("/jobs/kinds", _KINDS)
of_workers = Panels("/jobs/workers", _WORKERS)
of_limits = Panels("/jobs/limits", _LIMITS)


def tabs(view: View, here: str) -> list[tuple[str, str, bool, None]]:
    """Return the tabs that all pages of jobs share."""
    found = [("All", view.url("jobs"), here == "all", None)]
    found += [(word.capitalize(), view.url("jobs", state=word), here == word, None) for word in STATES]
    return [
        *found,
        *((word.capitalize(), view.url("jobs", word), here == word, None) for word in ("kinds", "workers", "limits")),
    ]


def _chosen(view: View) -> tuple[Selector, str | None]:
    """Return the filter and what is wrong with it."""
    try:
        return matching.parse_plain(view.query.get("where", ""), _FIELDS), None
    except TrunklineError as exc:
        return Selector(), exc.message


def _state(view: View) -> str | None:
    name = view.query.get("state", "")
    return name if name in STATES else None


def _fields(row: JobRow, view: View) -> dict[str, str | float | None]:
    reads_errors = view.may("read", row.queue)
    return {
        "kind": row.kind,
        "queue": row.queue,
        "state": row.state,
        "id": str(row.id),
        "worker": row.worker,
        "error": row.error if reads_errors else None,
        "attempt": row.attempt,
        "age": (view.now - row.created_at).total_seconds() if row.created_at else None,
    }


@listing.add("queues")
async def rows(panel: Panel) -> Values:
    view = panel.view
    selector, error = _chosen(view)
    queue, kind = selector.only("queue"), selector.only("kind")
    state = _state(view) or selector.only("state")
    if queue is not None and not view.may("view", queue):
        queue, error = None, f"you may not see the queue {queue}"
    # the database takes one queue, kind and state; other conditions are looked at here
    rest = any(term.field not in _READ_BY_DATABASE or selector.only(term.field) is None for term in selector.terms)
    limit, after = (_SCANNED if rest else _PAGE), view.query.get("after") or None
    found = None
    if error is None and (state is None or state in STATES):
        key = ("jobs", queue, state, kind, after, limit)
        found = await panel.read("Jobs", key, lambda conn: reads.rows(conn, queue, state, kind, after, limit), seconds=3.0)
    shown: list[JobRow] = []
    try:
        shown = [
            row for row in found or () if view.may("view", row.queue) and matching.matches(selector, _fields(row, view))
        ]
    except TrunklineError as exc:
        error = exc.message
    last = found[-1].position if found and len(found) == limit else None
    return {
        "rows": shown[:_PAGE] if rest else shown,
        "scanned": len(found or ()),
        "matched": len(shown),
        "rest": rest,
        "known": found is not None,
        "where": view.query.get("where", ""),
        "error": error,
        "state": _state(view) or "",
        "terms": selector.terms,
        "more": view.with_query(after=last) if last else None,
    }


def knows(workers: list[WorkerRow], kind: str, view: View) -> int:
    """Return how many live workers know a kind."""
    return sum(kind in worker.info.get("kinds", ()) for worker in workers if alive(worker, view))


def alive(worker: WorkerRow, view: View) -> bool:
    return (view.now - worker.seen_at).total_seconds() < _SILENT


def _newest(points: list[SeriesPoint], field: str) -> float | None:
    return next((value for point in reversed(points) if (value := getattr(point, field)) is not None), None)


@of_kinds.add("queues")
async def kinds(panel: Panel) -> Values:
    view = panel.view
    found = await panel.read("Kinds", reads.KINDS, reads.kinds, seconds=2.0)
    workers = await panel.read("Workers", reads.WORKERS, reads.workers)
    series: dict[tuple[str, str], list[SeriesPoint]] = {}
    for point in found or ():
        queue, _, kind = point.name.partition("/")
        if view.may("view", queue):
            series.setdefault((queue, kind), []).append(point)
    shown: list[dict[str, Any]] = []
    for (queue, kind), points in series.items():
        settled = sum(point.in_per_second or 0 for point in points)
        failed = sum(point.failed_per_second or 0 for point in points)
        shown.append(
            {
                "queue": queue,
                "kind": kind,
                "rate": _newest(points, "in_per_second"),
                "failed": failed / settled if settled else None,
                "p50": _newest(points, "work_p50"),
                "p99": _newest(points, "work_p99"),
                "spark": charts.sparkline([point.in_per_second for point in points], cell=True),
                "workers": None if workers is None else knows(workers, kind, view),
            }
        )
    shown.sort(key=lambda row: (bool(row["workers"]), -(row["failed"] or 0), row["kind"]))
    return {"rows": shown, "known": found is not None}


@of_workers.add("queues")
async def workers(panel: Panel) -> Values:
    view = panel.view
    found = await panel.read("Workers", reads.WORKERS, reads.workers)
    shown = []
    for worker in found or ():
        names = dict(worker.info.get("queues") or {})
        seen = {name: slots for name, slots in names.items() if view.may("view", name)}
        if seen or (view.may("view") and not names):
            slots, running = sum(names.values()), int(worker.info.get("running") or 0)
            share = 100 * running / slots if slots else 0
            shown.append(
                {
                    "worker": worker,
                    "queues": sorted(seen),
                    "slots": slots,
                    "running": running,
                    "bar": charts.meter([(share, "c-leased")], f"{running} of {slots}", cell=True),
                    "kinds": worker.info.get("kinds", ()),
                    "alive": alive(worker, view),
                }
            )
    versions = {row["worker"].info.get("version") for row in shown if row["alive"]}
    return {
        "rows": [row for row in shown if row["alive"]],
        "ended": [row for row in shown if not row["alive"]],
        "known": found is not None,
        "versions": len(versions),
    }


@of_limits.add("queues")
async def limits(panel: Panel) -> Values:
    # a limit belongs to no queue
    if not panel.view.may("view"):
        return {"rows": [], "known": True, "allowed": False}
    found = await panel.read("Limits", reads.LIMITS, reads.limits)
    return {
        "rows": [
            (
                row,
                charts.meter(
                    [(100 * row.running / row.max_running, "c-leased")], f"{row.running} of {row.max_running}", cell=True
                )
                if row.max_running
                else "",
            )
            for row in found or ()
        ],
        "known": found is not None,
        "allowed": True,
    }


@page("/jobs")
async def job_list(view: View) -> Response:
    """Jobs by state."""
    here = _state(view) or "all"
    return await view.page(_LIST, listing, title="Jobs", nav="jobs", tabs=tabs(view, here), copies=copying.jobs())


async def _part(view: View, template: str, panels: Panels, name: str, copies: copying.Copies) -> Response:
    title = name.capitalize()
    crumbs = [("Jobs", view.url("jobs")), (title, None)]
    return await view.page(template, panels, title=title, nav="jobs", crumbs=crumbs, tabs=tabs(view, name), copies=copies)


@page("/jobs/kinds")
async def kind_list(view: View) -> Response:
    """Kinds of jobs with their rates, failures and workers."""
    return await _part(view, _KINDS, of_kinds, "kinds", copying.jobs())


@page("/jobs/workers")
async def worker_list(view: View) -> Response:
    """Job workers."""
    return await _part(view, _WORKERS, of_workers, "workers", copying.workers())


@page("/jobs/limits")
async def limit_list(view: View) -> Response:
    """Limits over all processes, and who holds them."""
    return await _part(view, _LIMITS, of_limits, "limits", copying.limits())


ROUTES = [
    job_list,
    *listing.routes,
    kind_list,
    *of_kinds.routes,
    worker_list,
    *of_workers.routes,
    limit_list,
    *of_limits.routes,
]
