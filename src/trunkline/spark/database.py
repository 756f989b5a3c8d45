"""Connections cached by process and database: one for Arrow (ADBC), one for function calls (psycopg).

Spark reuses its Python processes for many tasks. Opening an ADBC connection takes 55 ms, because it loads the type
catalogue.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from trunkline.db.calls import spark as calls
from trunkline.errors import TrunklineError, from_psycopg

if TYPE_CHECKING:
    import pyarrow as pa
    from adbc_driver_postgresql.dbapi import Connection as ArrowConnection

_KEPT = 4
_DRIVER_PREFIX = re.compile(r"^[A-Z_]+: \[libpq\] ")
# Keyed by process: Spark forks its workers, and two processes must not share a connection.
_arrow: dict[tuple[int, str], Any] = {}
_plain: dict[tuple[int, str], calls.Connection] = {}


@contextmanager
def arrow(url: str) -> Iterator[ArrowConnection]:
    """Yield this process's Arrow connection. The block is one transaction; ADBC errors are raised as TrunklineError."""
    key = (os.getpid(), url)
    conn = _arrow.pop(key, None)
    if conn is None or not _arrow_alive(conn):
        conn = _connect(url)
    try:
        yield conn
        conn.commit()
        _keep(_arrow, key, conn)
    except BaseException as exc:
        # Includes GeneratorExit: if the reader is abandoned mid-result, the server is still sending.
        with suppress(Exception):
            conn.close()
        if isinstance(exc, _adbc_error()):
            raise _translated(exc) from exc
        raise


@contextmanager
def plain(url: str) -> Iterator[calls.Connection]:
    """Yield this process's connection for function calls. A lost connection is replaced at the next use."""
    key = (os.getpid(), url)
    conn = _plain.pop(key, None)
    if conn is not None and (conn.closed or conn.broken or not _alive(conn)):
        conn.close()
        conn = None
    if conn is None:
        conn = calls.connect(url)
    try:
        yield conn
    finally:
        if conn.closed or conn.broken:
            conn.close()
        else:
            _keep(_plain, key, conn)


def fetch(conn: ArrowConnection, statement: str) -> pa.Table:
    """Run a statement and return all its rows."""
    with conn.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetch_arrow_table()


def _keep(kept: dict[tuple[int, str], Any], key: tuple[int, str], conn: Any) -> None:
    """Cache a connection and close the oldest ones above the limit."""
    while len(kept) >= _KEPT:
        with suppress(Exception):
            kept.pop(next(iter(kept))).close()
    kept[key] = conn


def close_all() -> None:
    """Close the connections of this process. A stopped query calls this before its process ends."""
    for kept in (_arrow, _plain):
        for key in [key for key in kept if key[0] == os.getpid()]:
            with suppress(Exception):
                kept.pop(key).close()


# ADBC warns if its connections are still open at interpreter shutdown.
atexit.register(close_all)


def _alive(conn: calls.Connection) -> bool:
    try:
        conn.execute("")
    except Exception:
        return False
    return True


def _arrow_alive(conn: ArrowConnection) -> bool:
    try:
        fetch(conn, calls.PING)
        conn.commit()
    except Exception:
        with suppress(Exception):
            conn.close()
        return False
    return True


def _connect(url: str) -> ArrowConnection:
    from adbc_driver_postgresql import dbapi

    try:
        return dbapi.connect(url)
    except dbapi.Error as exc:
        raise _translated(exc) from exc


def _adbc_error() -> type[Exception]:
    from adbc_driver_postgresql import dbapi

    error: type[Exception] = dbapi.Error
    return error


def _translated(exc: Any) -> TrunklineError:
    """Restore the server's message and hint: the driver adds a prefix and omits the hint."""
    error = from_psycopg(exc)
    fields = {name: text.decode(errors="replace") for name, text in exc.details}
    message = fields.get(b"PG_DIAG_MESSAGE_PRIMARY") or _DRIVER_PREFIX.sub("", error.message)
    hint, detail = fields.get(b"PG_DIAG_MESSAGE_HINT", error.hint), fields.get(b"PG_DIAG_MESSAGE_DETAIL")
    return type(error)(message, hint=hint, detail=detail, sqlstate=error.sqlstate)
