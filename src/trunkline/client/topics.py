"""Topics: create, configure, inspect and read them."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack, overload

from trunkline.client.resource import Resource
from trunkline.codec import duration, position_text
from trunkline.db import calls
from trunkline.db.calls import inspection
from trunkline.resources import TopicSettings, checked
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

T = TypeVar("T")
_PAGE = 1000


class Topics(Resource):
    """`client.topics`"""

    async def create(self, name: str, **settings: Unpack[TopicSettings]) -> Topic:
        """Create a topic. Raises `AlreadyExists` if the name is taken.

        Defaults: one partition, messages are kept for 7 days.
        """
        async with self._writing() as conn:
            return await calls.create_topic(
                conn,
                name,
                **checked(TopicSettings, settings),
            )

    async def ensure(self, name: str, **settings: Unpack[TopicSettings]) -> Topic:
        """Create the topic, or update the given settings if it exists.

        Raises `AlreadyExists` if it has a different number of partitions. `alter` can add partitions, which changes the
        mapping of keys to partitions.
        """
        async with self._writing() as conn:
            return await calls.ensure_topic(
                conn,
                name,
                **checked(TopicSettings, settings),
            )

    async def alter(self, name: str, **settings: Unpack[TopicSettings]) -> Topic:
        """Change the given settings and keep the others.

        Partitions can be added but not removed; adding some changes the mapping of keys to partitions. A
        `retention_bytes` of 0 removes that limit.
        """
        async with self._writing() as conn:
            return await calls.alter_topic(
                conn,
                name,
                **checked(TopicSettings, settings),
            )

    async def get(self, name: str) -> Topic:
        """Return a topic. Raises `TopicNotFound`."""
        async with self._reading() as conn:
            return await calls.get_topic(conn, name)

    async def list(
        self, *, after: str | None = None, limit: int | None = None, names: Sequence[str] | None = None
    ) -> builtins.list[Topic]:
        """List topics by name. `after` and `limit` page through the list.

        `names`: only these; `*` stands for any characters.
        """
        async with self._reading() as conn:
            return await calls.list_topics(conn, after=after, limit=limit, names=names)

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Delete the topic and its messages. Raises `InUse` if it has readers or schedules, unless `force` is set."""
        async with self._writing() as conn:
            await calls.delete_topic(conn, name, force=force)

    async def stats(self, name: str | None = None) -> builtins.list[TopicStats]:
        """Return one row per partition, of one topic or of all."""
        async with self._session().reading(topic=name) as conn:
            return await calls.topic_stats(conn, name)

    async def head(self, topic: str, partition: int = 0) -> int:
        """Return the highest offset, including all messages committed before the call; 0 if there are none."""
        async with self._session().reading(topic=topic) as conn:
            return await calls.head(conn, topic, partition)

    async def offset_at(self, topic: str, partition: int, at: datetime) -> int:
        """Return the first offset whose message was created at or after this time; head + 1 if there is none."""
        async with self._session().reading(topic=topic) as conn:
            return await calls.offset_at(conn, topic, partition, at)

    async def map(self, topic: str) -> builtins.list[PartitionMap]:
        """Return what each partition holds: segments, times of offsets, readers, archive, staged rows."""
        async with self._session().reading(topic=topic) as conn:
            return await inspection.topic_map(conn, topic)

    async def estimate_search(
        self,
        topic: str,
        selection: Selection | None = None,
        *,
        partitions: Sequence[int] | None = None,
        start: Position = "earliest",
        end: Position = "latest",
    ) -> builtins.list[SearchRange]:
        """Return what `search` would read at most: offsets, messages and about how many bytes, per partition."""
        async with self._session().reading(topic=topic) as conn:
            return await inspection.estimate_search(
                conn,
                "topic",
                topic,
                selection or {},
                partitions=partitions,
                start=position_text(start),
                end=position_text(end),
            )

    async def search(
        self,
        topic: str,
        selection: Selection | None = None,
        *,
        partitions: Sequence[int] | None = None,
        start: Position = "earliest",
        end: Position = "latest",
        limit: int = 50,
        backwards: bool = True,
        max_rows: int = 1_000_000,
        budget: Duration = "5s",
        after: dict[str, int] | None = None,
        type: Any = None,
    ) -> Search[Any]:
        """Search messages of a topic, whether or not they were consumed. The newest first, or forwards.

        Stops after `limit` matches (at most 1,000), `max_rows` messages read, or `budget` (at most one minute). To
        continue, pass `next` of the result as `after`. `end` is inclusive if it is an offset.
        """
        async with self._session().reading(topic=topic) as conn:
            return await inspection.search_log(
                conn,
                "topic",
                topic,
                selection or {},
                partitions=partitions,
                start=position_text(start),
                end=position_text(end),
                limit=limit,
                backwards=backwards,
                max_rows=max_rows,
                budget=duration(budget) or timedelta(seconds=5),
                after=after,
                type=type,
            )

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
        """Read messages from offset `start`, whether or not they were consumed.

        Returns an empty list past the head. Raises `OffsetOutOfRange` if retention has removed `start`.
        """
        async with self._session().reading(topic=topic) as conn:
            return await calls.read(conn, topic, partition, start=start, limit=limit, type=type)

    async def _page(self, topic: str, partition: int, start: int, limit: int, type: Any) -> builtins.list[Message[Any]]:
        """Read messages that already have an offset."""
        async with self._reading() as conn:
            return await calls.read(conn, topic, partition, start=start, limit=limit, type=type)

    @overload
    def scan(self, topic: str, *, start: Position = "earliest", type: None = None) -> AsyncIterator[Message[Any]]: ...
    @overload
    def scan(self, topic: str, *, start: Position = "earliest", type: type[T]) -> AsyncIterator[Message[T]]: ...
    async def scan(self, topic: str, *, start: Position = "earliest", type: Any = None) -> AsyncIterator[Message[Any]]:
        """Iterate over all messages from position `start` to the current head, partition by partition.

        Does not affect any reader.
        """
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
    def tail(self, topic: str, *, start: Position = "latest", type: None = None) -> AsyncIterator[Message[Any]]: ...
    @overload
    def tail(self, topic: str, *, start: Position = "latest", type: type[T]) -> AsyncIterator[Message[T]]: ...
    async def tail(self, topic: str, *, start: Position = "latest", type: Any = None) -> AsyncIterator[Message[Any]]:
        """Iterate over messages from position `start`, waiting for new ones without end. Does not affect any reader."""
        watch = self._session().wakeup.watch("topic", topic)
        try:
            partitions = (await self.get(topic)).partitions
            # messages committed before the call are not new
            await self._session().wakeup.sequence("topic", topic)
            positions = [await self._offset_of(topic, partition, start) for partition in range(partitions)]
            while True:
                watch.reset()
                quiet = True
                for partition in range(len(positions)):
                    page = await self._page(topic, partition, positions[partition], _PAGE, type)
                    for message in page:
                        quiet = False
                        positions[partition] = message.offset + 1
                        yield message
                if quiet:
                    await watch.wait()
                    # partitions may have been added in the meantime
                    positions += [1] * ((await self.get(topic)).partitions - len(positions))
        finally:
            self._session().wakeup.unwatch(watch)

    async def _offset_of(self, topic: str, partition: int, start: Position) -> int:
        if isinstance(start, int):
            return start
        async with self._session().reading(topic=topic) as conn:
            return await calls.offset_of(conn, topic, partition, position_text(start))
