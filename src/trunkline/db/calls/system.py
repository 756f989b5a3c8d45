"""Typed calls of system.sql and of the statistics of upkeep."""

from __future__ import annotations

from datetime import timedelta

from trunkline.db.calls.list_records import Alert, SegmentRow, SessionRow, SizeRow, UpkeepTask
from trunkline.db.pool import Connection
from trunkline.db.query import fetch_records, fetch_value


async def upkeep_stats(conn: Connection) -> list[UpkeepTask]:
    return await fetch_records(conn, UpkeepTask, "select * from trunkline.upkeep_stats()")


async def list_sessions(conn: Connection, longer_than: timedelta, *, limit: int = 100) -> list[SessionRow]:
    query = "select * from trunkline.list_sessions(%b::interval, %b::int)"
    return await fetch_records(conn, SessionRow, query, (longer_than, limit))


async def list_segments(
    conn: Connection,
    *,
    topic: str | None = None,
    queue: str | None = None,
    after: tuple[int, int] | None = None,
    limit: int = 100,
) -> list[SegmentRow]:
    """Return segments after a log and segment number."""
    log, segment = after or (None, None)
    query = "select * from trunkline.list_segments(%b::text, %b::text, %b::int, %b::bigint, %b::int)"
    return await fetch_records(conn, SegmentRow, query, (topic, queue, log, segment, limit))


async def list_sizes(conn: Connection) -> list[SizeRow]:
    return await fetch_records(conn, SizeRow, "select * from trunkline.list_sizes()")


async def list_alerts(conn: Connection, *, open: bool = True, before: int | None = None, limit: int = 100) -> list[Alert]:
    query = "select * from trunkline.list_alerts(%b, %b::bigint, %b::int)"
    return await fetch_records(conn, Alert, query, (open, before, limit))


async def close_alert(conn: Connection, alert: int, *, by: str | None = None) -> bool:
    """Return whether the alert was open."""
    return bool(await fetch_value(conn, "select trunkline.close_alert(%b::bigint, %b::text)", (alert, by)))
