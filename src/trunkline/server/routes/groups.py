"""Groups: fetch, commit, seek, lag."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar.params import FromPath
from msgspec import Meta

from trunkline.client.batches import Batch
from trunkline.client.consuming import consumer_name
from trunkline.db import calls
from trunkline.errors import AlreadyExists, GroupNotFound
from trunkline.server.call import Answer, Call, answer, nothing
from trunkline.server.fields import Name, Offset, name_fault, refuse
from trunkline.server.params import AFTER, ENSURE, LIMIT, OFFSET
from trunkline.server.problems import Problem, invalid
from trunkline.server.routes.claims import Lease
from trunkline.server.routing import Doc, route
from trunkline.server.views import GroupView, MessageView, Page, message_view, page
from trunkline.server.waiting import retry_until, until_gone
from trunkline.types import GroupStats

TAG = "groups"
Place = Annotated[str, Meta(min_length=1, max_length=100)]


class NewGroup(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A group to create."""

    id: str | None = None
    start: Place = "earliest"
    """earliest, latest, an offset or a time."""
    pattern: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    """With it, or with `message_filters`, the group reads only what matches, as in subscriptions."""
    message_filters: dict[str, list[str]] | None = None


@route(
    "POST",
    "/topics/{topic:str}/groups",
    Doc(
        tag=TAG,
        scope="admin",
        params=(ENSURE,),
        body=NewGroup,
        answers={201: GroupView, 200: GroupView},
        problems=(400, 404, 409, 416),
        object="topic",
        audit=True,
    ),
)
async def create_group(request: Call, topic: FromPath[str]) -> Answer:
    """Create a group; a fetch does it too, from the earliest message on."""
    ensure = request.query()["ensure"]
    asked = await request.read(NewGroup)
    refuse(id=name_fault(asked.id))
    assert asked.id is not None  # noqa: S101
    reads: dict[str, Any] = {"start": asked.start, "pattern": asked.pattern, "headers": asked.message_filters}
    try:
        return answer(GroupView.of(await request.mq.groups.create(topic, asked.id, **reads)), 201)
    except AlreadyExists:
        if not ensure:
            raise
    return answer(GroupView.of(await request.mq.groups.ensure(topic, asked.id, **reads)))


@route(
    "GET",
    "/topics/{topic:str}/groups",
    Doc(
        tag=TAG,
        scope="read",
        params=(AFTER, OFFSET, LIMIT),
        strict=False,
        answers={200: Page},
        problems=(404,),
        object="topic",
    ),
)
async def list_groups(request: Call, topic: FromPath[str]) -> Answer:
    """The groups of a topic by id, 100 at a time unless `limit` says otherwise."""
    query = request.query()
    await request.mq.topics.get(topic)
    return answer(page([GroupView.of(row) for row in await request.mq.groups.list(topic, after=query["after"])], query))


class GroupStatsView(msgspec.Struct, frozen=True):
    id: str
    topic_id: str
    lag: int
    lag_seconds: float
    partitions: list[GroupStats]


@route(
    "GET",
    "/topics/{topic:str}/groups/{group:str}",
    Doc(tag=TAG, scope="read", answers={200: GroupStatsView}, problems=(404,), object="topic", reads=True),
)
async def group_stats(request: Call, topic: FromPath[str], group: FromPath[str]) -> Answer:
    """How far a group is: position and lag of each partition, and who holds it."""
    request.query()
    rows = await request.mq.groups.stats(topic, group)
    if not rows:
        raise GroupNotFound(f"group {group} does not exist on topic {topic}")
    return answer(GroupStatsView(group, topic, sum(row.lag for row in rows), max(row.lag_seconds for row in rows), rows))


@route(
    "DELETE",
    "/topics/{topic:str}/groups/{group:str}",
    Doc(tag=TAG, scope="admin", answers={204: None}, problems=(404,), object="topic", audit=True),
)
async def delete_group(request: Call, topic: FromPath[str], group: FromPath[str]) -> Answer:
    """Delete a group and its position."""
    request.query()
    await request.mq.groups.delete(topic, group)
    return nothing()


