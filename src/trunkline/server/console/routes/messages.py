"""One message: where it is, who has it, why it waits, and what is in it. By its id, or by its place in a topic."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from trunkline.errors import NotFound
from trunkline.server.console import copying, payloads, shapes, verdicts
from trunkline.server.console.reads import messages as reads
from trunkline.server.console.timeline import timeline
from trunkline.server.console.web import POLICY, Panel, Panels, Values, View, page
from trunkline.server.problems import Problem
from trunkline.server.response import Response
from trunkline.types import Explanation

_TEMPLATE = "message.html"
_PLACE = re.compile(r"(\d{1,2})@(\d{1,18})")
_FIELDS = ("id", "state", "topic", "queue", "partition", "offset", "key", "routing_key", "label", "headers", "size")
_SHOWS = ("tree", "raw", "hex")
_SECONDS = 2.0
by_id = Panels("/m/{message:str}", _TEMPLATE)
by_place = Panels("/topics/{topic:str}/{place:str}", _TEMPLATE, object="topic")
_HIDDEN: dict[str, Any] = {
    "state": "unknown",
    "readers": [],
    "reason": "not found, or of a topic or queue that this token may not see",
}


def _key(view: View) -> tuple[Any, Any]:
    """Return the key of the read of this message, and the read."""
    if "message" in view.path:
        try:
            id = UUID(str(view.path["message"]))
        except ValueError:
            raise Problem(404, "not_found", "a message has an id such as 019a8d2e-4c1b-7f03-9a55-2f60d1c7be21") from None
        return ("message", id), lambda conn: reads.by_id(conn, id)
    topic, match = str(view.path["topic"]), _PLACE.fullmatch(str(view.path["place"]))
    if match is None:
        raise Problem(404, "not_found", "the place of a message is PARTITION@OFFSET, such as 3@9981204")
    partition, offset = int(match[1]), int(match[2])
    return ("message", topic, partition, offset), lambda conn: reads.by_place(conn, topic, partition, offset)


def _name(found: reads.Found) -> str | None:
    """Return the topic or queue whose scope shows the message."""
    explained = found.explanation
    return explained.get("topic") or explained.get("queue")


def _seen(view: View, found: reads.Found | None) -> reads.Found | None:
    """Return the message, or if the caller may not see it, the same as for an unknown one."""
    if found is None or (name := _name(found)) is None or view.may("view", name):
        return found
    return reads.Found(explanation=Explanation(_HIDDEN), message=None, attempts=[])


def _full(view: View, found: reads.Found) -> bool:
    name = _name(found)
    return name is None or view.may("read", name)


async def _found(panel: Panel) -> reads.Found | None:
    key, work = _key(panel.view)
    try:
        return _seen(panel.view, await panel.read("This message", key, work, seconds=_SECONDS))
    except NotFound as exc:
        return reads.Found(explanation=Explanation({**_HIDDEN, "reason": str(exc)}), message=None, attempts=[])


def _rows(view: View, found: reads.Found) -> list[verdicts.Reader]:
    return verdicts.readers(found.explanation, lambda name: view.may("view", name), full=_full(view, found))


def _facts(view: View, verdict: verdicts.Verdict) -> list[tuple[str, Any, Any]]:
    row = verdict.reader
    if row is None:
        return []
    facts: list[tuple[str, Any, Any]] = []
    if row.holder:
        facts.append(("Holder", row.holder, f"attempt {row.attempt}" if row.attempt else ""))
    if row.until:
        facts.append(("Until", view.time(row.until), ""))
    if row.ahead is not None:
        facts.append(("Before it", shapes.plural(row.ahead, "message") if row.ahead else "nothing", _rate(row.rate)))
    if row.last_claim:
        facts.append(("Last claim", view.time(row.last_claim), ""))
    if row.expected:
        facts.append(("Expected", view.time(row.expected), "at the rate of the last minutes"))
    return facts[:4]


def _rate(rate: float | None) -> str:
    return f"{rate:.1f}/s in the last minutes" if rate else ""


async def verdict(panel: Panel) -> Values:
    found = await _found(panel)
    if found is None:
        return {"said": None}
    rows = _rows(panel.view, found)
    said = verdicts.verdict(found.explanation, rows, full=_full(panel.view, found))
    return {"said": said, "facts": _facts(panel.view, said), "queue": found.explanation.get("queue")}


async def history(panel: Panel) -> Values:
    view, found = panel.view, await _found(panel)
    start = verdicts.time_of(found.explanation.get("published_at")) if found else None
    if found is None or start is None:
        return {"picture": None}
    sequenced = verdicts.time_of(found.explanation.get("sequenced_at"))
    return {"picture": timeline(start, sequenced, _rows(view, found), view.now, view.zone)}


async def readers(panel: Panel) -> Values:
    found = await _found(panel)
    rows = _rows(panel.view, found) if found else []
    steps = [(row, step) for row in rows for step in row.steps]
    redrives = (found.explanation.get("redrives") or []) if found and _full(panel.view, found) else []
    return {
        "rows": rows,
        "steps": steps[-50:],
        "known": found is not None,
        "topic": found.explanation.get("topic") if found else None,
        "redrives": [{**each, "at": verdicts.time_of(each.get("at"))} for each in redrives],
    }


async def attempts(panel: Panel) -> Values:
    view, found = panel.view, await _found(panel)
    rows = [row for row in found.attempts if view.may("view", row.endpoint)] if found else []
    return {"rows": rows, "full": bool(found and _full(view, found))}


for _work in (verdict, history, readers, attempts):
    by_id.add("queues", "groups")(_work)
    by_place.add("topic:{topic}", "group:{topic}", "queues")(_work)


async def _show(view: View, panels: Panels, title: str, crumbs: list[tuple[str, str | None]]) -> Response:
    panel = Panel(view)
    found = await _found(panel)
    message = found.message if found else None
    explained: dict[str, Any] = {**dict.fromkeys(_FIELDS), **(found.explanation if found else {})}
    full = found is not None and _full(view, found)
    payload = payloads.look_at(message.payload, message.content_type) if message and full else None
    show = view.query.get("show", "")
    fits = (
        payload is not None and (payload.tree is not None or show != "tree") and (payload.text is not None or show == "hex")
    )
    if show not in _SHOWS or not fits:
        show = "tree" if payload and payload.tree else "raw" if payload and payload.text is not None else "hex"
    topic, partition, offset = explained.get("topic"), explained.get("partition"), explained.get("offset")
    name = topic or explained.get("queue")
    around = (
        [view.url("topics", topic, f"{partition}@{each}") if each > 0 else None for each in (offset - 1, offset + 1)]
        if topic and offset is not None
        else []
    )
    return await view.page(
        _TEMPLATE,
        panels,
        title=title,
        nav="topics" if topic or not name else "queues",
        crumbs=crumbs,
        found=explained,
        published=verdicts.time_of(explained.get("published_at")),
        message=message,
        payload=payload,
        full=full,
        missing=view.missing("read", name) if name else None,
        show=show,
        shows=[
            (word.capitalize(), view.with_query(show=word), word == show)
            for word in _SHOWS
            if payload and _can(payload, word)
        ],
        around=around,
        download=view.url("m", str(explained["id"]), "payload") if message and full else None,
        copies=copying.message(explained, message if full else None),
    )


def _can(payload: payloads.Payload, show: str) -> bool:
    return show == "hex" or (payload.text is not None if show == "raw" else payload.tree is not None)


@page("/m/{message:str}")
async def message_by_id(view: View) -> Response:
    """A message by its id."""
    _key(view)
    id = str(view.path["message"])
    return await _show(view, by_id, id, [("Messages", None), (id, None)])


@page("/topics/{topic:str}/{place:str}", object="topic")
async def message_by_place(view: View) -> Response:
    """A message by its place in a topic."""
    _key(view)
    topic, place = str(view.path["topic"]), str(view.path["place"])
    crumbs = [("Topics", view.url("topics")), (topic, view.url("topics", topic)), (place, None)]
    return await _show(view, by_place, f"{topic} {place}", crumbs)


@page("/m/{message:str}/payload", scope="read")
async def download(view: View) -> Response:
    """The payload of a message, byte for byte, as a file."""
    found = await _found(Panel(view))
    name = _name(found) if found else None
    if found is None or found.message is None or name is None:
        raise Problem(404, "not_found", "no message has this id")
    if not view.may("read", name):
        raise Problem(403, "missing_scope", f"missing scope read:{name}")
    headers = {**POLICY, "content-disposition": f'attachment; filename="{found.message.id}.bin"'}
    return Response(found.message.payload, 200, "application/octet-stream", headers)


ROUTES = [message_by_id, *by_id.routes, message_by_place, *by_place.routes, download]
