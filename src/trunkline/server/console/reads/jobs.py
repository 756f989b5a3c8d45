"""Reads of the pages of jobs, kinds, workers and limits."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from trunkline.db.calls import inspection, jobs
from trunkline.db.calls.job_records import JobRow, JobView, LimitRow, WorkerRow
from trunkline.db.pool import Connection
from trunkline.types import SeriesPoint

WORKERS = "workers"
LIMITS = "limits"
KINDS = "kinds"
_SEEN = timedelta(minutes=10)
_HOUR, _STEP = timedelta(hours=1), timedelta(minutes=2)


async def rows(
    conn: Connection, queue: str | None, state: str | None, kind: str | None, after: str | None, limit: int
) -> list[JobRow]:
    return await jobs.list_jobs(conn, queue, state=state, kind=kind, after=after, limit=limit)


async def get(conn: Connection, id: UUID) -> JobView:
    return await jobs.get_job(conn, id)


async def workers(conn: Connection) -> list[WorkerRow]:
    """Return the workers that reported lately; those that are silent for longer than a minute have ended."""
    return await jobs.list_workers(conn, _SEEN)


async def limits(conn: Connection) -> list[LimitRow]:
    return await jobs.list_limits(conn)


async def kinds(conn: Connection) -> list[SeriesPoint]:
    """Return the last hour of each kind of each queue, named queue/kind."""
    return await inspection.rollup_lines(conn, "label", None, since=_HOUR, step=_STEP)
