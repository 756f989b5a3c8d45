"""Groups of all topics, and one group: where it is, how far behind, and moving it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from trunkline.errors import InvalidArgument, NotFound, TrunklineError
from trunkline.server.console import charts, copying, searching, shapes
from trunkline.server.console.reads import groups as reads
from trunkline.server.console.reads import overview
from trunkline.server.console.web import Panel, Panels, Values, View, action, page
from trunkline.server.problems import Problem
from trunkline.server.response import Response
from trunkline.types import GroupStats, RetentionDeadline, Run

_LIST, _DETAIL, _SEEK = "groups.html", "group.html", "seek.html"
_SORTS = ("lag", "name", "messages", "lost")
_PAGE = 100
_FAR = 1e18
listing = Panels("/groups", _LIST)
one = Panels("/groups/{topic:str}/{group:str}", _DETAIL, object="topic")


def _clears(lag: int, arrives: float | None, leaves: float | None) -> float | None:
    """Return the seconds until a group has caught up at its present rates; None if it does not, or nothing is known."""
    if lag == 0:
        return 0.0
    gain = (leaves or 0.0) - (arrives or 0.0)
    return lag / gain if gain > 0 else None


@listing.add("groups")
async def rows(panel: Panel) -> Values:
    view = panel.view
    stats = await panel.read("Group statistics", overview.STATS, overview.stats)
    rates = await panel.read("Rates", reads.RATES, reads.rates) or {}
    found: dict[tuple[str, str], list[GroupStats]] = {}
    for row in stats.groups if stats else ():
        if view.may("view", row.topic):
            found.setdefault((row.topic, row.group), []).append(row)
    lost = _first_lost(await panel.read("Deadlines", reads.DEADLINES, reads.deadlines, seconds=2.0) or [])
    in_rates: dict[str, float] = {}
    for topic_row in stats.topics if stats else ():
        in_rates[topic_row.topic] = in_rates.get(topic_row.topic, 0.0) + topic_row.rate_per_second
    shown: list[Values] = []
    for (topic, group), parts in found.items():
        points = rates.get(f"{topic}/{group}", [])
        out = next((point.out_per_second for point in reversed(points) if point.out_per_second is not None), None)
        lag = sum(row.lag for row in parts)
        shown.append(
            {
                "topic": topic,
                "name": group,
                "members": len({row.member for row in parts if row.member}),
                "partitions": len(parts),
                "messages": lag,
                "lag": max(row.lag_seconds for row in parts),
                "in": in_rates.get(topic),
                "out": out,
                "clears": _clears(lag, in_rates.get(topic), out),
                "lost_at": lost.get((topic, group)),
                "spark": charts.sparkline([point.lag for point in points], cell=True),
            }
        )
    sort = view.query.get("sort", "lag")
    sort = sort if sort in _SORTS else "lag"
    shown.sort(key=lambda row: (_rank(row, sort), row["topic"], row["name"]))
    after = view.query.get("after", "")
    start = next((place + 1 for place, row in enumerate(shown) if f"{row['topic']}/{row['name']}" == after), 0)
    more = shown[start + _PAGE - 1] if len(shown) > start + _PAGE else None
    return {
        "rows": shown[start : start + _PAGE],
        "count": len(shown),
        "known": stats is not None,
        "sort": sort,
        "more": view.with_query(after=f"{more['topic']}/{more['name']}") if more else None,
    }


def _rank(row: Values, sort: str) -> Any:
    if sort == "name":
        return row["name"]
    if sort == "lost":
        return row["lost_at"].timestamp() if row["lost_at"] else _FAR
    return -row[sort]


def _first_lost(rows: list[RetentionDeadline]) -> dict[tuple[str, str], datetime]:
    """Return when each group loses its first message."""
    found: dict[tuple[str, str], datetime] = {}
    for row in rows:
        if row.kind == "group" and row.lost_at is not None:
            key = (row.topic, row.reader)
            found[key] = min(found.get(key, row.lost_at), row.lost_at)
    return found


def _names(view: View) -> tuple[str, str]:
    return str(view.path["topic"]), str(view.path["group"])


async def _detail(panel: Panel) -> reads.Detail | None:
    topic, name = _names(panel.view)
    return await panel.read("This group", ("group", topic, name), lambda conn: reads.detail(conn, topic, name))


async def _deadline(panel: Panel) -> RetentionDeadline | None:
    topic, name = _names(panel.view)
    rows = await panel.read("Deadlines", ("deadlines", topic), lambda conn: reads.deadlines(conn, topic)) or []
    mine = [row for row in rows if row.kind == "group" and row.reader == name and row.lost_at is not None]
    return min(mine, key=lambda row: row.lost_at or panel.view.now, default=None)


@one.add("group:{topic}/{group}")
async def verdict(panel: Panel) -> Values:
    detail, deadline = await _detail(panel), await _deadline(panel)
    if detail is None:
        return {"said": None}
    view, (topic, name) = panel.view, _names(panel.view)
    history = await panel.read("Rates", ("group history", topic, name), lambda conn: reads.history(conn, topic, name)) or []
    lag = sum(row.lag for row in detail.positions)
    seconds = max((row.lag_seconds for row in detail.positions), default=0.0)
    last = history[-1] if history else None
    clears = _clears(lag, last.in_per_second if last else None, last.out_per_second if last else None)
    facts: list[tuple[str, Any, str]] = [("Behind", shapes.plural(lag, "message"), shapes.duration(seconds))]
    if lag and last is not None and last.out_per_second is not None:
        slow = "not at its present rate"
        facts.append(
            ("To catch up", shapes.duration(clears) if clears else slow, f"it commits {shapes.rate(last.out_per_second)}/s")
        )
    if deadline is not None:
        facts.append(("Data lost", view.time(deadline.lost_at), f"from {deadline.partition}@{deadline.next_offset}"))
    facts.append(("Members", str(len(detail.members)), f"of {shapes.plural(len(detail.positions), 'partition')}"))
    soon = deadline is not None and deadline.lost_at is not None and deadline.lost_at - view.now < timedelta(days=1)
    left = shapes.duration(max(timedelta(0), deadline.lost_at - view.now)) if soon and deadline and deadline.lost_at else ""
    if lag and not detail.members:
        kind, headline = "stop" if soon else "wait", "No member reads this group"
        advice = "Start a member."
    elif soon:
        kind, headline, advice = "stop", "This group is too slow", "Start more members, or keep the data longer."
    elif lag and seconds > 60:
        kind, headline, advice = (
            "wait",
            f"Behind by {shapes.duration(seconds)}",
            "Start more members, up to one per partition.",
        )
    else:
        kind, headline, advice = "done", "Up to date" if not lag else "Keeps up", ""
    if soon:
        headline += f"; it loses data in {left}"
    return {"said": {"kind": kind, "headline": headline, "advice": advice, "facts": facts}, "topic": topic, "name": name}


@one.add("group:{topic}/{group}")
async def flow(panel: Panel) -> Values:
    view, (topic, name) = panel.view, _names(panel.view)
    points = await panel.read("Charts", ("group history", topic, name), lambda conn: reads.history(conn, topic, name)) or []
    times, last = [point.at for point in points], points[-1] if points else None
    span: dict[str, Any] = {"since": view.now - timedelta(hours=24), "until": view.now, "zone": view.zone}

    def line(label: str, values: list[Any], now: str, look: str = "c-ink", *, area: bool = False) -> charts.Line:
        return charts.Line(label=label, values=values, look=look, now=now, area=area)

    behind = line("Now", [point.lag for point in points], shapes.number(last.lag) if last else "", "c-ready", area=True)
    arrives = [point.in_per_second for point in points]
    leaves = [point.out_per_second for point in points]
    rates = [
        line("Published", arrives, shapes.rate(last.in_per_second) if last else ""),
        line("Committed", leaves, shapes.rate(last.out_per_second) if last else "", "c-acked"),
    ]
    return {
        "charts_shown": [
            charts.chart("Behind", "messages", [behind], times, tick=shapes.number, **span),
            charts.chart("Rates", "messages per second", rates, times, tick=shapes.rate, **span),
        ]
    }


@one.add("group:{topic}/{group}")
async def partitions(panel: Panel) -> Values:
    detail = await _detail(panel)
    return {"rows": detail.positions if detail else [], "topic": _names(panel.view)[0]}


@one.add("group:{topic}/{group}")
async def members(panel: Panel) -> Values:
    detail, (topic, name) = await _detail(panel), _names(panel.view)
    return {"rows": detail.members if detail else [], "known": detail is not None, "topic": topic, "name": name}


@one.add("group:{topic}/{group}", "runs")
async def seeks(panel: Panel) -> Values:
    topic, name = _names(panel.view)
    found = await panel.read("Seeks", ("seeks", topic, name), lambda conn: reads.seeks(conn, topic, name))
    return {"rows": [_seek(row) for row in (found or [])[:10]], "known": found is not None, "topic": topic, "name": name}


def _seek(row: Run) -> Values:
    to = row.selector.get("to")
    where = ", ".join(f"{each}@{offset}" for each, offset in to.items()) if isinstance(to, dict) else str(to)
    return {"id": row.run_id, "at": row.made_at, "by": row.made_by, "to": where, "total": row.total,
            "partition": row.selector.get("partition"), "state": row.state}  # fmt: skip


@page("/groups")
async def group_list(view: View) -> Response:
    """All groups that the caller may see."""
    return await view.page(_LIST, listing, title="Groups", nav="groups", copies=copying.groups())


def _crumbs(view: View, *more: str) -> list[tuple[str, str | None]]:
    topic, name = _names(view)
    here: list[tuple[str, str | None]] = [("Groups", view.url("groups")), (topic, view.url("topics", topic))]
    if not more:
        return [*here, (name, None)]
    return [*here, (name, view.url("groups", topic, name)), (more[0], None)]


@page("/groups/{topic:str}/{group:str}", object="topic")
async def group_detail(view: View) -> Response:
    """One group."""
    topic, name = _names(view)
    read = await view.console.reads.read(("group", topic, name), lambda conn: reads.detail(conn, topic, name))
    moved = view.query.get("moved", "")
    return await view.page(
        _DETAIL,
        one,
        title=name,
        nav="groups",
        crumbs=_crumbs(view),
        detail=read.value,
        topic=topic,
        moved=int(moved) if moved.isascii() and moved.isdigit() and len(moved) < 18 else None,
        undone="undone" in view.query,
        copies=copying.group(topic, name),
    )


def _target(view: View, values: dict[str, str]) -> tuple[str, int | None]:
    """Return where a form of the seek page leads to: a place and a partition."""
    kind, partition = values.get("to", ""), values.get("partition", "")
    if kind not in ("earliest", "latest", "time", "offset"):
        raise InvalidArgument("choose where the group continues")
    place = kind if kind in ("earliest", "latest") else values.get("place", "").strip()
    if kind == "offset" and not (place.isascii() and place.isdigit()):
        raise InvalidArgument("an offset is a number")
    if partition and not (partition.isascii() and partition.isdigit() and len(partition) <= 2):
        raise InvalidArgument("a partition is a number")
    if not place:
        raise InvalidArgument("write a time such as 2026-11-16 09:00 or 2h")
    return searching.place(place, view.now), int(partition) if partition else None


def _change(moves: list[reads.Move]) -> tuple[int, int]:
    """Return how many messages a seek skips, and how many are read again."""
    skipped = sum(max(0, move.then - move.now) for move in moves)
    return skipped, sum(max(0, move.now - move.then) for move in moves)


def _word(skipped: int, again: int) -> str:
    parts = []
    if skipped:
        parts.append(f"skip {shapes.number(skipped)}")
    if again:
        parts.append(f"read {shapes.number(again)} again")
    return ", ".join(parts) or "move nothing"


@page("/groups/{topic:str}/{group:str}/seek", object="topic")
async def seek_page(view: View) -> Response:
    """The form and the preview of a seek."""
    topic, name = _names(view)
    read = await view.console.reads.read(("group", topic, name), lambda conn: reads.detail(conn, topic, name))
    error, moves, target = None, None, None
    if view.query.get("to"):
        try:
            target = to, partition = _target(view, view.query)
            found = await view.console.reads.read(
                ("preview", topic, name, to, partition),
                lambda conn: reads.preview(conn, topic, name, to, partition),
                fresh=0,
            )
            moves = found.value
            if found.late:
                error = f"The preview {found.late}."
        except NotFound:
            raise
        except TrunklineError as exc:
            error = f"{str(exc)[:1].upper()}{str(exc)[1:]}."
    skipped, again = _change(moves or [])
    return await view.page(
        _SEEK,
        None,
        title=f"Seek group {name}",
        nav="groups",
        crumbs=_crumbs(view, "Seek"),
        topic=topic,
        name=name,
        positions=read.value.positions if read.value else [],
        error=error,
        moves=moves,
        skipped=skipped,
        again=again,
        changed="changed" in view.query,
        word=f"Seek group {name}, {_word(skipped, again)}",
        missing=view.missing("operate", topic),
        copies=copying.seek(topic, name, target[0], target[1]) if target else copying.group(topic, name),
    )


@action("/groups/{topic:str}/{group:str}/seek", scope="operate", object="topic")
async def seek(view: View) -> Response:
    """Move a group. If the numbers of the preview no longer hold, show it again."""
    topic, name = _names(view)
    form = await view.form()
    to, partition = _target(view, form)

    async def work(conn: Any) -> tuple[bool, int | None]:
        moves = await reads.preview(conn, topic, name, to, partition)
        if not all(_near(now, form.get(field, "")) for now, field in zip(_change(moves), ("skipped", "again"), strict=True)):
            return False, None
        return True, await reads.seek(conn, topic, name, to, partition)

    done, run = await view.change(work, f"group:{topic}/{name}", "groups", "runs")
    if not done:
        given = {field: form.get(field, "") for field in ("to", "place", "partition")}
        return view.redirect(view.url("groups", topic, name, "seek", changed="1", **given))
    return view.redirect(view.url("groups", topic, name, moved=run))


def _near(now: int, shown: str) -> bool:
    """Return whether a number moved by at most a tenth since the preview."""
    return shown.isascii() and shown.isdigit() and abs(now - int(shown)) * 10 <= max(int(shown), 10)


@action("/groups/{topic:str}/{group:str}/undo", scope="operate", object="topic")
async def undo(view: View) -> Response:
    """Undo a seek: put back its exact former positions."""
    topic, name = _names(view)
    number = (await view.form()).get("run", "")
    if not (number.isascii() and number.isdigit() and len(number) < 18):
        raise Problem(400, "bad_form", "the form has no seek to undo")

    async def work(conn: Any) -> None:
        if int(number) not in {row.run_id for row in await reads.seeks(conn, topic, name)}:
            raise Problem(404, "not_found", "this group has no such seek")
        await reads.undo(conn, int(number))

    await view.change(work, f"group:{topic}/{name}", "groups", "runs")
    return view.redirect(view.url("groups", topic, name, undone="1"))


@page("/groups/{topic:str}/{group:str}/delete", object="topic")
async def delete_page(view: View) -> Response:
    """The question before a group is deleted."""
    topic, name = _names(view)
    await view.console.reads.read(("group", topic, name), lambda conn: reads.detail(conn, topic, name))
    return await view.page(
        "group_delete.html",
        None,
        title=f"Delete group {name}",
        nav="groups",
        crumbs=_crumbs(view, "Delete"),
        topic=topic,
        name=name,
        missing=view.missing("admin", topic),
    )


@action("/groups/{topic:str}/{group:str}/delete", scope="admin", object="topic")
async def delete(view: View) -> Response:
    """Delete a group with its position."""
    topic, name = _names(view)
    if (await view.form()).get("name") != name:
        raise Problem(400, "bad_form", f"type the name {name} to delete the group")
    await view.change(lambda conn: reads.delete(conn, topic, name), f"group:{topic}/{name}", "groups")
    return view.redirect(view.url("groups"))


ROUTES = [group_list, *listing.routes, group_detail, *one.routes, seek_page, seek, undo, delete_page, delete]
