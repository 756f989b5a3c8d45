"""Reads of the overview."""

from __future__ import annotations

from datetime import timedelta

from trunkline.db.calls import health, push
from trunkline.db.calls import stats as calls
from trunkline.db.calls.health import Minute, PipelineLag, UpkeepTask
from trunkline.db.calls.push import EndpointStats
from trunkline.db.pool import Connection
from trunkline.types import Stats

STATS = "stats"
ENDPOINTS = "endpoints"
PIPELINES = "pipelines"
TASKS = "tasks"
_MOST = 500


async def stats(conn: Connection) -> Stats:
    """Topics, groups and queues, shared by the overview, the lists and the live updates."""
    return Stats(await calls.topic_stats(conn), await calls.group_stats(conn), await calls.queue_stats(conn))


async def endpoints(conn: Connection) -> list[EndpointStats]:
    return await push.endpoint_stats(conn, limit=_MOST)


async def pipelines(conn: Connection) -> list[PipelineLag]:
    return await health.pipeline_lags(conn, _MOST)


async def tasks(conn: Connection) -> list[UpkeepTask]:
    return await health.upkeep_tasks(conn)


async def minutes(conn: Connection, since: timedelta, step: timedelta) -> list[Minute]:
    return await health.minutes(conn, since, step)
