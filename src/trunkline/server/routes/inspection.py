"""Inspection: series of rates, attention, the map of a topic, members, deadlines."""

from __future__ import annotations

from datetime import timedelta

import msgspec
from litestar.params import FromPath

from trunkline.server.query import Param
from trunkline.server.request import Request
from trunkline.server.response import Response, respond
from trunkline.server.routing import Doc, route
from trunkline.types import Attention, Member, PartitionMap, QueueStats, RetentionDeadline, SeriesPoint

TAG = "inspection"
_DAY = 25 * 3600


class SeriesView(msgspec.Struct, frozen=True):
    data: list[SeriesPoint]


@route(
    "GET",
    "/series",
    Doc(
        tag=TAG,
        scope="read",
        params=(
            Param(
                name="kind",
                required=True,
                choices=("topic", "queue", "group", "endpoint", "label", "system"),
                words="Kind of the subjects.",
            ),
            Param(
                name="name",
                many=True,
                words="A subject: a name, topic/group, or queue/label. Repeat it for several; without it, up to 1,000.",
            ),
            Param(name="since_seconds", kind=float, default=3600.0, low=60, high=_DAY, words="How far to go back."),
            Param(name="step_seconds", kind=float, default=60.0, low=60, high=_DAY, words="Distance of the points."),
        ),
        responses={200: SeriesView},
        problems=(400,),
    ),
)
async def series(request: Request) -> Response:
    """Get rates, backlog and latencies of many subjects in steps, by name and time."""
    query = request.query()
    points = await request.mq.inspect.series(
        query["kind"],
        query["name"] or None,
        since=timedelta(seconds=query["since_seconds"]),
        step=timedelta(seconds=query["step_seconds"]),
    )
    return respond(SeriesView(points))


class AttentionView(msgspec.Struct, frozen=True):
    data: list[Attention]


@route("GET", "/attention", Doc(tag=TAG, scope="read", responses={200: AttentionView}))
async def attention(request: Request) -> Response:
    """Get what needs attention, first what loses data, each with its cause and the next step."""
    request.query()
    return respond(AttentionView(await request.mq.inspect.attention()))


class DeadlinesView(msgspec.Struct, frozen=True):
    data: list[RetentionDeadline]


@route(
    "GET",
    "/deadlines",
    Doc(
        tag=TAG,
        scope="read",
        params=(Param(name="topic", words="Only readers of this topic."),),
        responses={200: DeadlinesView},
        problems=(404,),
        reads=True,
    ),
)
async def deadlines(request: Request) -> Response:
    """Get when readers that are behind lose messages by hard retention, the earliest first."""
    return respond(DeadlinesView(await request.mq.inspect.deadlines(request.query()["topic"] or None)))


class MapView(msgspec.Struct, frozen=True):
    partitions: list[PartitionMap]


@route(
    "GET",
    "/topics/{topic:str}/map",
    Doc(tag=TAG, scope="read", responses={200: MapView}, problems=(404,), object="topic", reads=True),
)
async def topic_map(request: Request, topic: FromPath[str]) -> Response:
    """Get the contents of each partition: segments, times of offsets, readers, archive, staged rows."""
    request.query()
    return respond(MapView(await request.mq.topics.map(topic)))


class MembersView(msgspec.Struct, frozen=True):
    data: list[Member]


@route(
    "GET",
    "/topics/{topic:str}/groups/{group:str}/members",
    Doc(tag=TAG, scope="read", responses={200: MembersView}, problems=(404,), object="topic"),
)
async def members(request: Request, topic: FromPath[str], group: FromPath[str]) -> Response:
    """Get the active members of a group, each with the partitions that it has leased."""
    request.query()
    return respond(MembersView(await request.mq.groups.members(topic, group)))


class QueueStatsView(msgspec.Struct, frozen=True):
    data: list[QueueStats]


@route(
    "GET",
    "/queue-stats",
    Doc(
        tag=TAG,
        scope="read",
        params=(Param(name="name", many=True, words="Only these queues; * stands for any characters. May be repeated."),),
        responses={200: QueueStatsView},
        reads=True,
    ),
)
async def stats_of_queues(request: Request) -> Response:
    """Get statistics of several queues. Names without a queue have no row."""
    return respond(QueueStatsView(await request.mq.queues.stats(names=request.query()["name"] or None)))


ROUTES = [series, attention, deadlines, topic_map, members, stats_of_queues]
