"""Pipelines: Spark queries with their progress, and what the archives of topics cover."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from trunkline.db.calls.archive import ArchiveStats
from trunkline.db.calls.list_records import Progress
from trunkline.db.calls.pipelines import QUERY, merge_queries
from trunkline.db.calls.spark import Pipeline
from trunkline.server.console import charts, copying, shapes
from trunkline.server.console.reads import pipelines as reads
from trunkline.server.console.web import Panel, Panels, Values, View, page
from trunkline.server.response import Response

_LIST, _DETAIL = "pipelines.html", "pipeline.html"
_SILENT = timedelta(minutes=4)
_PAGE = 100
_POINTS = 300
_REPORTS = 20
_STATES = ("running", "failed", "stopped", "done")
_SMALL_FILE = 4_000_000
_STAGES = {
    "latestOffset": "offsets",
    "getBatch": "plan",
    "queryPlanning": "plan",
    "addBatch": "read and write",
    "walCommit": "write-ahead log",
    "commitOffsets": "commit",
}
"""Names of Spark's stages of a batch. Their sum is `triggerExecution`."""
_LOOKS = ("c-ready", "c-delayed", "c-leased", "c-acked", "c-dead", "c-faint")
listing = Panels("/pipelines", _LIST, object=None)
one = Panels("/pipelines/status", _DETAIL, object=None)


def silent(view: View, row: Pipeline) -> bool:
    """Return whether a running pipeline has not reported for minutes."""
    return row.state == "running" and view.now - row.updated_at > _SILENT


@listing.add("pipelines")
async def rows(panel: Panel) -> Values:
    view = panel.view
    found = await panel.read("Pipelines", reads.LIST, reads.all_pipelines)
    every = merge_queries(found or [])
    state = view.query.get("state", "")
    chosen = [row for row in every if state not in _STATES or row.state == state]
    chosen.sort(key=lambda row: (row.state != "failed", not silent(view, row), row.state != "running", row.name))
    counts = {name: sum(row.state == name for row in every) for name in _STATES}
    start = next((place + 1 for place, row in enumerate(chosen) if row.name == view.query.get("after")), 0)
    more = len(chosen) > start + _PAGE
    return {
        "rows": [{"row": row, "silent": silent(view, row)} for row in chosen[start : start + _PAGE]],
        "known": found is not None,
        "count": len(every),
        "states": [
            ("All", view.url("pipelines"), state not in _STATES, len(every)),
            *((shapes.state(name)[1], view.url("pipelines", state=name), state == name, counts[name]) for name in _STATES),
        ],
        "reads": view.may("read"),
        "more": view.with_query(after=chosen[start + _PAGE - 1].name) if more else None,
    }


def coverage(rows: list[ArchiveStats]) -> dict[str, Any]:
    """Return how much of a topic is in its archive, in the log, and in neither: in messages and as parts of a bar."""
    archived = sum(max(0, min(row.archived_upto, row.head) - (row.earliest_archived or 1) + 1) for row in rows if row.files)
    gap = sum(max(0, row.earliest_live - row.archived_upto - 1) for row in rows if row.location)
    waiting = sum(max(0, row.head - max(row.archived_upto, row.earliest_live - 1)) for row in rows)
    both = sum(max(0, row.archived_upto - row.earliest_live + 1) for row in rows if row.files)
    whole = max(1, archived + gap + waiting)
    parts = [
        (100 * (archived - both) / whole, "c-faint"),
        (100 * both / whole, "c-acked"),
        (100 * gap / whole, "c-dead"),
        (100 * waiting / whole, "c-ready"),
    ]
    files, size = sum(row.files for row in rows), sum(row.bytes for row in rows)
    first = rows[0]
    words = (
        f"{first.topic}: {shapes.number(archived - both)} only in the archive, {shapes.number(both)} in archive and log, "
        f"{shapes.number(gap)} lost, {shapes.number(waiting)} not archived yet"
    )
    return {
        "topic": first.topic,
        "location": first.location,
        "required": first.required,
        "archived": archived,
        "lag": waiting,
        "gap": gap,
        "files": files,
        "bytes": size,
        "small": bool(files > len(rows) * 2 and size / files < _SMALL_FILE),
        "bar": charts.meter(parts, words),
        "partitions": len(rows),
    }


@listing.add("pipelines")
async def archives(panel: Panel) -> Values:
    view = panel.view
    found = await panel.read("Archives", reads.ARCHIVES, reads.archives)
    by_topic: dict[str, list[ArchiveStats]] = {}
    for row in found or ():
        if view.may("view", row.topic):
            by_topic.setdefault(row.topic, []).append(row)
    shown = [coverage(rows) for rows in by_topic.values()]
    shown.sort(key=lambda row: (-row["gap"], -row["lag"], row["topic"]))
    return {"rows": shown[:_PAGE], "count": len(shown), "known": found is not None, "reads": view.may("read")}


def _named(view: View) -> str:
    return view.query.get("name", "")[:300]


async def _pipeline(panel: Panel) -> Pipeline | None:
    """Return the pipeline that the address names, with the rate and lag of its query."""
    found = await panel.read("Pipelines", reads.LIST, reads.all_pipelines)
    name = _named(panel.view)
    row = next((row for row in merge_queries(found or []) if row.name == name), None)
    return row or next((row for row in found or () if row.name == name), None)


