"""Plan a query: its topics, start and end. Fetches state from the database; `offsets` computes the positions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from trunkline.db.calls import spark as calls
from trunkline.errors import InvalidOption, OffsetOutOfRange
from trunkline.spark.database import plain
from trunkline.spark.errors import near_topics
from trunkline.spark.options import ReadOptions, Times
from trunkline.spark.source import loss, offsets, tiered_reader
from trunkline.spark.source.offsets import Positions
from trunkline.spark.source.ranges import Head, OffsetRange


def topics(options: ReadOptions) -> list[str]:
    """Return the names of the topics, sorted. A pattern is resolved at each call."""
    if options.assign is not None:
        return sorted(options.assign)
    if options.subscribe_pattern is None:
        return sorted(options.subscribe)
    pattern = re.compile(options.subscribe_pattern)
    with plain(options.url.reveal()) as conn:
        return sorted(name for name in calls.topic_names(conn) if pattern.fullmatch(name))


def heads(options: ReadOptions) -> list[Head]:
    """Return the partitions that the query reads. With tier `archive`, base and head are those of the archive."""
    names = topics(options)
    if not names:
        return []
    with near_topics(options.url.reveal()):
        all_heads = tiered_reader.heads(options.url.reveal(), names, options.tier)
    if options.assign is None:
        return all_heads
    chosen = {(topic, partition) for topic, partitions in options.assign.items() for partition in partitions}
    if missing := chosen - {(head.topic, head.partition) for head in all_heads}:
        listed = ", ".join(f"{topic} {partition}" for topic, partition in sorted(missing))
        raise InvalidOption(f"assign: no such partition: {listed}", hint="Count partitions from 0.")
    return [head for head in all_heads if (head.topic, head.partition) in chosen]


def batch_ranges(options: ReadOptions) -> list[OffsetRange]:
    """Return the ranges of a batch read."""
    log = heads(options)
    partitions = tiered_reader.with_archive(options.url.reveal(), log, options.tier)
    start, end = starting(options, partitions, "earliest"), ending(options, partitions)
    requested = offsets.ranges(start, end, {head.topic: head.topic_id for head in partitions})
    return loss.readable(requested, stored(options, log), fail=options.fail_on_data_loss)


def initial(options: ReadOptions) -> tuple[Positions, list[Head]]:
    """Return the positions at which a new stream starts, and the heads."""
    partitions = tiered_reader.with_archive(options.url.reveal(), heads(options), options.tier)
    return starting(options, partitions, "latest"), partitions


def stored(options: ReadOptions, partitions: Sequence[Head]) -> loss.Stored:
    """Return a function that maps a range to its readable parts. It queries only for offsets below the log's base."""
    heads_by_partition = {(head.topic, head.partition): head for head in partitions}

    def parts(range_: OffsetRange) -> Sequence[OffsetRange] | None:
        head = heads_by_partition.get((range_.topic, range_.partition))
        if head is None or head.topic_id != range_.topic_id:
            return None
        if options.tier != "archive" and range_.lo >= head.base:
            return [range_]
        return tiered_reader.stored(options.url.reveal(), range_, options.tier)

    return parts


def first_readable(options: ReadOptions, partitions: Sequence[Head], begin: Positions) -> Positions:
    """Return for each partition the first readable offset at or after `begin`; its end if there is none."""
    positions: Positions = {}
    for head in partitions:
        at = min(begin[head.topic][head.partition], head.head)
        if at < head.base or options.tier == "archive":
            rest = OffsetRange(head.topic, head.topic_id, head.partition, at, head.head)
            at = tiered_reader.first_readable(options.url.reveal(), rest, options.tier)
        positions.setdefault(head.topic, {})[head.partition] = at
    return positions


def starting(options: ReadOptions, partitions: Sequence[Head], default: str) -> Positions:
    if options.starting_time is not None:
        option = "startingTimestamp" if isinstance(options.starting_time, datetime) else "startingOffsetsByTimestamp"
        return _by_time(option, options, options.starting_time, partitions, strict=options.time_strategy == "error")
    return _resolved("startingOffsets", options.starting or default, options, partitions)


def ending(options: ReadOptions, partitions: Sequence[Head]) -> Positions:
    if options.ending == "earliest":
        raise InvalidOption("endingOffsets cannot be earliest: no message would be read", hint="Use latest or offsets.")
    if options.ending_time is not None:
        option = "endingTimestamp" if isinstance(options.ending_time, datetime) else "endingOffsetsByTimestamp"
        return _by_time(option, options, options.ending_time, partitions, strict=False)
    return _resolved("endingOffsets", options.ending or "latest", options, partitions)


def _resolved(option: str, value: str | Positions, options: ReadOptions, partitions: Sequence[Head]) -> Positions:
    positions, losses = offsets.resolve(option, value, partitions)
    if not options.fail_on_data_loss:
        # Offsets missing at the start are skipped, with a warning, when they are read.
        losses = [each for each in losses if not isinstance(each, OffsetOutOfRange)]
    loss.decide(losses, fail=options.fail_on_data_loss)
    return positions


def _by_time(
    option: str, options: ReadOptions, times: datetime | Times, partitions: Sequence[Head], *, strict: bool
) -> Positions:
    """Return the first offset at or after a time in each partition.

    If a partition has none, return its end; with `strict`, raise InvalidOption.
    """
    positions: Positions = {}
    with plain(options.url.reveal()) as conn:
        for head in partitions:
            at = times if isinstance(times, datetime) else times.get(head.topic, {}).get(head.partition)
            if at is None:
                raise InvalidOption(
                    f"{option}: no time for partition {head.partition} of {head.topic}",
                    hint="Give each partition of each topic a time.",
                )
            offset = _first_at(conn, options, head, at)
            if offset >= head.head and strict and head.head > head.base:
                raise InvalidOption(
                    f"{option}: partition {head.partition} of {head.topic} has no message at {at.isoformat()} or later",
                    hint="Use an earlier time, or startingOffsetsByTimestampStrategy=latest.",
                )
            positions.setdefault(head.topic, {})[head.partition] = min(offset, head.head)
    return positions


def _first_at(conn: calls.Connection, options: ReadOptions, head: Head, at: datetime) -> int:
    if options.tier == "live":
        return calls.offset_at(conn, head.topic, head.partition, at)
    from trunkline.spark.archive.positions import spans

    return spans(options.url.reveal(), head.topic, at, readable=False)[head.partition][0]
