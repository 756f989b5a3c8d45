"""Reads of the overview."""

from __future__ import annotations

from datetime import timedelta

from trunkline.db.calls import health, inspection, push
from trunkline.db.calls import stats as calls
from trunkline.db.calls.health import Minute
from trunkline.db.calls.push import EndpointStats
from trunkline.db.pool import Connection
from trunkline.types import Attention, Stats

STATS = "stats"
ENDPOINTS = "endpoints"
ATTENTION = "attention"
QUEUE_LINES, GROUP_LINES = "queue lines", "group lines"
_MOST = 500
_SINCE, _STEP = timedelta(hours=1), timedelta(minutes=2)


async def stats(conn: Connection) -> Stats:
    """Topics, groups and queues, shared by the overview, the lists and the live updates."""
    return Stats(await calls.topic_stats(conn), await calls.group_stats(conn), await calls.queue_stats(conn))


async def endpoints(conn: Connection) -> list[EndpointStats]:
    return await push.endpoint_stats(conn, limit=_MOST)


async def attention(conn: Connection) -> list[Attention]:
    """Return the rows for what needs attention, first what loses data."""
    return await inspection.attention(conn)


async def queue_lines(conn: Connection) -> dict[str, list[float | None]]:
    """Return the ready messages of the last hour by queue."""
    return await _lines(conn, "queue")


async def group_lines(conn: Connection) -> dict[str, list[float | None]]:
    """Return the messages that groups were behind in the last hour, by "topic/group"."""
    return await _lines(conn, "group")


async def _lines(conn: Connection, kind: str) -> dict[str, list[float | None]]:
    found: dict[str, list[float | None]] = {}
    for point in await inspection.rollup_lines(conn, kind, None, since=_SINCE, step=_STEP):
        found.setdefault(point.name, []).append(point.lag)
    return found


async def minutes(conn: Connection, since: timedelta, step: timedelta) -> list[Minute]:
    return await health.minutes(conn, since, step)
