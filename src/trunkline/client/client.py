"""The async client of one database: publishing, consuming and managing resources through a connection pool."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Self, TypeVar, Unpack, overload
from uuid import UUID

from trunkline.client.batches import Batch, DatabaseCommits
from trunkline.client.claims import Claims, claim
from trunkline.client.dead_letters import DeadLetters
from trunkline.client.deliveries import Deliveries
from trunkline.client.endpoints import Endpoints
from trunkline.client.group_reader import GroupReader
from trunkline.client.groups import Groups
from trunkline.client.inspection import Inspection
from trunkline.client.on_connection import OnConnection
from trunkline.client.queues import Queues
from trunkline.client.runs import Runs
from trunkline.client.schedules import Schedules
from trunkline.client.subscriptions import Subscriptions
from trunkline.client.topics import Topics
from trunkline.codec import duration, position_text
from trunkline.db import calls
from trunkline.db.pool import Connection
from trunkline.errors import InvalidValue, SettingsError
from trunkline.messaging import ManyOptions, MessageOptions, QueueMessageOptions
from trunkline.runtime.publisher import new_messages
from trunkline.runtime.session import Session
from trunkline.settings import Settings
from trunkline.types import Duration, Explanation, NewMessage, Position, Published, Range, Result, Stats

T = TypeVar("T")
_LEASE = timedelta(seconds=30)
_POOL_TIMEOUT = timedelta(seconds=30)


class Client(OnConnection):
    """A client of one database: `async with Client(url) as mq:`.

    Safe for concurrent use by many tasks of one event loop. The URL defaults to TRUNKLINE_DATABASE_URL. The client
    connects on first use and reconnects after a server restart. A forked child opens new connections.

    In addition to `max_connections`, the client uses one connection for polling and notifications, and one to listen
    while it has consumers. Use `prepare=False` behind a transaction pooler without support for prepared statements
    (PgBouncer before 1.21).

    `pool_timeout` limits how long a call waits for a free connection. After that it raises `DatabaseUnavailable`, and
    nothing was changed. If the server refuses connections, the same error is raised with the cause within two seconds.
    If the server does not respond at all, it is raised after five seconds, or after `connect_timeout` of the URL.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        max_connections: int = 10,
        prepare: bool = True,
        pool_timeout: Duration = _POOL_TIMEOUT,
    ) -> None:
        known = url or Settings.load().database_url
        if known is None:
            hint = "Pass a URL to the client, or set TRUNKLINE_DATABASE_URL."
            raise SettingsError("no database URL is set", hint=hint)
        patience = duration(pool_timeout)
        if patience is None or patience <= timedelta(0):
            raise SettingsError(f"pool_timeout must be longer than 0 s, got {pool_timeout}", hint="Use for example 5s.")
        self._url = known
        self._max_connections = max_connections
        self._prepare = prepare
        self._pool_timeout = patience
        self._session: Session | None = None
        self.topics = Topics(self._open)
        self.queues = Queues(self._open)
        self.groups = Groups(self._open)
        self.subscriptions = Subscriptions(self._open)
        self.dead = DeadLetters(self._open)
        self.runs = Runs(self._open)
        self.schedules = Schedules(self._open)
        self.endpoints = Endpoints(self._open)
        self.inspect = Inspection(self._open)

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for publishes and acks in progress, then close all connections."""
        session, self._session = self._session, None
        if session is not None and session.pid == os.getpid():
            await session.close()

    @property
    def url(self) -> str:
        """The URL of the database."""
        return self._url

    @property
    def session(self) -> Session:
        """The connections and background tasks of this client in this process. Internal: it may change without notice."""
        return self._open()

    def _open(self) -> Session:
        # A forked child must not touch its parent's sockets or wait for threads that exist only in the parent.
        if self._session is None or self._session.pid != os.getpid():
            self._session = Session(
                self._url,
                max_connections=self._max_connections,
                prepare=self._prepare,
                pool_timeout=self._pool_timeout,
            )
        return self._session

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Borrow a connection from the client's pool, in autocommit mode."""
        async with self._open().connection() as conn:
            yield conn

    # Publishing

    async def publish(self, topic: str, body: Any, **options: Unpack[MessageOptions]) -> Published:
        """Publish a message to a topic. It is on disk when this returns.

        Concurrent calls share one statement. Each returns its own result, and a rejected message fails only its own
        call. If a call is cancelled while it runs, the message may or may not have been published. A repeated
        `idempotency_key`, or `id` without a key, adds nothing and returns the first id with `duplicate` true.
        """
        message = NewMessage(body=body, **options)
        return await self._open().publisher.publish("topic", topic, message)

    async def enqueue(self, queue: str, body: Any, **options: Unpack[QueueMessageOptions]) -> Published:
        """Publish a message directly to a queue. See `publish`.

        `priority` is for queues with priorities; 0 is the lowest level.
        """
        message = NewMessage(body=body, **options)
        return await self._open().publisher.publish("inbox", queue, message)

    async def publish_many(self, topic: str, bodies: Iterable[Any], **options: Unpack[ManyOptions]) -> list[Published]:
        """Publish many messages in one transaction. Either all are on disk when this returns, or none is stored.

        Takes an iterable of bodies or `NewMessage`s of any length and sends it in batches of at most 1,000 messages and
        8 MiB. If one body is invalid, nothing is published, and no message is visible before the last one was sent.
        `key`, `routing_key` and `label` are one value for all messages or a function of the body; a `NewMessage` keeps
        its own values. Results are in input order.
        """
        messages = new_messages(bodies, **options)
        return await self._open().publisher.publish_many("topic", topic, messages)

    async def enqueue_many(self, queue: str, bodies: Iterable[Any], **options: Unpack[ManyOptions]) -> list[Published]:
        """Publish many messages directly to a queue. See `publish_many`."""
        messages = new_messages(bodies, **options)
        return await self._open().publisher.publish_many("inbox", queue, messages)

    def wake(self) -> None:
        """Wake all consumers, in every process.

        Call it after you commit a transaction that published through `on(conn)`.
        """
        self._open().wakeup.notify_all()

    # Queues

    def queue(self, name: str) -> QueueHandle:
        """Return a handle for one queue, to consume its messages in a loop."""
        return QueueHandle(self, name)

    @overload
    async def claim(
        self,
        queue: str,
        *,
        limit: int = 1,
        lease: Duration | None = None,
        labels: Sequence[str] | None = None,
        consumer: str | None = None,
        type: None = None,
    ) -> Deliveries[Any]: ...
    @overload
    async def claim(
        self,
        queue: str,
        *,
        limit: int = 1,
        lease: Duration | None = None,
        labels: Sequence[str] | None = None,
        consumer: str | None = None,
        type: type[T],
    ) -> Deliveries[T]: ...
    async def claim(
        self,
        queue: str,
        *,
        limit: int = 1,
        lease: Duration | None = None,
        labels: Sequence[str] | None = None,
        consumer: str | None = None,
        type: Any = None,
    ) -> Deliveries[Any]:
        """Claim up to `limit` (at most 1,000) and lease them.

        Returns an empty result at once if none is ready.
        """
        session = self._open()
        return await claim(
            session,
            session.settler,
            queue,
            limit=limit,
            lease=duration(lease),
            labels=labels,
            consumer=consumer,
            type=type,
        )

    async def ack(self, receipts: Sequence[str]) -> list[Result]:
        """Acknowledge deliveries, which are then never redelivered. The result is `lost` where the lease has ended."""
        return await self._open().settler.ack(receipts)

    async def nack(
        self, receipts: Sequence[str], *, delay: Duration | None = None, error: str | None = None
    ) -> list[Result]:
        """Return failed deliveries to the queue for redelivery after `delay` (default: the queue's backoff).

        After its last attempt a message becomes a dead letter.
        """
        return await self._open().settler.nack(receipts, delay=delay, error=error)

    async def bury(self, receipts: Sequence[str], *, error: str | None = None) -> list[Result]:
        """Move deliveries to the dead letters now, whatever attempts remain."""
        return await self._open().settler.bury(receipts, error=error)

    async def release(self, receipts: Sequence[str]) -> list[Result]:
        """Return deliveries to the queue now, without counting an attempt."""
        return await self._open().settler.release(receipts)

    async def extend(self, receipts: Sequence[str], *, lease: Duration) -> list[Result]:
        """Extend the leases of deliveries to `lease` from now."""
        return await self._open().settler.extend(receipts, lease=lease)

    # Groups

    @overload
    def subscribe(
        self,
        topic: str,
        type: None = None,
        *,
        group: str,
        start: Position = "earliest",
        batch: int = 100,
        lease: Duration = _LEASE,
        member: str | None = None,
    ) -> GroupReader[Any]: ...
    @overload
    def subscribe(
        self,
        topic: str,
        type: type[T],
        *,
        group: str,
        start: Position = "earliest",
        batch: int = 100,
        lease: Duration = _LEASE,
        member: str | None = None,
    ) -> GroupReader[T]: ...
    def subscribe(
        self,
        topic: str,
        type: Any = None,
        *,
        group: str,
        start: Position = "earliest",
        batch: int = 100,
        lease: Duration = _LEASE,
        member: str | None = None,
    ) -> GroupReader[Any]:
        """Read a topic as a member of a group. Use the result as a context manager and iterate over its batches.

        Each group receives every message at least once, in order within a partition. Partitions are distributed among
        the group's members. A group that does not exist is created at `start`. Bodies are decoded into `type`.
        """
        return GroupReader(
            self._open(),
            topic,
            group,
            start=position_text(start),
            batch=batch,
            lease=duration(lease) or _LEASE,
            member=member,
            type=type,
        )

    async def fetch(
        self,
        topic: str,
        group: str,
        *,
        member: str,
        limit: int = 100,
        lease: Duration = _LEASE,
        type: Any = None,
    ) -> Batch[Any] | None:
        """Fetch the next messages of one partition and lease it to this member.

        Returns None if there is nothing to read.
        """
        session = self._open()
        span = duration(lease) or _LEASE
        async with session.connection() as conn:
            fetch = partial(
                calls.fetch,
                conn,
                partial(Batch, DatabaseCommits(session), topic, group, member=member, lease=span),
                topic,
                group,
                member=member,
                limit=limit,
                lease=span,
                type=type,
            )
            batch: Batch[Any] | None = await fetch()
            if batch is None:
                # committed messages may not have an offset yet
                await session.wakeup.sequence("topic", topic)
                batch = await fetch()
            return batch

    async def commit(self, topic: str, group: str, batch: Batch[Any], *, offset: int | None = None) -> Result:
        """Commit the group's position after the batch, or after `offset`. Same as `batch.commit()`."""
        if (batch.topic, batch.group) != (topic, group):
            raise InvalidValue(f"the batch was fetched from {batch.topic} for {batch.group}, not from {topic} for {group}")
        return await batch.commit(offset)

    async def heartbeat(self, topic: str, group: str, *, member: str, lease: Duration = _LEASE) -> int:
        """Extend the member's partition leases to `lease` from now. Returns the number of partitions it still holds."""
        async with self._open().connection(writing=True) as conn:
            return await calls.heartbeat(conn, topic, group, member=member, lease=duration(lease) or _LEASE)

    async def leave(self, topic: str, group: str, *, member: str) -> int:
        """Release the member's partitions, so that other members need not wait for its lease to end."""
        async with self._open().connection(writing=True) as conn:
            return await calls.leave(conn, topic, group, member=member)

    async def claim_range(self, topic: str, group: str, *, limit: int = 100) -> Range | None:
        """Claim the next offsets for at-most-once processing, or return None if there are none.

        The group's position moves at once. Read the messages with `topics.read`; if the process crashes before that,
        the group does not receive them again.
        """
        async with self._open().connection(writing=True) as conn:
            claimed = await calls.claim_range(conn, topic, group, limit=limit)
            if claimed is None:
                # committed messages may not have an offset yet
                await self._open().wakeup.sequence("topic", topic)
                claimed = await calls.claim_range(conn, topic, group, limit=limit)
            return claimed

    # Inspecting

    async def explain(self, id: UUID) -> Explanation:
        """Explain a message: where it is, which consumer holds it, why it is not being delivered, and its history."""
        async with self._open().connection() as conn:
            return await calls.explain_message(conn, id)

    async def explain_offset(self, topic: str, partition: int, *, offset: int) -> Explanation:
        """Explain the message at an offset of a topic."""
        async with self._open().reading(topic=topic) as conn:
            return await calls.explain_offset(conn, topic, partition, offset)

    async def stats(self) -> Stats:
        """Return the statistics of all topics, groups and queues."""
        async with self._open().reading() as conn:
            return Stats(
                topics=await calls.topic_stats(conn),
                groups=await calls.group_stats(conn),
                queues=await calls.queue_stats(conn),
            )


class QueueHandle:
    """A handle for one queue, from `client.queue(name)`."""

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self._client = client

    @overload
    def claims(
        self,
        *,
        max_in_flight: int = 1,
        lease: Duration | None = None,
        labels: Sequence[str] | None = None,
        consumer: str | None = None,
        type: None = None,
    ) -> Claims[Any]: ...
    @overload
    def claims(
        self,
        *,
        max_in_flight: int = 1,
        lease: Duration | None = None,
        labels: Sequence[str] | None = None,
        consumer: str | None = None,
        type: type[T],
    ) -> Claims[T]: ...
    def claims(
        self,
        *,
        max_in_flight: int = 1,
        lease: Duration | None = None,
        labels: Sequence[str] | None = None,
        consumer: str | None = None,
        type: Any = None,
    ) -> Claims[Any]:
        """Consume the queue. Use the result as a context manager and iterate over its deliveries; settle each one.

        At most `max_in_flight` deliveries are open at once. Their leases are renewed while you work, so `lease` only sets
        how soon messages are redelivered if this process dies.
        """
        return Claims(
            self._client.session,
            self.name,
            max_in_flight=max_in_flight,
            lease=duration(lease),
            labels=labels,
            consumer=consumer,
            type=type,
        )
