"""Ranges of offsets, and their division into tasks. Pure: equal positions and options give equal tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Starting a task costs as much as reading 10,000 rows, so small ranges share one. Large tasks delay the end of the job.
SMALL_TASK = 50_000
LARGE_TASK = 250_000


@dataclass(frozen=True)
class Head:
    """A partition of a topic: the earliest available offset (base) and the next offset to be assigned (head)."""

    topic: str
    topic_id: int
    partition: int
    base: int
    head: int


@dataclass(frozen=True)
class OffsetRange:
    """Offsets lo <= offset < hi of one partition."""

    topic: str
    topic_id: int
    partition: int
    lo: int
    hi: int

    def __len__(self) -> int:
        return max(0, self.hi - self.lo)

    def between(self, lo: int, hi: int) -> OffsetRange:
        return OffsetRange(self.topic, self.topic_id, self.partition, lo, hi)


def tasks(
    ranges: Sequence[OffsetRange], *, min_tasks: int | None = None, max_rows: int | None = None, max_tasks: int | None = None
) -> list[tuple[OffsetRange, ...]]:
    """Return the ranges of each task: large ranges are split evenly, small ones share a task.

    Tasks keep the order of the ranges. Spark returns rows in task order and a sink publishes them in that order, so any
    other order would reorder the messages of a key.
    """
    total = sum(len(range_) for range_ in ranges)
    if total == 0:
        return []
    largest = max_rows or LARGE_TASK
    smallest = SMALL_TASK
    if min_tasks is not None:
        # Rounded down: larger tasks could give fewer tasks than requested.
        share = max(1, total // min_tasks)
        smallest, largest = min(smallest, share), min(largest, share)
    bundles = _bundled([piece for range_ in ranges for piece in _cut(range_, largest)], smallest)
    if max_tasks is None or len(bundles) <= max_tasks:
        return bundles
    return [tuple(piece for part in parts for piece in _cut(part, largest)) for parts in _even(ranges, total, max_tasks)]


def _cut(range_: OffsetRange, largest: int) -> Iterable[OffsetRange]:
    """Split a range into pieces of nearly equal size, none larger than `largest`."""
    rows = len(range_)
    count = -(-rows // largest)
    for number in range(count):
        yield range_.between(range_.lo + rows * number // count, range_.lo + rows * (number + 1) // count)


def _bundled(pieces: Iterable[OffsetRange], smallest: int) -> list[tuple[OffsetRange, ...]]:
    """Bundle consecutive pieces up to the size that justifies a task."""
    bundles: list[tuple[OffsetRange, ...]] = []
    bundle: list[OffsetRange] = []
    rows = 0
    for piece in pieces:
        if bundle and rows + len(piece) > smallest:
            bundles.append(tuple(bundle))
            bundle, rows = [], 0
        bundle.append(piece)
        rows += len(piece)
    if bundle:
        bundles.append(tuple(bundle))
    return bundles


def _even(ranges: Sequence[OffsetRange], total: int, count: int) -> list[list[OffsetRange]]:
    """Divide the ranges, in order, into `count` consecutive parts of nearly equal size."""
    parts: list[list[OffsetRange]] = [[] for _ in range(count)]
    begin = 0
    for range_ in ranges:
        for number, part in enumerate(parts):
            lo = max(range_.lo, range_.lo + total * number // count - begin)
            hi = min(range_.hi, range_.lo + total * (number + 1) // count - begin)
            if lo < hi:
                part.append(range_.between(lo, hi))
        begin += len(range_)
    return parts
