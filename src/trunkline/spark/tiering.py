"""One log in two places: files of the archive and the database. A read goes over the border without a gap or an overlap.

An offset is read in one place only, and offsets are the same in both; so a read may change the place at any offset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from trunkline.errors import OffsetOutOfRange
from trunkline.spark.columns import Shape, selected, selection_columns
from trunkline.spark.options import Selection
from trunkline.spark.ranges import Head, Range
from trunkline.spark.reading import heads as live_heads
from trunkline.spark.reading import read_range

if TYPE_CHECKING:
    from trunkline.spark.pipelines.tiers import Piece

_log = logging.getLogger(__name__)


def tiered_heads(url: str, topics: Sequence[str], tier: str) -> list[Head]:
    """Heads whose lowest offset counts the archive; with `archive` only what lies there."""
    live = live_heads(url, topics)
    if tier == "live":
        return live
    pieces = _pieces(url, topics)
    return [_with_archive(head, pieces.get((head.topic, head.partition), []), tier) for head in live]


def _pieces(url: str, topics: Sequence[str]) -> dict[tuple[str, int], list[Piece]]:
    from trunkline.spark.pipelines import tiers

    found: dict[tuple[str, int], list[Piece]] = {}
    for piece in tiers.archived(url, topics):
        found.setdefault((piece.topic, piece.partition), []).append(piece)
    return found


def _with_archive(head: Head, pieces: list[Piece], tier: str) -> Head:
    """The archive counts as far as it joins up: with itself, and with the log."""
    base, end = head.base, pieces[-1].hi if pieces else head.base
    if tier == "archive":
        base = end
    elif end < head.base:
        return head
    for piece in reversed(pieces):
        if piece.hi < base:
            break
        base = min(base, piece.lo)
    return Head(head.topic, head.topic_id, head.partition, base, end if tier == "archive" else head.head)


@dataclass(frozen=True)
class Reading:
    """How tasks read: what they need besides the range."""

    shape: Shape
    tier: str
    fail_on_data_loss: bool
    selection: Selection | None


def read(url: str, range_: Range, how: Reading) -> Iterator[pa.RecordBatch]:
    """The range in the shape that is wanted, from the archive where it has it and from the log otherwise."""
    pieces = _pieces_of(url, range_, how)
    at = range_.lo
    while at < range_.hi:
        piece = _piece_at(pieces, at)
        border = piece.hi if piece is not None else min((other.lo for other in pieces if other.lo > at), default=range_.hi)
        part = range_.between(at, min(border, range_.hi))
        if piece is not None:
            yield from _from_archive(piece, part, how)
            at = part.hi
            continue
        try:
            for batch in _from_log(url, part, how):
                at = batch.column("offset")[-1].as_py() + 1
                yield how.shape.made(batch, part)
            at = part.hi
        except OffsetOutOfRange as exc:
            # A selection does not show where a hole was: then only a read that has not begun can go on.
            if at > part.lo and how.selection:
                raise
            pieces = _pieces_of(url, range_, how)
            if _piece_at(pieces, at) is None:
                at = _passed_over(url, part.between(at, part.hi), how, exc)


def _pieces_of(url: str, range_: Range, how: Reading) -> list[Piece]:
    from trunkline.spark.pipelines import tiers

    return [] if how.tier == "live" else tiers.archived_of(url, range_)


def _piece_at(pieces: list[Piece], offset: int) -> Piece | None:
    return next((piece for piece in pieces if piece.lo <= offset < piece.hi), None)


def _passed_over(url: str, part: Range, how: Reading, exc: OffsetOutOfRange) -> int:
    """Where to go on behind what retention took, if that is allowed; the warning says what is passed over."""
    lowest = next(head.base for head in live_heads(url, [part.topic]) if head.partition == part.partition)
    if how.fail_on_data_loss or lowest <= part.lo:
        raise exc
    _log.warning("offsets %s to %s are passed over: %s", part.lo, min(lowest, part.hi) - 1, exc)
    return lowest


def _from_archive(piece: Piece, part: Range, how: Reading) -> Iterator[pa.RecordBatch]:
    from trunkline.spark.pipelines import tiers

    asked = [*how.shape.asked, *(name for name in selection_columns(how.selection) if name not in how.shape.asked)]
    for batch in tiers.read_piece(piece, part.lo, part.hi, asked):
        yield how.shape.made(selected(batch, how.selection), part)


def _from_log(url: str, part: Range, how: Reading) -> Iterator[pa.RecordBatch]:
    asked = how.shape.asked
    columns = asked if "offset" in asked else [*asked, "offset"]
    return (batch for batch in read_range(url, part, columns, selection=how.selection) if batch.num_rows)
