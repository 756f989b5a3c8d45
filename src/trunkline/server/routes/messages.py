"""Messages: publish, read, explain."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from litestar.params import FromPath

from trunkline.server.budget import read_topic
from trunkline.server.line_stream import LineStream
from trunkline.server.long_poll import retry_until, until_gone
from trunkline.server.messages import (
    NDJSON,
    PRIORITY,
    RAW_PARAMS,
    Envelope,
    idempotency_key,
    media_type,
    read_messages,
)
from trunkline.server.problems import invalid, message_not_found
from trunkline.server.query import LARGEST, PARTITION, WAIT, Param
from trunkline.server.request import Request
from trunkline.server.response import Response, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import PublishedView, message_view
from trunkline.wire import MessageView

TAG = "messages"


class Stored(msgspec.Struct, frozen=True):
    """Ids in the order of the messages."""

    messages: list[PublishedView]


_PUBLISH: dict[str, Any] = {
    "tag": TAG,
    "scope": "publish",
    "body": Envelope | list[Envelope],
    "bodies": {NDJSON[0]: str, "application/octet-stream": bytes},
    "responses": {201: (PublishedView, Stored)},
    "problems": (400, 404, 408, 409, 413, 415),
    "headers": {
        "Idempotency-Key": "A repeated publish with the same key stores nothing and returns the first id.",
        "traceparent": "W3C trace context, stored as a message header.",
    },
}


async def _publish(request: Request, kind: str, name: str) -> Response:
    query = request.query()
    if not query["raw"] and media_type(request) in NDJSON:
        return await _publish_lines(request, kind, name)
    sent = await read_messages(request, query)
    if sent.single:
        stored = await request.service.publish(kind, name, sent.messages[0])
        return respond(PublishedView(stored.id, stored.duplicate), 201, {"message-id": str(stored.id)})
    with request.service.publishing(sum(len(message.body) for message in sent.messages)):
        many = request.mq.publish_many if kind == "topic" else request.mq.enqueue_many
        published = await many(name, sent.messages)
    request.service.metrics.published(len(published))
    return respond(Stored([PublishedView(row.id, row.duplicate) for row in published]), 201)


async def _publish_lines(request: Request, kind: str, name: str) -> Response:
    stream = LineStream(request, kind, name, idempotency_key(request), request.trace())
    await stream.publish()
    request.service.metrics.published(stream.count)
    return Response(b'{"messages":[' + b",".join(stream.views) + b"]}", 201)


@route("POST", "/topics/{topic:str}/messages", Doc(**_PUBLISH, params=RAW_PARAMS, object="topic"))
async def publish(request: Request, topic: FromPath[str]) -> Response:
    """Publish one message, an array or NDJSON (all or none), or a raw body.

    Bodies of other content types than JSON, or with `raw=true`, are stored unchanged; headers named
    Trunkline-Header-X become message headers.
    """
    return await _publish(request, "topic", topic)


@route("POST", "/queues/{queue:str}/messages", Doc(**_PUBLISH, params=(*RAW_PARAMS, PRIORITY), object="queue"))
async def enqueue(request: Request, queue: FromPath[str]) -> Response:
    """Enqueue messages directly into a queue, in the same forms as for a topic."""
    return await _publish(request, "inbox", queue)


# Reading a topic


class Messages(msgspec.Struct, frozen=True):
    data: list[MessageView]
    next: int
    """The `start` of the next page, also if there are no messages yet."""


@route(
    "GET",
    "/topics/{topic:str}/messages",
    Doc(
        tag=TAG,
        scope="consume",
        params=(
            PARTITION,
            Param(name="start", kind=int, default=1, low=1, words="First offset to return."),
            Param(name="limit", kind=int, default=100, low=1, high=1000, words="Maximum number of messages."),
            WAIT,
        ),
        responses={200: Messages},
        problems=(404, 416),
        object="topic",
        reads=True,
    ),
)
async def read(request: Request, topic: FromPath[str]) -> Response:
    """Read messages from an offset, consumed or not. Has no effect on any reader."""
    query = request.query()

    async def look() -> list[Any] | None:
        found = await read_topic(
            request.mq,
            topic,
            query["partition"],
            start=query["start"],
            limit=query["limit"],
            max_bytes=request.service.config.max_response_bytes,
        )
        return found or None

    work = retry_until(request.mq, "topic", topic, look, wait=query["wait"])
    found = (await (until_gone(request, work) if query["wait"] else work)) or []
    shown = [message_view(row) for row in found]
    return respond(Messages(shown, shown[-1].offset + 1 if shown else query["start"]))


# Explanations


@route(
    "GET",
    "/messages/{message:uuid}/explanation",
    Doc(tag=TAG, scope="read", responses={200: dict[str, Any]}, problems=(404,), reads=True),
)
async def explain(request: Request, message: FromPath[UUID]) -> Response:
    """Explain where a message is, who holds it, why it is not delivered, and what happened to it."""
    request.query()
    found = await request.mq.explain(message)
    if found.state == "unknown":
        raise message_not_found(found.reason or f"message {message} does not exist")
    return respond(dict(found))


@route(
    "GET",
    "/topics/{topic:str}/messages/{offset:int}/explanation",
    Doc(
        tag=TAG,
        scope="read",
        params=(PARTITION,),
        responses={200: dict[str, Any]},
        problems=(404, 416),
        object="topic",
        reads=True,
    ),
)
async def explain_offset(request: Request, topic: FromPath[str], offset: FromPath[int]) -> Response:
    """Explain the message at an offset of a topic."""
    if offset > LARGEST:
        raise invalid("the offset is too large")
    return respond(dict(await request.mq.explain_offset(topic, request.query()["partition"], offset=offset)))


ROUTES = [publish, enqueue, read, explain, explain_offset]
