"""The messages of a topic: a priced search that can be continued, export, and following live."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import csv
import io
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import msgspec
from litestar.response import Stream

from trunkline.errors import InvalidArgument, TrunklineError
from trunkline.server.console import copying, payloads, searching
from trunkline.server.console.places import tabs
from trunkline.server.console.reads import messages as reads
from trunkline.server.console.web import POLICY, Panel, Panels, Values, View, page
from trunkline.server.problems import Problem
from trunkline.server.response import Response
from trunkline.server.views import message_view
from trunkline.types import Message, Search

_TEMPLATE = "messages.html"
_EXPORTED = 1000
_SHOWN_PER_SECOND = 20
_QUIET_SECONDS = 15.0
_COLUMNS = (
    *("partition", "offset", "id", "published_at"),
    *("key", "routing_key", "label", "headers", "content_type", "encoding", "payload"),
)
_STOPPED = {
    "end": "That is all.",
    "limit": "Stopped at the limit of {limit}.",
    "rows": "Stopped at the limit of messages read.",
    "bytes": "Stopped at the limit of bytes read.",
    "time": "Stopped after {seconds:g} s.",
}
panels = Panels("/topics/{topic:str}/messages", _TEMPLATE, object="topic")


def _topic(view: View) -> str:
    return str(view.path["topic"])


def _wanted(view: View) -> searching.Wanted:
    query = view.query
    return searching.wanted(
        query.get("where", ""), query.get("from", ""), query.get("to", ""), query.get("partition", ""), view.now
    )


def _error(view: View) -> str | None:
    """Return what is wrong with the filter; None if nothing is."""
    try:
        wanted = _wanted(view)
        searching.after_of(view.query.get("after", ""))
    except InvalidArgument as exc:
        return " ".join(text for text in (f"{str(exc)[:1].upper()}{str(exc)[1:]}.", exc.hint or "") if text)
    if wanted.narrowed and not view.may("read", _topic(view)):
        return f"Searching in keys, headers and payloads needs the scope read:{_topic(view)}."
    return None


def _given(view: View) -> tuple[str, ...]:
    """Return what names a search, for its key."""
    names = ("where", "from", "to", "partition", "order", "after")
    return _topic(view), *(view.query.get(name, "") for name in names)


def _backwards(view: View) -> bool:
    return view.query.get("order") != "oldest"


async def _priced(panel: Panel, wanted: searching.Wanted) -> tuple[int, int, list[int]] | None:
    """Return how many messages and bytes a search reads at most, and in which partitions."""
    topic = _topic(panel.view)
    ranges = await panel.read(
        "The estimate", ("estimate", *_given(panel.view)), lambda conn: reads.estimate(conn, topic, wanted)
    )
    if ranges is None:
        return None
    return sum(row.messages for row in ranges), sum(row.bytes for row in ranges), [row.partition for row in ranges]


@panels.add()
async def found(panel: Panel) -> Values:
    """The cost of the search, and its result."""
    view, topic = panel.view, _topic(panel.view)
    values: Values = {
        "rows": None,
        "cost": None,
        "result": None,
        "wanted": None,
        "full": view.may("read", topic),
        "costly": False,
    }
    values["again"] = view.with_query(run="1")
    if _error(view) is not None:
        return values
    wanted = _wanted(view)
    values["wanted"] = wanted
    values["cost"] = cost = await _priced(panel, wanted)
    if wanted.narrowed and cost and cost[0] > searching.DIRECT and view.query.get("run") != "1":
        return {**values, "costly": True}
    after = searching.after_of(view.query.get("after", ""))
    result = await panel.read(
        "The search",
        ("search", *_given(view)),
        lambda conn: reads.search(conn, topic, wanted, after=after, backwards=_backwards(view)),
        seconds=reads.SEARCH_SECONDS + 2,
    )
    if result is None:
        return values
    stopped = _STOPPED.get(result.stopped, str(result.stopped)).format(limit=reads.PAGE, seconds=reads.SEARCH_SECONDS)
    on = view.with_query(after=searching.after_text(result.next), run="1") if result.next else None
    return {
        **values,
        "rows": [_row(view, topic, row) for row in result.matches],
        "result": result,
        "stopped": stopped + (f" Go on from {_places(result)}." if result.next else ""),
        "next": on,
        "first": view.with_query(after=None) if view.query.get("after") else None,
    }


def _places(result: Search[Any]) -> str:
    places = [f"{partition}@{offset}" for partition, offset in (result.next or {}).items()]
    return ", ".join(places[:3]) + (" …" if len(places) > 3 else "")


def _row(view: View, topic: str, row: Message[Any]) -> Values:
    full = view.may("read", topic)
    return {
        "partition": row.partition,
        "offset": row.offset,
        "url": view.url("topics", topic, f"{row.partition}@{row.offset}"),
        "at": row.created_at,
        "key": row.key if full else None,
        "routing_key": row.routing_key if full else None,
        "size": len(row.payload),
        "text": payloads.preview(row.payload, 160) if full else None,
    }


@page("/topics/{topic:str}/messages", object="topic")
async def browse(view: View) -> Response:
    """The message browser of a topic."""
    topic = _topic(view)
    known = await view.console.reads.read(("partitions", topic), lambda conn: reads.partitions(conn, topic))
    error = _error(view)
    wanted = None if error else _wanted(view)
    exports = [
        (word, view.url("topics", topic, "messages", "export", **{**view.query, "format": name}))
        for name, word in (("jsonl", "Export JSON lines"), ("csv", "Export CSV"))
    ]
    return await view.page(
        _TEMPLATE,
        panels,
        title=f"Messages of {topic}",
        nav="topics",
        crumbs=[("Topics", view.url("topics")), (topic, view.url("topics", topic)), ("Messages", None)],
        tabs=tabs(view, topic, "messages"),
        topic=topic,
        partitions=known.value or 1,
        error=error,
        wanted=wanted,
        exports=exports if error is None else [],
        missing=view.missing("read", topic),
        copies=copying.search(topic, wanted) if wanted else copying.topic(topic),
    )


@page("/topics/{topic:str}/messages/export", scope="read", object="topic")
async def export(view: View) -> Response:
    """The messages that a search finds, as a file."""
    topic, wanted = _topic(view), _wanted(view)
    after = searching.after_of(view.query.get("after", ""))
    read = await view.console.reads.read(
        ("export", *_given(view)),
        lambda conn: reads.search(conn, topic, wanted, after=after, backwards=_backwards(view), limit=_EXPORTED),
        seconds=reads.SEARCH_SECONDS + 2,
        fresh=0,
    )
    if read.late is not None or read.value is None:
        raise Problem(503, "unavailable", f"the search {read.late}")
    as_csv = view.query.get("format") == "csv"
    text = _csv(read.value) if as_csv else _lines(read.value)
    headers = {
        **POLICY,
        "content-disposition": f'attachment; filename="{topic}.{"csv" if as_csv else "jsonl"}"',
        "trunkline-next": searching.after_text(read.value.next),
    }
    return Response(text, 200, "text/csv; charset=utf-8" if as_csv else "application/x-ndjson", headers)


def _lines(found: Search[Any]) -> bytes:
    return b"".join(msgspec.json.encode(message_view(row)) + b"\n" for row in found.matches)


def _csv(found: Search[Any]) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(_COLUMNS)
    for row in found.matches:
        encoding, payload = _text_of(row.payload)
        headers = "" if row.headers is None else msgspec.json.encode(row.headers).decode()
        at = row.created_at.isoformat()
        cells = (
            row.partition,
            row.offset,
            row.id,
            at,
            row.key,
            row.routing_key,
            row.label,
            headers,
            row.content_type,
            encoding,
            payload,
        )
        writer.writerow([_cell(value) for value in cells])
    return out.getvalue().encode()


def _text_of(payload: bytes) -> tuple[str, str]:
    """Return a payload as text, or in base64 if it is not text; and which."""
    try:
        return "text", payload.decode()
    except UnicodeDecodeError:
        return "base64", base64.b64encode(payload).decode()


def _cell(value: Any) -> str:
    """Return a cell that a spreadsheet does not take for a formula."""
    text = "" if value is None else str(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


@page("/topics/{topic:str}/tail", scope="read", object="topic")
async def tail(view: View) -> Stream:
    """New messages as server-sent events: rows of the table, at most 20 per second."""
    topic = _topic(view)
    places = await view.request.service.topic_tails.heads(topic)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}
    return Stream(_rows(view, topic, places), media_type="text/event-stream", headers=headers)


async def _rows(view: View, topic: str, places: list[int]) -> AsyncIterator[bytes]:
    service = view.request.service
    yield b": here\n\n"
    second, shown, passed = 0.0, 0, 0
    try:
        with service.auth.watch(view.request.scope) as ended:
            ended.add_done_callback(lambda _: service.topic_tails.ring(topic))
            async with contextlib.aclosing(service.topic_tails.follow(topic, places, _QUIET_SECONDS)) as news:  # type: ignore[type-var]
                async for events in news:
                    if service.stopping.is_set() or ended.done():
                        return
                    if not events:
                        yield b": still here\n\n"
                        continue
                    now = asyncio.get_running_loop().time()
                    if now - second >= 1:
                        second, shown = now, 0
                    passed += len(events)
                    rows = events[-max(0, _SHOWN_PER_SECOND - shown) :] if shown < _SHOWN_PER_SECOND else []
                    shown += len(rows)
                    for event in rows:
                        html = view.console.pages.render_block(
                            _TEMPLATE, "tail_row", view.values(row=_event(view, topic, msgspec.json.decode(event.data)))
                        )
                        yield f"id: {passed}\ndata: {' '.join(str(html).split())}\n\n".encode()
                    if not rows:
                        yield f"event: passed\nid: {passed}\ndata: {passed}\n\n".encode()
    except TrunklineError:
        return


def _event(view: View, topic: str, row: dict[str, Any]) -> Values:
    payload = row["payload"]
    if row["encoding"] == "base64":
        raw = base64.b64decode(payload)
    else:
        raw = payload.encode() if row["encoding"] == "text" else msgspec.json.encode(payload)
    return {
        "partition": row["partition"],
        "offset": row["offset"],
        "url": view.url("topics", topic, f"{row['partition']}@{row['offset']}"),
        "at": datetime.fromisoformat(row["created_at"]),
        "key": row["key"],
        "routing_key": row["routing_key"],
        "size": None,
        "text": payloads.preview(raw, 160),
    }


ROUTES = [browse, *panels.routes, export, tail]
