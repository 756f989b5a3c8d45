"""Queues."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar.params import FromPath

from trunkline.errors import AlreadyExists
from trunkline.resources import NewQueueSettings, QueueSettings
from trunkline.server import budget
from trunkline.server.auth import IN_BODY
from trunkline.server.bodies import name_fault, refuse
from trunkline.server.query import AFTER, ENSURE, FORCE, LIMIT, NAMES, OFFSET, Param
from trunkline.server.request import Request
from trunkline.server.response import Response, nothing, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import Page, page, ready_message_view
from trunkline.types import Queue, QueueStats
from trunkline.wire import ReadyMessageView, settings_type, to_settings, to_view, view

TAG = "queues"


QueueView = view(Queue)
ChangedQueue = settings_type(QueueSettings, "QueueSettings")
NewQueue = settings_type(NewQueueSettings, "NewQueue", named=True)


@route(
    "POST",
    "/queues",
    Doc(
        tag=TAG,
        scope="admin",
        params=(ENSURE,),
        body=NewQueue,
        object=IN_BODY,
        responses={201: QueueView, 200: QueueView},
        problems=(400, 409),
        audit=True,
    ),
)
async def create_queue(request: Request) -> Response:
    """Create a queue. With `ensure`, update the given settings if it exists."""
    ensure = request.query()["ensure"]
    body: Any = await request.read(NewQueue)
    refuse(name=name_fault(body.name))
    await request.allow(body.name)
    settings = to_settings(NewQueueSettings, body)
    try:
        return respond(to_view(await request.mq.queues.create(body.name, **settings)), 201)
    except AlreadyExists:
        if not ensure:
            raise
    return respond(to_view(await request.mq.queues.ensure(body.name, **settings)))


@route(
    "PATCH",
    "/queues/{queue:str}",
    Doc(
        tag=TAG,
        scope="admin",
        body=ChangedQueue,
        responses={200: QueueView},
        problems=(400, 404, 409),
        object="queue",
        audit=True,
    ),
)
async def alter_queue(request: Request, queue: FromPath[str]) -> Response:
    """Change the given settings."""
    request.query()
    body = await request.read(ChangedQueue)
    return respond(to_view(await request.mq.queues.alter(queue, **to_settings(QueueSettings, body))))


@route(
    "GET",
    "/queues/{queue:str}",
    Doc(tag=TAG, scope="read", responses={200: QueueView}, problems=(404,), object="queue"),
)
async def get_queue(request: Request, queue: FromPath[str]) -> Response:
    """Get one queue."""
    request.query()
    return respond(to_view(await request.mq.queues.get(queue)))


@route("GET", "/queues", Doc(tag=TAG, scope="read", params=(AFTER, OFFSET, LIMIT, NAMES), responses={200: Page}))
async def list_queues(request: Request) -> Response:
    """List queues by name, 100 per page by default."""
    query = request.query()
    rows = await request.mq.queues.list(after=query["after"], names=query["name"] or None)
    return respond(page([to_view(row) for row in rows], query))


@route(
    "DELETE",
    "/queues/{queue:str}",
    Doc(
        tag=TAG,
        scope="admin",
        params=(FORCE,),
        responses={204: None},
        problems=(404, 409),
        object="queue",
        audit=True,
    ),
)
async def delete_queue(request: Request, queue: FromPath[str]) -> Response:
    """Delete a queue with its messages and subscriptions. Refused while it has dead letters, unless forced."""
    await request.mq.queues.delete(queue, force=request.query()["force"])
    request.service.long_poll.look(queue)
    return nothing()


@route(
    "GET",
    "/queues/{queue:str}/stats",
    Doc(tag=TAG, scope="read", responses={200: QueueStats}, problems=(404,), object="queue", reads=True),
)
async def queue_stats(request: Request, queue: FromPath[str]) -> Response:
    """Count the messages by state, with the age of the oldest ready one in seconds."""
    request.query()
    return respond((await request.mq.queues.stats(queue))[0])


class PurgedQueue(msgspec.Struct, frozen=True):
    purged: int


@route(
    "PUT",
    "/queues/{queue:str}/purge",
    Doc(tag=TAG, scope="admin", responses={200: PurgedQueue}, problems=(404,), object="queue", audit=True),
)
async def purge_queue(request: Request, queue: FromPath[str]) -> Response:
    """Drop all undelivered messages. Messages that are leased at this moment are kept."""
    request.query()
    return respond(PurgedQueue(await request.mq.queues.purge(queue)))


class TrimmedQueue(msgspec.Struct, frozen=True):
    emptied: int
    """Segments and shared-store partitions."""


@route(
    "PUT",
    "/queues/{queue:str}/trim",
    Doc(tag=TAG, scope="admin", responses={200: TrimmedQueue}, problems=(404,), object="queue", audit=True),
)
async def trim_queue(request: Request, queue: FromPath[str]) -> Response:
    """Remove finished messages now instead of waiting for retention."""
    request.query()
    return respond(TrimmedQueue(await request.mq.queues.trim(queue)))


@route(
    "PUT",
    "/queues/{queue:str}/pause",
    Doc(tag=TAG, scope="admin", responses={204: None}, problems=(404,), object="queue", audit=True),
)
async def pause_queue(request: Request, queue: FromPath[str]) -> Response:
    """Pause deliveries until `resume`. Publishing and settling continue."""
    request.query()
    await request.mq.queues.pause(queue)
    return nothing()


@route(
    "PUT",
    "/queues/{queue:str}/resume",
    Doc(tag=TAG, scope="admin", responses={204: None}, problems=(404,), object="queue", audit=True),
)
async def resume_queue(request: Request, queue: FromPath[str]) -> Response:
    """Resume deliveries."""
    request.query()
    await request.mq.queues.resume(queue)
    request.service.long_poll.look(queue)
    return nothing()


class WaitingPage(msgspec.Struct, frozen=True):
    data: list[ReadyMessageView]


@route(
    "GET",
    "/queues/{queue:str}/peek",
    Doc(
        tag=TAG,
        scope="read",
        params=(Param(name="limit", kind=int, default=10, low=1, high=1000, words="Maximum number of messages."),),
        responses={200: WaitingPage},
        problems=(404,),
        object="queue",
        reads=True,
    ),
)
async def peek_queue(request: Request, queue: FromPath[str]) -> Response:
    """Show the next messages without claiming them or counting an attempt."""
    limit = request.query()["limit"]
    rows = await budget.peek_queue(request.mq, queue, limit=limit, max_bytes=request.service.config.max_response_bytes)
    return respond(WaitingPage([ready_message_view(row) for row in rows]))


ROUTES = [
    create_queue,
    alter_queue,
    get_queue,
    list_queues,
    delete_queue,
    queue_stats,
    purge_queue,
    trim_queue,
    pause_queue,
    resume_queue,
    peek_queue,
]
