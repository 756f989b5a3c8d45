"""Reads of the pages of pipelines and archives."""

from __future__ import annotations

import msgspec

from trunkline.db.calls import pipelines as calls
from trunkline.db.calls.archive import ArchiveStats
from trunkline.db.calls.list_records import Progress, SinkVersion
from trunkline.db.calls.spark import Pipeline
from trunkline.db.pool import Connection

LIST = "pipeline list"
ARCHIVES = "archives"
_COMMITS = 20


async def all_pipelines(conn: Connection) -> list[Pipeline]:
    return await calls.list_pipelines(conn)


async def archives(conn: Connection) -> list[ArchiveStats]:
    return await calls.archive_stats(conn)


async def progress(conn: Connection, name: str, before: int | None, limit: int) -> list[Progress]:
    return await calls.list_progress(conn, name, before=before, limit=limit)


class Commits(msgspec.Struct, frozen=True):
    """The versions that a writer has published."""

    writer: str
    versions: list[SinkVersion]


async def commits(conn: Connection, writers: tuple[str, ...]) -> list[Commits]:
    """Return the newest versions of each writer that published any."""
    found = [Commits(writer, await calls.list_commits(conn, writer, limit=_COMMITS)) for writer in writers]
    return [each for each in found if each.versions]
