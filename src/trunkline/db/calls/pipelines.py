"""Typed calls that list pipelines, their progress and archives, for the HTTP service and the command line."""

from __future__ import annotations

from trunkline.db.calls.archive import ArchiveFile, ArchiveStats
from trunkline.db.calls.list_records import SinkVersion, Progress
from trunkline.db.calls.spark import Pipeline
from trunkline.db.pool import Connection
from trunkline.db.query import fetch_records


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
