"""Typed calls of `sql/functions/report.sql`: columns of values, as reports aggregate them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import tuple_row

Rows = list[dict[str, Any]]


def _rows(conn: psycopg.Connection[Any], query: bytes, args: tuple[Any, ...]) -> Rows:
    cursor = psycopg.Cursor(conn, row_factory=tuple_row)
    cursor.execute(query, args, binary=True)
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def delivery_times(conn: psycopg.Connection[Any], since: timedelta, *, limit: int) -> Rows:
    """Deliveries since then, at most so many runs of adjoining offsets, newest first."""
    return _rows(conn, b"select * from trunkline.delivery_times(%b, %b::int)", (since, limit))


def reader_lags(conn: psycopg.Connection[Any], since: timedelta, step: timedelta) -> Rows:
    """How far groups and queues were behind, in steps."""
    return _rows(conn, b"select * from trunkline.reader_lags(%b, %b)", (since, step))


def dead_letter_errors(conn: psycopg.Connection[Any], since: timedelta) -> Rows:
    """Dead letters since then, without their payloads."""
    return _rows(conn, b"select * from trunkline.dead_letter_errors(%b)", (since,))
