"""The state of the database for health checks and metrics."""

from __future__ import annotations

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
