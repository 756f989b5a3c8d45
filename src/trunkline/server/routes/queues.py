"""Queues."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar.params import FromPath

from trunkline.db import doors
from trunkline.errors import AlreadyExists
from trunkline.server import budget
from trunkline.server.access import IN_BODY
from trunkline.server.call import Answer, Call, answer, nothing
from trunkline.server.fields import BLANK, Count, Seconds, Span, given, name_fault, refuse, span
from trunkline.server.params import AFTER, ENSURE, FORCE, LIMIT, OFFSET, Param
from trunkline.server.problems import Problem
from trunkline.server.routing import Doc, route
from trunkline.server.views import MessageView, Page, QueueStatsView, QueueView, message_view, page

TAG = "queues"
# psqlqueue retries messages until their retention ends
_MANY_ATTEMPTS = 1000


class QueueSettings(msgspec.Struct, kw_only=True):
    """Queue settings. The first two are required to create a queue without `ensure`, and to replace one."""

    ack_deadline_seconds: Seconds | None = None
    message_retention_seconds: Seconds | None = None
    delivery_delay_seconds: Seconds | None = None
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
            lease=span(self.ack_deadline_seconds),
            ttl=span(self.message_retention_seconds),
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


class NewQueue(QueueSettings, kw_only=True):
    """A queue to create."""

    id: str | None = None
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
        strict=False,
        body=NewQueue,
        object=IN_BODY,
        answers={201: QueueView, 200: QueueView},
        problems=(400, 409),
        audit=True,
    ),
)
async def create_queue(request: Call) -> Answer:
    """Create a queue.

    With `ensure`, every setting has a default, and an existing queue is accepted. Without it, the acknowledgement
    deadline and message retention are required, and `max_attempts` defaults to 1000.
    """
    query = request.query()
    body = await request.read(NewQueue)
    ensure = query["ensure"]
    refuse(
        id=name_fault(body.id),
        ack_deadline_seconds=BLANK if not ensure and not body.ack_deadline_seconds else None,
        message_retention_seconds=BLANK if not ensure and not body.message_retention_seconds else None,
    )
    assert body.id is not None  # noqa: S101
    await request.allow(body.id)
    fixed = given(ordered=body.ordered, partitions=body.partitions, priorities=body.priorities)
    settings = body.changes()
    if not ensure:
        settings.setdefault("max_attempts", _MANY_ATTEMPTS)
    try:
        return answer(QueueView.of(await request.mq.queues.create(body.id, **settings, **fixed)), 201)
    except AlreadyExists as exc:
        if not ensure:
            words = f"queue {body.id} already exists"
            raise Problem(400, "already_exists", words, code=4, hint=exc.hint_in("sql")) from None
    return answer(QueueView.of(await request.mq.queues.ensure(body.id, **fixed)))


@route(
    "PUT",
    "/queues/{queue:str}",
    Doc(
        tag=TAG,
        scope="admin",
        strict=False,
        body=QueueSettings,
        answers={200: QueueView},
        problems=(400, 404, 409),
        object="queue",
        audit=True,
    ),
)
async def replace_queue(request: Call, queue: FromPath[str]) -> Answer:
    """Replace the deadline, message retention and delivery delay (default 0). Other settings change only if given."""
    body = await request.read(QueueSettings)
    refuse(
        ack_deadline_seconds=None if body.ack_deadline_seconds else BLANK,
        message_retention_seconds=None if body.message_retention_seconds else BLANK,
    )
    settings = {"delivery_delay": span(0), **body.changes()}
    return answer(QueueView.of(await request.mq.queues.alter(queue, **settings)))


@route(
    "PATCH",
    "/queues/{queue:str}",
    Doc(
        tag=TAG,
        scope="admin",
        body=QueueSettings,
        answers={200: QueueView},
        problems=(400, 404, 409),
        object="queue",
        audit=True,
    ),
)
async def alter_queue(request: Call, queue: FromPath[str]) -> Answer:
    """Change the given settings."""
    request.query()
    body = await request.read(QueueSettings)
    return answer(QueueView.of(await request.mq.queues.alter(queue, **body.changes())))


@route(
    "GET",
    "/queues/{queue:str}",
    Doc(tag=TAG, scope="read", strict=False, answers={200: QueueView}, problems=(404,), object="queue"),
)
async def get_queue(request: Call, queue: FromPath[str]) -> Answer:
    """Get one queue."""
    return answer(QueueView.of(await request.mq.queues.get(queue)))


@route("GET", "/queues", Doc(tag=TAG, scope="read", params=(AFTER, OFFSET, LIMIT), strict=False, answers={200: Page}))
async def list_queues(request: Call) -> Answer:
    """List queues by id, 100 per page by default."""
    query = request.query()
    return answer(page([QueueView.of(row) for row in await request.mq.queues.list(after=query["after"])], query))


@route(
    "DELETE",
    "/queues/{queue:str}",
    Doc(
        tag=TAG,
        scope="admin",
        params=(FORCE,),
        strict=False,
        answers={204: None},
        problems=(404, 409),
        object="queue",
        audit=True,
    ),
)
async def delete_queue(request: Call, queue: FromPath[str]) -> Answer:
    """Delete a queue with its messages and subscriptions. Refused while it has dead letters, unless forced."""
    await request.mq.queues.delete(queue, force=request.query()["force"])
    request.engine.lines.look(queue)
    return nothing()


@route(
    "GET",
    "/queues/{queue:str}/stats",
    Doc(tag=TAG, scope="read", strict=False, answers={200: QueueStatsView}, problems=(404,), object="queue", reads=True),
)
async def queue_stats(request: Call, queue: FromPath[str]) -> Answer:
    """Count the messages by state, with the age of the oldest ready one."""
    return answer(QueueStatsView.of((await request.mq.queues.stats(queue))[0]))


@route(
    "PUT",
    "/queues/{queue:str}/purge",
    Doc(tag=TAG, scope="admin", strict=False, answers={204: None}, problems=(404,), object="queue", audit=True),
)
async def purge_queue(request: Call, queue: FromPath[str]) -> Answer:
    """Remove all messages of the queue, including leased ones."""
    await request.mq.queues.purge(queue)
    async with request.writing() as conn:
        await doors.drop_leases(conn, queue)
    return nothing()


@route(
    "PUT",
    "/queues/{queue:str}/cleanup",
    Doc(tag=TAG, scope="admin", strict=False, answers={204: None}, problems=(404,), object="queue", audit=True),
)
async def cleanup_queue(request: Call, queue: FromPath[str]) -> Answer:
    """Remove finished messages now instead of waiting for upkeep."""
    await request.mq.queues.cleanup(queue)
    return nothing()


@route(
    "PUT",
    "/queues/{queue:str}/pause",
    Doc(tag=TAG, scope="admin", answers={204: None}, problems=(404,), object="queue", audit=True),
)
async def pause_queue(request: Call, queue: FromPath[str]) -> Answer:
    """Pause deliveries until `resume`. Publishing and settling continue."""
    request.query()
    await request.mq.queues.pause(queue)
    return nothing()


@route(
    "PUT",
    "/queues/{queue:str}/resume",
    Doc(tag=TAG, scope="admin", answers={204: None}, problems=(404,), object="queue", audit=True),
)
async def resume_queue(request: Call, queue: FromPath[str]) -> Answer:
    """Resume deliveries."""
    request.query()
    await request.mq.queues.resume(queue)
    request.engine.lines.look(queue)
    return nothing()


class WaitingView(MessageView, frozen=True, kw_only=True):
    topic_id: str | None
    attempt: int
    due_at: Any
    error: str | None


class Waiting(msgspec.Struct, frozen=True):
    data: list[WaitingView]


@route(
    "GET",
    "/queues/{queue:str}/waiting",
    Doc(
        tag=TAG,
        scope="read",
        params=(Param(name="limit", kind=int, default=10, low=1, high=1000, words="Maximum number of messages."),),
        answers={200: Waiting},
        problems=(404,),
        object="queue",
        reads=True,
    ),
)
async def peek_queue(request: Call, queue: FromPath[str]) -> Answer:
    """Show the next messages without claiming them or counting an attempt."""
    limit = request.query()["limit"]
    rows = await budget.peek_queue(request.mq, queue, limit=limit, max_bytes=request.engine.config.max_response_bytes)
    shown = [
        WaitingView(
            **msgspec.structs.asdict(message_view(row)),
            topic_id=row.topic,
            attempt=row.attempt,
            due_at=row.due_at,
            error=row.error,
        )
        for row in rows
    ]
    return answer(Waiting(shown))


ROUTES = [
    create_queue,
    replace_queue,
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
