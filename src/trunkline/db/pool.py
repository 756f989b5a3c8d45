"""A connection pool that detects a restarted server before it lends a connection."""

from __future__ import annotations

import copy
import logging
import re
import select
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from trunkline.concurrency.aio import Lock
from trunkline.db.conninfo import with_connect_timeout
from trunkline.errors import DatabaseUnavailable, SchemaVersion, TrunklineError, from_psycopg
from trunkline.sql.migrate import latest_version

_PATIENCE = 1.5
"""Seconds that a call waits for a connection before it checks that the server is reachable."""
_FULL = re.compile(r"too many (?:clients|connections)|remaining connection slots")

Connection = psycopg.AsyncConnection[tuple[Any, ...]]

READ_COMMITTED = {"default_transaction_isolation": "read committed"}
"""Everything except publishing requires read committed."""
UNLIMITED = READ_COMMITTED | {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
"""Session settings for upkeep, which applies its own time limits."""


async def _check(conn: Connection) -> None:
    """Reject a connection whose server has gone. Needs no round trip: a closed peer makes the socket readable."""
    # poll, because select fails for descriptors of 1024 and above, which a server with many clients has
    readable = select.poll()
    readable.register(conn.pgconn.socket, select.POLLIN)
    # a stopped server sends a message first; only the next poll detects the closed connection
    while readable.poll(0):
        conn.pgconn.consume_input()
        if conn.pgconn.status != psycopg.pq.ConnStatus.OK:
            raise psycopg.OperationalError("the server closed the connection")


async def connect(conninfo: str, *, prepare: bool = True, settings: Mapping[str, str] = READ_COMMITTED) -> Connection:
    """Open a connection outside the pool, in autocommit mode."""
    conn = await psycopg.AsyncConnection.connect(
        with_connect_timeout(conninfo), autocommit=True, prepare_threshold=_threshold(prepare)
    )
    try:
        await configure(conn, settings)
    except BaseException:
        await conn.close()
        raise
    return conn


async def configure(conn: Connection, settings: Mapping[str, str] = READ_COMMITTED) -> None:
    """Apply session settings to a connection we own, whatever the defaults of its database and role.

    Skipped behind a pooler, where the settings would leak to the next client of the server session. A pooler is
    detected by its process id, which differs from that of the server process.
    """
    query = (
        "select pg_catalog.set_config(s.name, s.value, false) from unnest(%s::text[], %s::text[]) s(name, value)"
        " where pg_catalog.pg_backend_pid() = %s and pg_catalog.current_setting(s.name, true) <> s.value"
    )
    await conn.execute(query, [list(settings), list(settings.values()), conn.info.backend_pid], prepare=False)


def _threshold(prepare: bool) -> int | None:
    """Return the number of uses after which psycopg prepares a statement, or None for never."""
    return 5 if prepare else None


class _Pooled(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A connection of one of our pools, which log filters can tell from the application's own."""


def _not_ours(record: logging.LogRecord) -> bool:
    """Suppress log lines for errors that callers receive anyway, and for connections that a cancelled call leaves."""
    values = record.args if isinstance(record.args, tuple) else ()
    return not any(value == _POOL_NAME or isinstance(value, _Pooled) for value in values)


_POOL_NAME = "trunkline"
for _name in ("psycopg", "psycopg.pool"):
    logging.getLogger(_name).addFilter(_not_ours)


class Pool:
    """Connections in autocommit mode, opened on first use. Each call is a separate transaction.

    The underlying pool retries silently. A call that gets no connection soon therefore opens one outside the pool; if
    that fails, the caller receives the cause.
    """

    def __init__(self, conninfo: str, *, max_size: int = 10, timeout: float = 30.0, prepare: bool = True) -> None:
        self.conninfo = conninfo
        self._max_size = max_size
        self._timeout = timeout
        self._prepare = prepare
        self._pool: AsyncConnectionPool[_Pooled] | None = None
        self._opening = Lock()
        self._probing = Lock()
        self._probed = float("-inf")
        self._cause: TrunklineError | None = None
        self._checked = False
        self._closed = False

    async def open(self) -> None:
        self._pool = AsyncConnectionPool(
            with_connect_timeout(self.conninfo),
            connection_class=_Pooled,
            name=_POOL_NAME,
            kwargs={"autocommit": True, "prepare_threshold": _threshold(self._prepare)},
            min_size=0,
            max_size=self._max_size,
            timeout=self._timeout,
            configure=configure,
            check=_check,
            open=False,
            num_workers=1,
        )
        await self._pool.open()

    def refuse(self) -> None:
        """Lend no more connections."""
        self._closed = True

    async def close(self) -> None:
        self.refuse()
        if self._pool is not None:
            await self._pool.close()
        self._pool = None

    @asynccontextmanager
    async def connection(self, *, writing: bool = False) -> AsyncIterator[Connection]:
        """Lend a connection.

        Errors are raised as TrunklineError; with `writing`, a lost connection is OutcomeUnknown.
        """
        if self._closed:
            raise TrunklineError("the client is closed", hint="End consumer loops before you close their client.")
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    await self.open()
        pool = self._pool
        assert pool is not None  # noqa: S101
        conn = await self._borrow(pool)
        try:
            async with conn:
                try:
                    yield conn
                except psycopg.Error as exc:
                    raise from_psycopg(exc, writing=writing) from exc
        except psycopg.Error as exc:
            raise from_psycopg(exc) from exc
        finally:
            await pool.putconn(conn)

    async def _borrow(self, pool: AsyncConnectionPool[_Pooled]) -> _Pooled:
        if not self._checked:
            await self._probe()
        patience = min(_PATIENCE, self._timeout)
        try:
            return await pool.getconn(timeout=patience)
        except PoolTimeout:
            await self._probe()  # raises if the server is unreachable; otherwise all connections are in use
        except psycopg.Error as exc:
            raise from_psycopg(exc) from exc
        try:
            # zero would mean the pool's default timeout
            return await pool.getconn(timeout=max(self._timeout - patience, 0.001))
        except PoolTimeout as exc:
            raise DatabaseUnavailable(
                f"none of the client's {self._max_size} database connections became free in {self._timeout:g} s",
                hint="Increase max_connections or pool_timeout of the client.",
            ) from exc
        except psycopg.Error as exc:
            raise from_psycopg(exc) from exc

    async def _probe(self) -> None:
        """Raise the reason why the database cannot be used. Concurrent calls share one attempt."""
        started = time.monotonic()
        async with self._probing:
            if self._probed < started:
                self._cause = await self._find_cause()
                self._probed = time.monotonic()
            if self._cause is not None:
                raise copy.copy(self._cause)

    async def _find_cause(self) -> TrunklineError | None:
        try:
            async with await connect(self.conninfo) as conn:
                if not self._checked:
                    await self._check_version(conn)
        except (psycopg.Error, TrunklineError) as exc:
            # a server at its connection limit is reachable
            return None if self._checked and _FULL.search(str(exc)) else from_psycopg(exc)
        return None

    async def _check_version(self, conn: Connection) -> None:
        """Check that schema and program are at most one version apart, the range that is tested."""
        try:
            cursor = await conn.execute("select max(version) from trunkline.migrations")
            row = await cursor.fetchone()
        except psycopg.errors.InsufficientPrivilege:
            row = None
        installed = None if row is None else row[0]
        if installed is not None and abs(installed - latest_version()) > 1:
            newer = installed > latest_version()
            raise SchemaVersion(
                f"the database has schema version {installed}, this program requires {latest_version()} or one apart",
                hint="Upgrade this program." if newer else "Run trunkline migrate.",
            )
        self._checked = True
