# Written by tools/unasync.py from src/trunkline/db/pool.py; change that file, not this one.
"""A pool of connections that notices a restarted server before it hands a connection out."""

from __future__ import annotations

import select
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from trunkline.db.threads import Mutex
from trunkline.errors import DatabaseUnavailable, SchemaVersion, TrunklineError, from_psycopg
from trunkline.sql.migrate import latest_version

Connection = psycopg.Connection[tuple[Any, ...]]

READ_COMMITTED = {"default_transaction_isolation": "read committed"}
"""Only publishing works at another level."""
UNLIMITED = READ_COMMITTED | {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
"""No time limits either: for upkeep, which has its own."""


def _check(conn: Connection) -> None:
    """Refuse a connection whose server has gone. Costs no round trip: a closed peer makes the socket readable."""
    # poll, because select refuses descriptors of 1024 and above, as a server with many clients has
    readable = select.poll()
    readable.register(conn.pgconn.socket, select.POLLIN)
    # a server that was stopped leaves a message first: only the next look finds the end behind it
    while readable.poll(0):
        conn.pgconn.consume_input()
        if conn.pgconn.status != psycopg.pq.ConnStatus.OK:
            raise psycopg.OperationalError("the server closed the connection")


def connect(conninfo: str, *, prepare: bool = True, settings: Mapping[str, str] = READ_COMMITTED) -> Connection:
    """A connection outside the pool, in autocommit mode."""
    conn = psycopg.Connection.connect(conninfo, autocommit=True, prepare_threshold=_threshold(prepare))
    try:
        configure(conn, settings)
    except BaseException:
        conn.close()
        raise
    return conn


def configure(conn: Connection, settings: Mapping[str, str] = READ_COMMITTED) -> None:
    """Give one of our own sessions the settings it needs, whatever the defaults of its database and role are.

    Not behind a pooler, where the settings would stay for the next client of the server's session. A pooler shows: the
    process id it gave to us is not the one of the server's process.
    """
    query = (
        "select pg_catalog.set_config(s.name, s.value, false) from unnest(%s::text[], %s::text[]) s(name, value)"
        " where pg_catalog.pg_backend_pid() = %s and pg_catalog.current_setting(s.name, true) <> s.value"
    )
    conn.execute(query, [list(settings), list(settings.values()), conn.info.backend_pid], prepare=False)


def _threshold(prepare: bool) -> int | None:
    """After how many uses psycopg prepares a statement; None: never."""
    return 5 if prepare else None


class Pool:
    """Connections in autocommit mode: each call of ours is a transaction of its own. Opened when first used."""

    def __init__(self, conninfo: str, *, max_size: int = 10, timeout: float = 30.0, prepare: bool = True) -> None:
        self.conninfo = conninfo
        self._max_size = max_size
        self._timeout = timeout
        self._prepare = prepare
        self._pool: ConnectionPool[Connection] | None = None
        self._opening = Mutex()
        self._checked = False
        self._closed = False

    def open(self) -> None:
        self._pool = ConnectionPool(
            self.conninfo,
            kwargs={"autocommit": True, "prepare_threshold": _threshold(self._prepare)},
            min_size=0,
            max_size=self._max_size,
            timeout=self._timeout,
            configure=configure,
            check=_check,
            open=False,
            num_workers=1,
        )
        self._pool.open()

    def refuse(self) -> None:
        """No connection is handed out from here on."""
        self._closed = True

    def close(self) -> None:
        self.refuse()
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    @contextmanager
    def connection(self, *, writing: bool = False) -> Iterator[Connection]:
        """A connection of ours. Errors leave as TrunklineError; `writing` marks a lost connection as outcome unknown."""
        if self._closed:
            raise TrunklineError("the client was closed", hint="a consumer loop ends before its client")
        if self._pool is None:
            with self._opening:
                if self._pool is None:
                    self.open()
        assert self._pool is not None  # noqa: S101
        try:
            with self._pool.connection() as conn:
                if not self._checked:
                    self._check_version(conn)
                try:
                    yield conn
                except psycopg.Error as exc:
                    raise from_psycopg(exc, writing=writing) from exc
        except PoolTimeout as exc:
            raise DatabaseUnavailable(
                f"none of the client's {self._max_size} database connections became free in {self._timeout:g} s",
                hint="check that the server runs, or give the client more with max_connections or pool_timeout",
            ) from exc
        except psycopg.Error as exc:
            raise from_psycopg(exc) from exc

    def _check_version(self, conn: Connection) -> None:
        """A schema one version apart works; further apart nobody has tried."""
        try:
            cursor = conn.execute("select max(version) from trunkline.migrations")
            row = cursor.fetchone()
        except psycopg.errors.InsufficientPrivilege:
            row = None
        installed = None if row is None else row[0]
        if installed is not None and abs(installed - latest_version()) > 1:
            newer = installed > latest_version()
            raise SchemaVersion(
                f"the schema in the database has version {installed}, this program knows {latest_version()}",
                hint="upgrade this program" if newer else "run trunkline migrate",
            )
        self._checked = True
