"""From offsets to row ids and back: runs of ids, cut so that each part is one cheap walk along the primary key. Pure.

Offsets are given in the order in which transactions commit, ids in the order in which they insert. With one publisher both
are the same; with many, the ids of a range of offsets jump back and forth a little, and now and then a lot (a transaction
that stayed open). So a part that goes up is streamed as it is; one that jumps is read in windows and put in order here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
# Reading over this many rows of others is cheaper than another walk.
_NEAR = 256
# Runs that go up for fewer rows than this are not worth a statement each.
_LONG = 5_000


@dataclass(frozen=True)
class Runs:
    """Run i: offsets offset[i], offset[i] + 1, ... are the rows id[i], id[i] + 1, ..., n[i] of them."""

    offset: Ints
    id: Ints
    n: Ints

    @property
    def rows(self) -> int:
        return int(self.n.sum())

    @property
    def lo(self) -> int:
        return int(self.offset[0])

    @property
    def hi(self) -> int:
        return int(self.offset[-1] + self.n[-1])

    def split(self, rows: int) -> tuple[Runs, Runs]:
        """The first so many rows, and what is left."""
        whole = int(np.searchsorted(np.cumsum(self.n), rows, side="right"))
        if whole == len(self.n):
            return self, self.part(whole, whole)
        inside = rows - int(self.n[:whole].sum())
        first, left = self.part(0, whole + (inside > 0)), self.part(whole, len(self.n))
        if inside > 0:
            first, left = replace(first, n=first.n.copy()), Runs(left.offset.copy(), left.id.copy(), left.n.copy())
            first.n[-1] = inside
            left.offset[0] += inside
            left.id[0] += inside
            left.n[0] -= inside
        return first, left

    def part(self, start: int, stop: int) -> Runs:
        return Runs(self.offset[start:stop], self.id[start:stop], self.n[start:stop])

    def spans(self) -> list[tuple[int, int]]:
        """Half-open spans of ids that cover all runs, by id."""
        order = np.argsort(self.id, kind="stable")
        first, end = self.id[order], (self.id + self.n)[order]
        breaks = np.flatnonzero(first[1:] - end[:-1] > _NEAR) + 1
        starts = np.concatenate(([0], breaks))
        stops = np.concatenate((breaks, [len(first)])) - 1
        return [(int(lo), int(hi)) for lo, hi in zip(first[starts], end[stops], strict=True)]

    def offsets_of(self, ids: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """The offset of each id, and whether it belongs to these runs at all."""
        order = np.argsort(self.id, kind="stable")
        first, n, offset = self.id[order], self.n[order], self.offset[order]
        place = np.searchsorted(first, ids, side="right") - 1
        inside = np.maximum(place, 0)
        distance = ids - first[inside]
        return offset[inside] + distance, (place >= 0) & (distance < n[inside])


def as_runs(offset: Any, id: Any, n: Any) -> Runs:
    return Runs(np.asarray(offset, np.int64), np.asarray(id, np.int64), np.asarray(n, np.int64))


def ascending(runs: Runs) -> list[Runs]:
    """The runs as parts in which ids go up without a large hole; empty if these would be too small to be worth it."""
    if len(runs.id) == 0:
        return []
    end = runs.id + runs.n
    hole = runs.id[1:] - end[:-1]
    breaks = np.flatnonzero((hole < 0) | (hole > _NEAR)) + 1
    if len(breaks) > runs.rows // _LONG:
        return []
    edges = [0, *breaks.tolist(), len(runs.id)]
    return [runs.part(start, stop) for start, stop in pairwise(edges)]
