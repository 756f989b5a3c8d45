"""The state of an open client: connection pool, wake-up, lease renewals and cached topic numbers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypeVar

import psycopg

from trunkline.client.renewals import Renewals
from trunkline.db import calls
from trunkline.db.pool import Connection, Pool
from trunkline.db.wakeup import Wakeup
from trunkline.types import Place

T = TypeVar("T")

_DELETED = ("42883", "TL010", "TL011")
"""Errors from the publish function of a deleted topic: first it raises TL010 or TL011, later it no longer exists."""


class Runtime:
    """The open resources of a client. A forked child creates a new one and does not touch its parent's sockets."""

    def __init__(self, conninfo: str, *, max_connections: int, prepare: bool, pool_timeout: timedelta) -> None:
        self.pid = os.getpid()
        self.pool = Pool(conninfo, max_size=max_connections, timeout=pool_timeout.total_seconds(), prepare=prepare)
        self.wakeup = Wakeup(conninfo, prepare=prepare)
        self.renewals = Renewals()
        self._numbers: dict[tuple[str, str], int] = {}

    async def close(self) -> None:
        # first: a loop woken below must find the pool closed, or it would wait again
        self.pool.refuse()
        await self.renewals.close()
        await self.wakeup.close()
        await self.pool.close()

    @asynccontextmanager
    async def connection(self, *, writing: bool = False) -> AsyncIterator[Connection]:
        async with self.pool.connection(writing=writing) as conn:
            yield conn

    @asynccontextmanager
    async def reading(self, *, queue: str | None = None, topic: str | None = None) -> AsyncIterator[Connection]:
        """Borrow a connection for reading messages. Messages committed before the call have an offset."""
        async with self.connection() as conn:
            await calls.sequence_before_reading(conn, queue=queue, topic=topic)
            yield conn

    async def sequence_before(self, topic: str, start: Place) -> None:
        """Sequence the topic before a reader is created or moved, so that "latest" is after all committed messages."""
        if start != "earliest" and not isinstance(start, int):
            await self.wakeup.sequence("topic", topic)

    async def own_function(self, conn: Connection, kind: str, name: str, call: Callable[[int], Awaitable[T]]) -> T:
        """Call the topic's generated function. The topic number in its name is looked up once and cached."""
        number = self._numbers.get((kind, name))
        if number is not None:
            try:
                return await call(number)
            except psycopg.Error as exc:
                if exc.sqlstate not in _DELETED:
                    raise
                # the name may belong to a new topic, with another number
        number = await calls.topic_number(conn, kind, name)
        self._numbers[kind, name] = number
        return await call(number)
