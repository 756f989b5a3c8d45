"""Queues: the list, and one queue with its messages by state, deliveries and settings."""

from __future__ import annotations

from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

from trunkline.errors import TrunklineError
from trunkline.server.console import charts, copying, matching, shapes
from trunkline.server.console.reads import overview
from trunkline.server.console.reads import queues as reads
from trunkline.server.console.reads import runs as run_reads
from trunkline.server.console.web import Panel, Panels, Values, View, page
from trunkline.server.response import Response
from trunkline.types import QueueStats, SeriesPoint

_LIST, _DETAIL = "queues.html", "queue.html"
_PAGE, _ROWS = 50, 100
_SORTS = ("worst", "name", "ready", "leased", "delayed", "dead")
_HOUR, _STEP = timedelta(hours=1), timedelta(minutes=2)
_DAY, _LONG_STEP = timedelta(hours=6), timedelta(minutes=4)
_TABS = ("ready", "delayed", "leased", "dead", "history", "completed", "feeds", "settings")
_ALIAS = {"waiting": "ready", "in-flight": "leased", "done": "completed"}
_FIELDS = ("worker", "error", "attempt", "topic", "text")
listing = Panels("/queues", _LIST)
one = Panels("/queues/{queue:str}", _DETAIL, object="queue")


def worst(row: QueueStats) -> tuple[Any, ...]:
    """Sort the queues with old messages first, then those with dead letters."""
    return (-row.oldest_age, -row.dead, -row.ready, row.queue)


def _last(points: list[SeriesPoint], field: str) -> float | None:
    """Return the newest known value, of the last ten minutes at most."""
    return next((value for point in points[:-6:-1] if (value := getattr(point, field)) is not None), None)


@listing.add("queues")
async def rows(panel: Panel) -> Values:
    view = panel.view
    stats = await panel.read("Queue statistics", overview.STATS, overview.stats)
    seen = [row for row in stats.queues if view.may("view", row.queue)] if stats else []
    where = view.query.get("where", "").strip()[:200]
    pattern = where if "*" in where else f"*{where}*"
    shown = [row for row in seen if not where or fnmatchcase(row.queue, pattern.replace("[", "[[]"))]
    sort = view.query.get("sort", "worst")
    sort = sort if sort in _SORTS else "worst"
    if sort == "worst":
        shown.sort(key=worst)
    else:
        shown.sort(key=lambda row: row.queue if sort == "name" else (-getattr(row, sort), row.queue))
    first = view.query.get("after", "")
    start = next((place + 1 for place, row in enumerate(shown) if row.queue == first), 0)
    part = shown[start : start + _PAGE]
    names = tuple(row.queue for row in part)
    points: dict[str, list[SeriesPoint]] = {}
    if names:
        found = await panel.read("Rates", ("queue lines", names), lambda conn: reads.lines(conn, names, _HOUR, _STEP))
        for point in found or ():
            points.setdefault(point.name, []).append(point)
    return {
        "rows": [
            {
                "stats": row,
                "in": _last(points.get(row.queue, []), "in_per_second"),
                "out": _last(points.get(row.queue, []), "out_per_second"),
                "failed": _last(points.get(row.queue, []), "failed_per_second"),
                "wait": _last(points.get(row.queue, []), "wait_p99"),
                "work": _last(points.get(row.queue, []), "work_p99"),
                "spark": charts.sparkline([point.lag for point in points.get(row.queue, [])], look="c-ready", cell=True),
            }
            for row in part
        ],
        "count": len(seen),
        "matched": len(shown),
        "known": stats is not None,
        "sort": sort,
        "where": where,
        "more": view.with_query(after=part[-1].queue) if len(shown) > start + _PAGE else None,
    }


def tab_of(view: View) -> str:
    """Return the chosen tab. Links may name it `tab` or `state`."""
    name = view.query.get("tab") or view.query.get("state", "")
    name = _ALIAS.get(name, name)
    return name if name in _TABS else "ready"


def _name(panel: Panel | View) -> str:
    view = panel.view if isinstance(panel, Panel) else panel
    return str(view.path["queue"])


