"""Typed calls of `sql/functions/report.sql`, which return rows for reports to aggregate."""

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
    """Return deliveries of the last `since`, as at most `limit` runs of adjacent offsets, newest first."""
    return _rows(conn, b"select * from trunkline.delivery_times(%b, %b::int)", (since, limit))


def reader_lags(conn: psycopg.Connection[Any], since: timedelta, step: timedelta) -> Rows:
    """Return the lag of groups and queues over the last `since`, one value per `step`."""
    return _rows(conn, b"select * from trunkline.reader_lags(%b, %b)", (since, step))


def dead_letter_errors(conn: psycopg.Connection[Any], since: timedelta) -> Rows:
    """Return dead letters of the last `since`, without payloads."""
    return _rows(conn, b"select * from trunkline.dead_letter_errors(%b)", (since,))
