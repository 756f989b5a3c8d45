"""The state of an open client: connection pool, wake-up, lease renewals, publisher and settler."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from time import time_ns
from typing import Any, TypeVar

from trunkline import telemetry
from trunkline.db import calls
from trunkline.db.pool import Connection, Pool
from trunkline.db.wakeup import Wakeup
from trunkline.runtime.publisher import Publisher
from trunkline.runtime.renewals import Renewals
from trunkline.runtime.settler import Settler
from trunkline.types import Delivery, Position

D = TypeVar("D", bound=Delivery[Any])


class Session:
    """The open resources of a client. A forked child creates a new one and does not touch its parent's sockets."""

    def __init__(self, conninfo: str, *, max_connections: int, prepare: bool, pool_timeout: timedelta) -> None:
        self.pid = os.getpid()
        self.pool = Pool(conninfo, max_size=max_connections, timeout=pool_timeout.total_seconds(), prepare=prepare)
        self.wakeup = Wakeup(conninfo, prepare=prepare)
        self.renewals = Renewals()
        self.publisher = Publisher(self)
        self.settler = Settler(self)

    async def close(self) -> None:
        """Wait for publishes and acks in progress, then close all connections."""
        await self.publisher.drain()
        await self.settler.drain()
        # first: a loop woken below must find the pool closed, or it would wait again
        self.pool.refuse()
        await self.renewals.close()
        await self.wakeup.close()
        await self.pool.close()

    @asynccontextmanager
    async def connection(self, *, writing: bool = False) -> AsyncIterator[Connection]:
        async with self.pool.connection(writing=writing) as conn:
            yield conn

    async def claim(
        self,
        make: Callable[..., D],
        queue: str,
        *,
        limit: int,
        lease: timedelta | None,
        labels: Sequence[str] | None = None,
        consumer: str | None = None,
        type: Any = None,
    ) -> list[D]:
        """Claim messages of a queue, in a span if there are any."""
        tracer, began = telemetry.tracer(), time_ns()
        async with self.connection() as conn:
            deliveries = await calls.claim(
                conn, make, queue, limit=limit, lease=lease, labels=labels, consumer=consumer, type=type
            )
        if tracer is not None and deliveries:
            telemetry.claimed(tracer, queue, deliveries, began)
        return deliveries

    @asynccontextmanager
    async def reading(self, *, queue: str | None = None, topic: str | None = None) -> AsyncIterator[Connection]:
        """Borrow a connection for reading messages. Messages committed before the call have an offset."""
        async with self.connection() as conn:
            await calls.sequence_before_reading(conn, queue=queue, topic=topic)
            yield conn

    async def sequence_before(self, topic: str, start: Position) -> None:
        """Sequence the topic before a reader is created or moved, so that "latest" is after all committed messages."""
        if start != "earliest" and not isinstance(start, int):
            await self.wakeup.sequence("topic", topic)
