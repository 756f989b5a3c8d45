"""The overview: what needs attention, and how much flows."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from trunkline.db.calls.health import Minute
from trunkline.server.console import attention, charts, copying, shapes
from trunkline.server.console.reads import overview as reads
from trunkline.server.console.web import Panel, Panels, Values, View, page
from trunkline.server.response import Response
from trunkline.types import GroupStats

_TEMPLATE = "overview.html"
_WORST = 6
_RANGES = {"15m": timedelta(minutes=15), "1h": timedelta(hours=1), "6h": timedelta(hours=6), "24h": timedelta(hours=24)}
Write = Callable[[float | None], str]
_STEPS = 90
"""Points of a chart, about."""
panels = Panels("/", _TEMPLATE)


def _range(view: View) -> tuple[str, timedelta, timedelta]:
    """Return the chosen range with its step."""
    name = view.query.get("range", "1h")
    name = name if name in _RANGES else "1h"
    since = _RANGES[name]
    return name, since, timedelta(minutes=max(1, math.ceil(since.total_seconds() / 60 / _STEPS)))


async def _minutes(panel: Panel) -> list[Minute]:
    name, since, step = _range(panel.view)
    rows = await panel.read("Charts", ("minutes", name), lambda conn: reads.minutes(conn, since, step))
    return rows or []


@panels.add("topics", "queues")
async def figures(panel: Panel) -> Values:
    view = panel.view
    stats = await panel.read("Statistics", reads.STATS, reads.stats)
    endpoints = await panel.read("Endpoint statistics", reads.ENDPOINTS, reads.endpoints) or []
    topics = [row for row in stats.topics if view.may("view", row.topic)] if stats else []
    queues = [row for row in stats.queues if view.may("view", row.queue)] if stats else []
    seen = [row for row in endpoints if view.may("view", row.endpoint)]
    # totals over everything are for those who may see everything
    minutes = await _minutes(panel) if view.may("view") else []
    acked, sent = sum(row.acked for row in seen), sum(row.acked + row.nacked + row.buried for row in seen)
    last = next((row for row in reversed(minutes) if row.acked is not None), None)
    return {
        "known": stats is not None,
        "published": sum(row.rate_per_second for row in topics),
        "acked": last.acked if last else None,
        "wait": next((row.wait_p99 for row in reversed(minutes) if row.wait_p99 is not None), None),
        "ready": sum(row.ready for row in queues),
        "leased": sum(row.leased for row in queues),
        "dead": sum(row.dead for row in queues),
        "webhooks": shapes.share(acked, sent).removesuffix(" %") if sent else None,
        "minutes": minutes,
    }


@panels.add("queues", "groups", "endpoints", "pipelines")
async def attention_list(panel: Panel) -> Values:
    view = panel.view
    found = await panel.read("What needs attention", reads.ATTENTION, reads.attention, seconds=2.0)
    rows = attention.rows(found or [], view.now)
    # what belongs to no topic, queue or endpoint is for those who may see everything
    return {"rows": [row for row in rows if view.may("view", row.object)], "known": found is not None}


@panels.add("topics", "queues")
async def flow(panel: Panel) -> Values:
    view = panel.view
    if not view.may("view"):
        return {"charts_shown": []}
    rows = await _minutes(panel)
    _, since, _ = _range(view)
    span: dict[str, Any] = {"since": view.now - since, "until": view.now, "zone": view.zone}
    last, times = rows[-1] if rows else None, [row.at for row in rows]

    def line(
        label: str, field: str, write: Write, look: str = "c-ink", *, factor: float = 1, area: bool = False
    ) -> charts.Line:
        known = [getattr(row, field) for row in rows]
        values = [None if value is None else value * factor for value in known]
        return charts.Line(label=label, values=values, look=look, now=write(getattr(last, field)) if last else "", area=area)

    throughput = charts.chart(
        "Throughput",
        "messages per second",
        [line("Published", "published", shapes.rate, area=True), line("Acked", "acked", shapes.rate, "c-acked")],
        times,
        tick=shapes.rate,
        **span,
    )
    ready = charts.chart(
        "Ready",
        "messages, all queues",
        [line("Now", "ready", shapes.number, "c-ready", area=True)],
        times,
        tick=shapes.number,
        **span,
    )
    wait = charts.chart(
        "Wait before delivery",
        "until claimed",
        [
            line("p50", "wait_p50", shapes.duration, "c-faint"),
            line("p99", "wait_p99", shapes.duration, "c-ready"),
        ],
        times,
        tick=shapes.duration,
        **span,
    )
    return {"charts_shown": [throughput, ready, wait]}


@panels.add("queues")
async def queues(panel: Panel) -> Values:
    stats = await panel.read("Queue statistics", reads.STATS, reads.stats)
    rows = [row for row in stats.queues if panel.view.may("view", row.queue)] if stats else []
    worst = sorted(rows, key=lambda row: (-row.oldest_age, -row.dead, row.queue))
    lines = await panel.read("Lines", reads.QUEUE_LINES, reads.queue_lines) or {}
    sparks = {row.queue: charts.sparkline(lines.get(row.queue, []), cell=True, look="c-ready") for row in worst[:_WORST]}
    return {"rows": worst[:_WORST], "count": len(rows), "known": stats is not None, "sparks": sparks}


@panels.add("groups")
async def groups(panel: Panel) -> Values:
    stats = await panel.read("Group statistics", reads.STATS, reads.stats)
    found: dict[tuple[str, str], list[GroupStats]] = {}
    for row in stats.groups if stats else ():
        if panel.view.may("view", row.topic):
            found.setdefault((row.topic, row.group), []).append(row)
    rows: list[Values] = [
        {
            "topic": topic,
            "group": group,
            "members": len({row.member for row in parts if row.member}),
            "partitions": len(parts),
            "lag": sum(row.lag for row in parts),
            "seconds": max(row.lag_seconds for row in parts),
        }
        for (topic, group), parts in found.items()
    ]
    rows.sort(key=lambda row: (-float(str(row["seconds"])), str(row["group"])))
    lines = await panel.read("Lines", reads.GROUP_LINES, reads.group_lines) or {}
    for each in rows[:_WORST]:
        each["spark"] = charts.sparkline(lines.get(f"{each['topic']}/{each['group']}", []), cell=True)
    return {"rows": rows[:_WORST], "count": len(rows), "known": stats is not None}


@page("/")
async def overview(view: View) -> Response:
    """The overview page."""
    name, *_ = _range(view)
    return await view.page(
        _TEMPLATE,
        panels,
        title="Overview",
        nav="overview",
        ranges=[(word, view.with_query(range=word), word == name) for word in _RANGES],
        copies=copying.stats(),
    )


ROUTES = [overview, *panels.routes]
