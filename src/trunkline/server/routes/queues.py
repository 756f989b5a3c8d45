"""Queues."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar.params import FromPath

from trunkline.errors import AlreadyExists
from trunkline.server import budget
from trunkline.server.auth import IN_BODY
from trunkline.server.bodies import Count, Span, given, name_fault, refuse, span
from trunkline.server.query import AFTER, ENSURE, FORCE, LIMIT, OFFSET, Param
from trunkline.server.request import Request
from trunkline.server.response import Response, nothing, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import MessageView, Page, QueueView, message_view, page
from trunkline.types import QueueStats

TAG = "queues"


class QueueSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Queue settings. `ttl_seconds` and `history_seconds` of 0 disable them."""

    lease_seconds: Span | None = None
    ttl_seconds: Span | None = None
    delivery_delay_seconds: Span | None = None
    max_attempts: Count | None = None
    backoff_base_seconds: Span | None = None
    backoff_factor: float | None = None
    backoff_cap_seconds: Span | None = None
    backoff_jitter: float | None = None
    history_seconds: Span | None = None
    retention_seconds: Span | None = None
    max_payload: Count | None = None

    def changes(self) -> dict[str, Any]:
        return given(
            lease=span(self.lease_seconds),
            ttl=span(self.ttl_seconds),
            delivery_delay=span(self.delivery_delay_seconds),
            max_attempts=self.max_attempts,
            backoff_base=span(self.backoff_base_seconds),
            backoff_factor=self.backoff_factor,
            backoff_cap=span(self.backoff_cap_seconds),
            backoff_jitter=self.backoff_jitter,
            history=span(self.history_seconds),
            retention=span(self.retention_seconds),
            max_payload=self.max_payload,
        )


class NewQueue(QueueSettings, kw_only=True, forbid_unknown_fields=True):
    """A queue to create. Every setting has a default; the last three cannot be changed later."""

    name: str | None = None
    ordered: bool | None = None
    partitions: Count | None = None
    priorities: Count | None = None


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
    body = await request.read(NewQueue)
    refuse(name=name_fault(body.name))
    assert body.name is not None  # noqa: S101
    await request.allow(body.name)
    settings = body.changes() | given(ordered=body.ordered, partitions=body.partitions, priorities=body.priorities)
    try:
        return respond(QueueView.of(await request.mq.queues.create(body.name, **settings)), 201)
    except AlreadyExists:
        if not ensure:
            raise
    return respond(QueueView.of(await request.mq.queues.ensure(body.name, **settings)))


@route(
    "PATCH",
    "/queues/{queue:str}",
    Doc(
        tag=TAG,
        scope="admin",
        body=QueueSettings,
        responses={200: QueueView},
        problems=(400, 404, 409),
        object="queue",
        audit=True,
    ),
)
async def alter_queue(request: Request, queue: FromPath[str]) -> Response:
    """Change the given settings."""
    request.query()
    body = await request.read(QueueSettings)
    return respond(QueueView.of(await request.mq.queues.alter(queue, **body.changes())))


@route(
    "GET",
    "/queues/{queue:str}",
    Doc(tag=TAG, scope="read", responses={200: QueueView}, problems=(404,), object="queue"),
)
async def get_queue(request: Request, queue: FromPath[str]) -> Response:
    """Get one queue."""
    request.query()
    return respond(QueueView.of(await request.mq.queues.get(queue)))


@route("GET", "/queues", Doc(tag=TAG, scope="read", params=(AFTER, OFFSET, LIMIT), responses={200: Page}))
async def list_queues(request: Request) -> Response:
    """List queues by name, 100 per page by default."""
    query = request.query()
    return respond(page([QueueView.of(row) for row in await request.mq.queues.list(after=query["after"])], query))


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


class CleanedQueue(msgspec.Struct, frozen=True):
    emptied: int
    """Segments and shared-store partitions."""


@route(
    "PUT",
    "/queues/{queue:str}/cleanup",
    Doc(tag=TAG, scope="admin", responses={200: CleanedQueue}, problems=(404,), object="queue", audit=True),
)
async def cleanup_queue(request: Request, queue: FromPath[str]) -> Response:
    """Remove finished messages now instead of waiting for retention."""
    request.query()
    return respond(CleanedQueue(await request.mq.queues.cleanup(queue)))


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


class WaitingView(MessageView, frozen=True, kw_only=True):
    topic: str | None
    attempt: int
    due_at: Any
    error: str | None


class Waiting(msgspec.Struct, frozen=True):
    data: list[WaitingView]


@route(
    "GET",
    "/queues/{queue:str}/peek",
    Doc(
        tag=TAG,
        scope="read",
        params=(Param(name="limit", kind=int, default=10, low=1, high=1000, words="Maximum number of messages."),),
        responses={200: Waiting},
        problems=(404,),
        object="queue",
        reads=True,
    ),
)
async def peek_queue(request: Request, queue: FromPath[str]) -> Response:
    """Show the next messages without claiming them or counting an attempt."""
    limit = request.query()["limit"]
    rows = await budget.peek_queue(request.mq, queue, limit=limit, max_bytes=request.service.config.max_response_bytes)
    shown = [
        WaitingView(
            **msgspec.structs.asdict(message_view(row)),
            topic=row.topic,
            attempt=row.attempt,
            due_at=row.due_at,
            error=row.error,
        )
        for row in rows
    ]
    return respond(Waiting(shown))


ROUTES = [
    create_queue,
    alter_queue,
    get_queue,
    list_queues,
    delete_queue,
    queue_stats,
    purge_queue,
    cleanup_queue,
    pause_queue,
    resume_queue,
    peek_queue,
]
