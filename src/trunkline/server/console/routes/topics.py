"""Topics: the list, and one topic with its offset ruler."""

from __future__ import annotations

from datetime import timedelta

from trunkline.server.console import charts, copying, ruler, shapes
from trunkline.server.console.places import tabs
from trunkline.server.console.reads import overview
from trunkline.server.console.reads import topics as reads
from trunkline.server.console.web import Panel, Panels, Values, View, page
from trunkline.server.response import Response
from trunkline.types import PartitionMap, TopicStats

_LIST, _DETAIL = "topics.html", "topic.html"
_SORTS = ("name", "rate", "head", "bytes", "behind")
_PAGE = 100
listing = Panels("/topics", _LIST)
one = Panels("/topics/{topic:str}", _DETAIL, object="topic")


@listing.add("topics", "groups")
async def rows(panel: Panel) -> Values:
    view = panel.view
    topics = await panel.read("Topics", reads.TOPICS, reads.all_topics)
    stats = await panel.read("Topic statistics", overview.STATS, overview.stats)
    rates = await panel.read("Rates", reads.RATES, reads.rates) or {}
    parts: dict[str, list[TopicStats]] = {}
    for row in stats.topics if stats else ():
        parts.setdefault(row.topic, []).append(row)
    lags: dict[str, list[float]] = {}
    for group in stats.groups if stats else ():
        lags.setdefault(group.topic, []).append(group.lag_seconds)
    hide_idle = view.query.get("idle") == "hide"
    found = [
        {
            "name": topic.name,
            "partitions": topic.partitions,
            "rate": sum(row.rate_per_second for row in parts.get(topic.name, ())),
            "head": sum(row.head for row in parts.get(topic.name, ())),
            "bytes": sum(row.bytes for row in parts.get(topic.name, ())),
            "retention": topic.retention,
            "hard": topic.hard_retention,
            "behind": max(lags.get(topic.name, [-1.0])),
            "spark": charts.sparkline(rates.get(topic.name, []), cell=True),
        }
        for topic in topics or ()
        if view.may("view", topic.name)
    ]
    shown = [row for row in found if not (hide_idle and row["rate"] == 0)]
    sort = view.query.get("sort", "name")
    sort = sort if sort in _SORTS else "name"
    shown.sort(key=lambda row: row[sort], reverse=sort != "name")  # type: ignore[arg-type, return-value]
    first = view.query.get("after", "")
    start = next((place + 1 for place, row in enumerate(shown) if row["name"] == first), 0)
    return {
        "rows": shown[start : start + _PAGE],
        "count": len(found),
        "known": topics is not None,
        "sort": sort,
        "more": view.with_query(after=shown[start + _PAGE - 1]["name"]) if len(shown) > start + _PAGE else None,
        "hide_idle": hide_idle,
    }


async def _detail(panel: Panel) -> reads.Detail | None:
    name = str(panel.view.path["topic"])
    return await panel.read("This topic", ("topic", name), lambda conn: reads.detail(conn, name))


@one.add("topic:{topic}", "group:{topic}")
async def offsets(panel: Panel) -> Values:
    view, name = panel.view, str(panel.view.path["topic"])
    detail = await _detail(panel)
    parts = await panel.read("The map", ("map", name), lambda conn: reads.map_of(conn, name), seconds=2.0)
    if detail is None or parts is None:
        return {"picture": None, "partitions": []}
    rates = {row.partition: row for row in detail.partitions}
    archived = any(part.archive for part in parts)
    lanes = [
        ruler.Lane(
            name=f"p{part.partition}",
            span=max(0, part.head - part.earliest_offset + 1),
            archived=archived,
            archived_to=max(0, part.head - part.archive[-1].last_offset) if part.archive else None,
            segments=max(1, sum(not segment.staged for segment in part.segments)),
            unnumbered=part.unsequenced + part.staged,
        )
        for part in parts
    ]
    picture = ruler.ruler(name, lanes, _pins(view, parts, detail), _marks(view, parts), tick=shapes.number)
    rows = [
        {
            "map": part,
            "rate": rates[part.partition].rate_per_second if part.partition in rates else None,
            "size": sum(s.bytes or 0 for s in part.segments),
        }
        for part in parts
    ]
    return {"picture": picture, "partitions": rows, "archived": archived}


