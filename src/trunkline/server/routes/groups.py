"""Consumer groups: fetch, commit, seek, lag."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar.params import FromPath
from msgspec import Meta

from trunkline.client.batches import Batch, DatabaseCommits
from trunkline.db import calls
from trunkline.errors import AlreadyExists, GroupNotFound
from trunkline.runtime.names import consumer_name
from trunkline.server.bodies import Name, Offset, name_fault, refuse
from trunkline.server.long_poll import retry_until, until_gone
from trunkline.server.problems import Problem, invalid
from trunkline.server.query import AFTER, ENSURE, LIMIT, OFFSET
from trunkline.server.request import Request
from trunkline.server.response import Response, nothing, respond
from trunkline.server.routes.claims import Lease
from trunkline.server.routing import Doc, route
from trunkline.server.views import Page, message_view, page
from trunkline.types import Group, GroupStats
from trunkline.wire import MessageView, to_view, view

GroupView = view(Group)
TAG = "groups"
Position = Annotated[str, Meta(min_length=1, max_length=100)]


class NewGroup(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A group to create."""

    name: str | None = None
    start: Position = "earliest"
    """earliest, latest, an offset or a time."""
    pattern: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    """With a pattern or `headers`, the group reads only matching messages, as subscriptions do."""
    headers: dict[str, Any] | None = None


@route(
    "POST",
    "/topics/{topic:str}/groups",
    Doc(
        tag=TAG,
        scope="admin",
        params=(ENSURE,),
        body=NewGroup,
        responses={201: GroupView, 200: GroupView},
        problems=(400, 404, 409, 416),
        object="topic",
        audit=True,
    ),
)
async def create_group(request: Request, topic: FromPath[str]) -> Response:
    """Create a group. A fetch also creates it, from the earliest message."""
    ensure = request.query()["ensure"]
    body = await request.read(NewGroup)
    refuse(name=name_fault(body.name))
    assert body.name is not None  # noqa: S101
    reads: dict[str, Any] = {"start": body.start, "pattern": body.pattern, "headers": body.headers}
    try:
        return respond(to_view(await request.mq.groups.create(topic, body.name, **reads)), 201)
    except AlreadyExists:
        if not ensure:
            raise
    return respond(to_view(await request.mq.groups.ensure(topic, body.name, **reads)))


@route(
    "GET",
    "/topics/{topic:str}/groups",
    Doc(
        tag=TAG,
        scope="read",
        params=(AFTER, OFFSET, LIMIT),
        responses={200: Page},
        problems=(404,),
        object="topic",
    ),
)
async def list_groups(request: Request, topic: FromPath[str]) -> Response:
    """List the groups of a topic by name, 100 per page by default."""
    query = request.query()
    await request.mq.topics.get(topic)
    return respond(page([to_view(row) for row in await request.mq.groups.list(topic, after=query["after"])], query))


class GroupStatsView(msgspec.Struct, frozen=True):
    name: str
    topic: str
    lag: int
    lag_seconds: float
    partitions: list[GroupStats]


@route(
    "GET",
    "/topics/{topic:str}/groups/{group:str}",
    Doc(tag=TAG, scope="read", responses={200: GroupStatsView}, problems=(404,), object="topic", reads=True),
)
async def group_stats(request: Request, topic: FromPath[str], group: FromPath[str]) -> Response:
    """Get a group's position and lag per partition, and the members that hold the partitions."""
    request.query()
    rows = await request.mq.groups.stats(topic, group)
    if not rows:
        raise GroupNotFound(f"group {group} does not exist on topic {topic}")
    return respond(GroupStatsView(group, topic, sum(row.lag for row in rows), max(row.lag_seconds for row in rows), rows))


@route(
    "DELETE",
    "/topics/{topic:str}/groups/{group:str}",
    Doc(tag=TAG, scope="admin", responses={204: None}, problems=(404,), object="topic", audit=True),
)
async def delete_group(request: Request, topic: FromPath[str], group: FromPath[str]) -> Response:
    """Delete a group and its position."""
    request.query()
    await request.mq.groups.delete(topic, group)
    return nothing()


class Fetch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of a fetch. With the `generation` of an earlier fetch, its uncommitted messages are returned again."""

    member: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    lease_seconds: Lease = 30.0
    wait: Annotated[float, Meta(ge=0, le=30)] = 0.0
    generation: UUID | None = None


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one partition. Commit the last offset with the generation. Until then, or until the deadline, no
    other member gets the partition. Without messages the other fields are null."""

    member: str
    partition: int | None = None
    generation: UUID | None = None
    deadline: datetime | None = None
    last_offset: int | None = None
    messages: list[MessageView]


