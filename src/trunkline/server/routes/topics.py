"""Topics."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar.params import FromPath

from trunkline.db import calls
from trunkline.errors import AlreadyExists
from trunkline.server.auth import IN_BODY
from trunkline.server.bodies import Count, Span, given, name_fault, refuse, span
from trunkline.server.problems import invalid
from trunkline.server.query import AFTER, ENSURE, FORCE, LIMIT, OFFSET, PARTITION, Param
from trunkline.server.request import Request
from trunkline.server.response import Response, nothing, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import Page, TopicView, page
from trunkline.types import TopicStats

TAG = "topics"


class TopicSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Topic settings. Partitions can be added but not removed."""

    partitions: Count | None = None
    retention_seconds: Span | None = None
    retention_bytes: Count | None = None
    hard_retention_seconds: Span | None = None
    max_payload: Count | None = None

    def changes(self) -> dict[str, Any]:
        return given(
            partitions=self.partitions,
            retention=span(self.retention_seconds),
            retention_bytes=self.retention_bytes,
            hard_retention=span(self.hard_retention_seconds),
            max_payload=self.max_payload,
        )


class NewTopic(TopicSettings, kw_only=True, forbid_unknown_fields=True):
    """A topic to create."""

    name: str | None = None


@route(
    "POST",
    "/topics",
    Doc(
        tag=TAG,
        scope="admin",
        params=(ENSURE,),
        body=NewTopic,
        object=IN_BODY,
        responses={201: TopicView, 200: TopicView},
        problems=(400, 409),
        audit=True,
    ),
)
async def create_topic(request: Request) -> Response:
    """Create a topic. With `ensure`, update the given settings if it exists."""
    ensure = request.query()["ensure"]
    body = await request.read(NewTopic)
    refuse(name=name_fault(body.name))
    assert body.name is not None  # noqa: S101
    await request.allow(body.name)
    try:
        return respond(TopicView.of(await request.mq.topics.create(body.name, **body.changes())), 201)
    except AlreadyExists:
        if not ensure:
            raise
    return respond(TopicView.of(await request.mq.topics.ensure(body.name, **body.changes())))


@route(
    "PATCH",
    "/topics/{topic:str}",
    Doc(
        tag=TAG,
        scope="admin",
        body=TopicSettings,
        responses={200: TopicView},
        problems=(400, 404, 409),
        object="topic",
        audit=True,
    ),
)
async def alter_topic(request: Request, topic: FromPath[str]) -> Response:
    """Change the given settings."""
    request.query()
    body = await request.read(TopicSettings)
    return respond(TopicView.of(await request.mq.topics.alter(topic, **body.changes())))


@route(
    "GET",
    "/topics/{topic:str}",
    Doc(tag=TAG, scope="read", responses={200: TopicView}, problems=(404,), object="topic"),
)
async def get_topic(request: Request, topic: FromPath[str]) -> Response:
    """Get one topic."""
    request.query()
    return respond(TopicView.of(await request.mq.topics.get(topic)))


@route("GET", "/topics", Doc(tag=TAG, scope="read", params=(AFTER, OFFSET, LIMIT), responses={200: Page}))
async def list_topics(request: Request) -> Response:
    """List topics by name, 100 per page by default."""
    query = request.query()
    return respond(page([TopicView.of(row) for row in await request.mq.topics.list(after=query["after"])], query))


@route(
    "DELETE",
    "/topics/{topic:str}",
    Doc(
        tag=TAG,
        scope="admin",
        params=(FORCE,),
        responses={204: None},
        problems=(404, 409),
        object="topic",
        audit=True,
    ),
)
async def delete_topic(request: Request, topic: FromPath[str]) -> Response:
    """Delete a topic with its messages. Refused while it has readers or schedules, unless forced."""
    await request.mq.topics.delete(topic, force=request.query()["force"])
    return nothing()


class TopicStatsView(msgspec.Struct, frozen=True):
    partitions: list[TopicStats]


@route(
    "GET",
    "/topics/{topic:str}/stats",
    Doc(tag=TAG, scope="read", responses={200: TopicStatsView}, problems=(404,), object="topic", reads=True),
)
async def topic_stats(request: Request, topic: FromPath[str]) -> Response:
    """Get earliest offset, head, bytes and rate per partition."""
    request.query()
    return respond(TopicStatsView(await request.mq.topics.stats(topic)))


class OffsetView(msgspec.Struct, frozen=True):
    partition: int
    offset: int


@route(
    "GET",
    "/topics/{topic:str}/offset",
    Doc(
        tag=TAG,
        scope="read",
        params=(PARTITION, Param(name="at", words="earliest, latest, or a time with a zone.", default="latest")),
        responses={200: OffsetView},
        problems=(404, 416),
        object="topic",
        reads=True,
    ),
)
async def offset_at(request: Request, topic: FromPath[str]) -> Response:
    """Find an offset: the first message at or after a time, or head + 1."""
    query = request.query()
    async with request.mq.session.reading(topic=topic) as conn:
        if query["partition"] >= (await calls.get_topic(conn, topic)).partitions:
            raise invalid(f"topic {topic} has no partition {query['partition']}")
        offset = await calls.offset_of(conn, topic, query["partition"], query["at"])
    return respond(OffsetView(query["partition"], offset))


ROUTES = [create_topic, alter_topic, get_topic, list_topics, delete_topic, topic_stats, offset_at]
