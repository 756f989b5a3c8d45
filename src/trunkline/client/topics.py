"""Topics: make them, look at them, read them."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, TypeVar, overload

from trunkline.client.noun import Noun, settings
from trunkline.db import calls
from trunkline.db.codec import place
from trunkline.types import Duration, Message, Place, Topic, TopicStats

T = TypeVar("T")
_PAGE = 1000


class Topics(Noun):
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
        """A new topic; `AlreadyExists` if the name is taken. Defaults: one partition, messages kept for 7 days."""
        async with self._writing() as conn:
            return await calls.create_topic(
                conn,
                name,
                **settings(
                    partitions=partitions,
                    retention=retention,
                    retention_bytes=retention_bytes,
                    hard_retention=hard_retention,
                    max_payload=max_payload,
                ),
            )

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
        """Make the topic so: create it, or change of the settings that are given those that differ.

        `AlreadyExists` if it has another number of partitions: `alter` can add some, and then keys map anew.
        """
        async with self._writing() as conn:
            return await calls.ensure_topic(
                conn,
                name,
                **settings(
                    partitions=partitions,
                    retention=retention,
                    retention_bytes=retention_bytes,
                    hard_retention=hard_retention,
                    max_payload=max_payload,
                ),
            )

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
        """Change what is given and keep the rest. Partitions can be added, never removed; keys then map anew.

        A `retention_bytes` of 0 removes that limit.
        """
        async with self._writing() as conn:
            return await calls.alter_topic(
                conn,
                name,
                **settings(
                    partitions=partitions,
                    retention=retention,
                    retention_bytes=retention_bytes,
                    hard_retention=hard_retention,
                    max_payload=max_payload,
                ),
            )

    async def get(self, name: str) -> Topic:
        """The topic, or `TopicNotFound`."""
        async with self._reading() as conn:
            return await calls.get_topic(conn, name)

    async def list(self, *, after: str | None = None, limit: int | None = None) -> builtins.list[Topic]:
        """All topics by name, or `limit` of them after a name."""
        async with self._reading() as conn:
            return await calls.list_topics(conn, after=after, limit=limit)

    async def delete(self, name: str, *, force: bool = False) -> None:
        """The topic and everything in it is gone. `InUse` while it has readers or schedules, unless forced."""
        async with self._writing() as conn:
            await calls.delete_topic(conn, name, force=force)

    async def stats(self, name: str | None = None) -> builtins.list[TopicStats]:
        """One row per partition, of one topic or of all."""
        async with self._runtime().reading(topic=name) as conn:
            return await calls.topic_stats(conn, name)

    async def head(self, topic: str, partition: int = 0) -> int:
        """The highest offset, counting everything committed when the call began; 0 for none."""
        async with self._runtime().reading(topic=topic) as conn:
            return await calls.head(conn, topic, partition)

    async def offset_at(self, topic: str, partition: int, at: datetime) -> int:
        """The first offset whose message was created at this time or later; head + 1 when there is none."""
        async with self._runtime().reading(topic=topic) as conn:
            return await calls.offset_at(conn, topic, partition, at)

    @overload
    async def read(
        self, topic: str, partition: int = 0, *, start: int = 1, limit: int = 100, type: None = None
    ) -> builtins.list[Message[Any]]: ...
    @overload
    async def read(
        self, topic: str, partition: int = 0, *, start: int = 1, limit: int = 100, type: type[T]
    ) -> builtins.list[Message[T]]: ...
    async def read(
        self, topic: str, partition: int = 0, *, start: int = 1, limit: int = 100, type: Any = None
    ) -> builtins.list[Message[Any]]:
        """Messages from an offset on, whoever consumed them; empty at the head, `OffsetOutOfRange` below retention."""
        async with self._runtime().reading(topic=topic) as conn:
            return await calls.read(conn, topic, partition, start=start, limit=limit, type=type)

    async def _page(self, topic: str, partition: int, start: int, limit: int, type: Any) -> builtins.list[Message[Any]]:
        """The same of what has an offset."""
        async with self._reading() as conn:
            return await calls.read(conn, topic, partition, start=start, limit=limit, type=type)

    @overload
    def scan(self, topic: str, *, start: Place = "earliest", type: None = None) -> AsyncIterator[Message[Any]]: ...
    @overload
    def scan(self, topic: str, *, start: Place = "earliest", type: type[T]) -> AsyncIterator[Message[T]]: ...
    async def scan(self, topic: str, *, start: Place = "earliest", type: Any = None) -> AsyncIterator[Message[Any]]:
        """Every message from a place on up to the head of now, partition by partition. Changes nothing for any reader."""
        for partition in range((await self.get(topic)).partitions):
            at = await self._offset_of(topic, partition, start)
            last = await self.head(topic, partition)
            while at <= last:
                page = await self._page(topic, partition, at, min(_PAGE, last - at + 1), type)
                if not page:
                    break
                for message in page:
                    at = message.offset + 1
                    yield message

    @overload
    def tail(self, topic: str, *, start: Place = "latest", type: None = None) -> AsyncIterator[Message[Any]]: ...
    @overload
    def tail(self, topic: str, *, start: Place = "latest", type: type[T]) -> AsyncIterator[Message[T]]: ...
    async def tail(self, topic: str, *, start: Place = "latest", type: Any = None) -> AsyncIterator[Message[Any]]:
        """Messages as they come, from a place on, without an end. Changes nothing for any reader."""
        watch = self._runtime().wakeup.watch("topic", topic)
        try:
            partitions = (await self.get(topic)).partitions
            # what was committed before is not new
            await self._runtime().wakeup.sequence("topic", topic)
            places = [await self._offset_of(topic, partition, start) for partition in range(partitions)]
            while True:
                watch.hush()
                quiet = True
                for partition in range(len(places)):
                    page = await self._page(topic, partition, places[partition], _PAGE, type)
                    for message in page:
                        quiet = False
                        places[partition] = message.offset + 1
                        yield message
                if quiet:
                    await watch.wait()
                    # partitions may have been added meanwhile
                    places += [1] * ((await self.get(topic)).partitions - len(places))
        finally:
            self._runtime().wakeup.unwatch(watch)

    async def _offset_of(self, topic: str, partition: int, start: Place) -> int:
        if isinstance(start, int):
            return start
        async with self._runtime().reading(topic=topic) as conn:
            return await calls.offset_of(conn, topic, partition, place(start))
