"""Runs statements independently of connection settings, because the connection may be the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg.rows import tuple_row

from trunkline.db.pool import Connection
from trunkline.errors import InvalidValue

S = TypeVar("S", bound=msgspec.Struct)
Row = tuple[Any, ...]


async def fetch_rows(conn: Connection, query: str, args: Sequence[Any] = ()) -> list[Row]:
    cursor = psycopg.AsyncCursor(conn, row_factory=tuple_row)
    try:
        await cursor.execute(query.encode(), args, binary=True)
    except UnicodeEncodeError as exc:
        raise InvalidValue(f"text is not valid Unicode: {exc.object!a}") from exc
    return await cursor.fetchall()


async def fetch_value(conn: Connection, query: str, args: Sequence[Any] = ()) -> Any:
    """Return the single value of a one-row, one-column result."""
    return (await fetch_rows(conn, query, args))[0][0]


async def fetch_records(conn: Connection, kind: type[S], query: str, args: Sequence[Any] = ()) -> list[S]:
    """Return rows as records, matched by column name. Columns unknown to this version are ignored."""
    cursor = psycopg.AsyncCursor(conn, row_factory=tuple_row)
    try:
        await cursor.execute(query.encode(), args, binary=True)
    except UnicodeEncodeError as exc:
        raise InvalidValue(f"text is not valid Unicode: {exc.object!a}") from exc
    known = set(kind.__struct_fields__)
    names = [(number, column.name) for number, column in enumerate(cursor.description or ()) if column.name in known]
    return [kind(**{name: row[number] for number, name in names}) for row in await cursor.fetchall()]
