"""Typed calls that list pipelines, their progress and archives, for the HTTP service and the command line."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from trunkline.db.calls.archive import ArchiveFile, ArchiveStats
from trunkline.db.calls.list_records import Progress, SinkVersion
from trunkline.db.calls.spark import Pipeline
from trunkline.db.pool import Connection
from trunkline.db.query import fetch_records

QUERY = ":query"
"""Suffix of the name under which a pipeline's streaming query reports."""


async def list_pipelines(conn: Connection) -> list[Pipeline]:
    return await fetch_records(conn, Pipeline, "select * from trunkline.list_pipelines()")


async def list_progress(conn: Connection, name: str, *, before: int | None = None, limit: int = 100) -> list[Progress]:
    query = "select * from trunkline.list_progress(%b, %b::bigint, %b::int)"
    return await fetch_records(conn, Progress, query, (name, before, limit))


async def list_commits(conn: Connection, writer: str, *, before: int | None = None, limit: int = 100) -> list[SinkVersion]:
    query = "select * from trunkline.list_commits(%b, %b::bigint, %b::int)"
    return await fetch_records(conn, SinkVersion, query, (writer, before, limit))


async def archive_stats(conn: Connection, topic: str | None = None) -> list[ArchiveStats]:
    return await fetch_records(conn, ArchiveStats, "select * from trunkline.archive_stats(%b::text)", (topic,))


async def list_archive_files(conn: Connection, topic: str) -> list[ArchiveFile]:
    return await fetch_records(conn, ArchiveFile, "select * from trunkline.list_archive_files(%b)", (topic,))


def merge_queries(rows: Sequence[Pipeline]) -> list[Pipeline]:
    """Return pipelines, each with the rate and lag of its streaming query instead of a second row."""
    found = {each.name: each for each in rows}
    queries = {name: query for name in found if (query := found.get(name + QUERY)) is not None}
    return [
        each
        if (query := queries.get(each.name)) is None
        else replace(each, rows_per_second=query.rows_per_second, lag=query.lag)
        for each in found.values()
        if each.name.removesuffix(QUERY) not in queries or not each.name.endswith(QUERY)
    ]
