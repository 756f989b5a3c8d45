"""The four routes sketched in pg-messaging's recipes, plus two to settle messages."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from trunkline.db.calls import compat
from trunkline.server.auth import IN_BODY
from trunkline.server.bodies import Offset, check_value, name_fault, refuse
from trunkline.server.long_poll import retry_until, until_gone
from trunkline.server.problems import Problem, invalid
from trunkline.server.query import WAIT, Param
from trunkline.server.request import Request
from trunkline.server.response import Response, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import render
from trunkline.types import NewMessage

TAG = "pubsub"
# the recipes start with topic 0 and one queue: only these are created on first use
FIRST_TOPIC = "0"
FIRST_QUEUE = "queue"


def _name(value: str | int | None, default: str, field: str) -> str:
    name = default if value is None else str(value)
    refuse(**{field: name_fault(name)})
    return name


def _payload(raw: bytes) -> NewMessage:
    check_value(raw)
    return NewMessage(body=raw, content_type="application/json")


def _bytes(text: str) -> NewMessage:
    try:
        return NewMessage(body=base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        raise invalid("payload_base64 is not base64") from None


class Publish(msgspec.Struct, kw_only=True):
    """A payload or a batch of payloads. Topics are named by number or name."""

    topic_id: str | int | None = None
    payloads: Annotated[list[Raw], Meta(min_length=1, max_length=1000)] | UnsetType = UNSET
    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET

    def messages(self) -> list[NewMessage]:
        found = [] if isinstance(self.payloads, UnsetType) else [_payload(bytes(raw)) for raw in self.payloads]
        if not isinstance(self.payload, UnsetType):
            found.append(_payload(bytes(self.payload)))
        if not isinstance(self.payload_base64, UnsetType):
            found.append(_bytes(self.payload_base64))
        if not found:
            raise invalid("payloads: cannot be blank.")
        return found


class Ids(msgspec.Struct, frozen=True):
    ids: list[UUID]


@route(
    "POST",
    "/pubsub/publish",
    Doc(
        tag=TAG, object=IN_BODY, scope="publish", strict=False, body=Publish, responses={201: Ids}, problems=(400, 404, 413)
    ),
)
async def publish(request: Request) -> Response:
    """Publish payloads, all or none. Returns their ids."""
    body = await request.read(Publish)
    topic = _name(body.topic_id, FIRST_TOPIC, "topic_id")
    await request.allow(topic)
    messages = body.messages()
    if topic == FIRST_TOPIC:
        await request.mq.topics.ensure(topic)
    with request.service.publishing(sum(len(message.body) for message in messages)):
        published = await request.mq.publish_many(topic, messages)
    request.service.metrics.published(len(published))
    return respond(Ids([row.id for row in published]), 201)


class LogMessage(msgspec.Struct, frozen=True, kw_only=True):
    c_offset: int
    payload: Any
    encoding: str
    created_at: datetime


class Consumed(msgspec.Struct, frozen=True, kw_only=True):
    """First and last offset. If there are no messages, the end is one below the start."""

    claimed_start_offset: int
    claimed_end_offset: int
    messages: list[LogMessage]


def _log_messages(rows: list[Any]) -> list[LogMessage]:
    shown = [(row, render(row.payload, row.content_type)) for row in rows]
    return [
        LogMessage(c_offset=row.offset, payload=view.payload, encoding=view.encoding, created_at=row.created_at)
        for row, view in shown
    ]


@route(
    "GET",
    "/pubsub/consume",
    Doc(
        tag=TAG,
        object=IN_BODY,
        scope="consume",
        params=(
            Param(name="group_id", required=True, words="The group. A new group starts at the oldest message."),
            Param(name="topic_id", default=FIRST_TOPIC, words="The topic."),
            Param(name="max", kind=int, default=10, low=1, high=1000, words="Maximum number of messages."),
            Param(
                name="member",
                words="Name of the member. Its messages are leased, and committed by its next call or a commit.",
            ),
            Param(name="lease", kind=float, default=30.0, low=1, high=43_200, words="Lease in seconds."),
            WAIT,
        ),
        strict=False,
        responses={200: Consumed},
        problems=(400, 404, 409),
        reads=True,
    ),
)
async def consume(request: Request) -> Response:
    """Claim the next offsets of a group and read them.

    Without `member` the claim is final, as in the recipe: a consumer that crashes loses its messages. With `member`
    they are redelivered.
    """
    query = request.query()
    topic, group = query["topic_id"], query["group_id"]
    await request.allow(topic)
    if topic == FIRST_TOPIC:
        await request.mq.topics.ensure(topic)
    if query["member"] is None:
        return await _claim(request, topic, group, query)
    return await _lease(request, topic, group, query)


async def _claim(request: Request, topic: str, group: str, query: dict[str, Any]) -> Response:
    if query["wait"]:
        await request.bytes()

    async def look() -> Any:
        return await request.mq.claim_range(topic, group, limit=query["max"])

    work = retry_until(request.mq, "group", topic, look, wait=query["wait"], group=group, member="http")
    found = await (until_gone(request, work) if query["wait"] else work)
    if found is None:
        async with request.mq.connection() as conn:
            acked = await compat.committed(conn, topic, group)
        return respond(Consumed(claimed_start_offset=acked + 1, claimed_end_offset=acked, messages=[]))
    rows = await request.mq.topics.read(topic, found.partition, start=found.first, limit=found.last - found.first + 1)
    return respond(Consumed(claimed_start_offset=found.first, claimed_end_offset=found.last, messages=_log_messages(rows)))


async def _lease(request: Request, topic: str, group: str, query: dict[str, Any]) -> Response:
    member, lease = query["member"], timedelta(seconds=query["lease"])
    stats = await request.mq.groups.stats(topic) if await _has_topic(request, topic) else []
    mine = [row for row in stats if row.group == group and row.member == member and row.fetched >= row.next_offset]
    async with request.writing() as conn:
        for row in mine:
            await compat.ack_upto(conn, topic, group, row.fetched)

    async def look() -> compat.Pulled | None:
        async with request.mq.connection() as conn:
            budget = request.service.config.max_response_bytes
            return await compat.pull(conn, topic, group, member=member, limit=query["max"], lease=lease, max_bytes=budget)

    work = retry_until(request.mq, "group", topic, look, wait=query["wait"], group=group, member=member)
    try:
        found = await (until_gone(request, work) if query["wait"] else work)
    except BaseException:
        if query["wait"]:
            await request.mq.leave(topic, group, member=member)
        raise
    if found is None:
        async with request.mq.connection() as conn:
            acked = await compat.committed(conn, topic, group)
        return respond(Consumed(claimed_start_offset=acked + 1, claimed_end_offset=acked, messages=[]))
    rows = _log_messages(found.messages)
    return respond(Consumed(claimed_start_offset=rows[0].c_offset, claimed_end_offset=rows[-1].c_offset, messages=rows))


async def _has_topic(request: Request, topic: str) -> bool:
    await request.mq.topics.get(topic)
    return True


class CommitOffset(msgspec.Struct, kw_only=True):
    """Commit everything up to `offset`."""

    group_id: str | None = None
    topic_id: str | int | None = None
    offset: Offset | None = None


class CommittedOffset(msgspec.Struct, frozen=True):
    next_offset: int


@route(
    "POST",
    "/pubsub/commit",
    Doc(
        tag=TAG,
        object=IN_BODY,
        scope="consume",
        strict=False,
        body=CommitOffset,
        responses={200: CommittedOffset},
        problems=(400, 404, 409),
    ),
)
async def commit(request: Request) -> Response:
    """Commit offsets, for consumers with a `member`. Cumulative; never moves back."""
    body = await request.read(CommitOffset)
    topic = _name(body.topic_id, FIRST_TOPIC, "topic_id")
    refuse(group_id=name_fault(body.group_id), offset="cannot be blank" if body.offset is None else None)
    assert body.group_id is not None and body.offset is not None  # noqa: S101
    await request.allow(topic)
    async with request.writing() as conn:
        done = await compat.ack_upto(conn, topic, body.group_id, body.offset)
    request.mq.wake()
    return respond(CommittedOffset(done + 1))


# The queue


class Enqueue(msgspec.Struct, kw_only=True):
    """A job."""

    queue: str | None = None
    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET


class JobId(msgspec.Struct, frozen=True):
    id: UUID


@route(
    "POST",
    "/queue/enqueue",
    Doc(
        tag=TAG,
        object=IN_BODY,
        scope="publish",
        strict=False,
        body=Enqueue,
        responses={201: JobId},
        problems=(400, 404, 413),
    ),
)
async def enqueue(request: Request) -> Response:
    """Enqueue a job."""
    body = await request.read(Enqueue)
    queue = _name(body.queue, FIRST_QUEUE, "queue")
    await request.allow(queue)
    if not isinstance(body.payload, UnsetType):
        message = _payload(bytes(body.payload))
    elif not isinstance(body.payload_base64, UnsetType):
        message = _bytes(body.payload_base64)
    else:
        raise invalid("payload: cannot be blank.")
    if queue == FIRST_QUEUE:
        await request.mq.queues.ensure(queue)
    return respond(JobId((await request.service.publish("inbox", queue, message)).id), 201)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """The receipt. Only its holder can archive the job."""
    payload: Any
    encoding: str
    created_at: datetime
    attempt: int
    deadline: datetime


class ClaimedJob(msgspec.Struct, frozen=True):
    """Null if there is no job."""

    job: Job | None


@route(
    "GET",
    "/queue/claim",
    Doc(
        tag=TAG,
        object=IN_BODY,
        scope="consume",
        params=(Param(name="queue", default=FIRST_QUEUE, words="The queue."), WAIT),
        strict=False,
        responses={200: ClaimedJob},
        problems=(404,),
    ),
)
async def claim(request: Request) -> Response:
    """Claim a job for the queue's lease. If the worker crashes, the job is redelivered."""
    query = request.query()
    queue = query["queue"]
    await request.allow(queue)
    if queue == FIRST_QUEUE:
        await request.mq.queues.ensure(queue)
    if query["wait"]:
        await request.bytes()
    taken = await request.service.long_poll.claim(request, queue, limit=1, wait=query["wait"])
    if not taken:
        return respond(ClaimedJob(None))
    row = taken[0]
    view = render(row.payload, row.content_type)
    return respond(
        ClaimedJob(
            Job(
                id=row.receipt,
                payload=view.payload,
                encoding=view.encoding,
                created_at=row.created_at,
                attempt=row.attempt,
                deadline=row.deadline,
            )
        )
    )


class Archive(msgspec.Struct, kw_only=True):
    """The id returned by claim."""

    id: Annotated[str, Meta(max_length=200)] | None = None


class Archived(msgspec.Struct, frozen=True):
    result: str


@route(
    "POST",
    "/queue/archive",
    Doc(
        tag=TAG,
        object=IN_BODY,
        scope="consume",
        strict=False,
        body=Archive,
        responses={200: Archived},
        problems=(400, 404, 409),
    ),
)
async def archive(request: Request) -> Response:
    """Complete a job: remove it from the queue and keep it in the archive."""
    body = await request.read(Archive)
    refuse(id="cannot be blank" if not body.id else None)
    assert body.id is not None  # noqa: S101
    owner = (await request.service.queue_of([body.id]))[0]
    if owner is None:
        raise Problem(404, "message_not_found", "the job does not exist")
    await request.allow(owner, hide=True)
    result = (await request.service.acker.ack(owner, [body.id]))[0]
    if result != "done":
        raise Problem(409, "lease_lost", "the lease of this job has expired; another worker may hold it")
    return respond(Archived(result))


ROUTES = [publish, consume, commit, enqueue, claim, archive]
