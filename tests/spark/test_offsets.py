"""Positions and tasks: pure arithmetic."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from trunkline.errors import InvalidOption, OffsetAhead, OffsetOutOfRange
from trunkline.spark.source import offsets
from trunkline.spark.source.ranges import Head, OffsetRange, tasks

HEADS = [Head("a", 7, 0, 1, 101), Head("a", 7, 1, 11, 11), Head("b", 9, 0, 1, 51)]
POSITIONS = {"a": {0: 1, 1: 11}, "b": {0: 1}}


def test_documents_are_kafkas_and_come_back() -> None:
    document = offsets.to_document(POSITIONS, HEADS)
    assert document == {"a": {"0": 1, "1": 11}, "b": {"0": 1}, "$topics": {"a": 7, "b": 9}}
    assert offsets.from_document(document) == POSITIONS
    assert offsets.topic_ids(document) == {"a": 7, "b": 9}


@pytest.mark.parametrize(
    "text",
    ["", "soon", "[]", "{}", '{"a": 3}', '{"a": {"x": 1}}', '{"a": {"0": -3}}', '{"a": {"0": true}}', '{"a": {"0": 1.5}}'],
)
def test_positions_that_are_none(text: str) -> None:
    with pytest.raises(InvalidOption, match="startingOffsets"):
        offsets.parse("startingOffsets", text)


def test_words_and_numbers_become_positions() -> None:
    assert offsets.resolve("o", offsets.parse("o", "Earliest"), HEADS) == (POSITIONS, [])
    assert offsets.resolve("o", "latest", HEADS) == ({"a": {0: 101, 1: 11}, "b": {0: 51}}, [])
    wanted = offsets.parse("o", '{"a": {"0": -2, "1": -1}, "b": {"0": 17}}')
    assert offsets.resolve("o", wanted, HEADS) == ({"a": {0: 1, 1: 11}, "b": {0: 17}}, [])


def test_positions_out_of_range() -> None:
    ahead = {"a": {0: 102, 1: 11}, "b": {0: 1}}
    below = {"a": {0: 1, 1: 10}, "b": {0: 1}}
    positions, (beyond,) = offsets.resolve("o", ahead, HEADS)
    assert isinstance(beyond, OffsetAhead) and "beyond the end, 101" in beyond.message
    assert positions["a"] == {0: 101, 1: 11}
    positions, (removed,) = offsets.resolve("o", below, HEADS)
    assert isinstance(removed, OffsetOutOfRange) and "below the earliest available offset, 11" in removed.message
    assert positions["a"] == {0: 1, 1: 10}, "what is missing is found when it is read"
    with pytest.raises(InvalidOption, match=r"without a position: b 0; no such partition: a 2"):
        offsets.resolve("o", {"a": {0: 1, 1: 11, 2: 1}}, HEADS)


heads_and_starts = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)), min_size=1, max_size=20)


@given(heads_and_starts, st.integers(1, 5_000))
def test_admission_is_exact_and_shared(parts: list[tuple[int, int]], most: int) -> None:
    heads = [Head("t", 1, number, 1, start + waiting) for number, (start, waiting) in enumerate(parts)]
    start = {"t": {number: at for number, (at, _) in enumerate(parts)}}
    end = offsets.admit(start, heads, most)
    taken = [end["t"][number] - at for number, (at, _) in enumerate(parts)]
    waiting = [rows for _, rows in parts]
    assert sum(taken) == min(most, sum(waiting))
    for got, rows in zip(taken, waiting, strict=True):
        assert 0 <= got <= rows
        # never more than one away from its share
        assert abs(got - rows * min(most, sum(waiting)) / max(1, sum(waiting))) <= 1


def test_a_tiny_limit_starves_nobody() -> None:
    start = {"t": dict.fromkeys(range(3), 1)}
    heads = [Head("t", 1, 0, 1, 1000), Head("t", 1, 1, 1, 3), Head("t", 1, 2, 1, 2)]
    for _ in range(1002):
        start = offsets.admit(start, heads, 1)
    assert offsets.behind(start, heads) == 0


def test_new_partitions_start_at_their_beginning() -> None:
    heads = [Head("a", 7, 0, 3, 9), Head("a", 7, 1, 3, 4), Head("b", 9, 0, 1, 1)]
    start = offsets.to_document({"a": {0: 5}, "b": {0: 4}}, [Head("a", 7, 0, 1, 9), Head("b", 8, 0, 1, 9)])
    assert offsets.begin(start, heads) == {"a": {0: 5, 1: 1}, "b": {0: 1}}, "b was deleted and created again"


ranges_of_rows = st.lists(st.integers(0, 30) | st.integers(0, 900_000), max_size=8)


@given(
    ranges_of_rows,
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 9) | st.integers(5_000, 300_000),
    st.none() | st.integers(1, 8),
)
@example([9], 2, None, 2)
@example([550_000], None, None, 2)
def test_tasks_cover_everything_once_and_in_order(
    rows: list[int], least: int | None, largest: int | None, most: int | None
) -> None:
    ranges = [OffsetRange("t", 1, number, 10, 10 + count) for number, count in enumerate(rows)]
    # a tiny limit with many rows would only make millions of pieces
    assume(largest is None or largest >= 5_000 or sum(rows) <= 1_000)
    made = tasks(ranges, min_tasks=least, max_rows=largest, max_tasks=most)
    assert made == tasks(ranges, min_tasks=least, max_rows=largest, max_tasks=most)
    pieces = [piece for bundle in made for piece in bundle]
    for number, range_ in enumerate(ranges):
        mine = [piece for piece in pieces if piece.partition == number]
        assert sum(map(len, mine)) == len(range_)
        for before, after in pairwise(mine):
            assert before.hi == after.lo, "tasks read in the order of offsets, so the rows of a key stay in order"
    assert all(len(piece) > 0 for piece in pieces)
    if largest is not None:
        assert all(len(piece) <= largest for piece in pieces)
    if most is not None:
        assert len(made) <= most
        assert len(made) >= min(most, least or 1, sum(rows)), "minPartitions and maxConnections alike give exactly so many"
    elif least is not None and sum(rows) >= least:
        assert len(made) >= min(least, sum(rows))


def test_small_ranges_share_a_task() -> None:
    assert len(tasks([OffsetRange("t", 1, number, 1, 11) for number in range(64)])) == 1
    assert len(tasks([OffsetRange("t", 1, 0, 1, 1_000_001)])) == 4
