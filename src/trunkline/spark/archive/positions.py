"""Resolve the positions given to a pipeline to one range of offsets per partition, in log or archive."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime

import psycopg

from trunkline.db.calls import archive
from trunkline.db.sync import calls
from trunkline.errors import InvalidArgument, OffsetAhead, OffsetOutOfRange
from trunkline.spark.source.log_reader import heads

Position = str | int | datetime
"""A position: `earliest` (the start of the archive), `latest`, an offset, or a time."""

Spans = dict[int, tuple[int, int]]
"""By partition: lo <= offset < hi."""


def spans(url: str, topic: str, start: Position = "earliest", end: Position = "latest", *, readable: bool = True) -> Spans:
    """Return the offsets from `start` to `end` (exclusive) by partition, archive included.

    Raises `OffsetOutOfRange` for an offset below the archive. With `readable`, also if an offset is neither in the log
    nor in the archive.
    """
    if isinstance(start, int) and isinstance(end, int) and start > end:
        raise InvalidArgument(f"start {start} is after end {end}", hint="Swap start and end.")
    with psycopg.connect(url, autocommit=True) as conn:
        listed = archive.list_archive_files(conn, topic)
        result: Spans = {}
        partitions = heads(url, [topic])
        if isinstance(start, int) and all(start > head.head for head in partitions):
            raise OffsetAhead(
                f"offset {start} is beyond the end of every partition of topic {topic!r}", hint="Use an earlier position."
            )
        for head in partitions:
            pieces = [file for file in listed if file.partition == head.partition]
            lo = _offset(conn, topic, head.partition, start, pieces, head.base, head.head)
            hi = _offset(conn, topic, head.partition, end, pieces, head.base, head.head)
            if readable:
                _check_readable(conn, topic, head.topic_id, head.partition, lo, hi)
            result[head.partition] = (lo, max(lo, hi))
    return result


def _offset(
    conn: psycopg.Connection[tuple[object, ...]],
    topic: str,
    partition: int,
    position: Position,
    pieces: list[archive.ArchiveFile],
    base: int,
    head: int,
) -> int:
    lowest = min([base, *(piece.first_offset for piece in pieces)])
    match position:
        case "earliest":
            return lowest
        case "latest":
            return head
        case datetime():
            for piece in pieces:
                if piece.first_offset < base and piece.max_created_at >= position:
                    return piece.first_offset if piece.min_created_at >= position else _inside(piece, position)
            return calls.offset_at(conn, topic, partition, position)
        case int():
            if position < lowest:
                raise OffsetOutOfRange(
                    f"offset {position} of partition {partition} of topic {topic!r} is below the earliest available offset,"
                    f" {lowest}",
                    hint=f"Start at {lowest}.",
                )
            # Partitions differ in length.
            return min(position, head)
    raise InvalidArgument(f"position must be earliest, latest, an offset or a time, got {position!r}")


def _inside(piece: archive.ArchiveFile, at: datetime) -> int:
    """Return the first offset in a file whose message was created at this time or later."""
    import pyarrow.compute as pc

    from trunkline.spark.archive import files

    batches = files.read(
        piece.location,
        piece.path,
        piece.first_offset,
        piece.first_offset,
        piece.last_offset + 1,
        ["offset", "created_at"],
        size=piece.bytes,
    )
    for batch in batches:
        later = batch.filter(pc.greater_equal(batch.column("created_at"), at))
        if later.num_rows:
            return int(later.column("offset")[0].as_py())
    return piece.last_offset + 1


def _check_readable(
    conn: psycopg.Connection[tuple[object, ...]], topic: str, topic_id: int, partition: int, lo: int, hi: int
) -> None:
    if lo >= hi:
        return
    for tier in archive.archive_tiers(conn, topic, partition, lo, hi - 1, topic_id=topic_id):
        if tier.tier == "gone":
            raise OffsetOutOfRange(
                f"offsets {tier.first_offset} to {tier.last_offset} of partition {partition} of topic {topic!r} are gone",
                hint=f"Start at {tier.last_offset + 1}: retention removed them before they were archived.",
            )


def digest(spans: Spans) -> str:
    """Return a short name for these ranges, however many partitions there are."""
    return hashlib.sha256(repr(sorted(spans.items())).encode()).hexdigest()[:32]


def count(spans: Mapping[int, tuple[int, int]]) -> int:
    return sum(hi - lo for lo, hi in spans.values())


def chunks(spans: Mapping[int, tuple[int, int]], rows: int) -> Iterator[Spans]:
    """Divide the ranges into parts of about `rows` rows at most, each with a share of every partition.

    Deterministic.
    """
    total = count(spans)
    parts = max(1, -(-total // rows))
    for part in range(parts):
        piece = {
            partition: (lo + (hi - lo) * part // parts, lo + (hi - lo) * (part + 1) // parts)
            for partition, (lo, hi) in spans.items()
        }
        if count(piece):
            yield piece