async def _query(panel: Panel) -> Pipeline | None:
    """Return the row with the progress: that of the pipeline's streaming query if it has one."""
    found = await panel.read("Pipelines", reads.LIST, reads.all_pipelines)
    name = _named(panel.view)
    by_name = {row.name: row for row in found or ()}
    return by_name.get(name + QUERY) or by_name.get(name)


@one.add("pipelines")
async def status(panel: Panel) -> Values:
    view, row = panel.view, await _pipeline(panel)
    return {
        "row": row,
        "name": _named(view),
        "silent": row is not None and silent(view, row),
        "reads": view.may("read"),
        "job": (row.detail.get("job") if row else None) or None,
    }


def _reports(panel: Panel, name: str) -> Any:
    key = ("pipeline progress", name)
    return panel.read("Progress", key, lambda conn: reads.progress(conn, name, None, _POINTS))


@one.add("pipelines")
async def flow(panel: Panel) -> Values:
    view, row = panel.view, await _query(panel)
    found: list[Progress] = list(reversed(await _reports(panel, row.name) or [])) if row else []
    if not found:
        return {"figures": []}
    times = [each.at for each in found]
    span: dict[str, Any] = {"since": times[0], "until": max(times[-1], times[0] + timedelta(minutes=1)), "zone": view.zone}
    rate = [each.rows_per_second for each in found]
    took = [_took(each) for each in found]
    lag = [None if each.lag is None else float(each.lag) for each in found]

    def last(values: list[float | None]) -> float | None:
        return next((value for value in reversed(values) if value is not None), None)

    def line(label: str, values: list[float | None], write: Any, look: str) -> charts.Line:
        return charts.Line(label=label, values=values, look=look, now=write(last(values)), area=True)

    return {
        "figures": [
            charts.chart(
                "Rows", "per second", [line("Rows", rate, shapes.rate, "c-acked")], times, tick=shapes.rate, **span
            ),
            charts.chart(
                "Batch time",
                "per batch",
                [line("Took", took, shapes.duration, "c-ink")],
                times,
                tick=shapes.duration,
                **span,
            ),
            charts.chart(
                "Lag", "messages", [line("Behind", lag, shapes.number, "c-ready")], times, tick=shapes.number, **span
            ),
        ]
    }


def _durations(detail: dict[str, Any]) -> dict[str, float]:
    found = detail.get("durations")
    if not isinstance(found, dict):
        return {}
    return {str(name): float(value) / 1000 for name, value in found.items() if isinstance(value, int | float)}


def _took(report: Progress) -> float | None:
    return _durations(report.detail).get("triggerExecution")


@one.add("pipelines")
async def batch(panel: Panel) -> Values:
    """The last batch: its stages, the sources with their offsets, and the sink."""
    view, row = panel.view, await _query(panel)
    detail = row.detail if row else {}
    durations = _durations(detail)
    whole = durations.pop("triggerExecution", 0.0) or sum(durations.values())
    stages: list[dict[str, Any]] = [
        {"name": name, "word": _STAGES.get(name, ""), "seconds": value, "look": _LOOKS[place % len(_LOOKS)]}
        for place, (name, value) in enumerate(sorted(durations.items(), key=lambda item: -item[1]))
    ]
    parts = [(100 * each["seconds"] / whole, each["look"]) for each in stages] if whole else []
    sources = [each for each in _listed(detail.get("sources")) if isinstance(each, dict)]
    sink = detail.get("sink")
    return {
        "row": row,
        "stages": stages,
        "whole": whole,
        "bar": charts.meter(parts, "Stages of the last batch") if parts else None,
        "sources": sources,
        "sink": sink if isinstance(sink, dict) else None,
        "reads": view.may("read"),
    }


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


@one.add("pipelines")
async def commits(panel: Panel) -> Values:
    row = await _query(panel)
    if row is None:
        return {"found": [], "known": False}
    names = [row.name.removesuffix(QUERY), row.name, row.detail.get("query"), row.detail.get("writer")]
    writers = tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))
    found = await panel.read("Commits", ("commits", writers), lambda conn: reads.commits(conn, writers))
    return {"found": found or [], "known": found is not None}


@one.add("pipelines")
async def reports(panel: Panel) -> Values:
    view, row = panel.view, await _query(panel)
    if row is None:
        return {"rows": [], "known": False, "older": None, "reads": False}
    text = view.query.get("before", "")
    before = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
    name = row.name
    found = await panel.read(
        "Reports", ("pipeline reports", name, before), lambda conn: reads.progress(conn, name, before, _REPORTS)
    )
    rows = found or []
    older = view.url("pipelines", "status", name=_named(view), before=rows[-1].report_no) if len(rows) == _REPORTS else None
    return {"rows": rows, "known": found is not None, "older": older, "reads": view.may("read"), "took": _took}


@page("/pipelines", object=None)
async def pipeline_list(view: View) -> Response:
    """All pipelines and streaming queries, and the archives of topics."""
    return await view.page(_LIST, listing, title="Pipelines", nav="pipelines", copies=copying.pipelines())


@page("/pipelines/status", object=None)
async def pipeline_detail(view: View) -> Response:
    """One pipeline: its progress, its last batch, and what it published."""
    name = _named(view)
    return await view.page(
        _DETAIL,
        one,
        title=name or "Pipeline",
        nav="pipelines",
        crumbs=[("Pipelines", view.url("pipelines")), (name or "Pipeline", None)],
        copies=copying.pipeline(name) if name else [],
    )


ROUTES = [pipeline_list, *listing.routes, pipeline_detail, *one.routes]
