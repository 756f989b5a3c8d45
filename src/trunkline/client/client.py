"""The client: the kernel's verbs on a pool of connections.

Thin on purpose: every method is one call of `trunkline.db.calls` on a connection of its own. To put a publish, an ack
or a commit into your own transaction, call `trunkline.db.calls` with your own connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self, TypeVar
from uuid import UUID

import psycopg

from trunkline.db import calls
from trunkline.db.pool import Connection, Pool
from trunkline.types import (
    Batch,
    DeadLetter,
    Delivery,
    GroupStats,
    Message,
    NewMessage,
    Published,
    QueueStats,
    Range,
    Result,
    TopicStats,
)

T = TypeVar("T")


class Client:
    """An async client; `async with Client(url) as client:`. Safe for concurrent use by many tasks of one event loop."""

    def __init__(self, database_url: str, *, max_connections: int = 10) -> None:
        self._pool = Pool(database_url, max_size=max_connections)
        self._numbers: dict[tuple[str, str], int] = {}

    async def __aenter__(self) -> Self:
        await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """One of the client's own connections, in autocommit mode."""
        async with self._pool.connection() as conn:
            yield conn

    # Topics

    async def create_topic(self, name: str, *, partitions: int = 1, retention: timedelta = timedelta(days=7)) -> None:
        async with self._pool.connection(writing=True) as conn:
            await calls.create_topic(conn, name, partitions=partitions, retention=retention)

    async def ensure_topic(self, name: str, *, partitions: int | None = None) -> None:
        async with self._pool.connection(writing=True) as conn:
            await calls.ensure_topic(conn, name, partitions=partitions)

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        async with self._pool.connection(writing=True) as conn:
            await calls.delete_topic(conn, name, force=force)

    # Publishing

    async def publish(self, topic: str, payload: bytes, **fields: Any) -> Published:
        """Publish one message; `fields` are those of `NewMessage`. On disk when this returns."""
        message = NewMessage(payload=payload, **fields)
        if message.idempotency_key is not None or message.delay is not None or message.deliver_at is not None:
            return (await self.publish_many(topic, [message]))[0]
        async with self._pool.connection(writing=True) as conn:
            number = partial(calls.topic_number, conn, "topic", topic)
            id = await self._own_function(("topic", topic), number, lambda n: calls.publish_one(conn, n, message))
            return Published(id=id, duplicate=False)

    async def _own_function(
        self, name: tuple[str, str], resolve: Callable[[], Awaitable[int]], call: Callable[[int], Awaitable[T]]
    ) -> T:
        """Call the function that a topic or queue has of its own; its number is looked up once."""
        number = self._numbers.get(name)
        if number is not None:
            try:
                return await call(number)
            except psycopg.errors.UndefinedFunction:
                pass  # deleted and made again under the same name: it has another number now
        self._numbers[name] = await resolve()
        return await call(self._numbers[name])

    async def publish_many(self, topic: str, messages: Sequence[NewMessage]) -> list[Published]:
        """Publish all or none; answers in input order."""
        async with self._pool.connection(writing=True) as conn:
            return await calls.publish_many(conn, topic, messages)

    async def enqueue(self, queue: str, payload: bytes, **fields: Any) -> Published:
        return (await self.enqueue_many(queue, [NewMessage(payload=payload, **fields)]))[0]

    async def enqueue_many(self, queue: str, messages: Sequence[NewMessage]) -> list[Published]:
        async with self._pool.connection(writing=True) as conn:
            return await calls.enqueue_many(conn, queue, messages)

    # The log

    async def head(self, topic: str, partition: int = 0) -> int:
        async with self._pool.connection() as conn:
            return await calls.head(conn, topic, partition)

    async def read(self, topic: str, partition: int, *, start: int, limit: int = 100) -> list[Message]:
        async with self._pool.connection() as conn:
            return await calls.read(conn, topic, partition, start=start, limit=limit)

    async def offset_at(self, topic: str, partition: int, at: datetime) -> int:
        async with self._pool.connection() as conn:
            return await calls.offset_at(conn, topic, partition, at)

    # Groups

    async def ensure_group(self, topic: str, group: str, *, start: str = "earliest") -> None:
        async with self._pool.connection(writing=True) as conn:
            await calls.ensure_group(conn, topic, group, start=start)

    async def fetch(
        self,
        topic: str,
        group: str,
        *,
        member: str,
        max_messages: int = 100,
        lease: timedelta = timedelta(seconds=30),
    ) -> Batch | None:
        """The next messages of a partition that is leased to this member, or None."""
        async with self._pool.connection() as conn:
            return await calls.fetch(conn, topic, group, member=member, max_messages=max_messages, lease=lease, relaxed=True)

    async def commit(self, topic: str, group: str, batch: Batch, *, offset: int | None = None) -> Result:
        """Everything of the batch (or up to `offset`) is done."""
        async with self._pool.connection(writing=True) as conn:
            return await calls.commit(
                conn,
                topic,
                group,
                partition=batch.partition,
                generation=batch.generation,
                offset=batch.last_offset if offset is None else offset,
            )

    async def leave(self, topic: str, group: str, *, member: str) -> int:
        async with self._pool.connection(writing=True) as conn:
            return await calls.leave(conn, topic, group, member=member)

    async def claim_range(self, topic: str, group: str, *, max_messages: int = 100) -> Range | None:
        async with self._pool.connection(writing=True) as conn:
            return await calls.claim_range(conn, topic, group, max_messages=max_messages)

    async def seek(self, topic: str, group: str, to: str, *, partition: int | None = None) -> dict[int, int]:
        async with self._pool.connection(writing=True) as conn:
            return await calls.seek(conn, topic, group, to, partition=partition)

    # Queues

    async def ensure_queue(self, name: str) -> None:
        async with self._pool.connection(writing=True) as conn:
            await calls.ensure_queue(conn, name)

    async def subscribe(
        self,
        queue: str,
        topic: str,
        *,
        pattern: str = "#",
        headers: dict[str, Any] | None = None,
        start: str = "latest",
    ) -> None:
        async with self._pool.connection(writing=True) as conn:
            await calls.subscribe(conn, queue, topic, pattern=pattern, headers=headers, start=start)

    async def claim(
        self,
        queue: str,
        *,
        max_messages: int = 1,
        lease: timedelta | None = None,
        labels: Sequence[str] | None = None,
        consumer: str | None = None,
    ) -> list[Delivery]:
        """Up to `max_messages` messages for the time of the lease; empty when there are none."""
        async with self._pool.connection() as conn:
            return await self._own_function(
                ("queue", queue),
                partial(calls.queue_number, conn, queue),
                lambda n: calls.claim(
                    conn, n, max_messages=max_messages, lease=lease, labels=labels, consumer=consumer, relaxed=True
                ),
            )

    async def ack(self, receipts: Sequence[str]) -> list[Result]:
        async with self._pool.connection(writing=True) as conn:
            return await calls.ack(conn, receipts)

    async def nack(
        self, receipts: Sequence[str], *, delay: timedelta | None = None, error: str | None = None
    ) -> list[Result]:
        async with self._pool.connection(writing=True) as conn:
            return await calls.nack(conn, receipts, delay=delay, error=error)

    async def bury(self, receipts: Sequence[str], *, error: str | None = None) -> list[Result]:
        async with self._pool.connection(writing=True) as conn:
            return await calls.bury(conn, receipts, error=error)

    async def release(self, receipts: Sequence[str]) -> list[Result]:
        async with self._pool.connection(writing=True) as conn:
            return await calls.release(conn, receipts)

    async def extend(self, receipts: Sequence[str], *, lease: timedelta) -> list[Result]:
        async with self._pool.connection(writing=True) as conn:
            return await calls.extend(conn, receipts, lease=lease)

    # Dead letters

    async def dead_letters(self, queue: str, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        async with self._pool.connection() as conn:
            return await calls.list_dead_letters(conn, queue, after=after, limit=limit)

    async def redrive(self, queue: str, *, ids: Sequence[UUID] | None = None, to: str | None = None) -> int:
        """All dead letters of the queue (or those named), in bounded steps; answers how many went back."""
        total = 0
        while True:
            async with self._pool.connection(writing=True) as conn:
                step = await calls.redrive(conn, queue, ids=ids, to=to)
            total += step
            if step == 0:
                return total

    # Stats

    async def topic_stats(self, topic: str | None = None) -> list[TopicStats]:
        async with self._pool.connection() as conn:
            return await calls.topic_stats(conn, topic)

    async def group_stats(self, topic: str | None = None, group: str | None = None) -> list[GroupStats]:
        async with self._pool.connection() as conn:
            return await calls.group_stats(conn, topic, group)

    async def queue_stats(self, queue: str | None = None) -> list[QueueStats]:
        async with self._pool.connection() as conn:
            return await calls.queue_stats(conn, queue)
