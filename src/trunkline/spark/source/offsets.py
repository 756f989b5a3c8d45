"""Positions in topics: where a query starts and where its next batch ends. Pure.

A position is the next offset to read. Spark's checkpoint stores a document in Kafka's format,
`{"orders": {"0": 120, "1": 98}}`, with two additions. The topic ids distinguish a recreated topic from the one that was
deleted. The start positions of the batch make repeated batches read the same offsets: Spark does not store them for its
first batch and for new partitions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trunkline.errors import InvalidOption, OffsetAhead, OffsetOutOfRange, TrunklineError
from trunkline.spark.source.ranges import Head, OffsetRange

Positions = dict[str, dict[int, int]]
EARLIEST = -2
LATEST = -1
FIRST = 1
"""The first offset of a partition."""
# No topic has these names: `$` is not allowed in names.
_IDS = "$topics"
_STARTS = "$starts"


def to_document(positions: Positions, heads: Sequence[Head], starts: Positions | None = None) -> dict[str, Any]:
    """Return the checkpoint document. `starts`: the positions at which the batch that ends here begins."""
    document: dict[str, Any] = _texts(positions)
    document[_IDS] = {head.topic: head.topic_id for head in heads if head.topic in positions}
    return document if starts is None else document | {_STARTS: _texts(starts)}


def _texts(positions: Positions) -> dict[str, Any]:
    return {topic: {str(p): at for p, at in sorted(parts.items())} for topic, parts in sorted(positions.items())}


def _numbers(document: Mapping[str, Any]) -> Positions:
    return {topic: {int(p): int(at) for p, at in parts.items()} for topic, parts in document.items()}


def from_document(document: Mapping[str, Any]) -> Positions:
    return _numbers({topic: parts for topic, parts in document.items() if topic not in (_IDS, _STARTS)})


def starts(document: Mapping[str, Any]) -> Positions:
    """Return the positions at which the batch that ends at this document begins; empty if they are not recorded."""
    return _numbers(document.get(_STARTS, {}))


def topic_ids(document: Mapping[str, Any]) -> dict[str, int]:
    return dict(document.get(_IDS, {}))


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return true if both documents have the same positions in the same topics."""
    return from_document(one) == from_document(other) and topic_ids(one) == topic_ids(other)


def begin(document: Mapping[str, Any], heads: Sequence[Head]) -> Positions:
    """Return the positions at which the next batch begins. New and recreated partitions begin at their first offset."""
    before, ids = from_document(document), topic_ids(document)
    positions: Positions = {}
    for head in heads:
        previous = before.get(head.topic, {}) if ids.get(head.topic, head.topic_id) == head.topic_id else {}
        positions.setdefault(head.topic, {})[head.partition] = previous.get(head.partition, FIRST)
    return positions


def parse(option: str, text: str) -> str | Positions:
    """Parse `earliest`, `latest`, or Kafka's JSON, in which -2 means earliest and -1 latest."""
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    hint = 'Write earliest, latest, or JSON such as {"orders": {"0": 23, "1": -2}}.'
    try:
        document = json.loads(text)
    except ValueError as exc:
        raise InvalidOption(f"{option} is not a position: {exc}", hint=hint) from exc
    if not isinstance(document, dict) or not document or not all(isinstance(parts, dict) for parts in document.values()):
        raise InvalidOption(f"{option} must map each topic to positions by partition", hint=hint)
    positions: Positions = {}
    for topic, parts in document.items():
        for partition, at in parts.items():
            if not partition.isdecimal() or isinstance(at, bool) or not isinstance(at, int) or at < EARLIEST:
                raise InvalidOption(f"{option}: invalid position {at!r} for partition {partition} of {topic}", hint=hint)
            positions.setdefault(topic, {})[int(partition)] = at
    return positions


def resolve(option: str, value: str | Positions, heads: Sequence[Head]) -> tuple[Positions, list[TrunklineError]]:
    """Resolve an option to current positions. Return them with an error for each one that is out of range.

    A position beyond the end is replaced by the end. One below the earliest available offset is kept: the caller
    detects the missing offsets when it reads from there.
    """
    if isinstance(value, dict):
        _check_cover(option, value, heads)
    positions: Positions = {}
    losses: list[TrunklineError] = []
    for head in heads:
        at = {"earliest": EARLIEST, "latest": LATEST}[value] if isinstance(value, str) else value[head.topic][head.partition]
        if at == EARLIEST:
            at = head.base
        elif at == LATEST:
            at = head.head
        elif not head.base <= at <= head.head:
            losses.append(_out_of_range(option, head, at))
            at = min(max(at, FIRST), head.head)
        positions.setdefault(head.topic, {})[head.partition] = at
    return positions, losses


def _check_cover(option: str, positions: Positions, heads: Sequence[Head]) -> None:
    named = {(topic, partition) for topic, parts in positions.items() for partition in parts}
    existing = {(head.topic, head.partition) for head in heads}
    if named != existing:
        missing = ", ".join(f"{topic} {partition}" for topic, partition in sorted(existing - named))
        unknown = ", ".join(f"{topic} {partition}" for topic, partition in sorted(named - existing))
        problems = "; ".join(
            filter(
                None, [missing and f"partitions without a position: {missing}", unknown and f"no such partition: {unknown}"]
            )
        )
        raise InvalidOption(
            f"{option}: {problems}", hint="Give each partition of each topic one position: -2 is earliest, -1 is latest."
        )


def _out_of_range(what: str, head: Head, at: int) -> OffsetOutOfRange | OffsetAhead:
    position = f"{what}: offset {at} of partition {head.partition} of topic {head.topic}"
    if at < head.base:
        why = "Offsets count from 1." if at < 1 else "Retention removed it."
        return OffsetOutOfRange(
            f"{position} is below the earliest available offset, {head.base}", hint=f"{why} Start at earliest."
        )
    return OffsetAhead(f"{position} is beyond the end, {head.head}", hint="Use latest.")


def ranges(start: Positions, end: Positions, ids: Mapping[str, int]) -> list[OffsetRange]:
    """Return the nonempty ranges from start to end, ordered by topic and partition."""
    return [
        OffsetRange(topic, ids[topic], partition, start[topic][partition], hi)
        for topic, parts in sorted(end.items())
        for partition, hi in sorted(parts.items())
        if hi > start[topic][partition]
    ]


def admit(start: Positions, heads: Sequence[Head], max_rows: int | None) -> Positions:
    """Return the end positions of the next batch: the heads, or `max_rows` shared in proportion to partition lag."""
    waiting = [max(0, head.head - start[head.topic][head.partition]) for head in heads]
    take = waiting if max_rows is None or sum(waiting) <= max_rows else _shared(waiting, max_rows)
    positions: Positions = {}
    for head, rows in zip(heads, take, strict=True):
        positions.setdefault(head.topic, {})[head.partition] = start[head.topic][head.partition] + rows
    return positions


def _shared(waiting: Sequence[int], max_rows: int) -> list[int]:
    """Return proportional shares that add up to `max_rows`.

    Rounding differences go to the largest remainders, then to the largest lags, so a limit below the number of
    partitions starves none of them.
    """
    total = sum(waiting)
    take = [rows * max_rows // total for rows in waiting]
    order = sorted(range(len(waiting)), key=lambda i: (-(waiting[i] * max_rows % total), -waiting[i]))
    for number in order[: max_rows - sum(take)]:
        take[number] += 1
    return take


def behind(positions: Positions, heads: Sequence[Head]) -> int:
    """Return the number of unread messages."""
    return sum(max(0, head.head - positions[head.topic][head.partition]) for head in heads)