@route(
    "POST",
    "/topics/{topic:str}/groups/{group:str}/fetch",
    Doc(
        tag=TAG,
        scope="consume",
        body=Fetch,
        optional_body=True,
        responses={200: Fetched},
        problems=(400, 404, 408, 413, 416),
        object="topic",
        reads=True,
    ),
)
async def fetch(request: Request, topic: FromPath[str], group: FromPath[str]) -> Response:
    """Lease the next messages of the group to the member. Creates the group if it does not exist."""
    request.query()
    body = await request.read(Fetch, optional=True)
    member = body.member or consumer_name()
    wait = min(body.wait, request.service.config.max_wait)
    lease = timedelta(seconds=body.lease_seconds)

    async def look() -> Batch[Any] | None:
        runtime = request.mq.session
        async with runtime.connection() as conn:
            return await calls.fetch(
                conn,
                lambda **fields: Batch(DatabaseCommits(runtime), topic, group, member=member, lease=lease, **fields),
                topic,
                group,
                member=member,
                limit=body.limit,
                lease=lease,
                generation=body.generation,
                max_bytes=request.service.config.max_response_bytes,
            )

    work = retry_until(request.mq, "group", topic, look, wait=wait, group=group, member=member)
    try:
        batch = await (until_gone(request, work) if wait else work)
    except BaseException:
        if wait:
            await request.mq.leave(topic, group, member=member)
        raise
    if batch is None:
        if body.member is None:
            # a generated member name is never used again
            await request.mq.leave(topic, group, member=member)
        return respond(Fetched(member=member, messages=[]))
    return respond(
        Fetched(
            member=member,
            partition=batch.partition,
            generation=batch.generation,
            deadline=batch.deadline,
            last_offset=batch.last_offset,
            messages=[message_view(message) for message in batch],
        )
    )


class Commit(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Commit everything up to `offset`, with the `generation` of the fetch."""

    partition: Annotated[int, Meta(ge=0, le=63)] = 0
    generation: UUID
    offset: Offset


class CommitResult(msgspec.Struct, frozen=True):
    partition: int
    next_offset: int


@route(
    "POST",
    "/topics/{topic:str}/groups/{group:str}/commit",
    Doc(
        tag=TAG,
        scope="consume",
        body=Commit,
        responses={200: CommitResult},
        problems=(400, 404, 408, 409, 413),
        object="topic",
    ),
)
async def commit(request: Request, topic: FromPath[str], group: FromPath[str]) -> Response:
    """Commit offsets. Cumulative and idempotent. 409 if another member holds the partition."""
    request.query()
    body = await request.read(Commit)
    async with request.writing() as conn:
        result, _ = await calls.commit(
            conn, topic, group, partition=body.partition, generation=body.generation, offset=body.offset
        )
        if result != "done":
            raise Problem(
                409, "lease_lost", "this generation no longer holds the partition; its messages will be redelivered"
            )
        # on the same connection: if it is lost here, the error must be that the outcome is unknown
        rows = await calls.group_stats(conn, topic, group)
    position = next(row.next_offset for row in rows if row.partition == body.partition)
    return respond(CommitResult(body.partition, position))


class Seek(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The new position: earliest, latest, an offset or a time; for one partition or all."""

    to: str | int
    partition: Annotated[int, Meta(ge=0, le=63)] | None = None


class Positions(msgspec.Struct, frozen=True):
    next_offsets: dict[str, int]


@route(
    "POST",
    "/topics/{topic:str}/groups/{group:str}/seek",
    Doc(
        tag=TAG,
        scope="admin",
        body=Seek,
        responses={200: Positions},
        problems=(400, 404, 408, 409, 413, 416),
        object="topic",
        audit=True,
    ),
)
async def seek(request: Request, topic: FromPath[str], group: FromPath[str]) -> Response:
    """Move a group's position. Members lose their current batch."""
    request.query()
    body = await request.read(Seek)
    if not 1 <= len(str(body.to)) <= 100:
        raise invalid("to: must have 1 to 100 characters.")
    moved = await request.mq.groups.seek(topic, group, body.to, partition=body.partition)
    return respond(Positions({str(partition): offset for partition, offset in moved.items()}))


class MemberRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A member and its lease."""

    member: Name
    lease_seconds: Lease = 30.0


class Partitions(msgspec.Struct, frozen=True):
    partitions: int


_MEMBER: dict[str, Any] = {
    "tag": TAG,
    "scope": "consume",
    "body": MemberRequest,
    "responses": {200: Partitions},
    "problems": (400, 404, 408, 413),
    "object": "topic",
}


@route("POST", "/topics/{topic:str}/groups/{group:str}/heartbeat", Doc(**_MEMBER))
async def heartbeat(request: Request, topic: FromPath[str], group: FromPath[str]) -> Response:
    """Renew the member's lease on its partitions. Returns how many it holds."""
    request.query()
    body = await request.read(MemberRequest)
    lease = timedelta(seconds=body.lease_seconds)
    return respond(Partitions(await request.mq.heartbeat(topic, group, member=body.member, lease=lease)))


@route("POST", "/topics/{topic:str}/groups/{group:str}/leave", Doc(**_MEMBER))
async def leave(request: Request, topic: FromPath[str], group: FromPath[str]) -> Response:
    """Release the member's partitions."""
    request.query()
    body = await request.read(MemberRequest)
    return respond(Partitions(await request.mq.leave(topic, group, member=body.member)))


ROUTES = [create_group, list_groups, group_stats, delete_group, fetch, commit, seek, heartbeat, leave]
