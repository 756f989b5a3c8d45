"""Typed calls of `sql/functions/archive.sql`. Synchronous, for the Spark driver and its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg.rows import tuple_row

from trunkline.db.calls.spark import sequence
from trunkline.db.sync.query import fetch_records
from trunkline.errors import from_psycopg

S = TypeVar("S")
Connection = psycopg.Connection[Any]


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's archive: its location, and whether retention waits for it."""

    topic_id: int
    location: str | None
    required: bool
    created_at: datetime


class ArchiveRange(msgspec.Struct, frozen=True):
    """A range of offsets of a partition, both ends inclusive."""

    partition: int
    first_offset: int
    last_offset: int


class NewFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was written and verified, to be added to the archive."""

    partition: int
    first_offset: int
    last_offset: int
    path: str
    bytes: int
    min_created_at: datetime
    max_created_at: datetime
    checksum: str

    @property
    def rows(self) -> int:
        return self.last_offset - self.first_offset + 1


class ArchiveFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the archive."""

    topic: str
    topic_id: int
    partition: int
    first_offset: int
    last_offset: int
    rows: int
    bytes: int
    min_created_at: datetime
    max_created_at: datetime
    location: str
    path: str
    checksum: str
    archived_at: datetime


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """The tier of a run of offsets: `archive` (with its file), `live` or `gone`."""

    tier: str
    first_offset: int
    last_offset: int
    location: str | None = None
    path: str | None = None
    file_first: int | None = None
    file_last: int | None = None
    bytes: int | None = None
    checksum: str | None = None


class ArchiveStats(msgspec.Struct, frozen=True, kw_only=True):
    """The archived and live offsets of a partition."""

    topic: str
    partition: int
    location: str | None
    required: bool
    earliest_archived: int | None
    archived_upto: int
    earliest_live: int
    head: int
    files: int
    rows: int
    bytes: int


def require_archive(conn: Connection, topic: str, *, required: bool = True) -> Archive:
    """Set whether the topic's retention waits for its archive."""
    return fetch_records(conn, Archive, "select * from trunkline.require_archive(%b, %b)", (topic, required))[0]


def ensure_archive(conn: Connection, topic: str, location: str) -> Archive:
    return fetch_records(conn, Archive, "select * from trunkline.ensure_archive(%b, %b)", (topic, location))[0]


def move_archive(conn: Connection, topic: str, location: str) -> Archive:
    return fetch_records(conn, Archive, "select * from trunkline.move_archive(%b, %b)", (topic, location))[0]


def lock_archive(conn: Connection, topic: str) -> bool:
    """Try to lock the topic's archive until the transaction ends. Return whether that succeeded."""
    row = psycopg.Cursor(conn, row_factory=tuple_row).execute(b"select trunkline.lock_archive(%b)", (topic,)).fetchone()
    return bool(row and row[0])


def plan_archive(conn: Connection, topic: str, *, rows: int, open: bool) -> list[ArchiveRange]:
    """Return the next ranges to archive, by partition and offset. `open`: include all committed messages."""
    if open:
        sequence(conn, [topic])
    return fetch_records(conn, ArchiveRange, "select * from trunkline.plan_archive(%b, %b::int, %b)", (topic, rows, open))


def add_archive_files(conn: Connection, topic: str, files: Sequence[NewFile], *, topic_id: int | None = None) -> int:
    """Add files to the archive, all or none. Each must continue the archived range of its partition.

    `topic_id` is the topic they were read from.
    """
    columns = [[getattr(file, name) for file in files] for name in NewFile.__struct_fields__]
    query = (
        b"select trunkline.add_archive_files(%b, %b::int[], %b::bigint[], %b::bigint[], %b::text[], %b::bigint[],"
        b" %b::timestamptz[], %b::timestamptz[], %b::text[], %b::int)"
    )
    row = psycopg.Cursor(conn, row_factory=tuple_row).execute(query, (topic, *columns, topic_id)).fetchone()
    return int(row[0]) if row else 0


def archive_tiers(
    conn: Connection,
    topic: str,
    partition: int,
    first: int,
    last: int,
    *,
    prefer: str = "archive",
    topic_id: int | None = None,
) -> list[Tier]:
    """Return the tiers of offsets `first` to `last`, in order. `prefer` decides for offsets that are in both tiers.

    Raises TL006 if the topic of this name does not have the id `topic_id`.
    """
    query = "select * from trunkline.archive_tiers(%b, %b::int, %b::bigint, %b::bigint, %b, %b::int)"
    return fetch_records(conn, Tier, query, (topic, partition, first, last, prefer, topic_id))


def list_archive_files(conn: Connection, topic: str | None = None) -> list[ArchiveFile]:
    return fetch_records(conn, ArchiveFile, "select * from trunkline.list_archive_files(%b)", (topic,))


def archive_stats(conn: Connection, topic: str | None = None) -> list[ArchiveStats]:
    return fetch_records(conn, ArchiveStats, "select * from trunkline.archive_stats(%b)", (topic,))


def keep_plan(conn: Connection, name: str, plan: dict[str, Any]) -> dict[str, Any]:
    """Store the plan of a pipeline under its name unless there is one. Return the stored plan."""
    query = b"select trunkline.keep_plan(%b, %b::text::jsonb)::text"
    text = msgspec.json.encode(plan).decode()
    row = psycopg.Cursor(conn, row_factory=tuple_row).execute(query, (name, text)).fetchone()
    stored: dict[str, Any] = msgspec.json.decode(row[0]) if row else {}
    return stored


def archived_topics(url: str) -> set[str]:
    """Return the topics that have archived files, or an empty set if this role may not read archives."""
    try:
        with psycopg.connect(url, autocommit=True) as conn:
            return {row.topic for row in archive_stats(conn) if row.files}
    except psycopg.errors.InsufficientPrivilege:
        return set()
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc
