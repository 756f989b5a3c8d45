"""Connections of this process: one for Arrow (ADBC) and one for calls (psycopg) per database, kept while they work.

Spark reuses its Python processes for many tasks. An ADBC connection costs 55 ms, because it loads the catalogue of types.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from trunkline.db import spark as calls
from trunkline.errors import TrunklineError, from_psycopg

if TYPE_CHECKING:
    import pyarrow as pa
    from adbc_driver_postgresql.dbapi import Connection as ArrowConnection

_KEPT = 4
_DRIVERS_WORDS = re.compile(r"^[A-Z_]+: \[libpq\] ")
# By process, because Spark forks its workers; a connection must not be used by two.
_arrow: dict[tuple[int, str], Any] = {}
_plain: dict[tuple[int, str], calls.Connection] = {}


@contextmanager
def arrow(url: str) -> Iterator[ArrowConnection]:
    """The Arrow connection of this process, in a transaction that ends with the block. Errors leave as TrunklineError."""
    key = (os.getpid(), url)
    conn = _arrow.pop(key, None)
    if conn is None or not _answers(conn):
        conn = _connect(url)
    try:
        yield conn
        conn.commit()
        _keep(_arrow, key, conn)
    except BaseException as exc:
        # also when the reader is abandoned half-way: the server is still sending
        with suppress(Exception):
            conn.close()
        if isinstance(exc, _adbc_error()):
            raise _translated(exc) from exc
        raise


@contextmanager
def plain(url: str) -> Iterator[calls.Connection]:
    """The connection for calls, kept after use; one that was lost is replaced at the next use."""
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
    """All that a statement answers."""
    with conn.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetch_arrow_table()


def _keep(kept: dict[tuple[int, str], Any], key: tuple[int, str], conn: Any) -> None:
    """For the next use. A process that serves one database after the other does not collect connections."""
    while len(kept) >= _KEPT:
        with suppress(Exception):
            kept.pop(next(iter(kept))).close()
    kept[key] = conn


def close_all() -> None:
    """Ends what this process has open; a query that stops need not wait for its process to end."""
    for kept in (_arrow, _plain):
        for key in [key for key in kept if key[0] == os.getpid()]:
            with suppress(Exception):
                kept.pop(key).close()


# ADBC complains when the interpreter takes its connections down
atexit.register(close_all)


def _alive(conn: calls.Connection) -> bool:
    try:
        conn.execute("")
    except Exception:
        return False
    return True


def _answers(conn: ArrowConnection) -> bool:
    try:
        fetch(conn, "select 1")
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
    """As the server said it: the driver puts words of its own in front, and leaves out the hint."""
    error = from_psycopg(exc)
    said = {name: text.decode(errors="replace") for name, text in exc.details}
    message = said.get(b"PG_DIAG_MESSAGE_PRIMARY") or _DRIVERS_WORDS.sub("", error.message)
    hint, detail = said.get(b"PG_DIAG_MESSAGE_HINT", error.hint), said.get(b"PG_DIAG_MESSAGE_DETAIL")
    return type(error)(message, hint=hint, detail=detail, sqlstate=error.sqlstate)