class Fetch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Who fetches how much, for how long. `generation`: of an earlier fetch, to get again what was not committed."""

    member: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    lease_seconds: Lease = 30.0
    wait: Annotated[float, Meta(ge=0, le=30)] = 0.0
    generation: UUID | None = None


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one partition. Commit the last offset with the generation; until then, or until the deadline, nobody else
    gets the partition. Without messages the other fields are null."""

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
        answers={200: Fetched},
        problems=(400, 404, 408, 413, 416),
        object="topic",
        reads=True,
    ),
)
async def fetch(request: Call, topic: FromPath[str], group: FromPath[str]) -> Answer:
    """The next messages of the group, leased to the member. The group is created if it is not there."""
    request.query()
    asked = await request.read(Fetch, optional=True)
    member = asked.member or consumer_name()
    wait = min(asked.wait, request.engine.config.max_wait)
    lease = timedelta(seconds=asked.lease_seconds)

    async def look() -> Batch[Any] | None:
        runtime = request.mq._runtime()
        async with runtime.connection() as conn:
            return await calls.fetch(
                conn,
                lambda **fields: Batch(runtime, topic, group, lease=lease, **fields),
                topic,
                group,
                member=member,
                limit=asked.limit,
                lease=lease,
                generation=asked.generation,
            )

    work = retry_until(request.mq, "group", topic, look, wait=wait, group=group, member=member)
    try:
        batch = await (until_gone(request, work) if wait else work)
    except BaseException:
        if wait:
            await request.mq.leave(topic, group, member=member)
        raise
    if batch is None:
        if asked.member is None:
            # nobody will come back under a name that we made up
            await request.mq.leave(topic, group, member=member)
        return answer(Fetched(member=member, messages=[]))
    return answer(
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
    """Everything up to `offset` is done; `generation` as the fetch answered it."""

    partition: Annotated[int, Meta(ge=0, le=63)] = 0
    generation: UUID
    offset: Offset


class Committed(msgspec.Struct, frozen=True):
    partition: int
    next_offset: int


@route(
    "POST",
    "/topics/{topic:str}/groups/{group:str}/commit",
    Doc(
        tag=TAG,
        scope="consume",
        body=Commit,
        answers={200: Committed},
        problems=(400, 404, 408, 409, 413),
        object="topic",
    ),
)
async def commit(request: Call, topic: FromPath[str], group: FromPath[str]) -> Answer:
    """Cumulative and idempotent; what was committed already changes nothing. 409 when another member has the partition."""
    request.query()
    asked = await request.read(Commit)
    async with request.writing() as conn:
        result, _ = await calls.commit(
            conn, topic, group, partition=asked.partition, generation=asked.generation, offset=asked.offset
        )
        if result != "done":
            raise Problem(409, "lease_lost", "this generation no longer holds the partition; what it fetched comes again")
        # on the same connection: when it is lost here, the answer must not be that nothing happened
        rows = await calls.group_stats(conn, topic, group)
    position = next(row.next_offset for row in rows if row.partition == asked.partition)
    return answer(Committed(asked.partition, position))


class Seek(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where to go: earliest, latest, an offset or a time; in one partition or in all."""

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
        answers={200: Positions},
        problems=(400, 404, 408, 409, 413, 416),
        object="topic",
        audit=True,
    ),
)
async def seek(request: Call, topic: FromPath[str], group: FromPath[str]) -> Answer:
    """Move a group; members lose what they hold."""
    request.query()
    asked = await request.read(Seek)
    if not 1 <= len(str(asked.to)) <= 100:
        raise invalid("to: has no characters, or more than 100.")
    moved = await request.mq.groups.seek(topic, group, asked.to, partition=asked.partition)
    return answer(Positions({str(partition): offset for partition, offset in moved.items()}))


class Member(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A member, and for how long it keeps its partitions."""

    member: Name
    lease_seconds: Lease = 30.0


class Partitions(msgspec.Struct, frozen=True):
    partitions: int


_MEMBER: dict[str, Any] = {
    "tag": TAG,
    "scope": "consume",
    "body": Member,
    "answers": {200: Partitions},
    "problems": (400, 404, 408, 413),
    "object": "topic",
}


@route("POST", "/topics/{topic:str}/groups/{group:str}/heartbeat", Doc(**_MEMBER))
async def heartbeat(request: Call, topic: FromPath[str], group: FromPath[str]) -> Answer:
    """Keep the member's partitions; answers how many it still has."""
    request.query()
    asked = await request.read(Member)
    lease = f"{asked.lease_seconds:.3f}s"
    return answer(Partitions(await request.mq.heartbeat(topic, group, member=asked.member, lease=lease)))


@route("POST", "/topics/{topic:str}/groups/{group:str}/leave", Doc(**_MEMBER))
async def leave(request: Call, topic: FromPath[str], group: FromPath[str]) -> Answer:
    """Give the member's partitions back, so that others need not wait."""
    request.query()
    asked = await request.read(Member)
    return answer(Partitions(await request.mq.leave(topic, group, member=asked.member)))


ROUTES = [create_group, list_groups, group_stats, delete_group, fetch, commit, seek, heartbeat, leave]