async def _detail(panel: Panel) -> reads.Detail | None:
    name = _name(panel)
    return await panel.read("This queue", ("queue", name), lambda conn: reads.detail(conn, name))


async def _points(panel: Panel) -> list[SeriesPoint]:
    name = _name(panel)
    found = await panel.read("Rates", ("queue history", name), lambda conn: reads.lines(conn, [name], _DAY, _LONG_STEP))
    return found or []


@one.add("queue:{queue}")
async def figures(panel: Panel) -> Values:
    detail = await _detail(panel)
    points = await _points(panel)
    return {
        "stats": detail.stats if detail else None,
        "rate_in": _last(points, "in_per_second"),
        "rate_out": _last(points, "out_per_second"),
        "wait_p50": _last(points, "wait_p50"),
        "wait_p99": _last(points, "wait_p99"),
        "work_p50": _last(points, "work_p50"),
    }


@one.add("queue:{queue}")
async def flow(panel: Panel) -> Values:
    view, points = panel.view, await _points(panel)
    times = [point.at for point in points]
    span: dict[str, Any] = {"since": view.now - _DAY, "until": view.now, "zone": view.zone}

    def line(label: str, field: str, look: str, write: Any, *, area: bool = False) -> charts.Line:
        values = [getattr(point, field) for point in points]
        return charts.Line(label=label, values=values, look=look, now=write(_last(points, field)), area=area)

    return {
        "figures": [
            charts.chart(
                "Throughput",
                "messages per second",
                [
                    line("Accepted", "in_per_second", "c-ink", shapes.rate),
                    line("Acked", "out_per_second", "c-acked", shapes.rate),
                    line("Failed", "failed_per_second", "c-dead", shapes.rate),
                ],
                times,
                tick=shapes.rate,
                **span,
            ),
            charts.chart(
                "Ready",
                "messages",
                [line("Now", "lag", "c-ready", shapes.number, area=True)],
                times,
                tick=shapes.number,
                **span,
            ),
            charts.chart(
                "Wait and work",
                "99th percentile",
                [
                    line("Wait", "wait_p99", "c-ready", shapes.duration),
                    line("Work", "work_p99", "c-leased", shapes.duration),
                ],
                times,
                tick=shapes.duration,
                **span,
            ),
        ]
    }


@one.add("queue:{queue}")
async def content(panel: Panel) -> Values:
    """The messages of the chosen tab."""
    tab = tab_of(panel.view)
    values = {"tab": tab, "name": _name(panel), "reads": panel.view.may("read", _name(panel)), "rows": [], "known": True}
    return {**values, **await _CONTENT[tab](panel)}


async def _ready(panel: Panel) -> Values:
    name = _name(panel)
    found = await panel.read("Waiting messages", ("waiting", name), lambda conn: reads.waiting(conn, name, _ROWS))
    now = panel.view.now
    # what is due later is in the tab Delayed
    return {"known": found is not None, "rows": [row for row in found or () if row.due_at is None or row.due_at <= now]}


async def _delayed(panel: Panel) -> Values:
    name, after = _name(panel), panel.view.query.get("after") or None
    found = await panel.read(
        "Delayed messages", ("delayed", name, after), lambda conn: reads.delayed(conn, name, after, _ROWS)
    )
    more = panel.view.with_query(after=found[-1].position) if found and len(found) == _ROWS else None
    return {"known": found is not None, "rows": [row for row in found or () if row.state != "ready"], "more": more}


async def _leased(panel: Panel) -> Values:
    name = _name(panel)
    found = await panel.read("Deliveries", ("in flight", name), lambda conn: reads.in_flight(conn, name))
    seen = await panel.read("Consumers", ("consumers", name), lambda conn: reads.consumers(conn, name)) or []
    detail = await _detail(panel)
    lease = detail.queue.lease if detail else None
    return {
        "known": found is not None,
        "rows": [
            {
                "run": row,
                "held": panel.view.now - row.claimed_at,
                "share": min(100.0, 100 * ((panel.view.now - row.claimed_at) / lease)) if lease else 0.0,
            }
            for row in (found or [])[:_ROWS]
        ],
        "consumers": seen,
        "most": reads.MOST_SETTLED,
    }


