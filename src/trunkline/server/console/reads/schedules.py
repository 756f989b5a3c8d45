"""Reads of the pages of schedules."""

from __future__ import annotations

from datetime import datetime

from trunkline.db.calls import schedules as calls
from trunkline.db.calls.list_records import Fire
from trunkline.db.pool import Connection
from trunkline.errors import ScheduleNotFound
from trunkline.types import Schedule

LIST = "schedule list"
STRIP = 20
"""Fires in the history strip of a schedule."""
_STRIPS = 100


async def all_schedules(conn: Connection) -> list[Schedule]:
    return await calls.list_schedules(conn)


async def one(conn: Connection, name: str) -> Schedule:
    for row in await calls.list_schedules(conn):
        if row.name == name:
            return row
    raise ScheduleNotFound(f"schedule {name} does not exist", hint="Create it with trunkline.create_schedule.")


async def strips(conn: Connection, names: tuple[str, ...]) -> dict[str, list[Fire]]:
    """Return the last fires of some schedules, the oldest first."""
    return {name: list(reversed(await calls.list_fires(conn, name, limit=STRIP))) for name in names[:_STRIPS]}


async def fires(conn: Connection, name: str, before: int | None, limit: int) -> list[Fire]:
    return await calls.list_fires(conn, name, before=before, limit=limit)


async def next_runs(conn: Connection, cron: str, timezone: str, limit: int) -> list[datetime]:
    return await calls.next_runs(conn, cron, timezone=timezone, limit=limit)
