"""Dead letters: grouped by error, one group with its spread, one message, and redriving it with other content."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import msgspec

from trunkline.db import calls
from trunkline.db.calls import dead_letters
from trunkline.errors import TrunklineError
from trunkline.server.console import bulk, charts, copying, payloads, shapes
from trunkline.server.console.reads import runs as reads
from trunkline.server.console.web import POLICY, Panel, Panels, Values, View, action, page
from trunkline.server.problems import Problem
from trunkline.server.response import Response
from trunkline.server.views import render
from trunkline.types import DeadLetter, DeadShare

_LIST, _GROUP, _ONE, _EDIT = "dead.html", "dead_group.html", "dead_letter.html", "dead_edit.html"
_PAGE = 50
_EXPORTED, _EXPORT_STEP = 10_000, 500
_EXPORT_BYTES = 32_000_000
_OF_DEAD = ("redrive", "retry_jobs", "purge_dead_letters")
_DIMENSIONS = {
    "consumer": "Consumer",
    "key": "Key",
    "topic": "Topic",
    "hour": "Hour, UTC",
    "attempts": "Attempts",
    "error": "Error",
}
listing = Panels("/dead", _LIST)
of_queue = Panels("/dead/{queue:str}", _LIST, object="queue")
one = Panels("/dead/{queue:str}/{fingerprint:str}", _GROUP, object="queue")


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None


async def _groups(panel: Panel, queue: str | None) -> Values:
    view = panel.view
    found = await panel.read("Dead letters", (reads.GROUPS, queue), lambda conn: reads.groups(conn, queue), seconds=2.0)
    active = await panel.read("Runs", reads.ACTIVE, reads.active) or []
    running = {
        (str(run.selector.get("queue")), str(run.selector["fingerprint"])): run.run_id
        for run in active
        if "fingerprint" in run.selector
    }
    groups = [row for row in found or () if row.rest is None and row.queue is not None and view.may("view", row.queue)]
    everything = queue is not None or view.may("view")
    return {
        "known": found is not None,
        "rows": groups,
        "rest": sum(row.messages for row in found or () if row.rest is not None) if everything else 0,
        "total": sum(row.messages for row in groups),
        "running": running,
        "active": [run for run in active if run.kind in _OF_DEAD and view.may("view", bulk.queue_of(run))],
        "queue": queue,
    }


@listing.add("queues", "runs")
async def groups(panel: Panel) -> Values:
    return await _groups(panel, None)


async def _queue_groups(panel: Panel) -> Values:
    queue = str(panel.view.path["queue"])
    if panel.view.query.get("show") != "messages":
        return await _groups(panel, queue)
    after = _number(panel.view.query.get("after", "")) or 0
    found = await panel.read(
        "Dead letters", ("letters", queue, after), lambda conn: reads.letters(conn, queue, after, _PAGE)
    )
    more = panel.view.with_query(after=found[-1].dead_id) if found and len(found) == _PAGE else None
    return {"letters": found or [], "known": found is not None, "more": more, "queue": queue, "rest": 0, "total": None}


_queue_groups.__name__ = "groups"
of_queue.add("queue:{queue}", "runs")(_queue_groups)


def _shares(found: list[DeadShare]) -> list[dict[str, Any]]:
    """Return the spread by dimension, with a bar for each value. One value that all share is named first."""
    total = {name: sum(share.messages for share in found if share.dimension == name) for name in _DIMENSIONS}
    return [
        {
            "title": title,
            "name": name,
            "rows": [
                {
                    "value": share.value,
                    "others": share.others,
                    "messages": share.messages,
                    "bar": charts.meter(
                        [(100 * share.messages / total[name], "c-dead" if share.messages == total[name] else "c-faint")],
                        f"{100 * share.messages / total[name]:.0f} %",
                        cell=True,
                    ),
                }
                for share in found
                if share.dimension == name
            ],
        }
        for name, title in _DIMENSIONS.items()
        if any(share.dimension == name and (share.value is not None or share.others) for share in found)
    ]


def _shared(found: list[DeadShare]) -> tuple[str, str, int] | None:
    """Return the consumer, key or topic that all messages of a group of at least two share."""
    for name in ("consumer", "key", "topic"):
        rows = [share for share in found if share.dimension == name]
        if len(rows) == 1 and rows[0].value is not None and not rows[0].others and rows[0].messages > 1:
            return name, rows[0].value, rows[0].messages
    return None


@one.add("queue:{queue}", "runs")
async def group(panel: Panel) -> Values:
    view = panel.view
    queue, fingerprint = str(view.path["queue"]), str(view.path["fingerprint"])
    before = _number(view.query.get("before", ""))
    found = await panel.read(
        "This group",
        ("dead group", queue, fingerprint, before),
        lambda conn: reads.group(conn, queue, fingerprint, before, _PAGE),
        seconds=2.0,
    )
    letters = found.letters if found else []
    spread = found.spread if found else []
    readable = view.may("read", queue)
    seen = spread if readable else [share for share in spread if share.dimension in ("topic", "hour", "attempts")]
    return {
        "known": found is not None,
        "queue": queue,
        "fingerprint": fingerprint,
        "letters": letters,
        "sample": letters[0] if letters else None,
        "payload": payloads.look_at(letters[0].payload, letters[0].content_type) if letters and readable else None,
        "spread": _shares(seen),
        "shared": _shared(seen),
        "total": sum(share.messages for share in spread if share.dimension in ("attempts", "older")),
        "reads": readable,
        "more": view.with_query(before=letters[-1].dead_id) if len(letters) == _PAGE else None,
    }


@page("/dead")
async def dead(view: View) -> Response:
    """The dead letters of all queues, grouped by error."""
    return await view.page(
        _LIST, listing, title="Dead letters", nav="dead", queue=None, segments=[], copies=copying.dead_groups(None)
    )


@page("/dead/{queue:str}", object="queue")
async def dead_of_queue(view: View) -> Response:
    """The dead letters of one queue."""
    queue, single = str(view.path["queue"]), view.query.get("show") == "messages"
    await view.console.reads.read(("dead groups", queue), lambda conn: reads.groups(conn, queue))
    return await view.page(
        _LIST,
        of_queue,
        title=f"Dead letters of {queue}",
        nav="dead",
        crumbs=[("Dead letters", view.url("dead")), (queue, None)],
        queue=queue,
        segments=[
            ("By error", view.url("dead", queue), not single),
            ("All messages", view.url("dead", queue, show="messages"), single),
        ],
        copies=copying.dead_groups(queue),
    )


@page("/dead/{queue:str}/{fingerprint:str}", object="queue")
async def dead_group(view: View) -> Response:
    """Dead letters with the same error: a sample, how they are spread, and what to do."""
    queue, fingerprint = str(view.path["queue"]), str(view.path["fingerprint"])
    await view.console.reads.read(
        ("dead group", queue, fingerprint, None), lambda conn: reads.group(conn, queue, fingerprint, None, _PAGE)
    )
    return await view.page(
        _GROUP,
        one,
        title=f"Error {fingerprint}",
        nav="dead",
        crumbs=[("Dead letters", view.url("dead")), (queue, view.url("dead", queue)), (fingerprint, None)],
        queue=queue,
        fingerprint=fingerprint,
        copies=copying.dead_group(queue, fingerprint),
    )


@page("/queues/{queue:str}/dead-export", scope="read", object="queue")
async def export(view: View) -> Response:
    """Dead letters of a queue or of one group as JSON lines, at most 10,000."""
    queue, fingerprint = str(view.path["queue"]), view.query.get("fingerprint", "")
    lines: list[bytes] = []
    size, place, left = 0, None, False
    while len(lines) < _EXPORTED and size < _EXPORT_BYTES:
        async with view.request.mq.connection() as conn:
            if fingerprint:
                rows = await dead_letters.list_dead_group(
                    conn, queue, fingerprint, before=place, limit=_EXPORT_STEP, max_bytes=4_000_000
                )
            else:
                rows = await reads.letters(conn, queue, place or 0, _EXPORT_STEP)
        if not rows:
            break
        place = rows[-1].dead_id
        for row in rows:
            lines.append(_line(row))
            size += len(lines[-1])
    else:
        left = True
    headers = {
        **POLICY,
        "content-disposition": 'attachment; filename="dead-letters.jsonl"',
        "x-trunkline-complete": "no" if left else "yes",
    }
    return Response(b"".join(lines), 200, "application/x-ndjson", headers)


def _line(letter: DeadLetter[Any]) -> bytes:
    shown = render(letter.payload, letter.content_type)
    names = ("id", "dead_id", "topic", "key", "routing_key", "label", "headers", "attempts", "error", "reason", "dead_at")
    fields = {name: getattr(letter, name) for name in (*names, "created_at", "content_type")}
    return msgspec.json.encode({**fields, "payload": shown.payload, "encoding": shown.encoding}) + b"\n"


# One dead letter


async def _letter(view: View) -> DeadLetter[Any]:
    queue, id = str(view.path["queue"]), UUID(str(view.path["letter"]))
    read = await view.console.reads.read(("letter", queue, id), lambda conn: reads.letter(conn, queue, id))
    if read.value is None:
        # it was not read: this raises the error of the database
        async with view.request.mq.connection() as conn:
            return await reads.letter(conn, queue, id)
    return read.value


def _crumbs(view: View, queue: str, id: str) -> list[tuple[str, str | None]]:
    return [("Dead letters", view.url("dead")), (queue, view.url("dead", queue)), (shapes.short(id), None)]


@page("/queues/{queue:str}/dead/{letter:uuid}", object="queue")
async def dead_letter(view: View) -> Response:
    """One dead letter: why it is dead, its content, and what to do."""
    queue, letter = str(view.path["queue"]), await _letter(view)
    readable = view.may("read", queue)
    payload = payloads.look_at(letter.payload, letter.content_type) if readable else None
    return await view.page(
        _ONE,
        title=f"Dead letter {letter.id}",
        nav="dead",
        crumbs=_crumbs(view, queue, str(letter.id)),
        queue=queue,
        letter=letter,
        payload=payload,
        reads=readable,
        copies=copying.dead_letter(queue, str(letter.id), letter.payload if readable else None, letter.headers),
    )


@action("/queues/{queue:str}/dead/{letter:uuid}/redrive", scope="operate", object="queue")
async def redrive(view: View) -> Response:
    """Move one dead letter back to its queue as it is."""
    queue, id = str(view.path["queue"]), UUID(str(view.path["letter"]))
    moved = await view.change(lambda conn: calls.redrive(conn, queue, ids=[id]), f"queue:{queue}", "queues")
    view.request.mq.session.wakeup.published("inbox", queue)
    if not moved:
        raise Problem(409, "not_dead", f"message {id} is no dead letter of {queue} any more")
    return view.redirect(view.url("queues", queue, tab="ready"))


def editable(payload: bytes) -> str | None:
    """Return a payload as text that a form can send back unchanged; None if it cannot."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    return None if "\r" in text or "\x00" in text or len(text) > payloads.MOST_BYTES else text


async def _edit_form(
    view: View, letter: DeadLetter[Any], text: str | None, error: str | None, status: int = 200
) -> Response:
    queue = str(view.path["queue"])
    return await view.page(
        _EDIT,
        status=status,
        title="Edit and redrive",
        nav="dead",
        crumbs=_crumbs(view, queue, str(letter.id)),
        name=str(letter.id),
        queue=queue,
        text=text,
        content_type=letter.content_type,
        error=error,
        note=f"Moves this one dead letter back to {queue} with another payload. Its attempts start again from 1.",
        action=view.url("queues", queue, "dead", str(letter.id), "edit"),
        word="Redrive edited",
        missing=view.missing("operate", queue),
        back=view.url("queues", queue, "dead", str(letter.id)),
        schema=None,
    )


@page("/queues/{queue:str}/dead/{letter:uuid}/edit", scope="read", object="queue")
async def edit_form(view: View) -> Response:
    """The form to change a dead letter before it is redriven."""
    letter = await _letter(view)
    return await _edit_form(view, letter, editable(letter.payload), None)


def typed(fields: dict[str, str], content_type: str) -> tuple[bytes, str | None]:
    """Return the payload of a form, as it was typed, and what is wrong with it."""
    text = fields.get("payload", "").replace("\r\n", "\n")
    if content_type.partition(";")[0].strip().lower().endswith(("/json", "+json")):
        try:
            json.loads(text)
        except (ValueError, RecursionError) as exc:
            return text.encode(), f"This is not valid JSON: {exc}."
    return text.encode(), None


@action("/queues/{queue:str}/dead/{letter:uuid}/edit", scope="operate", object="queue")
async def edit(view: View) -> Response:
    """Move one dead letter back to its queue with another payload."""
    queue, id = str(view.path["queue"]), UUID(str(view.path["letter"]))
    view.request.service.auth.check(view.request.scope, "read", queue)
    letter = await _letter(view)
    payload, error = typed(await view.form(), letter.content_type)
    if error is None:
        try:
            await view.change(lambda conn: calls.redrive_edited(conn, queue, id, payload), f"queue:{queue}", "queues")
        except TrunklineError as exc:
            if exc.status != 400:
                raise
            error = exc.message
    if error is not None:
        return await _edit_form(view, letter, payload.decode(), error, 400)
    view.request.mq.session.wakeup.published("inbox", queue)
    return view.redirect(view.url("queues", queue, tab="ready"))


ROUTES = [
    dead,
    *listing.routes,
    dead_of_queue,
    *of_queue.routes,
    dead_group,
    *one.routes,
    export,
    dead_letter,
    redrive,
    edit_form,
    edit,
]
