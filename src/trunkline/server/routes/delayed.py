"""Messages that wait for a time or a retry, and the consumers of a queue."""

from __future__ import annotations

from datetime import timedelta

import msgspec
from litestar.params import FromPath

from trunkline.db.calls import queues
from trunkline.db.calls.list_records import ConsumerRow, DelayedRow
from trunkline.server.query import Param
from trunkline.server.request import Request
from trunkline.server.response import Response, respond
from trunkline.server.routing import Doc, route

_PAGE = (
    Param(name="after", words="`next` of the previous page."),
    Param(name="limit", kind=int, default=100, low=1, high=1000, words="Maximum number of messages."),
)


class DelayedMessages(msgspec.Struct, frozen=True, omit_defaults=True):
    data: list[DelayedRow]
    next: str | None = None
    """Pass as `after` to get the next page; omitted on the last."""


@route(
    "GET",
    "/queues/{queue:str}/delayed",
    Doc(
        tag="queues",
        scope="read",
        params=_PAGE,
        responses={200: DelayedMessages},
        problems=(404,),
        object="queue",
        reads=True,
    ),
)
async def list_queue_delayed(request: Request, queue: FromPath[str]) -> Response:
    """List messages that were returned or are delayed, without payloads: due time, attempt, last error."""
    return await _list(request, queue=queue)


@route(
    "GET",
    "/topics/{topic:str}/delayed",
    Doc(
        tag="topics",
        scope="read",
        params=_PAGE,
        responses={200: DelayedMessages},
        problems=(404,),
        object="topic",
        reads=True,
    ),
)
async def list_topic_delayed(request: Request, topic: FromPath[str]) -> Response:
    """List messages that were published with a delay and are not in the log yet, without payloads."""
    return await _list(request, topic=topic)


async def _list(request: Request, *, queue: str | None = None, topic: str | None = None) -> Response:
    query = request.query()
    async with request.mq.connection() as conn:
        rows = await queues.list_delayed(conn, queue=queue, topic=topic, after=query["after"], limit=query["limit"])
    return respond(DelayedMessages(rows, rows[-1].position if len(rows) == query["limit"] else None))


class Consumers(msgspec.Struct, frozen=True):
    data: list[ConsumerRow]


@route(
    "GET",
    "/queues/{queue:str}/consumers",
    Doc(
        tag="queues",
        scope="read",
        params=(
            Param(name="since", kind=float, default=3600, low=0, high=2_592_000, words="Age limit in seconds."),
            Param(name="limit", kind=int, default=100, low=1, high=1000, words="Maximum number of consumers."),
        ),
        responses={200: Consumers},
        problems=(404,),
        object="queue",
        reads=True,
    ),
)
async def list_consumers(request: Request, queue: FromPath[str]) -> Response:
    """List consumers of a queue with their leases and recent outcomes, the last active first."""
    query = request.query()
    async with request.mq.connection() as conn:
        rows = await queues.list_consumers(conn, queue, since=timedelta(seconds=query["since"]), limit=query["limit"])
    return respond(Consumers(rows))


ROUTES = [list_queue_delayed, list_topic_delayed, list_consumers]
