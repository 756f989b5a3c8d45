"""The tabs of a topic: its readers with a test of routing, settings, publishing, deleting."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import msgspec

from trunkline.codec import EncodedMessage
from trunkline.errors import InvalidArgument, InvalidValue, TrunklineError
from trunkline.server.console import copying
from trunkline.server.console.places import tabs
from trunkline.server.console.reads import messages as message_reads
from trunkline.server.console.reads import topic_changes as reads
from trunkline.server.console.web import Values, View, action, page
from trunkline.server.problems import Problem
from trunkline.server.response import Response
from trunkline.settings import parse_duration
from trunkline.types import Topic

_JSON, _TEXT = "application/json", "text/plain"


def _topic(view: View) -> str:
    return str(view.path["topic"])


def _frame(view: View, here: str, title: str) -> Values:
    name = _topic(view)
    return {
        "title": title,
        "nav": "topics",
        "crumbs": [("Topics", view.url("topics")), (name, view.url("topics", name)), (title, None)],
        "tabs": tabs(view, name, here),
        "topic": name,
        "copies": copying.topic(name),
    }


async def _known(view: View) -> Topic | None:
    name = _topic(view)
    return (await view.console.reads.read(("settings", name), lambda conn: reads.topic(conn, name), fresh=0)).value


def _sentence(exc: Exception) -> str:
    hint = getattr(exc, "hint", None)
    return " ".join(text for text in (f"{str(exc)[:1].upper()}{str(exc)[1:]}.", hint or "") if text).replace("..", ".")


def headers_of(text: str) -> dict[str, Any] | None:
    """Return headers that were typed as JSON, or as name=value with spaces between."""
    text = text.strip()
    if not text:
        return None
    if text.startswith("{"):
        try:
            found = msgspec.json.decode(text)
        except msgspec.DecodeError:
            raise InvalidArgument("the headers are not valid JSON") from None
        return dict(found)
    pairs = [part.partition("=") for part in text.split()]
    if not all(name and sign for name, sign, _ in pairs):
        raise InvalidArgument("write headers as name=value, with spaces between them, or as JSON")
    return {name: value for name, _, value in pairs}


@page("/topics/{topic:str}/readers", object="topic")
async def readers(view: View) -> Response:
    """Readers of a topic, and which of them a message would reach."""
    name, error, rows = _topic(view), None, []
    routing_key, headers = view.query.get("routing_key") or None, None
    await _known(view)
    try:
        headers = headers_of(view.query.get("headers", ""))
        key = ("routing", name, routing_key, msgspec.json.encode(headers, order="sorted"))
        read = await view.console.reads.read(key, lambda conn: reads.routing(conn, name, routing_key, headers))
        rows, error = read.value or [], f"Routing {read.late}." if read.late else None
    except InvalidArgument as exc:
        error = _sentence(exc)
    return await view.page(
        "topic_readers.html",
        None,
        **_frame(view, "readers", f"Readers of {name}"),
        rows=[row for row in rows if row.kind == "group" or view.may("view", row.name)],
        tested=bool(view.query.get("routing_key") or view.query.get("headers")),
        error=error,
    )


@page("/topics/{topic:str}/settings", object="topic")
async def settings(view: View) -> Response:
    """The settings of a topic, and a form to change them."""
    return await _settings(view)


async def _settings(view: View, error: str | None = None) -> Response:
    name = _topic(view)
    return await view.page(
        "topic_settings.html",
        None,
        **_frame(view, "settings", f"Settings of {name}"),
        known=await _known(view),
        error=error,
        saved="saved" in view.query,
        missing=view.missing("admin", name),
    )


def _changed(form: dict[str, str]) -> dict[str, Any]:
    """Return the settings that a form gives; empty fields stay as they are."""
    found: dict[str, Any] = {}
    for field in ("retention", "hard_retention"):
        if text := form.get(field, "").strip():
            found[field] = parse_duration(text)
    for field in ("partitions", "retention_bytes", "max_payload"):
        if text := form.get(field, "").strip():
            if not (text.isascii() and text.isdigit() and len(text) <= 18):
                raise InvalidArgument(f"{field.replace('_', ' ')} must be a number, got {text[:30]!r}")
            found[field] = int(text)
    return found


@action("/topics/{topic:str}/settings", scope="admin", object="topic")
async def alter(view: View) -> Response:
    """Change the settings of a topic."""
    name = _topic(view)
    try:
        changed = _changed(await view.form())
        if changed:
            await view.change(lambda conn: reads.alter(conn, name, changed), f"topic:{name}", "topics")
    except TrunklineError as exc:
        return await _settings(view, _sentence(exc))
    return view.redirect(view.url("topics", name, "settings", saved="1"))


@page("/topics/{topic:str}/publish", object="topic")
async def publish_page(view: View) -> Response:
    """A form that publishes a message, filled in from another one with `copy`."""
    values = {"content_type": _JSON, "payload": "{}"}
    await _known(view)
    try:
        copied = UUID(view.query["copy"]) if view.query.get("copy") else None
    except ValueError:
        copied = None
    if copied is not None:
        values = await _copied(view, copied) or values
    return await _publish(view, values)


async def _copied(view: View, id: UUID) -> dict[str, str] | None:
    """Return the fields of the form for a copy of a message that the caller may read."""
    read = await view.console.reads.read(("message", id), lambda conn: message_reads.by_id(conn, id), seconds=2.0)
    found = read.value
    if found is None or found.message is None:
        return None
    name = found.explanation.get("topic") or found.explanation.get("queue")
    if name is None or not view.may("read", name):
        return None
    message = found.message
    try:
        payload = message.payload.decode()
    except UnicodeDecodeError:
        return None
    return {
        "payload": payload,
        "content_type": message.content_type,
        "key": message.key or "",
        "routing_key": message.routing_key or "",
        "label": message.label or "",
        "headers": msgspec.json.encode(message.headers).decode() if message.headers else "",
    }


async def _publish(view: View, values: dict[str, str], error: str | None = None) -> Response:
    name = _topic(view)
    return await view.page(
        "topic_publish.html",
        None,
        **_frame(view, "publish", f"Publish to {name}"),
        values=values,
        types=list(dict.fromkeys((_JSON, _TEXT, values.get("content_type", _JSON)))),
        error=error,
        missing=view.missing("publish", name),
    )


@action("/topics/{topic:str}/publish", scope="view", object="topic")
async def publish(view: View) -> Response:
    """Publish a message. Needs both scopes: a token that only publishes has no pages."""
    name, form = _topic(view), await view.form()
    if not view.may("publish", name):
        raise Problem(403, "missing_scope", f"missing scope publish:{name}")
    content_type = form.get("content_type") or _JSON
    # browsers send the line ends of a form as CR LF
    payload = form.get("payload", "").replace("\r\n", "\n").encode()
    try:
        if content_type == _JSON:
            _check_json(payload)
        headers = headers_of(form.get("headers", ""))
        message = EncodedMessage(
            payload=payload,
            content_type=content_type,
            key=form.get("key") or None,
            routing_key=form.get("routing_key") or None,
            label=form.get("label") or None,
            headers=msgspec.json.encode(headers).decode() if headers else None,
        )
        done = await view.change(lambda conn: reads.publish(conn, name, message), f"topic:{name}", "topics")
    except TrunklineError as exc:
        return await _publish(view, form, _sentence(exc))
    return view.redirect(view.url("m", str(done.id)))


def _check_json(payload: bytes) -> None:
    try:
        # numbers stay as they are written
        json.loads(payload, parse_int=str, parse_float=str, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise InvalidArgument(f"the payload is not valid JSON: {exc}") from None


def _no_constant(name: str) -> str:
    raise InvalidValue(f"{name} is not a JSON value")


@page("/topics/{topic:str}/delete", object="topic")
async def delete_page(view: View) -> Response:
    """The question before a topic is deleted: what ends with it."""
    name = _topic(view)
    read = await view.console.reads.read(("dependents", name), lambda conn: reads.dependents(conn, name), fresh=0)
    await _known(view)
    groups, subscriptions = read.value or ([], [])
    return await view.page(
        "topic_delete.html",
        None,
        **_frame(view, "settings", f"Delete topic {name}"),
        groups=[group.name for group in groups],
        queues=[each.queue for each in subscriptions if view.may("view", each.queue)],
        missing=view.missing("admin", name),
    )


@action("/topics/{topic:str}/delete", scope="admin", object="topic")
async def delete(view: View) -> Response:
    """Delete a topic with its messages, groups and subscriptions."""
    name = _topic(view)
    if (await view.form()).get("name") != name:
        raise Problem(400, "bad_form", f"type the name {name} to delete the topic")
    await view.change(lambda conn: reads.delete(conn, name), f"topic:{name}", "topics", "groups")
    return view.redirect(view.url("topics"))


ROUTES = [readers, settings, alter, publish_page, publish, delete_page, delete]
