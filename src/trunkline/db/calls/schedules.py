"""Typed calls of schedules.sql."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from trunkline.db.calls.list_records import Fire
from trunkline.db.calls.statements import named_arguments
from trunkline.db.pool import Connection
from trunkline.db.query import fetch_records, fetch_rows, fetch_value
from trunkline.types import (
    Schedule,
)

_SCHEDULE_SETTINGS = {
    "topic": "text",
    "queue": "text",
    "payload": "jsonb",
    "key": "text",
    "routing_key": "text",
    "label": "text",
    "headers": "jsonb",
    "timezone": "text",
    "catch_up": "text",
}


async def create_schedule(conn: Connection, name: str, cron: str, *, ensure: bool = False, **settings: Any) -> Schedule:
    named, values = named_arguments(settings, _SCHEDULE_SETTINGS)
    verb = "ensure_schedule" if ensure else "create_schedule"
    query = f"select * from trunkline.{verb}(%b, %b{named})"  # noqa: S608
    return (await fetch_records(conn, Schedule, query, (name, cron, *values)))[0]


async def list_schedules(conn: Connection) -> list[Schedule]:
    return await fetch_records(conn, Schedule, "select * from trunkline.list_schedules()")


async def list_fires(conn: Connection, name: str, *, before: int | None = None, limit: int = 100) -> list[Fire]:
    query = "select * from trunkline.list_fires(%b, %b::bigint, %b::int)"
    return await fetch_records(conn, Fire, query, (name, before, limit))


async def pause_schedule(conn: Connection, name: str, *, paused: bool) -> None:
    verb = "pause_schedule" if paused else "resume_schedule"
    await fetch_rows(conn, f"select trunkline.{verb}(%b)", (name,))


async def delete_schedule(conn: Connection, name: str) -> None:
    await fetch_rows(conn, "select trunkline.delete_schedule(%b)", (name,))


async def run_schedule(conn: Connection, name: str) -> UUID:
    return UUID(str(await fetch_value(conn, "select trunkline.run_schedule(%b)", (name,))))


async def next_runs(
    conn: Connection, cron: str, *, timezone: str = "UTC", limit: int = 5, after: datetime | None = None
) -> list[datetime]:
    rows = await fetch_rows(
        conn, "select * from trunkline.next_runs(%b, %b, %b::int, %b::timestamptz)", (cron, timezone, limit, after)
    )
    return [row[0] for row in rows]
