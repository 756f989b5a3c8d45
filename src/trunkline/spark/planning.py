"""What a query reads: its topics, where it starts and ends. `offsets` decides, on what the database says."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from trunkline.db import spark as calls
from trunkline.errors import InvalidOption, OffsetAhead, OffsetOutOfRange, TopicNotFound
from trunkline.spark import offsets
from trunkline.spark.causes import near_topics
from trunkline.spark.connections import plain
from trunkline.spark.offsets import Positions
from trunkline.spark.options import ReadOptions, Times
from trunkline.spark.ranges import Head
from trunkline.spark.tiering import tiered_heads

_log = logging.getLogger(__name__)


def topics(options: ReadOptions) -> list[str]:
    """The topics by their names; a pattern is looked up anew each time."""
    if options.assign is not None:
        return sorted(options.assign)
    if options.subscribe_pattern is None:
        return sorted(options.subscribe)
    pattern = re.compile(options.subscribe_pattern)
    with plain(options.url.reveal()) as conn:
        return sorted(name for name in calls.topic_names(conn) if pattern.fullmatch(name))


def heads(options: ReadOptions, *, known: Sequence[str] | None = None) -> list[Head]:
    """The partitions that the query reads."""
    names = topics(options) if known is None else known
    if not names:
        return []
    with near_topics(options.url.reveal()):
        found = tiered_heads(options.url.reveal(), names, options.tier)
    if options.assign is None:
        return found
    chosen = {(topic, partition) for topic, partitions in options.assign.items() for partition in partitions}
    if missing := chosen - {(head.topic, head.partition) for head in found}:
        listed = ", ".join(f"{topic} {partition}" for topic, partition in sorted(missing))
        raise InvalidOption(f"assign: no such partition: {listed}", hint="partitions count from 0")
    return [head for head in found if (head.topic, head.partition) in chosen]


def starting(options: ReadOptions, found: Sequence[Head], default: str) -> Positions:
    if options.starting_time is not None:
        return _by_time("startingTimestamp", options, options.starting_time, found, strict=options.time_strategy == "error")
    return offsets.resolve("startingOffsets", options.starting or default, found, lenient=not options.fail_on_data_loss)


def ending(options: ReadOptions, found: Sequence[Head]) -> Positions:
    if options.ending == "earliest":
        raise InvalidOption("endingOffsets is earliest", hint="nothing would be read; use latest or offsets")
    if options.ending_time is not None:
        return _by_time("endingTimestamp", options, options.ending_time, found, strict=False)
    return offsets.resolve("endingOffsets", options.ending or "latest", found, lenient=not options.fail_on_data_loss)


def _by_time(
    option: str, options: ReadOptions, wanted: datetime | Times, found: Sequence[Head], *, strict: bool
) -> Positions:
    """The first offset at or after a time, in each partition; where there is none, its end, or an error."""
    positions: Positions = {}
    with plain(options.url.reveal()) as conn:
        for head in found:
            at = wanted if isinstance(wanted, datetime) else wanted.get(head.topic, {}).get(head.partition)
            if at is None:
                raise InvalidOption(
                    f"{option}: partition {head.partition} of {head.topic} has no time", hint="give each partition one"
                )
            place = _first_at(conn, options, head, at)
            if place >= head.head and strict and head.head > head.base:
                raise InvalidOption(
                    f"{option}: partition {head.partition} of {head.topic} has nothing at {at.isoformat()} or later",
                    hint="use an earlier time, or startingOffsetsByTimestampStrategy=latest",
                )
            positions.setdefault(head.topic, {})[head.partition] = min(place, head.head)
    return positions


def _first_at(conn: calls.Connection, options: ReadOptions, head: Head, at: datetime) -> int:
    if options.tier == "live":
        return calls.offset_at(conn, head.topic, head.partition, at)
    from trunkline.spark.pipelines.spans import spans

    return spans(options.url.reveal(), head.topic, at)[head.partition][0]


def checked(document: Mapping[str, Any], found: Sequence[Head], options: ReadOptions) -> Positions:
    """The positions of a checkpoint, compared with what is there now; a partition that is new starts at its beginning.

    What does not fit any more is an error, or with failOnDataLoss=false a warning and the nearest place.
    """
    positions = offsets.from_document(document)
    ids = offsets.topic_ids(document)
    there = {(head.topic, head.partition): head for head in found}
    gone = sorted({topic for topic in positions if not any(head.topic == topic for head in found)})
    if gone:
        _lost(
            options,
            TopicNotFound(
                f"the checkpoint is of topics that this query does not read: {', '.join(gone)}",
                hint="they were deleted, or the checkpoint belongs to another query: use a new checkpointLocation",
            ),
        )
    result: Positions = {}
    for (topic, partition), head in there.items():
        at = positions.get(topic, {}).get(partition, head.base)
        if ids.get(topic, head.topic_id) != head.topic_id:
            _lost(
                options,
                OffsetOutOfRange(
                    f"topic {topic} was deleted and created again since this checkpoint",
                    hint="start with a new checkpointLocation",
                ),
            )
            at = head.base
        elif at > head.head:
            _lost(
                options,
                OffsetAhead(
                    f"the checkpoint is at offset {at} of partition {partition} of topic {topic}, which ends at {head.head}",
                    hint="the database was restored to an earlier time: start with a new checkpointLocation",
                ),
            )
            at = head.head
        elif at < head.base:
            _lost(
                options,
                OffsetOutOfRange(
                    f"offsets {at} to {head.base - 1} of partition {partition} of topic {topic} are gone",
                    hint="retention removed them before they were read; a group (option group) holds it back",
                ),
            )
            at = head.base
        result.setdefault(topic, {})[partition] = at
    return result


def _lost(options: ReadOptions, error: Exception) -> None:
    if options.fail_on_data_loss:
        raise error
    _log.warning("%s", error)
