"""Map offsets to row ids and back: runs of ids, split so that each part is one scan of the primary key. Pure.

Offsets follow the commit order of transactions, ids their insert order. With one publisher both agree. With many, the
ids of a range of offsets jump back and forth: usually a little, far if a transaction stayed open. Parts with ascending
ids are streamed as they are; the others are read in windows and sorted here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
# Skipping up to this many unrelated rows is cheaper than another index scan.
_NEAR = 256
# Ascending parts shorter than this are not worth a statement each.
_LONG = 5_000


@dataclass(frozen=True)
class IdRuns:
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

    def split(self, rows: int) -> tuple[IdRuns, IdRuns]:
        """Return the first `rows` rows, and the rest."""
        whole = int(np.searchsorted(np.cumsum(self.n), rows, side="right"))
        if whole == len(self.n):
            return self, self.part(whole, whole)
        inside = rows - int(self.n[:whole].sum())
        first, left = self.part(0, whole + (inside > 0)), self.part(whole, len(self.n))
        if inside > 0:
            first, left = replace(first, n=first.n.copy()), IdRuns(left.offset.copy(), left.id.copy(), left.n.copy())
            first.n[-1] = inside
            left.offset[0] += inside
            left.id[0] += inside
            left.n[0] -= inside
        return first, left

    def part(self, start: int, stop: int) -> IdRuns:
        return IdRuns(self.offset[start:stop], self.id[start:stop], self.n[start:stop])

    def spans(self) -> list[tuple[int, int]]:
        """Return half-open spans of ids that cover all runs, in ascending order."""
        order = np.argsort(self.id, kind="stable")
        first, end = self.id[order], (self.id + self.n)[order]
        breaks = np.flatnonzero(first[1:] - end[:-1] > _NEAR) + 1
        starts = np.concatenate(([0], breaks))
        stops = np.concatenate((breaks, [len(first)])) - 1
        return [(int(lo), int(hi)) for lo, hi in zip(first[starts], end[stops], strict=True)]

    def offsets_of(self, ids: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Return the offset of each id, and a mask of the ids that belong to these runs."""
        order = np.argsort(self.id, kind="stable")
        first, n, offset = self.id[order], self.n[order], self.offset[order]
        place = np.searchsorted(first, ids, side="right") - 1
        inside = np.maximum(place, 0)
        distance = ids - first[inside]
        return offset[inside] + distance, (place >= 0) & (distance < n[inside])


def as_runs(offset: Any, id: Any, n: Any) -> IdRuns:
    return IdRuns(np.asarray(offset, np.int64), np.asarray(id, np.int64), np.asarray(n, np.int64))


def ascending(runs: IdRuns) -> list[IdRuns]:
    """Split the runs into parts with ascending ids and no large gap; empty if the parts would be too small."""
    if len(runs.id) == 0:
        return []
    end = runs.id + runs.n
    hole = runs.id[1:] - end[:-1]
    breaks = np.flatnonzero((hole < 0) | (hole > _NEAR)) + 1
    if len(breaks) > runs.rows // _LONG:
        return []
    edges = [0, *breaks.tolist(), len(runs.id)]
    return [runs.part(start, stop) for start, stop in pairwise(edges)]
