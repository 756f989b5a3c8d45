"""A pool of connections that notices a restarted server before it hands a connection out."""

from __future__ import annotations

import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from trunkline.errors import DatabaseUnavailable, from_psycopg

Connection = psycopg.AsyncConnection[tuple[Any, ...]]


async def _check(conn: Connection) -> None:
    """Refuse a connection whose server has gone. Costs no round trip: a closed peer makes the socket readable."""
    if select.select([conn.pgconn.socket], [], [], 0)[0]:
        conn.pgconn.consume_input()
        if conn.pgconn.status != psycopg.pq.ConnStatus.OK:
            raise psycopg.OperationalError("the server closed the connection")


class Pool:
    """Connections in autocommit mode: each call of ours is a transaction of its own."""

    def __init__(self, conninfo: str, *, max_size: int = 10, timeout: float = 30.0) -> None:
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            conninfo,
            kwargs={"autocommit": True},
            min_size=0,
            max_size=max_size,
            timeout=timeout,
            check=_check,
            open=False,
            num_workers=1,
        )

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def connection(self, *, writing: bool = False) -> AsyncIterator[Connection]:
        """A connection of ours. Errors leave as TrunklineError; `writing` marks a lost connection as outcome unknown."""
        try:
            async with self._pool.connection() as conn:
                try:
                    yield conn
                except psycopg.Error as exc:
                    raise from_psycopg(exc, writing=writing) from exc
        except PoolTimeout as exc:
            raise DatabaseUnavailable(
                "no database connection became free in time",
                hint="check that the server runs, or give the client a larger pool",
            ) from exc
        except psycopg.Error as exc:
            raise from_psycopg(exc) from exc
