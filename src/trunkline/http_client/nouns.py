"""Topics, groups, subscriptions and schedules over HTTP."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from trunkline.db.codec import place, to_json
from trunkline.errors import InvalidArgument
from trunkline.http_client.rows import GroupRow, MessageRow, ScheduleRow, SubscriptionRow, TopicRow, seconds
from trunkline.http_client.transport import Transport, given, quoted
from trunkline.types import (
    CatchUp,
    Duration,
    Group,
    GroupStats,
    Headers,
    Message,
    Place,
    Reader,
    Schedule,
    Subscription,
    Topic,
    TopicStats,
)


class Noun:
    """The verbs on one kind of thing."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport


class _Partitions(msgspec.Struct):
    partitions: list[TopicStats]


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
        """A new topic; `AlreadyExists` if the name is taken."""
        asked = _topic_settings(partitions, retention, retention_bytes, hard_retention, max_payload)
        return (await self._transport.ask("POST", "/v1/topics", {"id": name, **asked}, kind=TopicRow)).topic()

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
        """The topic is there. One that exists stays as it is."""
        asked = _topic_settings(partitions, retention, retention_bytes, hard_retention, max_payload)
        query = {"ensure": "true"}
        return (await self._transport.ask("POST", "/v1/topics", {"id": name, **asked}, query=query, kind=TopicRow)).topic()

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
        """Change what is given and keep the rest."""
        asked = _topic_settings(partitions, retention, retention_bytes, hard_retention, max_payload)
        return (await self._transport.ask("PATCH", _topic(name), asked, kind=TopicRow)).topic()

    async def get(self, name: str) -> Topic:
        return (await self._transport.ask("GET", _topic(name), kind=TopicRow)).topic()

    async def list(self, *, after: str | None = None, limit: int | None = None) -> builtins.list[Topic]:
        """All topics by name, or `limit` of them after a name."""
        return [row.topic() for row in await self._transport.every("/v1/topics", TopicRow, after=after, limit=limit)]

    async def delete(self, name: str, *, force: bool = False) -> None:
        await self._transport.ask("DELETE", _topic(name), query={"force": str(force).lower()})

    async def stats(self, name: str | None = None) -> builtins.list[TopicStats]:
        """One row per partition, of one topic or of all."""
        if name is not None:
            return (await self._transport.ask("GET", f"{_topic(name)}/stats", kind=_Partitions)).partitions
        return msgspec.convert((await self._transport.ask("GET", "/v1/stats"))["topics"], builtins.list[TopicStats])

    async def offset_at(self, topic: str, partition: int, at: datetime) -> int:
        """The first offset whose message was created at this time or later; head + 1 when there is none."""
        query = {"partition": partition, "at": place(at)}
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
        """Messages from an offset on, whoever consumed them; with `wait` not before there is one."""
        query = {"partition": partition, "start": start, "limit": limit, "wait": seconds(wait)}
        body = await self._transport.ask("GET", f"{_topic(topic)}/messages", query=query, kind=_Messages)
        return [row.message(type) for row in body.data]

    async def tail(self, topic: str, *, start: Place = "latest", type: Any = None) -> AsyncIterator[Message[Any]]:
        """Messages as they come, from a place on, without an end. Changes nothing for any reader."""
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
        """A new group that reads from a place on; `AlreadyExists` if the topic has one of this name."""
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
        """The group is there; one that exists stays where it is. `AlreadyExists` if it reads by other rules."""
        return await self._make(topic, group, start, pattern, headers, {"ensure": "true"})

    async def _make(
        self, topic: str, group: str, start: Place, pattern: str | None, headers: Headers | None, query: dict[str, str]
    ) -> Group:
        asked = given(id=group, start=place(start), pattern=pattern, message_filters=headers)
        return (await self._transport.ask("POST", f"{_topic(topic)}/groups", asked, query=query, kind=GroupRow)).group()

    async def list(
        self, topic: str | None = None, *, after: str | None = None, limit: int | None = None
    ) -> builtins.list[Group]:
        """The groups of a topic, or all, by name; or `limit` of them after one (without a topic: `"topic/group"`)."""
        if topic is not None:
            rows = await self._transport.every(f"{_topic(topic)}/groups", GroupRow, after=after, limit=limit)
            return [row.group() for row in rows]
        found: builtins.list[Group] = []
        if after is not None:
            first, _, group = after.partition("/")
            found += await self.list(first, after=group, limit=limit)
            after = first
        for row in await self._transport.every("/v1/topics", TopicRow, after=after):
            if limit is None or len(found) < limit:
                found += await self.list(row.id, limit=None if limit is None else limit - len(found))
        return found

    async def delete(self, topic: str, group: str) -> None:
        """The group and its position are gone."""
        await self._transport.ask("DELETE", _group(topic, group))

    async def seek(self, topic: str, group: str, to: Place, *, partition: int | None = None) -> dict[int, int]:
        """Move the group, in one partition or in all; members lose what they hold. Answers the next offset by partition."""
        body = await self._transport.ask("POST", f"{_group(topic, group)}/seek", {"to": place(to), "partition": partition})
        return {int(number): offset for number, offset in body["next_offsets"].items()}

    async def stats(self, topic: str | None = None, group: str | None = None) -> builtins.list[GroupStats]:
        """One row per group and partition: position, lag, owner."""
        if topic is not None and group is not None:
            rows = (await self._transport.ask("GET", _group(topic, group)))["partitions"]
        else:
            rows = (await self._transport.ask("GET", "/v1/stats"))["groups"]
        found = msgspec.convert(rows, builtins.list[GroupStats])
        return [row for row in found if topic in (None, row.topic) and group in (None, row.group)]

    async def position(self, topic: str, group: str) -> dict[int, int]:
        """The next offset to be delivered, by partition."""
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
        """Feed the queue from the topic too. Over HTTP names are unique: without one it is `TOPIC-to-QUEUE`."""
        filters = {key: value if isinstance(value, list) else [value] for key, value in (headers or {}).items()}
        asked = {
            "id": name or f"{topic}-to-{queue}",
            "topic_id": topic,
            "queue_id": queue,
            "pattern": pattern,
            "message_filters": filters or None,
            "start": place(start),
        }
        return (await self._transport.ask("POST", "/v1/subscriptions", asked, kind=SubscriptionRow)).subscription()

    async def list(self, queue: str | None = None, topic: str | None = None) -> builtins.list[Subscription]:
        """All subscriptions, or those of a queue, of a topic, or of both."""
        rows = [row.subscription() for row in await self._transport.every("/v1/subscriptions", SubscriptionRow)]
        return [row for row in rows if queue in (None, row.queue) and topic in (None, row.topic)]

    async def remove(self, queue: str, name: str) -> None:
        """Stop feeding. What is not settled of it is forgotten."""
        await self._transport.ask("DELETE", f"/v1/subscriptions/{quoted(name)}", query={"queue": queue})

    async def test(
        self, topic: str, routing_key: str | None = None, headers: Headers | None = None
    ) -> builtins.list[Reader]:
        """All readers of the topic, and for each whether such a message would be for it. Publishes nothing."""
        if headers:
            raise InvalidArgument("over HTTP only a routing key can be tried, no headers", hint="ask the database itself")
        path, query = f"{_topic(topic)}/readers", {"routing_key": routing_key}
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
        """A new schedule that publishes `body` to a topic or a queue."""
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
        """The schedule is there and is like this: made, or changed."""
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
        asked = {
            "id": name,
            "cron": cron,
            "topic_id": topic,
            "queue_id": queue,
            "payload": msgspec.Raw(to_json(body)),
            "key": key,
            "routing_key": routing_key,
            "label": label,
            "headers": headers,
            "timezone": timezone,
            "catch_up": catch_up,
        }
        query = {"ensure": str(ensure).lower()}
        return (await self._transport.ask("POST", "/v1/schedules", asked, query=query, kind=ScheduleRow)).schedule()

    async def list(self) -> builtins.list[Schedule]:
        """All schedules, by name."""
        return [row.schedule() for row in await self._transport.every("/v1/schedules", ScheduleRow)]

    async def pause(self, name: str) -> None:
        """It does not fire until `resume`."""
        await self._transport.ask("PUT", f"/v1/schedules/{quoted(name)}/pause")

    async def resume(self, name: str) -> None:
        await self._transport.ask("PUT", f"/v1/schedules/{quoted(name)}/resume")

    async def delete(self, name: str) -> None:
        await self._transport.ask("DELETE", f"/v1/schedules/{quoted(name)}")

    async def run(self, name: str) -> UUID:
        """Fire it now, out of turn; answers the id of the message."""
        return UUID((await self._transport.ask("POST", f"/v1/schedules/{quoted(name)}/run"))["id"])

    async def next_runs(self, cron: str, *, timezone: str = "UTC", n: int = 5) -> builtins.list[datetime]:
        """When a cron line would fire next."""
        query = {"cron": cron, "timezone": timezone, "n": n}
        body = await self._transport.ask("GET", "/v1/next-runs", query=query)
        return msgspec.convert(body["runs"], builtins.list[datetime])
