"""Positions in topics: where a query starts, how far its next batch goes. Pure.

A position is the next offset to read. The document that Spark keeps in its checkpoint is Kafka's,
`{"orders": {"0": 120, "1": 98}}`, with the numbers of the topics beside it, so that a topic that was deleted and created
again is not taken for the old one, and with the positions at which the batch that ends here begins. Spark does not keep
these for its first batch and for new partitions, and a repeated batch must read the same offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trunkline.errors import InvalidOption, OffsetAhead, OffsetOutOfRange, TrunklineError
from trunkline.spark.ranges import Head, Range

Positions = dict[str, dict[int, int]]
EARLIEST = -2
LATEST = -1
FIRST = 1
"""The first offset of a partition."""
# These cannot be topics: names have no such character.
_IDS = "$topics"
_STARTS = "$starts"


def to_document(positions: Positions, heads: Sequence[Head], starts: Positions | None = None) -> dict[str, Any]:
    """What Spark keeps. `starts`: where the batch begins that ends at these positions."""
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
    """Where the batch begins that ends at this document; empty if the document does not say."""
    return _numbers(document.get(_STARTS, {}))


def topic_ids(document: Mapping[str, Any]) -> dict[str, int]:
    return dict(document.get(_IDS, {}))


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two documents name the same positions of the same topics."""
    return from_document(one) == from_document(other) and topic_ids(one) == topic_ids(other)


def begin(document: Mapping[str, Any], heads: Sequence[Head]) -> Positions:
    """Where the batch after this document begins: new partitions, and those of a new topic, at their first offset."""
    before, ids = from_document(document), topic_ids(document)
    positions: Positions = {}
    for head in heads:
        known = before.get(head.topic, {}) if ids.get(head.topic, head.topic_id) == head.topic_id else {}
        positions.setdefault(head.topic, {})[head.partition] = known.get(head.partition, FIRST)
    return positions


def parse(option: str, text: str) -> str | Positions:
    """`earliest`, `latest`, or Kafka's JSON: a partition may be -2 (earliest) or -1 (latest)."""
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    hint = 'write earliest, latest, or JSON such as {"orders": {"0": 23, "1": -2}}'
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise InvalidOption(f"{option} is not a position: {exc}", hint=hint) from exc
    if not isinstance(found, dict) or not found or not all(isinstance(parts, dict) for parts in found.values()):
        raise InvalidOption(f"{option} is not a position for each topic", hint=hint)
    positions: Positions = {}
    for topic, parts in found.items():
        for partition, at in parts.items():
            if not partition.isdecimal() or isinstance(at, bool) or not isinstance(at, int) or at < EARLIEST:
                raise InvalidOption(f"{option}: partition {partition} of {topic} is {at}", hint=hint)
            positions.setdefault(topic, {})[int(partition)] = at
    return positions


def resolve(option: str, wanted: str | Positions, heads: Sequence[Head]) -> tuple[Positions, list[TrunklineError]]:
    """Return positions as they are now, and what is wrong with them.

    Positions beyond the end are moved to it. Those below the earliest available offset stay: the caller finds what is
    missing when it reads from there.
    """
    if isinstance(wanted, dict):
        _check_cover(option, wanted, heads)
    positions: Positions = {}
    losses: list[TrunklineError] = []
    for head in heads:
        at = (
            {"earliest": EARLIEST, "latest": LATEST}[wanted]
            if isinstance(wanted, str)
            else wanted[head.topic][head.partition]
        )
        if at == EARLIEST:
            at = head.base
        elif at == LATEST:
            at = head.head
        elif not head.base <= at <= head.head:
            losses.append(_out_of_range(option, head, at))
            at = min(max(at, FIRST), head.head)
        positions.setdefault(head.topic, {})[head.partition] = at
    return positions, losses


def _check_cover(option: str, wanted: Positions, heads: Sequence[Head]) -> None:
    given = {(topic, partition) for topic, parts in wanted.items() for partition in parts}
    known = {(head.topic, head.partition) for head in heads}
    if given != known:
        missing = ", ".join(f"{topic} {partition}" for topic, partition in sorted(known - given))
        unknown = ", ".join(f"{topic} {partition}" for topic, partition in sorted(given - known))
        told = "; ".join(
            filter(
                None, [missing and f"partitions without a position: {missing}", unknown and f"no such partition: {unknown}"]
            )
        )
        raise InvalidOption(
            f"{option}: {told}", hint="give each partition of each topic one position, -2 for earliest, -1 for latest"
        )


def _out_of_range(what: str, head: Head, at: int) -> OffsetOutOfRange | OffsetAhead:
    place = f"{what}: offset {at} of partition {head.partition} of topic {head.topic}"
    if at < head.base:
        why = "offsets count from 1" if at < 1 else "retention removed it"
        return OffsetOutOfRange(f"{place} is below the lowest one left, {head.base}", hint=f"{why}; start at earliest")
    return OffsetAhead(f"{place} is beyond the end, {head.head}", hint="use latest")


def ranges(start: Positions, end: Positions, ids: Mapping[str, int]) -> list[Range]:
    """From start to end, by topic and partition."""
    return [
        Range(topic, ids[topic], partition, start[topic][partition], hi)
        for topic, parts in sorted(end.items())
        for partition, hi in sorted(parts.items())
        if hi > start[topic][partition]
    ]


def admit(start: Positions, heads: Sequence[Head], max_rows: int | None) -> Positions:
    """How far the next batch goes: to the heads, or `max_rows` shared out in proportion to what waits in each partition."""
    waiting = [max(0, head.head - start[head.topic][head.partition]) for head in heads]
    take = waiting if max_rows is None or sum(waiting) <= max_rows else _shared(waiting, max_rows)
    positions: Positions = {}
    for head, rows in zip(heads, take, strict=True):
        positions.setdefault(head.topic, {})[head.partition] = start[head.topic][head.partition] + rows
    return positions


def _shared(waiting: Sequence[int], max_rows: int) -> list[int]:
    """Proportional shares whose sum is exact. What rounding leaves goes to the largest remainders, then to the longest wait,
    so that a limit below the number of partitions starves none of them."""
    total = sum(waiting)
    take = [rows * max_rows // total for rows in waiting]
    order = sorted(range(len(waiting)), key=lambda i: (-(waiting[i] * max_rows % total), -waiting[i]))
    for number in order[: max_rows - sum(take)]:
        take[number] += 1
    return take


def behind(positions: Positions, heads: Sequence[Head]) -> int:
    """How many messages wait."""
    return sum(max(0, head.head - positions[head.topic][head.partition]) for head in heads)
