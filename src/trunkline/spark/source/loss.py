"""One policy for offsets that a query should read but that are missing. Pure.

Retention removes messages, archives have holes, topics are recreated, databases are restored to an earlier time. Batch
reads, streams, repeated batches and tasks all apply the policy here: the query fails and names the missing offsets.
With failOnDataLoss=false it skips exactly those offsets and logs a warning for each gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from trunkline.errors import OffsetAhead, OffsetOutOfRange, TopicNotFound, TrunklineError
from trunkline.spark.source import offsets
from trunkline.spark.source.ranges import Head, OffsetRange

Stored = Callable[[OffsetRange], Sequence[OffsetRange] | None]
"""Return the parts of a range that can be read, in order; None if its topic no longer exists."""

_log = logging.getLogger(__name__)


def readable(
    ranges: Sequence[OffsetRange], stored: Stored, *, fail: bool, losses: Sequence[TrunklineError] = ()
) -> list[OffsetRange]:
    """Return the parts of these ranges that can be read, after applying the policy to the rest and to `losses`."""
    missing = list(losses)
    remaining: list[OffsetRange] = []
    for range_ in ranges:
        parts = stored(range_)
        missing += [deleted(range_)] if parts is None else [gone(gap) for gap in gaps(range_, parts)]
        remaining += rest(range_, gaps(range_, parts or []))
    decide(missing, fail=fail)
    return remaining


def of_batch(
    start: Mapping[str, Any], end: Mapping[str, Any], stored: Stored, heads: Sequence[Head] = (), *, fail: bool
) -> list[OffsetRange]:
    """Return the ranges that a micro-batch reads, of two checkpoint documents. `heads` are the ends of the logs."""
    before, after = offsets.from_document(start), offsets.from_document(end)
    begin = offsets.starts(end)
    old, new = offsets.topic_ids(start), offsets.topic_ids(end)
    losses: list[TrunklineError] = []
    if unknown := sorted(set(before) - set(after)):
        losses.append(
            TopicNotFound(
                f"the checkpoint contains topics that this query does not read: {', '.join(unknown)}",
                hint="Use a new checkpointLocation: the topics were deleted, or the checkpoint belongs to another query.",
            )
        )
    ends = {(head.topic, head.topic_id, head.partition): head.head for head in heads}
    ranges: list[OffsetRange] = []
    for topic, parts in sorted(after.items()):
        if old.get(topic, new[topic]) != new[topic]:
            at = ", ".join(f"offset {at} of partition {partition}" for partition, at in sorted(before[topic].items()))
            losses.append(
                OffsetOutOfRange(
                    f"topic {topic} was deleted and created again since this checkpoint, which is at {at}",
                    hint="Start the query with a new checkpointLocation.",
                )
            )
            before[topic] = {}
        losses += [_not_read(topic, each, before[topic][each]) for each in sorted(set(before.get(topic, {})) - set(parts))]
        for partition, until in sorted(parts.items()):
            lo = begin.get(topic, {}).get(partition, before.get(topic, {}).get(partition, offsets.FIRST))
            hi = min(until, ends.get((topic, new[topic], partition), until))
            if max(lo, until) > hi:
                losses.append(_ahead(topic, partition, max(lo, until), hi))
            if lo < hi:
                ranges.append(OffsetRange(topic, new[topic], partition, lo, hi))
    return readable(ranges, stored, fail=fail, losses=losses)


def gaps(range_: OffsetRange, parts: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the gaps between these parts of a range."""
    edges = [range_.lo, *(edge for part in parts for edge in (part.lo, part.hi)), range_.hi]
    return [range_.between(lo, hi) for lo, hi in list(pairwise(edges))[::2] if lo < hi]


def rest(range_: OffsetRange, missing: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return a range without its gaps."""
    return gaps(range_, missing)


def decide(losses: Sequence[TrunklineError], *, fail: bool) -> None:
    """Raise one error that names all losses, or with `fail` false log a warning for each."""
    if not fail:
        for loss in losses:
            _log.warning("skipping missing offsets because failOnDataLoss is false: %s", loss.message)
    elif losses:
        first = losses[0]
        raise type(first)("; ".join(loss.message for loss in losses), hint=first.hint)


def gone(gap: OffsetRange) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"offsets {gap.lo} to {gap.hi - 1} of partition {gap.partition} of topic {gap.topic} are gone",
        hint="Retention removed them before they were read or archived. Start after them, or skip them with"
        " failOnDataLoss=false. To make retention wait for the query, set the option group.",
    )


def deleted(range_: OffsetRange) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"offsets {range_.lo} to {range_.hi - 1} of partition {range_.partition} of topic {range_.topic} are gone: the topic"
        " was deleted, or deleted and created again",
        hint="Load the DataFrame again, or start the query with a new checkpointLocation.",
    )


def _not_read(topic: str, partition: int, at: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"the checkpoint is at offset {at} of partition {partition} of topic {topic}, which this query does not read",
        hint="Read that partition too, or use a new checkpointLocation.",
    )


def _ahead(topic: str, partition: int, at: int, head: int) -> OffsetAhead:
    return OffsetAhead(
        f"the checkpoint is at offset {at} of partition {partition} of topic {topic}, which ends at {head}",
        hint="A standby may be behind: wait for it. If the database was restored to an earlier time, start with a new"
        " checkpointLocation.",
    )
