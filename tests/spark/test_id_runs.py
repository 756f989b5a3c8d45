"""From offsets to ids and back, on made-up logs."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trunkline.spark.source.id_runs import IdRuns, as_runs, ascending


def made(ids: list[int], first: int = 1) -> IdRuns:
    """Runs of the ids that offsets first, first + 1, ... have."""
    offset, id_, n = [], [], []  # type: ignore[var-annotated]
    for number, row in enumerate(ids):
        if id_ and id_[-1] + n[-1] == row:
            n[-1] += 1
        else:
            offset.append(first + number)
            id_.append(row)
            n.append(1)
    return as_runs(offset, id_, n)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=300, unique=True), st.integers(1, 50))
def test_every_id_finds_its_offset(ids: list[int], rows: int) -> None:
    runs = made(ids, first=17)
    seen: list[int] = []
    left = runs
    while len(left.n):
        part, left = left.split(rows)
        assert part.rows == min(rows, len(ids) - len(seen))
        covered = np.array([row for lo, hi in part.spans() for row in range(lo, hi)])
        offsets, inside = part.offsets_of(covered)
        assert sorted(offsets[inside].tolist()) == list(range(part.lo, part.hi))
        assert {ids[at - 17] for at in offsets[inside].tolist()} == set(covered[inside].tolist())
        seen += sorted(offsets[inside].tolist())
    assert seen == list(range(17, 17 + len(ids)))


def test_what_goes_up_is_streamed_and_what_jumps_is_not() -> None:
    assert len(ascending(made(list(range(5, 60_000))))) == 1
    two = ascending(made([*range(100_000, 120_000), *range(1, 20_000)]))
    assert [part.spans() for part in two] == [[(100_000, 120_000)], [(1, 20_000)]]
    jumping = list(range(1, 20_000))
    random.Random(1).shuffle(jumping)
    assert ascending(made(jumping)) == []
    assert ascending(as_runs([], [], [])) == []
