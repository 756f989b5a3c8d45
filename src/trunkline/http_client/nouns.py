"""Topics, groups, subscriptions and schedules over HTTP."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Unpack
from uuid import UUID

import msgspec

from trunkline.codec import place, to_json
from trunkline.http_client.rows import GroupRow, MessageRow, ScheduleRow, SubscriptionRow, TopicRow, seconds
from trunkline.http_client.searching import estimate, search
from trunkline.http_client.transport import Transport, given, quoted
from trunkline.messaging import RangeOptions, SearchOptions
from trunkline.types import (
    CatchUp,
    Duration,
    Group,
    GroupStats,
    Headers,
    Member,
    Message,
    PartitionMap,
    Place,
    Reader,
    Schedule,
    Search,
    SearchRange,
    Selection,
    Subscription,
    Topic,
    TopicStats,
)


class Noun:
    """Manages one kind of resource."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport


class _Partitions(msgspec.Struct):
    partitions: list[TopicStats]


class _Maps(msgspec.Struct):
    partitions: list[PartitionMap]


class _Members(msgspec.Struct):
    data: list[Member]


class _Messages(msgspec.Struct):
    data: list[MessageRow]


class HttpTopics(Noun):
    """`client.topics`"""

    async def create(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention: Duration | None = None,
        retention_bytes: int | None = None,
        hard_retention: Duration | None = None,
        max_payload: int | None = None,
    ) -> Topic:
        """Create a topic. Raises `AlreadyExists` if the name is taken."""
        request = _topic_settings(partitions, retention, retention_bytes, hard_retention, max_payload)
        return (await self._transport.ask("POST", "/v1/topics", {"name": name, **request}, kind=TopicRow)).record()

    async def ensure(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention: Duration | None = None,
        retention_bytes: int | None = None,
        hard_retention: Duration | None = None,
        max_payload: int | None = None,
    ) -> Topic:
        """Create the topic, or update the given settings if it exists.

        Raises `AlreadyExists` if it has a different number of partitions.
        """
        request = _topic_settings(partitions, retention, retention_bytes, hard_retention, max_payload)
        query = {"ensure": "true"}
        return (
            await self._transport.ask("POST", "/v1/topics", {"name": name, **request}, query=query, kind=TopicRow)
        ).record()

    async def alter(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention: Duration | None = None,
        retention_bytes: int | None = None,
        hard_retention: Duration | None = None,
        max_payload: int | None = None,
    ) -> Topic:
        """Change the given settings and keep the others."""
        request = _topic_settings(partitions, retention, retention_bytes, hard_retention, max_payload)
        return (await self._transport.ask("PATCH", _topic(name), request, kind=TopicRow)).record()

    async def get(self, name: str) -> Topic:
        return (await self._transport.ask("GET", _topic(name), kind=TopicRow)).record()

    async def list(
        self, *, after: str | None = None, limit: int | None = None, names: Sequence[str] | None = None
    ) -> builtins.list[Topic]:
        """List topics by name. `after` and `limit` page through the list. `names`: only these, with `*`."""
        rows = await self._transport.every("/v1/topics", TopicRow, after=after, limit=limit, name=names)
        return [row.record() for row in rows]

    async def map(self, topic: str) -> builtins.list[PartitionMap]:
        """Return what each partition holds: segments, times of offsets, readers, archive, staged rows."""
        return (await self._transport.ask("GET", f"{_topic(topic)}/map", kind=_Maps)).partitions

    async def estimate_search(
        self, topic: str, selection: Selection | None = None, **options: Unpack[RangeOptions]
    ) -> builtins.list[SearchRange]:
        """Return what `search` would read at most: offsets, messages and about how many bytes, per partition."""
        return await estimate(self._transport, _topic(topic), selection, **options)

    async def search(
        self, topic: str, selection: Selection | None = None, *, type: Any = None, **options: Unpack[SearchOptions]
    ) -> Search[Any]:
        """Search messages of a topic, whether or not they were consumed."""
        return await search(self._transport, _topic(topic), selection, type=type, **options)

    async def delete(self, name: str, *, force: bool = False) -> None:
        await self._transport.ask("DELETE", _topic(name), query={"force": str(force).lower()})

    async def stats(self, name: str | None = None) -> builtins.list[TopicStats]:
        """Return one row per partition, of one topic or of all."""
        if name is not None:
            return (await self._transport.ask("GET", f"{_topic(name)}/stats", kind=_Partitions)).partitions
        return msgspec.convert((await self._transport.ask("GET", "/v1/stats"))["topics"], builtins.list[TopicStats])

    async def head(self, topic: str, partition: int = 0) -> int:
        """Return the highest offset, including all messages committed before the call; 0 if there are none."""
        return await self._offset(topic, partition, "latest") - 1

    async def offset_at(self, topic: str, partition: int, at: datetime) -> int:
        """Return the first offset whose message was created at or after this time; head + 1 if there is none."""
        return await self._offset(topic, partition, place(at))

    async def _offset(self, topic: str, partition: int, at: str) -> int:
        query = {"partition": partition, "at": at}
        offset: int = (await self._transport.ask("GET", f"{_topic(topic)}/offset", query=query))["offset"]
        return offset

    async def read(
        self,
        topic: str,
        partition: int = 0,
        *,
        start: int = 1,
        limit: int = 100,
        wait: Duration | None = None,
        type: Any = None,
    ) -> builtins.list[Message[Any]]:
        """Read messages from offset `start`, whether or not they were consumed. Waits up to `wait` for the first."""
        query = {"partition": partition, "start": start, "limit": limit, "wait": seconds(wait)}
        body = await self._transport.ask("GET", f"{_topic(topic)}/messages", query=query, kind=_Messages)
        return [row.message(type) for row in body.data]

    async def tail(self, topic: str, *, start: Place = "latest", type: Any = None) -> AsyncIterator[Message[Any]]:
        """Iterate over messages from position `start`, waiting for new ones without end. Does not affect any reader."""
        async for data in self._transport.events(f"{_topic(topic)}/events", {"start": place(start)}):
            yield msgspec.json.decode(data, type=MessageRow).message(type)


