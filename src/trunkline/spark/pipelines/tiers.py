"""The tiered log: what of a topic lies in files, and reading it as if it were in the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa

from trunkline.db import archive
from trunkline.errors import from_psycopg
from trunkline.spark.connections import plain
from trunkline.spark.pipelines import files
from trunkline.spark.ranges import Range


@dataclass(frozen=True)
class Piece:
    """A file: offsets `lo` <= offset < `hi` of a partition. `path` is its path in the location."""

    topic: str
    topic_id: int
    partition: int
    lo: int
    hi: int
    location: str
    path: str
    bytes: int


def archived(url: str, topics: Sequence[str]) -> list[Piece]:
    """The files of these topics, by topic, partition and offset. They never overlap; the log may have the same offsets."""
    with _asking(url) as conn:
        listed = [file for topic in topics for file in archive.list_archive_files(conn, topic)]
    return [
        Piece(f.topic, f.topic_id, f.partition, f.first_offset, f.last_offset + 1, f.location, f.path, f.bytes)
        for f in listed
    ]


def archived_of(url: str, range_: Range) -> list[Piece]:
    """The files that have offsets of this range, in order. However large the archive is, only these are asked for."""
    found = []
    for tier in tiers_of(url, range_):
        if tier.tier == "archive":
            lo, hi = int(tier.file_first or 0), int(tier.file_last or 0) + 1
            where = str(tier.location), str(tier.path), int(tier.bytes or 0)
            found.append(Piece(range_.topic, range_.topic_id, range_.partition, lo, hi, *where))
    return found


def tiers_of(url: str, range_: Range) -> list[archive.Tier]:
    """Where the offsets of this range are. `OffsetOutOfRange` if its topic was deleted and created again."""
    with _asking(url) as conn:
        return archive.archive_tiers(
            conn, range_.topic, range_.partition, range_.lo, range_.hi - 1, topic_id=range_.topic_id
        )


@contextmanager
def _asking(url: str) -> Iterator[psycopg.Connection[Any]]:
    try:
        with plain(url) as conn:
            yield conn
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc


def read_piece(piece: Piece, lo: int, hi: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Offsets `lo` <= offset < `hi` of a file, in order, with the columns and types of `read_range`; or `ArchiveDamaged`."""
    return files.read(piece.location, piece.path, piece.lo, lo, hi, columns, size=piece.bytes)
