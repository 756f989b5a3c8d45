# Written by tools/unasync.py from src/trunkline/client/topics.py; change that file, not this one.
"""Topics: make them, look at them, read them."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from datetime import datetime
from typing import Any, TypeVar, overload

from trunkline.client.sync.noun import Noun, settings
from trunkline.db.codec import place
from trunkline.db.sync import calls
from trunkline.types import Duration, Message, Place, Topic, TopicStats

T = TypeVar("T")
_PAGE = 1000


class Topics(Noun):
    """`client.topics`"""

    def create(
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
        with self._writing() as conn:
            return calls.create_topic(
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

    def ensure(
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
        with self._writing() as conn:
            return calls.ensure_topic(
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

    def alter(
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
        with self._writing() as conn:
            return calls.alter_topic(
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

    def get(self, name: str) -> Topic:
        """The topic, or `TopicNotFound`."""
        with self._reading() as conn:
            return calls.get_topic(conn, name)

    def list(self, *, after: str | None = None, limit: int | None = None) -> builtins.list[Topic]:
        """All topics by name, or `limit` of them after a name."""
        with self._reading() as conn:
            return calls.list_topics(conn, after=after, limit=limit)

    def delete(self, name: str, *, force: bool = False) -> None:
        """The topic and everything in it is gone. `InUse` while it has readers or schedules, unless forced."""
        with self._writing() as conn:
            calls.delete_topic(conn, name, force=force)

    def stats(self, name: str | None = None) -> builtins.list[TopicStats]:
        """One row per partition, of one topic or of all."""
        with self._runtime().reading(topic=name) as conn:
            return calls.topic_stats(conn, name)

    def head(self, topic: str, partition: int = 0) -> int:
        """The highest offset, counting everything committed when the call began; 0 for none."""
        with self._runtime().reading(topic=topic) as conn:
            return calls.head(conn, topic, partition)

    def offset_at(self, topic: str, partition: int, at: datetime) -> int:
        """The first offset whose message was created at this time or later; head + 1 when there is none."""
        with self._runtime().reading(topic=topic) as conn:
            return calls.offset_at(conn, topic, partition, at)

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
        """Messages from an offset on, whoever consumed them; empty at the head, `OffsetOutOfRange` below retention."""
        with self._runtime().reading(topic=topic) as conn:
            return calls.read(conn, topic, partition, start=start, limit=limit, type=type)

    def _page(self, topic: str, partition: int, start: int, limit: int, type: Any) -> builtins.list[Message[Any]]:
        """The same of what has an offset."""
        with self._reading() as conn:
            return calls.read(conn, topic, partition, start=start, limit=limit, type=type)

    @overload
    def scan(self, topic: str, *, start: Place = "earliest", type: None = None) -> Iterator[Message[Any]]: ...
    @overload
    def scan(self, topic: str, *, start: Place = "earliest", type: type[T]) -> Iterator[Message[T]]: ...
    def scan(self, topic: str, *, start: Place = "earliest", type: Any = None) -> Iterator[Message[Any]]:
        """Every message from a place on up to the head of now, partition by partition. Changes nothing for any reader."""
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
    def tail(self, topic: str, *, start: Place = "latest", type: None = None) -> Iterator[Message[Any]]: ...
    @overload
    def tail(self, topic: str, *, start: Place = "latest", type: type[T]) -> Iterator[Message[T]]: ...
    def tail(self, topic: str, *, start: Place = "latest", type: Any = None) -> Iterator[Message[Any]]:
        """Messages as they come, from a place on, without an end. Changes nothing for any reader."""
        watch = self._runtime().wakeup.watch("topic", topic)
        try:
            partitions = (self.get(topic)).partitions
            # what was committed before is not new
            self._runtime().wakeup.sequence("topic", topic)
            places = [self._offset_of(topic, partition, start) for partition in range(partitions)]
            while True:
                watch.hush()
                quiet = True
                for partition in range(len(places)):
                    page = self._page(topic, partition, places[partition], _PAGE, type)
                    for message in page:
                        quiet = False
                        places[partition] = message.offset + 1
                        yield message
                if quiet:
                    watch.wait()
                    # partitions may have been added meanwhile
                    places += [1] * ((self.get(topic)).partitions - len(places))
        finally:
            self._runtime().wakeup.unwatch(watch)

    def _offset_of(self, topic: str, partition: int, start: Place) -> int:
        if isinstance(start, int):
            return start
        with self._runtime().reading(topic=topic) as conn:
            return calls.offset_of(conn, topic, partition, place(start))