def _topic(name: str) -> str:
    return f"/v1/topics/{quoted(name)}"


def _topic_settings(
    partitions: int | None,
    retention: Duration | None,
    retention_bytes: int | None,
    hard_retention: Duration | None,
    max_payload: int | None,
) -> dict[str, Any]:
    return {
        "partitions": partitions,
        "retention_seconds": seconds(retention),
        "retention_bytes": retention_bytes,
        "hard_retention_seconds": seconds(hard_retention),
        "max_payload": max_payload,
    }


class HttpGroups(Noun):
    """`client.groups`"""

    async def create(
        self,
        topic: str,
        group: str,
        *,
        start: Place = "earliest",
        pattern: str | None = None,
        headers: Headers | None = None,
    ) -> Group:
        """Create a group that reads from position `start`. Raises `AlreadyExists` if the name is taken."""
        return await self._make(topic, group, start, pattern, headers, {})

    async def ensure(
        self,
        topic: str,
        group: str,
        *,
        start: Place = "earliest",
        pattern: str | None = None,
        headers: Headers | None = None,
    ) -> Group:
        """Create the group if it does not exist. An existing group keeps its position.

        Raises `AlreadyExists` if it exists with another pattern or other headers.
        """
        return await self._make(topic, group, start, pattern, headers, {"ensure": "true"})

    async def _make(
        self, topic: str, group: str, start: Place, pattern: str | None, headers: Headers | None, query: dict[str, str]
    ) -> Group:
        request = given(name=group, start=place(start), pattern=pattern, headers=headers)
        return (await self._transport.ask("POST", f"{_topic(topic)}/groups", request, query=query, kind=GroupRow)).record()

    async def list(
        self, topic: str | None = None, *, after: str | None = None, limit: int | None = None
    ) -> builtins.list[Group]:
        """List the groups of a topic, or of all topics, by name.

        `after` and `limit` page through the list. Without a topic, `after` is `"topic/group"`.
        """
        if topic is not None:
            rows = await self._transport.every(f"{_topic(topic)}/groups", GroupRow, after=after, limit=limit)
            return [row.record() for row in rows]
        groups: builtins.list[Group] = []
        if after is not None:
            first, _, group = after.partition("/")
            groups += await self.list(first, after=group, limit=limit)
            after = first
        for row in await self._transport.every("/v1/topics", TopicRow, after=after):
            if limit is None or len(groups) < limit:
                groups += await self.list(row.name, limit=None if limit is None else limit - len(groups))
        return groups

    async def members(self, topic: str, group: str) -> builtins.list[Member]:
        """Return the active members of a group, each with the partitions that it has leased."""
        return (await self._transport.ask("GET", f"{_topic(topic)}/groups/{quoted(group)}/members", kind=_Members)).data

    async def delete(self, topic: str, group: str) -> None:
        """Delete the group and its position."""
        await self._transport.ask("DELETE", _group(topic, group))

    async def seek(self, topic: str, group: str, to: Place, *, partition: int | None = None) -> dict[int, int]:
        """Move the group's position, in one partition or in all. Members lose their current batches.

        Returns the next offset of each partition.
        """
        body = await self._transport.ask("POST", f"{_group(topic, group)}/seek", {"to": place(to), "partition": partition})
        return {int(number): offset for number, offset in body["next_offsets"].items()}

    async def stats(self, topic: str | None = None, group: str | None = None) -> builtins.list[GroupStats]:
        """Return one row per group and partition: position, lag, owner."""
        if topic is not None and group is not None:
            rows = (await self._transport.ask("GET", _group(topic, group)))["partitions"]
        else:
            rows = (await self._transport.ask("GET", "/v1/stats"))["groups"]
        stats = msgspec.convert(rows, builtins.list[GroupStats])
        return [row for row in stats if topic in (None, row.topic) and group in (None, row.group)]

    async def position(self, topic: str, group: str) -> dict[int, int]:
        """Return the next offset to be delivered in each partition."""
        return {row.partition: row.next_offset for row in await self.stats(topic, group)}


