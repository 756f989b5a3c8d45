# Written by tools/unasync.py from src/trunkline/client/topics.py; change that file, not this one.
"""Topics: create, configure, inspect and read them."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack, overload

from trunkline.client.sync.resource import Resource
from trunkline.codec import duration, position_text
from trunkline.db.sync import calls
from trunkline.db.sync.calls import inspection
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

    def create(self, name: str, **settings: Unpack[TopicSettings]) -> Topic:
        """Create a topic. Raises `AlreadyExists` if the name is taken.

        Defaults: one partition, messages are kept for 7 days.
        """
        with self._writing() as conn:
            return calls.create_topic(
                conn,
                name,
                **checked(TopicSettings, settings),
            )

    def ensure(self, name: str, **settings: Unpack[TopicSettings]) -> Topic:
        """Create the topic, or update the given settings if it exists.

        Raises `AlreadyExists` if it has a different number of partitions. `alter` can add partitions, which changes the
        mapping of keys to partitions.
        """
        with self._writing() as conn:
            return calls.ensure_topic(
                conn,
                name,
                **checked(TopicSettings, settings),
            )

    def alter(self, name: str, **settings: Unpack[TopicSettings]) -> Topic:
        """Change the given settings and keep the others.

        Partitions can be added but not removed; adding some changes the mapping of keys to partitions. A
        `retention_bytes` of 0 removes that limit.
        """
        with self._writing() as conn:
            return calls.alter_topic(
                conn,
                name,
                **checked(TopicSettings, settings),
            )

    def get(self, name: str) -> Topic:
        """Return a topic. Raises `TopicNotFound`."""
        with self._reading() as conn:
            return calls.get_topic(conn, name)

    def list(
        self, *, after: str | None = None, limit: int | None = None, names: Sequence[str] | None = None
    ) -> builtins.list[Topic]:
        """List topics by name. `after` and `limit` page through the list.

        `names`: only these; `*` stands for any characters.
        """
        with self._reading() as conn:
            return calls.list_topics(conn, after=after, limit=limit, names=names)

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete the topic and its messages. Raises `InUse` if it has readers or schedules, unless `force` is set."""
        with self._writing() as conn:
            calls.delete_topic(conn, name, force=force)

    def stats(self, name: str | None = None) -> builtins.list[TopicStats]:
        """Return one row per partition, of one topic or of all."""
        with self._session().reading(topic=name) as conn:
            return calls.topic_stats(conn, name)

    def head(self, topic: str, partition: int = 0) -> int:
        """Return the highest offset, including all messages committed before the call; 0 if there are none."""
        with self._session().reading(topic=topic) as conn:
            return calls.head(conn, topic, partition)

    def offset_at(self, topic: str, partition: int, at: datetime) -> int:
        """Return the first offset whose message was created at or after this time; head + 1 if there is none."""
        with self._session().reading(topic=topic) as conn:
            return calls.offset_at(conn, topic, partition, at)

    def map(self, topic: str) -> builtins.list[PartitionMap]:
        """Return what each partition holds: segments, times of offsets, readers, archive, staged rows."""
        with self._session().reading(topic=topic) as conn:
            return inspection.topic_map(conn, topic)

    def estimate_search(
        self,
        topic: str,
        selection: Selection | None = None,
        *,
        partitions: Sequence[int] | None = None,
        start: Position = "earliest",
        end: Position = "latest",
    ) -> builtins.list[SearchRange]:
        """Return what `search` would read at most: offsets, messages and about how many bytes, per partition."""
        with self._session().reading(topic=topic) as conn:
            return inspection.estimate_search(
                conn,
                "topic",
                topic,
                selection or {},
                partitions=partitions,
                start=position_text(start),
                end=position_text(end),
            )

    def search(
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
        with self._session().reading(topic=topic) as conn:
            return inspection.search_log(
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
    def read(
        self, topic: str, partition: int = 0, *, start: int = 1, limit: int = 100, type: None = None
    ) -> builtins.list[Message[Any]]: ...
    @overload
    def read(
        self, topic: str, partition: int = 0, *, start: int = 1, limit: int = 100, type: type[T]
    ) -> builtins.list[Message[T]]: ...
    def read(
        self, topic: str, partition: int = 0, *, start: int = 1, limit: int = 100, type: Any = None
    ) -> builtins.list[Message[Any]]:
        """Read messages from offset `start`, whether or not they were consumed.

        Returns an empty list past the head. Raises `OffsetOutOfRange` if retention has removed `start`.
        """
        with self._session().reading(topic=topic) as conn:
            return calls.read(conn, topic, partition, start=start, limit=limit, type=type)

    def _page(self, topic: str, partition: int, start: int, limit: int, type: Any) -> builtins.list[Message[Any]]:
        """Read messages that already have an offset."""
        with self._reading() as conn:
            return calls.read(conn, topic, partition, start=start, limit=limit, type=type)

    @overload
    def scan(self, topic: str, *, start: Position = "earliest", type: None = None) -> Iterator[Message[Any]]: ...
    @overload
    def scan(self, topic: str, *, start: Position = "earliest", type: type[T]) -> Iterator[Message[T]]: ...
    def scan(self, topic: str, *, start: Position = "earliest", type: Any = None) -> Iterator[Message[Any]]:
        """Iterate over all messages from position `start` to the current head, partition by partition.

        Does not affect any reader.
        """
        for partition in range((self.get(topic)).partitions):
            at = self._offset_of(topic, partition, start)
            last = self.head(topic, partition)
            while at <= last:
                page = self._page(topic, partition, at, min(_PAGE, last - at + 1), type)
                if not page:
                    break
                for message in page:
                    at = message.offset + 1
                    yield message

    @overload
    def tail(self, topic: str, *, start: Position = "latest", type: None = None) -> Iterator[Message[Any]]: ...
    @overload
    def tail(self, topic: str, *, start: Position = "latest", type: type[T]) -> Iterator[Message[T]]: ...
    def tail(self, topic: str, *, start: Position = "latest", type: Any = None) -> Iterator[Message[Any]]:
        """Iterate over messages from position `start`, waiting for new ones without end. Does not affect any reader."""
        watch = self._session().wakeup.watch("topic", topic)
        try:
            partitions = (self.get(topic)).partitions
            # messages committed before the call are not new
            self._session().wakeup.sequence("topic", topic)
            positions = [self._offset_of(topic, partition, start) for partition in range(partitions)]
            while True:
                watch.reset()
                quiet = True
                for partition in range(len(positions)):
                    page = self._page(topic, partition, positions[partition], _PAGE, type)
                    for message in page:
                        quiet = False
                        positions[partition] = message.offset + 1
                        yield message
                if quiet:
                    watch.wait()
                    # partitions may have been added in the meantime
                    positions += [1] * ((self.get(topic)).partitions - len(positions))
        finally:
            self._session().wakeup.unwatch(watch)

    def _offset_of(self, topic: str, partition: int, start: Position) -> int:
        if isinstance(start, int):
            return start
        with self._session().reading(topic=topic) as conn:
            return calls.offset_of(conn, topic, partition, position_text(start))
