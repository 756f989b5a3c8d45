"""Tiered reads: archive files and the live log as one log, without gaps or overlaps.

Offsets are the same in both tiers and each is read from one tier only, so a read can switch tiers at any offset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from trunkline.errors import ArchiveDamaged, InvalidArgument, OffsetOutOfRange, TrunklineError
from trunkline.spark.options import Selection
from trunkline.spark.source import loss
from trunkline.spark.source.columns import Shape, selected, selection_columns
from trunkline.spark.source.log_reader import heads as live_heads
from trunkline.spark.source.log_reader import read_range
from trunkline.spark.source.ranges import Head, OffsetRange

if TYPE_CHECKING:
    from trunkline.spark.archive.catalog import ArchivedRange

_log = logging.getLogger(__name__)


def heads(url: str, topics: Sequence[str], tier: str) -> list[Head]:
    """Return the heads of these topics in the live log; with tier `archive`, in the archive."""
    log = live_heads(url, topics)
    return with_archive(url, log, tier) if tier == "archive" else log


def with_archive(url: str, log: Sequence[Head], tier: str) -> list[Head]:
    """Return heads whose base is the earliest readable offset. With tier `archive`, they also end with the archive."""
    if tier == "live" or not log:
        return list(log)
    pieces = _pieces(url, sorted({head.topic for head in log}))
    result = []
    for head in log:
        own = pieces.get((head.topic_id, head.partition), [])
        if tier == "archive":
            base, end = (own[0].lo, own[-1].hi) if own else (head.base, head.base)
        else:
            base, end = min([head.base, *(piece.lo for piece in own[:1])]), head.head
        result.append(Head(head.topic, head.topic_id, head.partition, base, end))
    return result


def _pieces(url: str, topics: Sequence[str]) -> dict[tuple[int, int], list[ArchivedRange]]:
    from trunkline.spark.archive import catalog

    pieces: dict[tuple[int, int], list[ArchivedRange]] = {}
    for piece in catalog.archived(url, topics):
        pieces.setdefault((piece.topic_id, piece.partition), []).append(piece)
    return pieces


def stored(url: str, range_: OffsetRange, tier: str) -> list[OffsetRange] | None:
    """Return the parts of a range that can be read now; None if its topic was recreated."""
    if tier == "live":
        head = next((head for head in live_heads(url, [range_.topic]) if head.partition == range_.partition), None)
        if head is None or head.topic_id != range_.topic_id:
            return None
        return [range_.between(max(range_.lo, head.base), range_.hi)] if head.base < range_.hi else []
    from trunkline.spark.archive import catalog

    try:
        tiers = catalog.tiers_of(url, range_)
    except OffsetOutOfRange:
        return None
    wanted = ("archive",) if tier == "archive" else ("archive", "live")
    return [range_.between(each.first_offset, each.last_offset + 1) for each in tiers if each.tier in wanted]


def first_readable(url: str, range_: OffsetRange, tier: str) -> int:
    """Return the first readable offset of a range; its end if there is none."""
    if range_.lo >= range_.hi:
        return range_.hi
    # Try the first offset alone: it is rarely missing, and an archive may have many files.
    for part in (range_.between(range_.lo, range_.lo + 1), range_):
        if found := stored(url, part, tier):
            return found[0].lo
    return range_.hi


@dataclass(frozen=True)
class Reading:
    """Read settings that tasks need besides the range."""

    shape: Shape
    tier: str
    fail_on_data_loss: bool
    selection: Selection | None


def read(url: str, range_: OffsetRange, how: Reading) -> Iterator[pa.RecordBatch]:
    """Yield a range in the requested shape, from the archive where it has the offsets, else from the log.

    If the archive cannot be read, fall back to the log for the offsets that it still has.
    """
    at = range_.lo
    pieces: list[ArchivedRange] | None = None
    failure: TrunklineError | None = None
    while at < range_.hi:
        part = range_.between(at, range_.hi)
        try:
            if pieces is None:
                pieces = _pieces_of(url, part, how)
            piece = _piece_at(pieces, at)
            if piece is not None:
                part = part.between(at, min(piece.hi, part.hi))
                batches = _from_archive(piece, part, how)
                try:
                    first = next(batches, None)
                except (ArchiveDamaged, InvalidArgument) as exc:
                    if how.tier == "archive":
                        raise
                    _log.warning("archive cannot be read, reading the log instead: %s", exc)
                    failure, pieces = exc, []
                    continue
                if first is not None:
                    yield first
                    yield from batches
            else:
                part = part.between(at, min([part.hi, *(other.lo for other in pieces if other.lo > at)]))
                for batch in _from_log(url, part, how):
                    at = batch.column("offset")[-1].as_py() + 1
                    yield how.shape.made(batch, part)
            at = part.hi
        except OffsetOutOfRange as exc:
            if failure is not None:
                raise failure from exc
            # With a selection the position of a hole is unknown, so only a read that has not begun can continue.
            if at > part.lo and how.selection:
                raise
            at, pieces = _next_readable(url, range_.between(at, range_.hi), how, exc), None


def _next_readable(url: str, rest: OffsetRange, how: Reading, exc: OffsetOutOfRange) -> int:
    """Return where to continue if the first offset of `rest` is missing: in the archive, or after the gap."""
    parts = stored(url, rest, how.tier)
    if parts is None:
        loss.decide([loss.deleted(rest)], fail=how.fail_on_data_loss)
        return rest.hi
    first = parts[0].lo if parts else rest.hi
    if first > rest.lo:
        loss.decide([loss.gone(rest.between(rest.lo, first))], fail=how.fail_on_data_loss)
    elif _piece_at(_pieces_of(url, rest, how), rest.lo) is None:
        # Neither removed nor archived: the log is damaged.
        raise exc
    return first


def _pieces_of(url: str, range_: OffsetRange, how: Reading) -> list[ArchivedRange]:
    from trunkline.spark.archive import catalog

    return [] if how.tier == "live" else catalog.archived_of(url, range_)


def _piece_at(pieces: list[ArchivedRange], offset: int) -> ArchivedRange | None:
    return next((piece for piece in pieces if piece.lo <= offset < piece.hi), None)


def _from_archive(piece: ArchivedRange, part: OffsetRange, how: Reading) -> Iterator[pa.RecordBatch]:
    from trunkline.spark.archive import catalog

    asked = [*how.shape.asked, *(name for name in selection_columns(how.selection) if name not in how.shape.asked)]
    for batch in catalog.read_piece(piece, part.lo, part.hi, asked):
        yield how.shape.made(selected(batch, how.selection), part)


def _from_log(url: str, part: OffsetRange, how: Reading) -> Iterator[pa.RecordBatch]:
    asked = how.shape.asked
    columns = asked if "offset" in asked else [*asked, "offset"]
    return (batch for batch in read_range(url, part, columns, selection=how.selection) if batch.num_rows)
