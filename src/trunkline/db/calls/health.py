"""The state of the database for health checks and metrics."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from trunkline.db.pool import Connection
from trunkline.db.query import fetch_rows


class Ages(NamedTuple):
    """Ages in seconds of the oldest transaction that holds back vacuum and the oldest gap that blocks sequencing."""

    transaction: float
    unsequenced: float


async def ages(conn: Connection) -> Ages:
    rows = await fetch_rows(conn, "select * from trunkline._ages()")
    return Ages(*rows[0])


class UpkeepTask(NamedTuple):
    """An upkeep task: its state, and seconds since its last run (None: never; negative: the clock was set back)."""

    task: str
    state: str
    age: float | None


async def upkeep_tasks(conn: Connection) -> list[UpkeepTask]:
    rows = await fetch_rows(conn, "select task, state, age_seconds from trunkline.upkeep_stats()")
    return [UpkeepTask(*row) for row in rows]


class PipelineLag(NamedTuple):
    """A Spark pipeline or streaming query: its state, messages it has yet to read, and seconds since it last reported."""

    name: str
    state: str
    lag: int | None
    age: float


async def pipeline_lags(conn: Connection, limit: int) -> list[PipelineLag]:
    """Return the pipelines that reported most recently."""
    query = (
        "select name, state, lag, extract(epoch from trunkline.clock() - updated_at)::float8"
        " from trunkline.list_pipelines() limit %b"
    )
    return [PipelineLag(*row) for row in await fetch_rows(conn, query, (limit,))]


async def is_installed(conn: Connection) -> bool:
    """Return whether the database responds and has the schema."""
    return int((await fetch_rows(conn, "select count(*) from trunkline.migrations"))[0][0]) > 0


async def read_schema(conn: Connection) -> None:
    """Read one row of the schema. Raises if the schema is not installed."""
    await conn.execute("select 1 from trunkline.migrations limit 1")


async def is_durable(conn: Connection) -> bool:
    """Return whether a crash of the server cannot lose what was committed."""
    query = (
        "select bool_and(setting <> 'off') from pg_catalog.pg_settings"
        " where name in ('fsync', 'full_page_writes', 'synchronous_commit')"
    )
    return bool((await fetch_rows(conn, query))[0][0])


class Minute(NamedTuple):
    """Totals of one minute: messages per second published and settled, waits in seconds, dead letters in all."""

    at: datetime
    published: float | None
    acked: float | None
    wait_p50: float | None
    wait_p99: float | None
    ready: int
    dead: int


async def minutes(conn: Connection, since: timedelta, step: timedelta) -> list[Minute]:
    """Return totals over all topics and queues per step, from the rollups."""
    return [Minute(*row) for row in await fetch_rows(conn, "select * from trunkline._total_rollups(%b, %b)", (since, step))]


async def topic_rates(conn: Connection, since: timedelta, step: timedelta) -> list[tuple[str, datetime, float | None]]:
    """Return topic, time and messages per second of all topics per step, from the rollups."""
    query = "select topic, at, published_per_second from trunkline._topic_rates(%b, %b)"
    return [(topic, at, rate) for topic, at, rate in await fetch_rows(conn, query, (since, step))]
