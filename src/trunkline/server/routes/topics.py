"""Topics."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar.params import FromPath

from trunkline.db import calls
from trunkline.errors import AlreadyExists
from trunkline.resources import TopicSettings
from trunkline.server.auth import IN_BODY
from trunkline.server.bodies import name_fault, refuse
from trunkline.server.problems import invalid
from trunkline.server.query import AFTER, ENSURE, FORCE, LIMIT, NAMES, OFFSET, PARTITION, Param
from trunkline.server.request import Request
from trunkline.server.response import Response, nothing, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import Page, page
from trunkline.types import Topic, TopicStats
from trunkline.wire import settings_type, to_settings, to_view, view

TAG = "topics"


TopicView = view(Topic)
ChangedTopic = settings_type(TopicSettings, "TopicSettings")
NewTopic = settings_type(TopicSettings, "NewTopic", named=True)


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
    body: Any = await request.read(NewTopic)
    refuse(name=name_fault(body.name))
    await request.allow(body.name)
    settings = to_settings(TopicSettings, body)
    try:
        return respond(to_view(await request.mq.topics.create(body.name, **settings)), 201)
    except AlreadyExists:
        if not ensure:
            raise
    return respond(to_view(await request.mq.topics.ensure(body.name, **settings)))


@route(
    "PATCH",
    "/topics/{topic:str}",
    Doc(
        tag=TAG,
        scope="admin",
        body=ChangedTopic,
        responses={200: TopicView},
        problems=(400, 404, 409),
        object="topic",
        audit=True,
    ),
)
async def alter_topic(request: Request, topic: FromPath[str]) -> Response:
    """Change the given settings."""
    request.query()
    body = await request.read(ChangedTopic)
    return respond(to_view(await request.mq.topics.alter(topic, **to_settings(TopicSettings, body))))


@route(
    "GET",
    "/topics/{topic:str}",
    Doc(tag=TAG, scope="read", responses={200: TopicView}, problems=(404,), object="topic"),
)
async def get_topic(request: Request, topic: FromPath[str]) -> Response:
    """Get one topic."""
    request.query()
    return respond(to_view(await request.mq.topics.get(topic)))


@route("GET", "/topics", Doc(tag=TAG, scope="read", params=(AFTER, OFFSET, LIMIT, NAMES), responses={200: Page}))
async def list_topics(request: Request) -> Response:
    """List topics by name, 100 per page by default."""
    query = request.query()
    rows = await request.mq.topics.list(after=query["after"], names=query["name"] or None)
    return respond(page([to_view(row) for row in rows], query))


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
