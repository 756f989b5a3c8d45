"""Missing offsets: every way in which they can be missing is decided by the same function."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.errors import OffsetAhead, OffsetOutOfRange, TopicNotFound
from trunkline.spark.source import loss, offsets
from trunkline.spark.source.ranges import Head, OffsetRange


def document(positions: offsets.Positions, starts: offsets.Positions | None = None, **ids: int) -> dict[str, Any]:
    heads = [Head(topic, ids.get(topic, 1), 0, 1, 1) for topic in positions]
    return offsets.to_document(positions, heads, starts)


@given(st.integers(1, 30), st.integers(0, 30), st.sets(st.integers(1, 60)))
def test_what_is_read_and_what_is_missing_make_up_the_range(lo: int, count: int, kept: set[int]) -> None:
    range_ = OffsetRange("t", 1, 0, lo, lo + count)

    def stored(part: OffsetRange) -> list[OffsetRange]:
        return [part.between(n, n + 1) for n in range(part.lo, part.hi) if n in kept]

    found = loss.readable([range_], stored, fail=False)
    assert [n for part in found for n in range(part.lo, part.hi)] == [n for n in range(lo, lo + count) if n in kept]
    missing = loss.gaps(range_, stored(range_))
    assert {n for part in missing for n in range(part.lo, part.hi)} == set(range(lo, lo + count)) - kept
    if missing:
        with pytest.raises(OffsetOutOfRange) as raised:
            loss.readable([range_], stored, fail=True)
        for part in missing:
            assert f"offsets {part.lo} to {part.hi - 1} of partition 0 of topic t are gone" in raised.value.message


def everything(range_: OffsetRange) -> list[OffsetRange]:
    return [range_]


def from_20(range_: OffsetRange) -> list[OffsetRange]:
    return [range_.between(max(20, range_.lo), range_.hi)] if range_.hi > 20 else []


def nothing(range_: OffsetRange) -> None:
    return None


OLD = document({"t": {0: 5}})
CASES = [
    (OLD, document({"t": {0: 30}}, {"t": {0: 5}}), from_20, OffsetOutOfRange, "offsets 5 to 19 ", [(20, 30)]),
    # a partition that the checkpoint does not know, in a checkpoint of today and of an earlier version
    (OLD, document({"t": {0: 5, 1: 30}}, {"t": {0: 5, 1: 1}}), from_20, OffsetOutOfRange, "offsets 1 to 19 ", [(20, 30)]),
    (OLD, document({"t": {0: 5, 1: 30}}), from_20, OffsetOutOfRange, "offsets 1 to 19 of partition 1", [(20, 30)]),
    # the first batch, repeated after its start has moved
    (document({"t": {0: 20}}), document({"t": {0: 30}}, {"t": {0: 5}}), from_20, OffsetOutOfRange, "5 to 19", [(20, 30)]),
    (document({"t": {0: 90}}), document({"t": {0: 30}}, {"t": {0: 5}}), everything, None, "", [(5, 30)]),
    # deleted and created again: seen in the end, or only after it
    (OLD, document({"t": {0: 3}}, {"t": {0: 1}}, t=2), everything, OffsetOutOfRange, "created again", [(1, 3)]),
    (OLD, document({"t": {0: 30}}, {"t": {0: 5}}), nothing, OffsetOutOfRange, "offsets 5 to 29 ", []),
    # restored to an earlier time
    (OLD, document({"t": {0: 3}}, {"t": {0: 5}}), everything, OffsetAhead, "at offset 5 .* ends at 3", []),
    # a partition that is not assigned any more
    (
        document({"t": {0: 5, 1: 7}}),
        document({"t": {0: 30}}, {"t": {0: 5}}),
        everything,
        OffsetOutOfRange,
        "at offset 7 of partition 1 of topic t, which this query does not read",
        [(5, 30)],
    ),
    (OLD, document({}), everything, TopicNotFound, "does not read: t", []),
]


@pytest.mark.parametrize(("start", "end", "stored", "error", "said", "left"), CASES)
def test_a_batch_fails_or_skips_exactly_what_is_missing(
    start: dict[str, Any],
    end: dict[str, Any],
    stored: loss.Stored,
    error: type[Exception] | None,
    said: str,
    left: list[tuple[int, int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    if error is not None:
        with pytest.raises(error, match=said):
            loss.of_batch(start, end, stored, fail=True)
    assert [(part.lo, part.hi) for part in loss.of_batch(start, end, stored, fail=False)] == left
    assert len(caplog.records) == (error is not None)
    if error is not None:
        caplog.records[0].message.index("failOnDataLoss is false")
        assert re.search(said, caplog.records[0].message)


@pytest.mark.parametrize(("lo", "left"), [(5, [(5, 20)]), (20, []), (25, [])])
def test_a_batch_that_ends_beyond_the_head(lo: int, left: list[tuple[int, int]], caplog: pytest.LogCaptureFixture) -> None:
    """It is repeated after the database was restored to an earlier time."""
    start, end = document({"t": {0: lo}}), document({"t": {0: 30}}, {"t": {0: lo}})
    heads = [Head("t", 1, 0, 1, 20)]
    with pytest.raises(OffsetAhead, match="the checkpoint is at offset 30 of partition 0 of topic t, which ends at 20"):
        loss.of_batch(start, end, everything, heads, fail=True)
    assert [(part.lo, part.hi) for part in loss.of_batch(start, end, everything, heads, fail=False)] == left
    assert [record.message for record in caplog.records if "ends at 20" in record.message] and len(caplog.records) == 1
