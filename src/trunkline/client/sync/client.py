# Written by tools/unasync.py from src/trunkline/client/client.py; change that file, not this one.
"""The client: every noun and verb, on a pool of connections of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self, TypeVar, overload
from uuid import UUID

from trunkline import telemetry
from trunkline.client.lending import Lender
from trunkline.client.sync import consuming
from trunkline.client.sync.batches import Batch
from trunkline.client.sync.consuming import Claims, GroupReader
from trunkline.client.sync.dead import DeadLetters
from trunkline.client.sync.deliveries import Deliveries
from trunkline.client.sync.endpoints import Endpoints
from trunkline.client.sync.groups import Groups
from trunkline.client.sync.publishing import PerBody, Publisher, new_messages
from trunkline.client.sync.queues import Queues
from trunkline.client.sync.runtime import Runtime
from trunkline.client.sync.schedules import Schedules
from trunkline.client.sync.settling import Settler
from trunkline.client.sync.subscriptions import Subscriptions
from trunkline.client.sync.topics import Topics
from trunkline.db.codec import duration, place
from trunkline.db.sync import calls
from trunkline.db.sync.pool import Connection
from trunkline.errors import SettingsError
from trunkline.settings import Settings
from trunkline.types import Duration, Explanation, Headers, NewMessage, Place, Published, Range, Result, Stats

T = TypeVar("T")
_LEASE = timedelta(seconds=30)
_POOL_TIMEOUT = timedelta(seconds=30)


class _Life:
    """What an open client has in this process."""

    def __init__(self, conninfo: str, max_connections: int, prepare: bool, pool_timeout: timedelta) -> None:
        self.runtime = Runtime(conninfo, max_connections=max_connections, prepare=prepare, pool_timeout=pool_timeout)
        self.publisher = Publisher(self.runtime)
        self.settler = Settler(self.runtime)


class SyncClient(Lender):
    """A client of one database: `with SyncClient(url) as mq:`.

    Safe for concurrent use by many threads. Without a URL it takes TRUNKLINE_DATABASE_URL. It connects when
    it is first used, and again when the server was restarted. In a forked child it opens connections of its own.

    Besides `max_connections` it has one connection for polls and hints, and one to listen when it has consumers.
    `prepare=False` is for a transaction pooler that does not follow prepared statements (PgBouncer before 1.21).
    `pool_timeout` is how long a call waits for a connection when all are in use; then it fails with `DatabaseUnavailable`,
    and nothing was changed. A server that cannot be reached is the same error, with the cause, within two seconds; one that
    does not respond at all is waited for five (or `connect_timeout` of the URL).
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        max_connections: int = 10,
        prepare: bool = True,
        pool_timeout: Duration = _POOL_TIMEOUT,
    ) -> None:
        self._url = url or Settings.load().database_url
        if self._url is None:
            raise SettingsError("there is no database URL", hint="pass it to the client, or set TRUNKLINE_DATABASE_URL")
        self._max_connections = max_connections
        self._prepare = prepare
        self._pool_timeout = duration(pool_timeout)
        if self._pool_timeout is None or self._pool_timeout <= timedelta(0):
            raise SettingsError("pool_timeout must be longer than zero", hint="for example 5s")
        self._life: _Life | None = None
        self.topics = Topics(self._runtime)
        self.queues = Queues(self._runtime)
        self.groups = Groups(self._runtime)
        self.subscriptions = Subscriptions(self._runtime)
        self.dead = DeadLetters(self._runtime)
        self.schedules = Schedules(self._runtime)
        self.endpoints = Endpoints(self._runtime)

    def __enter__(self) -> Self:
        self._living()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for what is being published, then close all connections."""
        life, self._life = self._life, None
        if life is not None and life.runtime.pid == os.getpid():
            life.publisher.drain()
            life.settler.drain()
            life.runtime.close()

    def _living(self) -> _Life:
        # a forked child must not touch what its parent opened, nor wait for threads that it does not have
        if self._life is None or self._life.runtime.pid != os.getpid():
            assert self._url is not None and self._pool_timeout is not None  # noqa: S101
            self._life = _Life(self._url, self._max_connections, self._prepare, self._pool_timeout)
        return self._life

    def _runtime(self) -> Runtime:
        return self._living().runtime

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """One of the client's own connections, in autocommit mode."""
        with self._runtime().connection() as conn:
            yield conn

    # Publishing

    def publish(
        self,
        topic: str,
        body: Any,
        *,
        key: str | None = None,
        routing_key: str | None = None,
        label: str | None = None,
        headers: Headers | None = None,
        id: UUID | None = None,
        occurred_at: datetime | None = None,
        idempotency_key: str | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        content_type: str | None = None,
    ) -> Published:
        """The message is on disk when this returns.

        Calls made at the same time share one statement; each gets its own answer, and a message that is refused fails only
        its own caller. A call that is cancelled while its message was under way published it or did not.
        """
        message = NewMessage(
            body=body,
            key=key,
            routing_key=routing_key,
            label=label,
            headers=headers,
            id=id,
            occurred_at=occurred_at,
            idempotency_key=idempotency_key,
            delay=delay,
            deliver_at=deliver_at,
            content_type=content_type,
        )
        return self._publish("topic", topic, message)

    def enqueue(
        self,
        queue: str,
        body: Any,
        *,
        key: str | None = None,
        routing_key: str | None = None,
        label: str | None = None,
        headers: Headers | None = None,
        id: UUID | None = None,
        occurred_at: datetime | None = None,
        idempotency_key: str | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        content_type: str | None = None,
        priority: int | None = None,
    ) -> Published:
        """`publish`, straight into a queue; `priority` for queues that have them, 0 is the lowest."""
        message = NewMessage(
            body=body,
            key=key,
            routing_key=routing_key,
            label=label,
            headers=headers,
            id=id,
            occurred_at=occurred_at,
            idempotency_key=idempotency_key,
            delay=delay,
            deliver_at=deliver_at,
            content_type=content_type,
            priority=priority,
        )
        return self._publish("inbox", queue, message)

    def publish_many(
        self,
        topic: str,
        bodies: Iterable[Any],
        *,
        key: PerBody = None,
        routing_key: PerBody = None,
        label: PerBody = None,
        headers: Headers | None = None,
        content_type: str | None = None,
    ) -> list[Published]:
        """All of them are on disk when this returns, or none; answers in input order.

        Takes any iterable of bodies or `NewMessage`s, of any length: it is sent in batches of at most 1,000 messages and
        8 MiB, all in one transaction. So a bad body anywhere leaves nothing behind, and nobody sees the first message before
        the last one was sent. `key`, `routing_key` and `label` are one value for all, or a function of the body; a
        `NewMessage` keeps its own.
        """
        messages = new_messages(
            bodies, key=key, routing_key=routing_key, label=label, headers=headers, content_type=content_type
        )
        return self._publish_many("topic", topic, messages)

    def enqueue_many(
        self,
        queue: str,
        bodies: Iterable[Any],
        *,
        key: PerBody = None,
        routing_key: PerBody = None,
        label: PerBody = None,
        headers: Headers | None = None,
        content_type: str | None = None,
    ) -> list[Published]:
        """`publish_many`, straight into a queue."""
        messages = new_messages(
            bodies, key=key, routing_key=routing_key, label=label, headers=headers, content_type=content_type
        )
        return self._publish_many("inbox", queue, messages)

    def _publish(self, kind: str, name: str, message: NewMessage) -> Published:
        publisher, tracer = self._living().publisher, telemetry.tracer()
        if tracer is None:
            return publisher.publish(kind, name, message)
        with telemetry.publishing(tracer, name, [message]) as traced:
            return publisher.publish(kind, name, next(traced))

    def _publish_many(self, kind: str, name: str, messages: Iterable[NewMessage]) -> list[Published]:
        publisher, tracer = self._living().publisher, telemetry.tracer()
        if tracer is None:
            return publisher.publish_many(kind, name, messages)
        with telemetry.publishing(tracer, name, messages) as traced:
            return publisher.publish_many(kind, name, traced)

    def wake(self) -> None:
        """Tell consumers everywhere to look now: for after a commit of your own in which `on(conn)` published something."""
        self._runtime().wakeup.tell_all()

    # Queues

    def queue(self, name: str) -> QueueHandle:
        """One queue, to claim from and to fill."""
        return QueueHandle(self, name)

    @overload
    def claim(
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
    def claim(
        self,
        queue: str,
        *,
        limit: int = 1,
        lease: Duration | None = None,
        labels: Sequence[str] | None = None,
        consumer: str | None = None,
        type: type[T],
    ) -> Deliveries[T]: ...
    def claim(
        self,
        queue: str,
        *,
        limit: int = 1,
        lease: Duration | None = None,
        labels: Sequence[str] | None = None,
        consumer: str | None = None,
        type: Any = None,
    ) -> Deliveries[Any]:
        """Up to `limit` (at most 1,000) for the time of the lease; empty, at once, when there are none."""
        life = self._living()
        return consuming.claim(
            life.runtime,
            life.settler,
            queue,
            limit=limit,
            lease=duration(lease),
            labels=labels,
            consumer=consumer,
            type=type,
        )

    def ack(self, receipts: Sequence[str]) -> list[Result]:
        """These are done and never delivered again; `lost` for those whose lease ended or was replaced."""
        return self._living().settler.ack_many(receipts)

    def nack(self, receipts: Sequence[str], *, delay: Duration | None = None, error: str | None = None) -> list[Result]:
        """Deliver these again after `delay` (by default the queue's backoff), or never after their last attempt."""
        return self._living().settler.nack(receipts, delay=delay, error=error)

    def bury(self, receipts: Sequence[str], *, error: str | None = None) -> list[Result]:
        """These go to the dead letters at once."""
        return self._living().settler.bury(receipts, error=error)

    def release(self, receipts: Sequence[str]) -> list[Result]:
        """These go back at once, as if they had not been delivered."""
        return self._living().settler.release(receipts)

    def extend(self, receipts: Sequence[str], *, lease: Duration) -> list[Result]:
        """Keep these for `lease` from now."""
        return self._living().settler.extend(receipts, lease=lease)

    # Groups

    @overload
    def subscribe(
        self,
        topic: str,
        type: None = None,
        *,
        group: str,
        start: Place = "earliest",
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
        start: Place = "earliest",
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
        start: Place = "earliest",
        batch: int = 100,
        lease: Duration = _LEASE,
        member: str | None = None,
    ) -> GroupReader[Any]:
        """Read a topic as a member of a group: a context, and in it batches as they come.

        Each group gets every message at least once, in order within a partition. Members share the partitions. A new group
        starts at `start`. Bodies are decoded into `type`.
        """
        return GroupReader(
            self._runtime(),
            topic,
            group,
            start=place(start),
            batch=batch,
            lease=duration(lease) or _LEASE,
            member=member,
            type=type,
        )

    def fetch(
        self,
        topic: str,
        group: str,
        *,
        member: str,
        limit: int = 100,
        lease: Duration = _LEASE,
        type: Any = None,
    ) -> Batch[Any] | None:
        """The next messages of a partition that is leased to this member, or None."""
        runtime = self._runtime()
        span = duration(lease) or _LEASE
        with runtime.connection() as conn:
            take = partial(
                calls.fetch,
                conn,
                partial(Batch, runtime, topic, group, lease=span),
                topic,
                group,
                member=member,
                limit=limit,
                lease=span,
                type=type,
            )
            found: Batch[Any] | None = take()
            if found is None:
                # what was committed may have no offset yet
                runtime.wakeup.sequence("topic", topic)
                found = take()
            return found

    def commit(self, topic: str, group: str, batch: Batch[Any], *, offset: int | None = None) -> Result:
        """Everything of the batch (or up to `offset`) is done: `batch.commit()`."""
        if (batch.topic, batch.group) != (topic, group):
            raise ValueError(f"the batch was fetched from {batch.topic} for {batch.group}, not from {topic} for {group}")
        return batch.commit(offset)

    def heartbeat(self, topic: str, group: str, *, member: str, lease: Duration = _LEASE) -> int:
        """Keep the member's partitions for `lease` from now; answers how many it still has."""
        with self._runtime().connection(writing=True) as conn:
            return calls.heartbeat(conn, topic, group, member=member, lease=duration(lease) or _LEASE)

    def leave(self, topic: str, group: str, *, member: str) -> int:
        """The member gives its partitions back, so that others need not wait for its lease to end."""
        with self._runtime().connection(writing=True) as conn:
            return calls.leave(conn, topic, group, member=member)

    def claim_range(self, topic: str, group: str, *, limit: int = 100) -> Range | None:
        """At most once: the next offsets for good, to be read with `topics.read`; a crash now loses them to the group."""
        with self._runtime().connection(writing=True) as conn:
            found = calls.claim_range(conn, topic, group, limit=limit)
            if found is None:
                # what was committed may have no offset yet
                self._runtime().wakeup.sequence("topic", topic)
                found = calls.claim_range(conn, topic, group, limit=limit)
            return found

    # Reasons and numbers

    def explain(self, id: UUID) -> Explanation:
        """Where the message is, who holds it, why it is not delivered now, and what happened so far."""
        with self._runtime().connection() as conn:
            return calls.explain_message(conn, id)

    def explain_offset(self, topic: str, partition: int, *, offset: int) -> Explanation:
        """The same for an offset of a topic."""
        with self._runtime().reading(topic=topic) as conn:
            return calls.explain_offset(conn, topic, partition, offset)

    def stats(self) -> Stats:
        """The numbers of all topics, groups and queues."""
        with self._runtime().reading() as conn:
            return Stats(
                topics=calls.topic_stats(conn),
                groups=calls.group_stats(conn),
                queues=calls.queue_stats(conn),
            )


class QueueHandle:
    """One queue: `client.queue(name)`."""

    def __init__(self, client: SyncClient, name: str) -> None:
        self.name = name
        self._client = client

    @overload
    def claims(
        self,
        *,
        slots: int = 1,
        lease: Duration | None = None,
        labels: Sequence[str] | None = None,
        consumer: str | None = None,
        type: None = None,
    ) -> Claims[Any]: ...
    @overload
    def claims(
        self,
        *,
        slots: int = 1,
        lease: Duration | None = None,
        labels: Sequence[str] | None = None,
        consumer: str | None = None,
        type: type[T],
    ) -> Claims[T]: ...
    def claims(
        self,
        *,
        slots: int = 1,
        lease: Duration | None = None,
        labels: Sequence[str] | None = None,
        consumer: str | None = None,
        type: Any = None,
    ) -> Claims[Any]:
        """Deliveries as they come: a context, and in it one delivery after the other, at most `slots` held at once.

        They are renewed while you work, so `lease` only says how soon others get them when this process dies. Settle each.
        """
        return Claims(
            self._client._runtime(),
            self.name,
            slots=slots,
            lease=duration(lease),
            labels=labels,
            consumer=consumer,
            type=type,
        )