async def _dead(panel: Panel) -> Values:
    name = _name(panel)
    found = await panel.read("Dead letters", ("dead groups", name), lambda conn: run_reads.groups(conn, name))
    groups = [row for row in found or () if row.rest is None]
    rest = sum(row.messages for row in found or () if row.rest is not None)
    return {"known": found is not None, "rows": groups, "rest": rest}


async def _history(panel: Panel) -> Values:
    name, view = _name(panel), panel.view
    error, where = None, view.query.get("where", "")
    try:
        selector = matching.parse_plain(where, _FIELDS)
    except TrunklineError as exc:
        error, selector = str(exc), matching.parse_plain("", _FIELDS)
    outcome = view.query.get("outcome", "")
    found = await panel.read("Delivery history", ("history", name), lambda conn: reads.history(conn, name, 1000))
    outcomes = sorted({row.outcome for row in found or () if row.outcome})
    shown = []
    try:
        shown = [
            row
            for row in found or ()
            if (not outcome or row.outcome == outcome)
            and matching.matches(
                selector, {"worker": row.consumer, "error": row.error, "attempt": row.attempt, "topic": row.topic}
            )
        ]
    except TrunklineError as exc:
        error = str(exc)
    segments = [("All", view.with_query(outcome=None), outcome not in outcomes)]
    segments += [(name.capitalize(), view.with_query(outcome=name), outcome == name) for name in outcomes]
    return {
        "known": found is not None,
        "rows": shown[:_ROWS],
        "scanned": len(found or ()),
        "matched": len(shown),
        "error": error,
        "where": where,
        "segments": segments,
    }


async def _completed(panel: Panel) -> Values:
    name = _name(panel)
    found = await panel.read(
        "Completed messages", ("completed", name), lambda conn: reads.completed(conn, name, _ROWS), seconds=2.0
    )
    return {"known": found is not None, "rows": found or []}


async def _feeds(panel: Panel) -> Values:
    detail = await _detail(panel)
    return {"known": detail is not None, "rows": detail.subscriptions if detail else [], "stats": detail and detail.stats}


async def _settings(panel: Panel) -> Values:
    detail = await _detail(panel)
    return {"known": detail is not None, "queue": detail and detail.queue}


_CONTENT = {
    "ready": _ready,
    "delayed": _delayed,
    "leased": _leased,
    "dead": _dead,
    "history": _history,
    "completed": _completed,
    "feeds": _feeds,
    "settings": _settings,
}


@page("/queues")
async def queue_list(view: View) -> Response:
    """All queues that the caller may see, the worst first."""
    return await view.page(_LIST, listing, title="Queues", nav="queues", copies=copying.queues())


@page("/queues/{queue:str}", object="queue")
async def queue_detail(view: View) -> Response:
    """One queue: its messages by state, deliveries, feeds and settings."""
    name = _name(view)
    read = await view.console.reads.read(("queue", name), lambda conn: reads.detail(conn, name))
    detail, tab = read.value, tab_of(view)
    stats = detail.stats if detail else None
    counts = {
        "ready": stats.ready if stats else None,
        "delayed": stats.delayed if stats else None,
        "leased": stats.leased if stats else None,
        "dead": stats.dead if stats else None,
        "feeds": len(detail.subscriptions) if detail else None,
    }
    known = {word: shapes.number(count) for word, count in counts.items() if count}
    tabs = [(word.capitalize(), view.url("queues", name, tab=word), word == tab, known.get(word)) for word in _TABS]
    totals = None
    if view.query.get("check") == "1":
        totals = await view.console.reads.read(("totals", name), lambda conn: reads.totals(conn, name), seconds=3.0)
    did = view.query.get("did", "")
    return await view.page(
        _DETAIL,
        one,
        title=name,
        nav="queues",
        crumbs=[("Queues", view.url("queues")), (name, None)],
        detail=detail,
        tabs=tabs,
        totals=totals,
        did=did if did in ("paused", "resumed", "enqueued", "released", "buried", "lost") else "",
        copies=copying.queue(name),
    )


ROUTES = [queue_list, *listing.routes, queue_detail, *one.routes]
