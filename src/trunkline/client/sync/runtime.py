# Written by tools/unasync.py from src/trunkline/client/runtime.py; change that file, not this one.
"""What a client holds while it is open: its pool, its wake-up, its renewals and the names it has looked up."""

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
"""Errors of the functions that a deleted topic or queue had; first they say so, then they are dropped."""


class Runtime:
    """The living part of a client. A forked child gets another one and leaves its parent's sockets alone."""

    def __init__(self, conninfo: str, *, max_connections: int, prepare: bool, pool_timeout: timedelta) -> None:
        self.pid = os.getpid()
        self.pool = Pool(conninfo, max_size=max_connections, timeout=pool_timeout.total_seconds(), prepare=prepare)
        self.wakeup = Wakeup(conninfo, prepare=prepare)
        self.renewals = Renewals()
        self._numbers: dict[tuple[str, str], int] = {}

    def close(self) -> None:
        # first of all: a loop that is rung below must find the door shut, or it would wait again
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
        """A connection for statements that show messages: those that were committed before have an offset."""
        with self.connection() as conn:
            calls.sequence_before_reading(conn, queue=queue, topic=topic)
            yield conn

    def sequence_before(self, topic: str, start: Place) -> None:
        """Before a reader is made or moved: latest means after all that is committed by now."""
        if start != "earliest" and not isinstance(start, int):
            self.wakeup.sequence("topic", topic)

    def own_function(self, conn: Connection, kind: str, name: str, call: Callable[[int], T]) -> T:
        """Call the function that a topic has of its own; its number is looked up once."""
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
