# Written by tools/unasync.py from src/trunkline/client/runtime.py; change that file, not this one.
"""The state of an open client: connection pool, wake-up, lease renewals and cached topic numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import psycopg

from trunkline.client.sync.renewals import Renewals
from trunkline.db.sync import calls
from trunkline.db.sync.pool import Connection, Pool
from trunkline.db.sync.wakeup import Wakeup
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

    def close(self) -> None:
        # first: a loop woken below must find the pool closed, or it would wait again
        self.pool.refuse()
        self.renewals.close()
        self.wakeup.close()
        self.pool.close()

    @contextmanager
    def connection(self, *, writing: bool = False) -> Iterator[Connection]:
        with self.pool.connection(writing=writing) as conn:
            yield conn

    @contextmanager
    def reading(self, *, queue: str | None = None, topic: str | None = None) -> Iterator[Connection]:
        """Borrow a connection for reading messages. Messages committed before the call have an offset."""
        with self.connection() as conn:
            calls.sequence_before_reading(conn, queue=queue, topic=topic)
            yield conn

    def sequence_before(self, topic: str, start: Place) -> None:
        """Sequence the topic before a reader is created or moved, so that "latest" is after all committed messages."""
        if start != "earliest" and not isinstance(start, int):
            self.wakeup.sequence("topic", topic)

    def own_function(self, conn: Connection, kind: str, name: str, call: Callable[[int], T]) -> T:
        """Call the topic's generated function. The topic number in its name is looked up once and cached."""
        number = self._numbers.get((kind, name))
        if number is not None:
            try:
                return call(number)
            except psycopg.Error as exc:
                if exc.sqlstate not in _DELETED:
                    raise
                # the name may belong to a new topic, with another number
        number = calls.topic_number(conn, kind, name)
        self._numbers[kind, name] = number
        return call(number)
