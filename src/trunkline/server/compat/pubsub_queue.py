"""The four routes of postgres-backed-pubsub-queue: a log with groups. Ids are offsets in partition 0."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID, uuid4

import msgspec
from litestar.params import FromPath
from msgspec import UNSET, Meta, Raw, UnsetType

from trunkline.db.calls import compat
from trunkline.errors import AlreadyExists, TrunklineError
from trunkline.server.auth import IN_BODY
from trunkline.server.bodies import Offset, check_value, name_fault, refuse
from trunkline.server.long_poll import retry_until, until_gone
from trunkline.server.problems import invalid
from trunkline.server.query import WAIT, Param
from trunkline.server.request import Request
from trunkline.server.response import Response, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import render
from trunkline.types import Message, Topic

TAG = "api"


class ApiTopic(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    created_at: datetime

    @classmethod
    def of(cls, topic: Topic) -> ApiTopic:
        return cls(name=topic.name, created_at=topic.created_at)


class NewApiTopic(msgspec.Struct, kw_only=True):
    """A topic to create if it does not exist."""

    name: str | None = None


@route(
    "POST",
    "/api/topics",
    Doc(
        tag=TAG,
        scope="admin",
        strict=False,
        body=NewApiTopic,
        object=IN_BODY,
        responses={201: ApiTopic, 200: ApiTopic},
        problems=(400,),
        audit=True,
    ),
)
async def ensure_topic(request: Request) -> Response:
    """Create a topic (201) unless it exists (200)."""
    body = await request.read(NewApiTopic)
    refuse(name=name_fault(body.name))
    assert body.name is not None  # noqa: S101
    await request.allow(body.name)
    try:
        return respond(ApiTopic.of(await request.mq.topics.create(body.name)), 201)
    except AlreadyExists:
        return respond(ApiTopic.of(await request.mq.topics.get(body.name)))


class ApiPublish(msgspec.Struct, kw_only=True):
    """Any JSON value."""

    payload: Raw | UnsetType = UNSET


class ApiPublished(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: int | None
    """The offset. Null while an open transaction delays it, or if the database connection was just lost."""
    message_id: UUID
    topic: str


@route(
    "POST",
    "/api/topics/{topic:str}/publish",
    Doc(
        tag=TAG,
        scope="publish",
        strict=False,
        body=ApiPublish,
        responses={201: ApiPublished},
        problems=(400, 404, 409, 413),
        object="topic",
    ),
)
async def publish(request: Request, topic: FromPath[str]) -> Response:
    """Publish a message."""
    body = await request.read(ApiPublish)
    if isinstance(body.payload, UnsetType):
        raise invalid("payload: cannot be blank.")
    payload = bytes(body.payload)
    check_value(payload)
    with request.service.publishing(len(payload)):
        published = await request.mq.publish(
            topic, payload, content_type="application/json", idempotency_key=request.header("idempotency-key")
        )
    request.service.metrics.published(1)
    offset: int | None = None
    # the message is stored: a failure from here on must not fail the request
    with contextlib.suppress(TrunklineError):
        async with request.mq.connection() as conn:
            offset = await compat.offset_of(conn, topic, published.id)
    return respond(ApiPublished(id=offset, message_id=published.id, topic=topic), 201)


class ApiMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: int
    payload: Any
    created_at: datetime
    message_id: UUID


class ApiPulled(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    messages: list[ApiMessage]
    last_acked_id: int


def _shown(message: Message[Any]) -> ApiMessage:
    payload = render(message.payload, message.content_type).payload
    return ApiMessage(id=message.offset, payload=payload, created_at=message.created_at, message_id=message.id)


@route(
    "GET",
    "/api/topics/{topic:str}/pull",
    Doc(
        tag=TAG,
        scope="consume",
        params=(
            Param(name="group", required=True, words="The group. A new group starts at the oldest message."),
            Param(name="batch", kind=int, default=10, low=1, high=1000, words="Maximum number of messages."),
            Param(name="member", words="Name of the member. Pulling again returns its unacked messages."),
            Param(name="lease", kind=float, default=30.0, low=1, high=43_200, words="Lease in seconds."),
            WAIT,
        ),
        strict=False,
        responses={200: ApiPulled},
        problems=(400, 404, 409),
        object="topic",
        reads=True,
    ),
)
async def pull(request: Request, topic: FromPath[str]) -> Response:
    """Lease the next messages after the last ack. No other member gets any until they are acked or the lease ends."""
    query = request.query()
    group = query["group"]
    member = query["member"] or f"api-{uuid4().hex[:16]}"
    lease = timedelta(seconds=query["lease"])

    async def look() -> compat.Pulled | None:
        async with request.mq.connection() as conn:
            budget = request.service.config.max_response_bytes
            return await compat.pull(conn, topic, group, member=member, limit=query["batch"], lease=lease, max_bytes=budget)

    work = retry_until(request.mq, "group", topic, look, wait=query["wait"], group=group, member=member)
    try:
        found = await (until_gone(request, work) if query["wait"] else work)
    except BaseException:
        if query["wait"]:
            await request.mq.leave(topic, group, member=member)
        raise
    async with request.mq.connection() as conn:
        acked = await compat.committed(conn, topic, group)
    if found is None and query["member"] is None:
        await request.mq.leave(topic, group, member=member)
    messages = [] if found is None else [_shown(message) for message in found.messages]
    return respond(ApiPulled(messages=messages, last_acked_id=acked))


class ApiAck(msgspec.Struct, kw_only=True, rename="camel"):
    """Acknowledge everything up to `lastAckedId`."""

    group: str | None = None
    last_acked_id: Annotated[Offset, Meta(description="An id returned by a pull.")] | None = None


class ApiAcked(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    group: str
    last_acked_id: int


@route(
    "POST",
    "/api/topics/{topic:str}/ack",
    Doc(
        tag=TAG,
        scope="consume",
        strict=False,
        body=ApiAck,
        responses={200: ApiAcked},
        problems=(400, 404, 409),
        object="topic",
    ),
)
async def ack(request: Request, topic: FromPath[str]) -> Response:
    """Acknowledge messages. Cumulative and idempotent; 409 beyond the last message of the topic."""
    body = await request.read(ApiAck)
    refuse(group=name_fault(body.group), lastAckedId="cannot be blank" if body.last_acked_id is None else None)
    assert body.group is not None and body.last_acked_id is not None  # noqa: S101
    async with request.writing() as conn:
        acked = await compat.ack_upto(conn, topic, body.group, body.last_acked_id)
    request.mq.wake()
    return respond(ApiAcked(group=body.group, last_acked_id=acked))


ROUTES = [ensure_topic, publish, pull, ack]
