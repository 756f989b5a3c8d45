# Written by tools/unasync.py from src/trunkline/runtime/session.py; change that file, not this one.
"""The state of an open client: connection pool, wake-up, lease renewals, publisher and settler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from time import time_ns
from typing import Any, TypeVar

from trunkline import telemetry
from trunkline.db.sync import calls
from trunkline.db.sync.pool import Connection, Pool
from trunkline.db.sync.wakeup import Wakeup
from trunkline.runtime.sync.publisher import Publisher
from trunkline.runtime.sync.renewals import Renewals
from trunkline.runtime.sync.settler import Settler
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

    def close(self) -> None:
        """Wait for publishes and acks in progress, then close all connections."""
        self.publisher.drain()
        self.settler.drain()
        # first: a loop woken below must find the pool closed, or it would wait again
        self.pool.refuse()
        self.renewals.close()
        self.wakeup.close()
        self.pool.close()

    @contextmanager
    def connection(self, *, writing: bool = False) -> Iterator[Connection]:
        with self.pool.connection(writing=writing) as conn:
            yield conn

    def claim(
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
        with self.connection() as conn:
            deliveries = calls.claim(
                conn, make, queue, limit=limit, lease=lease, labels=labels, consumer=consumer, type=type
            )
        if tracer is not None and deliveries:
            telemetry.claimed(tracer, queue, deliveries, began)
        return deliveries

    @contextmanager
    def reading(self, *, queue: str | None = None, topic: str | None = None) -> Iterator[Connection]:
        """Borrow a connection for reading messages. Messages committed before the call have an offset."""
        with self.connection() as conn:
            calls.sequence_before_reading(conn, queue=queue, topic=topic)
            yield conn

    def sequence_before(self, topic: str, start: Position) -> None:
        """Sequence the topic before a reader is created or moved, so that "latest" is after all committed messages."""
        if start != "earliest" and not isinstance(start, int):
            self.wakeup.sequence("topic", topic)
