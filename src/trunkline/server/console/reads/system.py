"""Reads of the page of the system."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from trunkline.db.calls import system as calls
from trunkline.db.calls.list_records import Alert, Finding, SegmentRow, SessionRow, SizeRow, UpkeepTask
from trunkline.db.pool import Connection
from trunkline.doctor import examine

DOCTOR = "doctor"
UPKEEP = "upkeep tasks"
SIZES = "sizes"
SESSIONS = "database sessions"
_OLDER_THAN = timedelta(seconds=10)
_SESSIONS = 50


def doctor(url: str, one_at_a_time: asyncio.Lock) -> Callable[[Connection], Awaitable[list[Finding]]]:
    """Return a read that runs all checks. They open a separate connection."""

    async def read(_: Connection) -> list[Finding]:
        async with one_at_a_time:
            return await asyncio.to_thread(examine, url)

    return read


async def upkeep(conn: Connection) -> list[UpkeepTask]:
    return await calls.upkeep_stats(conn)


async def sessions(conn: Connection) -> list[SessionRow]:
    return await calls.list_sessions(conn, _OLDER_THAN, limit=_SESSIONS)


async def sizes(conn: Connection) -> list[SizeRow]:
    return await calls.list_sizes(conn)


async def alerts(conn: Connection, every: bool, before: int | None, limit: int) -> list[Alert]:
    return await calls.list_alerts(conn, open=not every, before=before, limit=limit)


async def segments(
    conn: Connection, topic: str | None, queue: str | None, after: tuple[int, int] | None, limit: int
) -> list[SegmentRow]:
    return await calls.list_segments(conn, topic=topic, queue=queue, after=after, limit=limit)
