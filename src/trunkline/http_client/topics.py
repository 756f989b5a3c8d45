"""Topics over HTTP."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Unpack

import msgspec

from trunkline.codec import position_text
from trunkline.http_client.resource import HttpResource
from trunkline.http_client.searching import estimate, search
from trunkline.http_client.transport import decoded, quoted
from trunkline.messaging import RangeOptions, SearchOptions
from trunkline.resources import TopicSettings
from trunkline.types import (
    Duration,
    Message,
    PartitionMap,
    Position,
    Search,
    SearchRange,
    Selection,
    Topic,
    TopicStats,
)
from trunkline.wire import MessageView, from_settings, seconds


class _Partitions(msgspec.Struct):
    partitions: list[TopicStats]


class _Maps(msgspec.Struct):
    partitions: list[PartitionMap]


class _Messages(msgspec.Struct):
    data: list[MessageView]


class HttpTopics(HttpResource):
    """`client.topics`"""

    async def create(self, name: str, **settings: Unpack[TopicSettings]) -> Topic:
        """Create a topic. Raises `AlreadyExists` if the name is taken."""
        return await self._transport.record(
            "POST", "/v1/topics", Topic, {"name": name, **from_settings(TopicSettings, settings)}
        )

    async def ensure(self, name: str, **settings: Unpack[TopicSettings]) -> Topic:
        """Create the topic, or update the given settings if it exists.

        Raises `AlreadyExists` if it has a different number of partitions.
        """
        request = {"name": name, **from_settings(TopicSettings, settings)}
        return await self._transport.record("POST", "/v1/topics", Topic, request, query={"ensure": "true"})

    async def alter(self, name: str, **settings: Unpack[TopicSettings]) -> Topic:
        """Change the given settings and keep the others."""
        return await self._transport.record("PATCH", topic_path(name), Topic, from_settings(TopicSettings, settings))

    async def get(self, name: str) -> Topic:
        return await self._transport.record("GET", topic_path(name), Topic)

    async def list(
        self, *, after: str | None = None, limit: int | None = None, names: Sequence[str] | None = None
    ) -> builtins.list[Topic]:
        """List topics by name. `after` and `limit` page through the list. `names`: only these, with `*`."""
        return await self._transport.records("/v1/topics", Topic, after=after, limit=limit, name=names)

    async def map(self, topic: str) -> builtins.list[PartitionMap]:
        """Return what each partition holds: segments, times of offsets, readers, archive, staged rows."""
        return (await self._transport.ask("GET", f"{topic_path(topic)}/map", kind=_Maps)).partitions

    async def estimate_search(
        self, topic: str, selection: Selection | None = None, **options: Unpack[RangeOptions]
    ) -> builtins.list[SearchRange]:
        """Return what `search` would read at most: offsets, messages and about how many bytes, per partition."""
        return await estimate(self._transport, topic_path(topic), selection, **options)

    async def search(
        self, topic: str, selection: Selection | None = None, *, type: Any = None, **options: Unpack[SearchOptions]
    ) -> Search[Any]:
        """Search messages of a topic, whether or not they were consumed."""
        return await search(self._transport, topic_path(topic), selection, type=type, **options)

    async def delete(self, name: str, *, force: bool = False) -> None:
        await self._transport.ask("DELETE", topic_path(name), query={"force": str(force).lower()})

    async def stats(self, name: str | None = None) -> builtins.list[TopicStats]:
        """Return one row per partition, of one topic or of all."""
        if name is not None:
            return (await self._transport.ask("GET", f"{topic_path(name)}/stats", kind=_Partitions)).partitions
        return msgspec.convert((await self._transport.ask("GET", "/v1/stats"))["topics"], builtins.list[TopicStats])

    async def head(self, topic: str, partition: int = 0) -> int:
        """Return the highest offset, including all messages committed before the call; 0 if there are none."""
        return await self._offset(topic, partition, "latest") - 1

    async def offset_at(self, topic: str, partition: int, at: datetime) -> int:
        """Return the first offset whose message was created at or after this time; head + 1 if there is none."""
        return await self._offset(topic, partition, position_text(at))

    async def _offset(self, topic: str, partition: int, at: str) -> int:
        query = {"partition": partition, "at": at}
        offset: int = (await self._transport.ask("GET", f"{topic_path(topic)}/offset", query=query))["offset"]
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
        body = await self._transport.ask("GET", f"{topic_path(topic)}/messages", query=query, kind=_Messages)
        return [row.message(type) for row in body.data]

    async def tail(self, topic: str, *, start: Position = "latest", type: Any = None) -> AsyncIterator[Message[Any]]:
        """Iterate over messages from position `start`, waiting for new ones without end. Does not affect any reader."""
        async for data in self._transport.events(f"{topic_path(topic)}/events", {"start": position_text(start)}):
            yield decoded(data, MessageView).message(type)


def topic_path(name: str) -> str:
    return f"/v1/topics/{quoted(name)}"
