"""Server-sent events: follow a topic, or read it as a member of a group."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
from litestar.params import FromPath
from litestar.response import Stream

from trunkline.client.batches import Batch, DatabaseCommits
from trunkline.db import calls
from trunkline.errors import TrunklineError
from trunkline.runtime.names import consumer_name
from trunkline.server.problems import Problem, from_error
from trunkline.server.query import Param
from trunkline.server.request import Request
from trunkline.server.routing import Doc, route
from trunkline.server.views import message_view

TAG = "events"
_QUIET_SECONDS = 15.0
_RESUME = {"Last-Event-ID": "Last position of the previous connection: `partition:offset`, comma-separated."}
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}


def _stream(content: AsyncIterator[bytes]) -> Stream:
    return Stream(content, media_type="text/event-stream", headers=_HEADERS)


def _event(data: bytes, *, id: str | None = None, kind: str | None = None) -> bytes:
    """Format an event. The data is JSON, so it has no line breaks."""
    head = b"" if id is None else b"id: " + id.encode() + b"\n"
    head += b"" if kind is None else b"event: " + kind.encode() + b"\n"
    return head + b"data: " + data + b"\n\n"


def _problem(problem: Problem) -> bytes:
    return _event(problem.body(), kind="problem")


def last_seen(text: str | None) -> dict[int, int]:
    """Parse a Last-Event-ID header into offsets by partition."""
    seen: dict[int, int] = {}
    for part in (text or "").split(","):
        if not part:
            continue
        partition, colon, offset = part.partition(":")
        if not (colon and partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit()):
            raise Problem(400, "bad_header", "Last-Event-ID must be `partition:offset`")
        if len(partition) > 2 or len(offset) > 16:
            raise Problem(400, "bad_header", "Last-Event-ID is out of range")
        seen[int(partition)] = int(offset)
    return seen


@route(
    "GET",
    "/topics/{topic:str}/events",
    Doc(
        tag=TAG,
        scope="consume",
        params=(Param(name="start", default="latest", words="latest, earliest, an offset or a time."),),
        headers=_RESUME,
        responses={200: str},
        problems=(404, 416),
        media="text/event-stream",
        object="topic",
        reads=True,
    ),
)
async def follow(request: Request, topic: FromPath[str]) -> Stream:
    """Stream new messages as server-sent events. Has no effect on any reader. Resume with the last event's `id`."""
    start = request.query()["start"]
    seen = last_seen(request.header("last-event-id"))
    if start == "latest":
        places = await request.service.topic_tails.heads(topic)
    else:
        async with request.mq.connection() as conn:
            partitions = (await calls.get_topic(conn, topic)).partitions
            places = [await calls.offset_of(conn, topic, number, start) for number in range(partitions)]
    for partition, offset in seen.items():
        if partition < len(places):
            places[partition] = offset + 1
    if seen:
        # report offsets removed by retention now, as an HTTP status
        for partition, offset in enumerate(places):
            await request.mq.topics.read(topic, partition, start=offset, limit=1)
    return _stream(_follow(request, topic, places))


async def _follow(request: Request, topic: str, places: list[int]) -> AsyncIterator[bytes]:
    service = request.service
    yield b": here\n\n"
    seen = {partition: place - 1 for partition, place in enumerate(places)}
    try:
        with service.auth.watch(request.scope) as ended:
            ended.add_done_callback(lambda _: service.topic_tails.ring(topic))
            async with contextlib.aclosing(service.topic_tails.follow(topic, places, _QUIET_SECONDS)) as news:  # type: ignore[type-var]
                async for events in news:
                    if service.stopping.is_set():
                        return
                    if not events and not ended.done():
                        yield b": still here\n\n"
                    for event in events:
                        if ended.done():
                            break
                        seen[event.partition] = event.offset
                        yield _event(event.data, id=",".join(f"{partition}:{offset}" for partition, offset in seen.items()))
                    if ended.done():
                        yield _problem(ended.result())
                        return
    except TrunklineError as exc:
        yield _problem(from_error(exc))


class GroupEvent(msgspec.Struct, frozen=True):
    """A message with the generation to commit it."""

    generation: Any
    message: Any


