"""Tiered storage: locate a topic's archived offsets, and read them like the live log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa

from trunkline.db.calls import archive
from trunkline.errors import from_psycopg
from trunkline.spark.archive import files
from trunkline.spark.database import plain
from trunkline.spark.source.ranges import OffsetRange


@dataclass(frozen=True)
class ArchivedRange:
    """An archive file with offsets `lo` <= offset < `hi` of a partition. `path` is relative to the location."""

    topic: str
    topic_id: int
    partition: int
    lo: int
    hi: int
    location: str
    path: str
    bytes: int


def archived(url: str, topics: Sequence[str]) -> list[ArchivedRange]:
    """Return the files of these topics by topic, partition and offset.

    Files never overlap; the log may overlap them.
    """
    with _connection(url) as conn:
        listed = [file for topic in topics for file in archive.list_archive_files(conn, topic)]
    return [
        ArchivedRange(f.topic, f.topic_id, f.partition, f.first_offset, f.last_offset + 1, f.location, f.path, f.bytes)
        for f in listed
    ]


def archived_of(url: str, range_: OffsetRange) -> list[ArchivedRange]:
    """Return the files with offsets of this range, in order.

    Queries only these, so the archive's size does not matter.
    """
    pieces = []
    for tier in tiers_of(url, range_):
        if tier.tier == "archive":
            lo, hi = int(tier.file_first or 0), int(tier.file_last or 0) + 1
            where = str(tier.location), str(tier.path), int(tier.bytes or 0)
            pieces.append(ArchivedRange(range_.topic, range_.topic_id, range_.partition, lo, hi, *where))
    return pieces


def tiers_of(url: str, range_: OffsetRange) -> list[archive.Tier]:
    """Return the tiers of a range's offsets. Raises `OffsetOutOfRange` if the topic was recreated."""
    with _connection(url) as conn:
        return archive.archive_tiers(
            conn, range_.topic, range_.partition, range_.lo, range_.hi - 1, topic_id=range_.topic_id
        )


@contextmanager
def _connection(url: str) -> Iterator[psycopg.Connection[Any]]:
    try:
        with plain(url) as conn:
            yield conn
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc


def read_piece(piece: ArchivedRange, lo: int, hi: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield offsets `lo` <= offset < `hi` of a file, in order, with the columns and types of `read_range`.

    Raises `ArchiveDamaged` if the file is missing or damaged.
    """
    return files.read(piece.location, piece.path, piece.lo, lo, hi, columns, size=piece.bytes)
