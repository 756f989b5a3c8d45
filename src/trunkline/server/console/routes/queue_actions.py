"""Actions on a queue: pause, resume, enqueue, release and bury."""

from __future__ import annotations

import json
from datetime import timedelta

from trunkline.db import calls
from trunkline.errors import InvalidValue, TrunklineError
from trunkline.server.console import copying
from trunkline.server.console.reads import queues as reads
from trunkline.server.console.web import View, action, page
from trunkline.server.problems import Problem
from trunkline.server.response import Response
from trunkline.settings import parse_duration

_FORM = "queue_enqueue.html"


async def _pause(view: View, *, paused: bool) -> Response:
    name = str(view.path["queue"])
    await view.change(lambda conn: calls.pause_queue(conn, name, paused=paused), f"queue:{name}", "queues")
    if not paused:
        view.request.mq.session.wakeup.published("inbox", name)
    return view.redirect(view.url("queues", name, did="paused" if paused else "resumed"))


@action("/queues/{queue:str}/pause", scope="operate", object="queue")
async def pause(view: View) -> Response:
    """Stop deliveries of a queue."""
    return await _pause(view, paused=True)


@action("/queues/{queue:str}/resume", scope="operate", object="queue")
async def resume(view: View) -> Response:
    """Deliver messages of a queue again."""
    return await _pause(view, paused=False)


async def _form(view: View, fields: dict[str, str], error: str | None, status: int = 200) -> Response:
    name = str(view.path["queue"])
    return await view.page(
        _FORM,
        status=status,
        title="Enqueue a message",
        nav="queues",
        crumbs=[("Queues", view.url("queues")), (name, view.url("queues", name)), ("Enqueue", None)],
        name=name,
        fields=fields,
        error=error,
        copies=copying.enqueue(name),
    )


@page("/queues/{queue:str}/enqueue", object="queue")
async def enqueue_form(view: View) -> Response:
    """The form for a new message."""
    await view.console.reads.read(
        ("queue", str(view.path["queue"])), lambda conn: reads.detail(conn, str(view.path["queue"]))
    )
    return await _form(view, {"payload": "{}"}, None)


@action("/queues/{queue:str}/enqueue", scope="view", object="queue")
async def enqueue(view: View) -> Response:
    """Put a message directly into a queue. Its payload is sent as it was typed."""
    name, fields = str(view.path["queue"]), await view.form()
    view.request.service.auth.check(view.request.scope, "publish", name)
    payload = fields.get("payload", "").replace("\r\n", "\n")
    kind = fields.get("content_type") or "application/json"
    try:
        if kind == "application/json":
            json.loads(payload)
        headers = json.loads(fields["headers"]) if fields.get("headers", "").strip() else None
        if headers is not None and not isinstance(headers, dict):
            raise InvalidValue("headers must be a JSON object")
        delay = parse_duration(fields["delay"]) if fields.get("delay", "").strip() else timedelta()
    except (ValueError, TrunklineError) as exc:
        return await _form(view, fields, f"This is not valid: {exc}.", 400)
    try:
        await view.request.mq.enqueue(
            name,
            payload.encode(),
            content_type=kind,
            key=fields.get("key") or None,
            label=fields.get("label") or None,
            headers=headers,
            delay=delay or None,
        )
    except TrunklineError as exc:
        if exc.status >= 500:
            raise
        return await _form(view, fields, f"{exc}.", 400)
    view.changed(f"queue:{name}", "queues")
    return view.redirect(view.url("queues", name, did="enqueued", tab="delayed" if delay else None))


async def _settle(view: View, *, bury: bool) -> Response:
    name, fields = str(view.path["queue"]), await view.form()
    try:
        place = (fields.get("topic") or None, int(fields["partition"]), int(fields["first"]), int(fields["last"]))
    except (KeyError, ValueError):
        raise Problem(400, "bad_form", "the form names no delivery") from None
    topic = place[0]
    if topic is not None:
        view.request.service.auth.check(view.request.scope, "view", topic)
    by = view.caller.name
    done = await view.change(lambda conn: reads.settle(conn, name, place, bury=bury, by=by), f"queue:{name}", "queues")
    did = ("buried" if bury else "released") if done else "lost"
    return view.redirect(view.url("queues", name, tab="leased", did=did))


@action("/queues/{queue:str}/release", scope="operate", object="queue")
async def release(view: View) -> Response:
    """Take leased messages back from their consumer; another one gets them without a counted attempt."""
    return await _settle(view, bury=False)


@action("/queues/{queue:str}/bury", scope="operate", object="queue")
async def bury(view: View) -> Response:
    """Make dead letters of leased messages."""
    return await _settle(view, bury=True)


ROUTES = [pause, resume, enqueue_form, enqueue, release, bury]
