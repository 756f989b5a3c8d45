"""The four routes of postgres-backed-pubsub-queue, under `/api`: a log with groups. Ids are offsets of one partition."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID, uuid4

import msgspec
from litestar.params import FromPath
from msgspec import UNSET, Meta, Raw, UnsetType

from trunkline.db import doors
from trunkline.errors import AlreadyExists, TrunklineError
from trunkline.server.access import IN_BODY
from trunkline.server.call import Answer, Call, answer
from trunkline.server.fields import Offset, name_fault, refuse
from trunkline.server.params import WAIT, Param
from trunkline.server.parsing import check_value
from trunkline.server.problems import invalid
from trunkline.server.routing import Doc, route
from trunkline.server.views import render
from trunkline.server.waiting import retry_until, until_gone
from trunkline.types import Message, Topic

TAG = "api"


class ApiTopic(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    created_at: datetime

    @classmethod
    def of(cls, topic: Topic) -> ApiTopic:
        return cls(name=topic.name, created_at=topic.created_at)


class NewApiTopic(msgspec.Struct, kw_only=True):
    """A topic to create, or to leave as it is."""

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
        answers={201: ApiTopic, 200: ApiTopic},
        problems=(400,),
        audit=True,
    ),
)
async def ensure_topic(request: Call) -> Answer:
    """Create a topic (201), or ensure that it is there (200)."""
    asked = await request.read(NewApiTopic)
    refuse(name=name_fault(asked.name))
    assert asked.name is not None  # noqa: S101
    await request.allow(asked.name)
    try:
        return answer(ApiTopic.of(await request.mq.topics.create(asked.name)), 201)
    except AlreadyExists:
        return answer(ApiTopic.of(await request.mq.topics.get(asked.name)))


class ApiPublish(msgspec.Struct, kw_only=True):
    """Any JSON."""

    payload: Raw | UnsetType = UNSET


class ApiPublished(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: int | None
    """The offset; null when a transaction of somebody else delays it, or the database went away just now."""
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
        answers={201: ApiPublished},
        problems=(400, 404, 409, 413),
        object="topic",
    ),
)
async def publish(request: Call, topic: FromPath[str]) -> Answer:
    """Append a message."""
    asked = await request.read(ApiPublish)
    if isinstance(asked.payload, UnsetType):
        raise invalid("payload: cannot be blank.")
    payload = bytes(asked.payload)
    check_value(payload)
    with request.engine.publishing(len(payload)):
        published = await request.mq.publish(
            topic, payload, content_type="application/json", idempotency_key=request.header("idempotency-key")
        )
    request.engine.metrics.published(1)
    offset: int | None = None
    # it is stored: whatever happens now, the answer must not be that it failed
    with contextlib.suppress(TrunklineError):
        async with request.mq.connection() as conn:
            offset = await doors.offset_of(conn, topic, published.id)
    return answer(ApiPublished(id=offset, message_id=published.id, topic=topic), 201)


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
            Param(name="group", required=True, words="The group; it begins with the oldest message."),
            Param(name="batch", kind=int, default=10, low=1, high=1000, words="How many at most."),
            Param(name="member", words="Who pulls: the same member gets again what it has not acked."),
            Param(name="lease", kind=float, default=30.0, low=1, high=43_200, words="Seconds before others get them."),
            WAIT,
        ),
        strict=False,
        answers={200: ApiPulled},
        problems=(400, 404, 409),
        object="topic",
        reads=True,
    ),
)
async def pull(request: Call, topic: FromPath[str]) -> Answer:
    """The next messages after the last ack, leased: until acked, or the end of the lease, nobody else gets any."""
    query = request.query()
    group = query["group"]
    member = query["member"] or f"api-{uuid4().hex[:16]}"
    lease = timedelta(seconds=query["lease"])

    async def look() -> doors.Pulled | None:
        async with request.mq.connection() as conn:
            return await doors.pull(conn, topic, group, member=member, limit=query["batch"], lease=lease)

    work = retry_until(request.mq, "group", topic, look, wait=query["wait"], group=group, member=member)
    try:
        found = await (until_gone(request, work) if query["wait"] else work)
    except BaseException:
        if query["wait"]:
            await request.mq.leave(topic, group, member=member)
        raise
    async with request.mq.connection() as conn:
        acked = await doors.committed(conn, topic, group)
    if found is None and query["member"] is None:
        await request.mq.leave(topic, group, member=member)
    messages = [] if found is None else [_shown(message) for message in found.messages]
    return answer(ApiPulled(messages=messages, last_acked_id=acked))


class ApiAck(msgspec.Struct, kw_only=True, rename="camel"):
    """Everything up to `lastAckedId` is done."""

    group: str | None = None
    last_acked_id: Annotated[Offset, Meta(description="An id of a pull.")] | None = None


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
        answers={200: ApiAcked},
        problems=(400, 404, 409),
        object="topic",
    ),
)
async def ack(request: Call, topic: FromPath[str]) -> Answer:
    """Cumulative, idempotent, never goes back; 409 beyond the last message of the topic."""
    asked = await request.read(ApiAck)
    refuse(group=name_fault(asked.group), lastAckedId="cannot be blank" if asked.last_acked_id is None else None)
    assert asked.group is not None and asked.last_acked_id is not None  # noqa: S101
    async with request.writing() as conn:
        acked = await doors.ack_upto(conn, topic, asked.group, asked.last_acked_id)
    request.mq.wake()
    return answer(ApiAcked(group=asked.group, last_acked_id=acked))


ROUTES = [ensure_topic, publish, pull, ack]
