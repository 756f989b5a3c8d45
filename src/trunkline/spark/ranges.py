"""Ranges of offsets and how they are cut into tasks. Pure: the same positions and options give the same tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# To start a task costs as much as to read 10,000 rows, so small ranges share one. A large one makes others wait at the end.
SMALL_TASK = 50_000
LARGE_TASK = 250_000


@dataclass(frozen=True)
class Head:
    """A partition of a topic: the lowest offset left in its log, and the next one that will be given."""

    topic: str
    topic_id: int
    partition: int
    base: int
    head: int


@dataclass(frozen=True)
class Range:
    """Offsets lo <= offset < hi of one partition."""

    topic: str
    topic_id: int
    partition: int
    lo: int
    hi: int

    def __len__(self) -> int:
        return max(0, self.hi - self.lo)

    def between(self, lo: int, hi: int) -> Range:
        return Range(self.topic, self.topic_id, self.partition, lo, hi)


def tasks(
    ranges: Sequence[Range], *, min_tasks: int | None = None, max_rows: int | None = None, max_tasks: int | None = None
) -> list[tuple[Range, ...]]:
    """Return the ranges of each task: large ranges are cut evenly, small ones share a task.

    The tasks one after the other are the ranges in their order. Spark's rows are in the order of its tasks, and a sink
    publishes them so; any other order of the pieces would reorder the messages of a key.
    """
    total = sum(len(range_) for range_ in ranges)
    if total == 0:
        return []
    largest = max_rows or LARGE_TASK
    smallest = SMALL_TASK
    if min_tasks is not None:
        # rounded down: were any task larger than this share, there could be fewer tasks than asked
        share = max(1, total // min_tasks)
        smallest, largest = min(smallest, share), min(largest, share)
    bundles = _bundled([piece for range_ in ranges for piece in _cut(range_, largest)], smallest)
    if max_tasks is None or len(bundles) <= max_tasks:
        return bundles
    return [tuple(piece for part in parts for piece in _cut(part, largest)) for parts in _even(ranges, total, max_tasks)]


def _cut(range_: Range, largest: int) -> Iterable[Range]:
    """Pieces of nearly the same size, none larger than asked."""
    rows = len(range_)
    count = -(-rows // largest)
    for number in range(count):
        yield range_.between(range_.lo + rows * number // count, range_.lo + rows * (number + 1) // count)


def _bundled(pieces: Iterable[Range], smallest: int) -> list[tuple[Range, ...]]:
    """Neighbours together until they are worth a task."""
    made: list[tuple[Range, ...]] = []
    bundle: list[Range] = []
    rows = 0
    for piece in pieces:
        if bundle and rows + len(piece) > smallest:
            made.append(tuple(bundle))
            bundle, rows = [], 0
        bundle.append(piece)
        rows += len(piece)
    if bundle:
        made.append(tuple(bundle))
    return made


def _even(ranges: Sequence[Range], total: int, count: int) -> list[list[Range]]:
    """Cut the ranges, one after the other, into this many consecutive parts of nearly the same size."""
    parts: list[list[Range]] = [[] for _ in range(count)]
    begin = 0
    for range_ in ranges:
        for number, part in enumerate(parts):
            lo = max(range_.lo, range_.lo + total * number // count - begin)
            hi = min(range_.hi, range_.lo + total * (number + 1) // count - begin)
            if lo < hi:
                part.append(range_.between(lo, hi))
        begin += len(range_)
    return parts
