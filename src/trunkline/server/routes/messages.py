"""Messages: publish, read, consume, settle by id, explain."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar.params import FromPath
from msgspec import Meta

from trunkline.db import calls, doors
from trunkline.server.budget import read_topic
from trunkline.server.call import Answer, Call, answer, nothing
from trunkline.server.claiming import settle
from trunkline.server.envelopes import (
    NDJSON,
    PRIORITY,
    RAW_PARAMS,
    Envelope,
    Sent,
    idempotency_key,
    media_type,
    read_messages,
)
from trunkline.server.params import LARGEST, PARTITION, WAIT, Param
from trunkline.server.problems import invalid, message_not_found
from trunkline.server.routing import Doc, route
from trunkline.server.streams import LineStream
from trunkline.server.views import MessageView, Page, PublishedView, TextDeliveryView, message_view, text_delivery_view
from trunkline.server.waiting import retry_until, until_gone
from trunkline.types import Result

TAG = "messages"


class Stored(msgspec.Struct, frozen=True):
    """Ids in the order of the messages."""

    messages: list[PublishedView]


_PUBLISH: dict[str, Any] = {
    "tag": TAG,
    "scope": "publish",
    "body": Envelope | list[Envelope],
    "bodies": {NDJSON[0]: str, "application/octet-stream": bytes},
    "answers": {201: (PublishedView, Stored), 204: None},
    "problems": (400, 404, 408, 409, 413, 415),
    "headers": {
        "Idempotency-Key": "A repeated publish with the same key stores nothing and returns the first id.",
        "Prefer": "return=representation: respond 201 with the id even to a message with `body`.",
        "traceparent": "W3C trace context, stored as a message header.",
    },
}


async def _publish(call: Call, kind: str, name: str) -> Answer:
    query = call.query()
    if not query["raw"] and media_type(call) in NDJSON:
        return await _publish_lines(call, kind, name)
    sent = await read_messages(call, query)
    if sent.single:
        return await _publish_one(call, kind, name, sent)
    with call.engine.publishing(sum(len(message.body) for message in sent.messages)):
        many = call.mq.publish_many if kind == "topic" else call.mq.enqueue_many
        published = await many(name, sent.messages)
    call.engine.metrics.published(len(published))
    return answer(Stored([PublishedView(row.id, row.duplicate) for row in published]), 201)


async def _publish_lines(call: Call, kind: str, name: str) -> Answer:
    stream = LineStream(call, kind, name, idempotency_key(call), call.trace())
    await stream.publish()
    call.engine.metrics.published(stream.count)
    return Answer(b'{"messages":[' + b",".join(stream.views) + b"]}", 201)


async def _publish_one(call: Call, kind: str, name: str, sent: Sent) -> Answer:
    """Publish messages; concurrent publishes share a statement."""
    engine, message = call.engine, sent.messages[0]
    with engine.publishing(len(message.body)):
        stored = await engine.mq.session.publisher.publish(kind, name, message)
    engine.metrics.published(1)
    headers = {"message-id": str(stored.id)}
    if sent.plain and "return=representation" not in (call.header("prefer") or ""):
        return nothing(headers)
    return answer(PublishedView(stored.id, stored.duplicate), 201, headers)


@route("POST", "/topics/{topic:str}/messages", Doc(**_PUBLISH, params=RAW_PARAMS, strict=False, object="topic"))
async def publish(request: Call, topic: FromPath[str]) -> Answer:
    """Publish one message, an array or NDJSON (all or none), or a raw body.

    The response to a message with `body` is 204 with the id in the header Message-Id, with `payload` 201. Bodies of
    other content types than JSON, or with `raw=true`, are stored unchanged; headers
    named Trunkline-Header-X become message headers.
    """
    return await _publish(request, "topic", topic)


@route("POST", "/queues/{queue:str}/messages", Doc(**_PUBLISH, params=(*RAW_PARAMS, PRIORITY), strict=False, object="queue"))
async def enqueue(request: Call, queue: FromPath[str]) -> Answer:
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
        answers={200: Messages},
        problems=(404, 416),
        object="topic",
        reads=True,
    ),
)
async def read(request: Call, topic: FromPath[str]) -> Answer:
    """Read messages from an offset, consumed or not. Has no effect on any reader."""
    query = request.query()

    async def look() -> list[Any] | None:
        found = await read_topic(
            request.mq,
            topic,
            query["partition"],
            start=query["start"],
            limit=query["limit"],
            max_bytes=request.engine.config.max_response_bytes,
        )
        return found or None

    work = retry_until(request.mq, "topic", topic, look, wait=query["wait"])
    found = (await (until_gone(request, work) if query["wait"] else work)) or []
    shown = [message_view(row) for row in found]
    return answer(Messages(shown, shown[-1].offset + 1 if shown else query["start"]))


# psqlqueue's way of consuming


class TextDeliveries(msgspec.Struct, frozen=True):
    data: list[TextDeliveryView]
    limit: int


@route(
    "GET",
    "/queues/{queue:str}/messages",
    Doc(
        tag=TAG,
        scope="consume",
        params=(
            Param(name="label", words="Only messages with this label."),
            Param(name="limit", kind=int, default=10, low=0, lenient=True, words="Maximum number of messages."),
            Param(
                name="wait",
                kind=float,
                default=0.0,
                low=0,
                high=30,
                lenient=True,
                words="Seconds to wait if no message is ready.",
            ),
        ),
        strict=False,
        answers={200: TextDeliveries},
        problems=(404,),
        object="queue",
    ),
)
async def consume(request: Call, queue: FromPath[str]) -> Answer:
    """Lease messages for the queue's acknowledgement deadline. Settle them by id, or preferably by receipt."""
    query = request.query()
    limit = min(query["limit"], request.engine.config.max_pull)
    if limit == 0:
        await request.mq.queues.get(queue)
        return answer(Page([], 0))
    labels = [query["label"]] if query["label"] else None
    if query["wait"]:
        await request.bytes()
    taken = await request.engine.lines.claim(request, queue, limit=limit, lease=None, labels=labels, wait=query["wait"])
    for delivery in taken:
        request.engine.receipts.remember(queue, delivery.id, delivery.receipt)
    return answer(TextDeliveries([text_delivery_view(queue, delivery) for delivery in taken], limit))