def _group(topic: str, group: str) -> str:
    return f"{_topic(topic)}/groups/{quoted(group)}"


class _Readers(msgspec.Struct):
    data: list[Reader]


class HttpSubscriptions(Noun):
    """`client.subscriptions`"""

    async def add(
        self,
        queue: str,
        topic: str,
        *,
        pattern: str = "#",
        headers: Headers | None = None,
        start: Place = "latest",
        name: str | None = None,
    ) -> Subscription:
        """Subscribe the queue to a topic, for messages that match `pattern` (on the routing key) and `headers`.

        `name` defaults to the topic's name. A queue may have several subscriptions to one topic under different names.
        """
        request = {
            "name": name,
            "topic": topic,
            "queue": queue,
            "pattern": pattern,
            "headers": headers,
            "start": place(start),
        }
        return (await self._transport.ask("POST", "/v1/subscriptions", request, kind=SubscriptionRow)).record()

    async def list(self, queue: str | None = None, topic: str | None = None) -> builtins.list[Subscription]:
        """List all subscriptions, or those of a queue, of a topic, or of both."""
        rows = await self._transport.every("/v1/subscriptions", SubscriptionRow, queue=queue, topic=topic)
        return [row.record() for row in rows]

    async def remove(self, queue: str, name: str) -> None:
        """Remove a subscription. Its unsettled messages are dropped from the queue."""
        await self._transport.ask("DELETE", f"/v1/subscriptions/{quoted(name)}", query={"queue": queue})

    async def test(
        self, topic: str, routing_key: str | None = None, headers: Headers | None = None
    ) -> builtins.list[Reader]:
        """List all readers of the topic, each with whether it would receive such a message. Publishes nothing."""
        path = f"{_topic(topic)}/readers"
        query = {"routing_key": routing_key, "headers": None if headers is None else to_json(headers).decode()}
        return (await self._transport.ask("GET", path, query=query, kind=_Readers)).data


class HttpSchedules(Noun):
    """`client.schedules`"""

    async def create(
        self,
        name: str,
        cron: str,
        *,
        topic: str | None = None,
        queue: str | None = None,
        body: Any = None,
        key: str | None = None,
        routing_key: str | None = None,
        label: str | None = None,
        headers: Headers | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp = "one",
    ) -> Schedule:
        """Create a schedule that publishes `body` to a topic or a queue."""
        return await self._make(False, name, cron, topic, queue, body, key, routing_key, label, headers, timezone, catch_up)

    async def ensure(
        self,
        name: str,
        cron: str,
        *,
        topic: str | None = None,
        queue: str | None = None,
        body: Any = None,
        key: str | None = None,
        routing_key: str | None = None,
        label: str | None = None,
        headers: Headers | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp = "one",
    ) -> Schedule:
        """Create the schedule, or update it if it exists."""
        return await self._make(True, name, cron, topic, queue, body, key, routing_key, label, headers, timezone, catch_up)

    async def _make(
        self,
        ensure: bool,
        name: str,
        cron: str,
        topic: str | None,
        queue: str | None,
        body: Any,
        key: str | None,
        routing_key: str | None,
        label: str | None,
        headers: Headers | None,
        timezone: str,
        catch_up: CatchUp,
    ) -> Schedule:
        request = {
            "name": name,
            "cron": cron,
            "topic": topic,
            "queue": queue,
            "payload": msgspec.Raw(to_json(body)),
            "key": key,
            "routing_key": routing_key,
            "label": label,
            "headers": headers,
            "timezone": timezone,
            "catch_up": catch_up,
        }
        query = {"ensure": str(ensure).lower()}
        return (await self._transport.ask("POST", "/v1/schedules", request, query=query, kind=ScheduleRow)).record()

    async def list(self) -> builtins.list[Schedule]:
        """List all schedules by name."""
        return [row.record() for row in await self._transport.every("/v1/schedules", ScheduleRow)]

    async def pause(self, name: str) -> None:
        """Stop firing the schedule until `resume`."""
        await self._transport.ask("PUT", f"/v1/schedules/{quoted(name)}/pause")

    async def resume(self, name: str) -> None:
        await self._transport.ask("PUT", f"/v1/schedules/{quoted(name)}/resume")

    async def delete(self, name: str) -> None:
        await self._transport.ask("DELETE", f"/v1/schedules/{quoted(name)}")

    async def run(self, name: str) -> UUID:
        """Fire the schedule now, in addition to its times. Returns the message id."""
        return UUID((await self._transport.ask("POST", f"/v1/schedules/{quoted(name)}/run"))["id"])

    async def next_runs(
        self, cron: str, *, timezone: str = "UTC", limit: int = 5, after: datetime | None = None
    ) -> builtins.list[datetime]:
        """Return the next `limit` times of a cron expression."""
        query = {"cron": cron, "timezone": timezone, "limit": limit, "after": None if after is None else place(after)}
        body = await self._transport.ask("GET", "/v1/next-runs", query=query)
        return msgspec.convert(body["data"], builtins.list[datetime])