@route(
    "GET",
    "/topics/{topic:str}/groups/{group:str}/events",
    Doc(
        tag=TAG,
        scope="consume",
        params=(
            Param(name="member", words="Name of the member; generated by default."),
            Param(name="limit", kind=int, default=100, low=1, high=1000, words="Maximum number of uncommitted messages."),
            Param(
                name="lease_seconds",
                kind=float,
                default=30.0,
                low=1,
                high=43_200,
                words="Lease in seconds.",
            ),
            Param(
                name="commit",
                default="client",
                choices=("client", "auto"),
                words="Whether the client or the server commits.",
            ),
        ),
        headers=_RESUME,
        responses={200: str},
        problems=(404, 416),
        media="text/event-stream",
        object="topic",
        reads=True,
    ),
)
async def follow_group(request: Request, topic: FromPath[str], group: FromPath[str]) -> Stream:
    """Stream messages of a group as server-sent events.

    Each event has the generation to commit with. The next batch is sent after the last one was committed. Last-Event-ID
    commits its offsets. With `commit=auto`, a batch is committed once sent. A client that disconnects leaves the group.
    """
    query = request.query()
    seen = last_seen(request.header("last-event-id"))
    member = query["member"] or consumer_name()
    await request.mq.groups.ensure(topic, group)
    reader = _GroupStream(request, topic, group, member, query, seen)
    return _stream(reader.events())


class _GroupStream:
    """A group member behind an HTTP connection."""

    def __init__(
        self, request: Request, topic: str, group: str, member: str, query: dict[str, Any], seen: dict[int, int]
    ) -> None:
        self._service = request.service
        self._scope = request.scope
        self._mq = request.mq
        self._topic = topic
        self._group = group
        self._member = member
        self._size: int = query["limit"]
        self._lease = timedelta(seconds=query["lease_seconds"])
        self._auto = query["commit"] == "auto"
        self._seen = seen

    async def events(self) -> AsyncIterator[bytes]:
        wakeup = self._mq.session.wakeup
        watch = wakeup.watch("group", self._topic, group=self._group, member=self._member)
        pause = min(_QUIET_SECONDS, self._lease.total_seconds() / 3)
        yield b": here\n\n"
        try:
            with self._service.auth.watch(self._scope) as ended:
                ended.add_done_callback(lambda _: watch.wake())
                while not self._service.stopping.is_set() and not ended.done():
                    watch.reset()
                    batch = await self._fetch()
                    if batch is None:
                        if not await watch.wait(pause):
                            await self._mq.heartbeat(self._topic, self._group, member=self._member, lease=self._lease)
                            yield b": still here\n\n"
                        continue
                    async for event in self._batch(batch, ended):
                        yield event
                if ended.done():
                    yield _problem(ended.result())
        except TrunklineError as exc:
            yield _problem(from_error(exc))
        finally:
            wakeup.unwatch(watch)
            # this task ends with the connection, so a separate one leaves the group
            self._service.spawn(self._leave())

    async def _batch(self, batch: Batch[Any], ended: asyncio.Future[Problem]) -> AsyncIterator[bytes]:
        """Yield the events of a batch. Commit what the client has seen; with `commit=auto`, what was sent."""
        last = self._seen.pop(batch.partition, 0)
        if batch.first_offset <= last:
            await batch.commit(min(last, batch.last_offset))
        for message in batch:
            if ended.done():
                return
            if message.offset > last:
                data = msgspec.json.encode(GroupEvent(batch.generation, message_view(message)))
                yield _event(data, id=f"{message.partition}:{message.offset}")
        if self._auto:
            await batch.commit()

    async def _fetch(self) -> Batch[Any] | None:
        runtime = self._mq.session
        async with runtime.connection() as conn:
            return await calls.fetch(
                conn,
                lambda **fields: Batch(
                    DatabaseCommits(runtime), self._topic, self._group, member=self._member, lease=self._lease, **fields
                ),
                self._topic,
                self._group,
                member=self._member,
                limit=self._size,
                lease=self._lease,
                max_bytes=self._service.config.max_response_bytes,
            )

    async def _leave(self) -> None:
        with contextlib.suppress(TrunklineError):
            await asyncio.shield(self._mq.leave(self._topic, self._group, member=self._member))


ROUTES = [follow, follow_group]