class Again(msgspec.Struct, kw_only=True):
    """The delay before redelivery."""

    visibility_timeout_seconds: Annotated[int, Meta(ge=0, le=31_536_000)] = 0


_BY_ID: dict[str, Any] = {
    "tag": TAG,
    "scope": "consume",
    "strict": False,
    "answers": {204: None},
    "problems": (400, 404),
    "object": "queue",
}


@route("PUT", "/queues/{queue:str}/messages/{message:str}/ack", Doc(**_BY_ID))
async def ack(request: Call, queue: FromPath[str], message: FromPath[str]) -> Answer:
    """Ack a message. By receipt: only if that delivery still holds it. By id: whichever delivery holds it."""
    await _settle_one(request, queue, message, None)
    return nothing()


@route(
    "PUT",
    "/queues/{queue:str}/messages/{message:str}/nack",
    Doc(
        **_BY_ID,
        params=(
            Param(
                name="visibility_timeout_seconds",
                kind=int,
                low=0,
                high=31_536_000,
                lenient=True,
                words="Same as in the body.",
            ),
        ),
        body=Again,
        optional_body=True,
    ),
)
async def nack(request: Call, queue: FromPath[str], message: FromPath[str]) -> Answer:
    """Redeliver the message after a delay, by default immediately."""
    given = request.query()["visibility_timeout_seconds"]
    body = await request.read(Again, optional=True)
    await _settle_one(request, queue, message, body.visibility_timeout_seconds if given is None else given)
    return nothing()


async def _settle_one(call: Call, queue: str, message: str, delay: int | None) -> None:
    """Ack, or nack with `delay`. Settling an acked message has no effect and is not an error."""
    if "." in message:
        await _settle_receipt(call, queue, message, delay)
        return
    try:
        id = UUID(message)
    except ValueError:
        await call.mq.queues.get(queue)
        raise message_not_found(f"{message[:100]!r} is not a message id") from None
    receipt = call.engine.receipts.take(queue, id)
    if receipt is not None and await _settle(call, queue, receipt, delay) == "done":
        return
    # delivered by another worker, or evicted from memory: ask the database
    for _ in range(3):
        async with call.mq.connection() as conn:
            held = await doors.delivery_of(conn, queue, id)
        if held is None:
            state = await _not_readable_yet(call, queue, id)
            if state is None:
                raise message_not_found(f"queue {queue} has no message {id}")
            raise message_not_found(f"message {id} is not leased: it is {state}")
        if held.state == "acked":
            return
        if held.receipt is None:
            raise message_not_found(f"message {id} is not leased: it is {held.state}")
        if await _settle(call, queue, held.receipt, delay) == "done":
            return
        await asyncio.sleep(0.01)
    raise message_not_found(f"the delivery of message {id} keeps changing")


async def _not_readable_yet(call: Call, queue: str, id: UUID) -> str | None:
    """Return the state of a message that has no offset yet, or None if the queue has no such message."""
    found = await call.mq.explain(id)
    state = {"not_sequenced": "waiting", "scheduled": "delayed"}.get(found.state)
    if state is None or found.get("queue") == queue:
        return state
    topics = {row.topic for row in await call.mq.subscriptions.list(queue)}
    return state if found.get("topic") in topics else None


async def _settle_receipt(call: Call, queue: str, receipt: str, delay: int | None) -> None:
    result = await _settle(call, queue, receipt, delay)
    if result == "unknown":
        raise message_not_found(f"not a receipt of queue {queue}")
    if result != "done":
        raise message_not_found(f"the delivery is {result}: its lease expired or it was already settled")


async def _settle(call: Call, queue: str, receipt: str, delay: int | None) -> Result:
    if delay is None:
        return (await call.engine.acker.ack(queue, [receipt]))[0]
    async with call.writing() as conn:
        nack = partial(calls.nack, conn, delay=timedelta(seconds=delay), error=None)
        return (await settle(conn, queue, [receipt], nack))[0]


# Explanations


@route(
    "GET",
    "/messages/{message:uuid}/explanation",
    Doc(tag=TAG, scope="read", answers={200: dict[str, Any]}, problems=(404,), reads=True),
)
async def explain(request: Call, message: FromPath[UUID]) -> Answer:
    """Explain where a message is, who holds it, why it is not delivered, and what happened to it."""
    request.query()
    found = await request.mq.explain(message)
    if found.state == "unknown":
        raise message_not_found(found.reason or f"message {message} does not exist")
    return answer(dict(found))


@route(
    "GET",
    "/topics/{topic:str}/messages/{offset:int}/explanation",
    Doc(
        tag=TAG,
        scope="read",
        params=(PARTITION,),
        answers={200: dict[str, Any]},
        problems=(404, 416),
        object="topic",
        reads=True,
    ),
)
async def explain_offset(request: Call, topic: FromPath[str], offset: FromPath[int]) -> Answer:
    """Explain the message at an offset of a topic."""
    if offset > LARGEST:
        raise invalid("the offset is too large")
    return answer(dict(await request.mq.explain_offset(topic, request.query()["partition"], offset=offset)))


ROUTES = [publish, enqueue, read, consume, ack, nack, explain, explain_offset]