def _pins(view: View, parts: list[PartitionMap], detail: reads.Detail) -> list[ruler.Pin]:
    """Return the readers of a topic with their distance from the head in each partition."""
    seconds: dict[str, float] = {}
    for row in detail.positions:
        seconds[row.group] = max(seconds.get(row.group, 0.0), row.lag_seconds)
    at: dict[tuple[str, str], list[float | None]] = {}
    for place, part in enumerate(parts):
        for reader in part.readers:
            if reader.kind == "group" or view.may("view", reader.name):
                known = at.setdefault((reader.kind, reader.name), [None] * len(parts))
                known[place] = float(max(0, reader.lag))
    return [
        ruler.Pin(
            name=name,
            kind="group" if kind == "group" else "queue",
            at=places,
            label=_lag(places, seconds.get(name) if kind == "group" else None),
        )
        for (kind, name), places in at.items()
    ]


def _lag(places: list[float | None], seconds: float | None) -> str:
    return shapes.number(sum(lag or 0 for lag in places)) if seconds is None else shapes.duration(seconds)


def _marks(view: View, parts: list[PartitionMap]) -> list[ruler.Mark]:
    """Return until where retention removes next, and when."""
    kept = [(part.head, part.keeps) for part in parts if part.keeps is not None]
    if not kept:
        return []
    head, keeps = min(kept, key=lambda each: each[1].until)
    left = keeps.until - view.now
    label = f"may go in {shapes.duration(left)}" if left.total_seconds() > 0 else "may go now"
    return [ruler.Mark(at=max(0, head - keeps.last_offset), label=label)]


@one.add("topic:{topic}", "group:{topic}")
async def readers(panel: Panel) -> Values:
    detail = await _detail(panel)
    if detail is None:
        return {"rows": [], "known": False}
    rows = []
    for group in detail.groups:
        parts = [row for row in detail.positions if row.group == group.name]
        worst = max(parts, key=lambda row: (row.lag_seconds, row.lag), default=None)
        members = len({row.member for row in parts if row.member})
        rows.append(
            {
                "kind": "group",
                "name": group.name,
                "path": ("groups", group.topic, group.name),
                "by": shapes.plural(members, "member") if members else "no member",
                "lag": sum(row.lag for row in parts),
                "seconds": worst.lag_seconds if worst else 0.0,
                "pattern": group.pattern,
            }
        )
    name = detail.topic.name
    pictured = await panel.read("The map", ("map", name), lambda conn: reads.map_of(conn, name), seconds=2.0) or []
    lags: dict[str, int] = {}
    for reader in (reader for part in pictured for reader in part.readers if reader.kind == "queue"):
        lags[reader.name] = lags.get(reader.name, 0) + reader.lag
    rows += [
        {
            "kind": "queue", "name": each.queue, "path": ("queues", each.queue), "by": f"subscription {each.name}",
            "lag": lags.get(each.queue), "seconds": None, "pattern": each.pattern,
        }
        for each in detail.subscriptions
        if panel.view.may("view", each.queue)
    ]  # fmt: skip
    rows.sort(key=lambda row: (-float(str(row["seconds"] or 0)), str(row["name"])))
    return {"rows": rows, "known": True}


@one.add("topic:{topic}")
async def flow(panel: Panel) -> Values:
    view, name = panel.view, str(panel.view.path["topic"])
    since, step = timedelta(hours=6), timedelta(minutes=4)
    rows = await panel.read("Rates", ("topic history", name), lambda conn: reads.history(conn, name, since, step)) or []
    last = next((rate for _, rate in reversed(rows) if rate is not None), None)
    line = charts.Line(label="Published", values=[rate for _, rate in rows], now=shapes.rate(last), area=True)
    figure = charts.chart(
        "Published",
        "messages per second",
        [line],
        [at for at, _ in rows],
        since=view.now - since,
        until=view.now,
        zone=view.zone,
        tick=shapes.rate,
    )
    return {"figure": figure}


@page("/topics")
async def topic_list(view: View) -> Response:
    """All topics that the caller may see."""
    return await view.page(_LIST, listing, title="Topics", nav="topics", copies=copying.topics())


@page("/topics/{topic:str}", object="topic")
async def topic_detail(view: View) -> Response:
    """One topic: its offsets, readers and settings."""
    name = str(view.path["topic"])
    read = await view.console.reads.read(("topic", name), lambda conn: reads.detail(conn, name))
    return await view.page(
        _DETAIL,
        one,
        title=name,
        nav="topics",
        crumbs=[("Topics", view.url("topics")), (name, None)],
        detail=read.value,
        tabs=tabs(view, name, ""),
        copies=copying.topic(name),
    )


ROUTES = [topic_list, *listing.routes, topic_detail, *one.routes]
