# Written by tools/unasync.py from src/trunkline/db/calls/schedules.py; change that file, not this one.
"""Typed calls of schedules.sql."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from trunkline.db.calls.list_records import Fire
from trunkline.db.sync.calls.statements import named_arguments
from trunkline.db.sync.pool import Connection
from trunkline.db.sync.query import fetch_records, fetch_rows, fetch_value
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


def create_schedule(conn: Connection, name: str, cron: str, *, ensure: bool = False, **settings: Any) -> Schedule:
    named, values = named_arguments(settings, _SCHEDULE_SETTINGS)
    verb = "ensure_schedule" if ensure else "create_schedule"
    query = f"select * from trunkline.{verb}(%b, %b{named})"  # noqa: S608
    return (fetch_records(conn, Schedule, query, (name, cron, *values)))[0]


def list_schedules(conn: Connection) -> list[Schedule]:
    return fetch_records(conn, Schedule, "select * from trunkline.list_schedules()")


def list_fires(conn: Connection, name: str, *, before: int | None = None, limit: int = 100) -> list[Fire]:
    query = "select * from trunkline.list_fires(%b, %b::bigint, %b::int)"
    return fetch_records(conn, Fire, query, (name, before, limit))


def pause_schedule(conn: Connection, name: str, *, paused: bool) -> None:
    verb = "pause_schedule" if paused else "resume_schedule"
    fetch_rows(conn, f"select trunkline.{verb}(%b)", (name,))


def delete_schedule(conn: Connection, name: str) -> None:
    fetch_rows(conn, "select trunkline.delete_schedule(%b)", (name,))


def run_schedule(conn: Connection, name: str) -> UUID:
    return UUID(str(fetch_value(conn, "select trunkline.run_schedule(%b)", (name,))))


def next_runs(
    conn: Connection, cron: str, *, timezone: str = "UTC", limit: int = 5, after: datetime | None = None
) -> list[datetime]:
    rows = fetch_rows(
        conn, "select * from trunkline.next_runs(%b, %b, %b::int, %b::timestamptz)", (cron, timezone, limit, after)
    )
    return [row[0] for row in rows]
