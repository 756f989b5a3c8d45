"""Streaming reader of topics. Spark's checkpoint stores the position; the consumer group only makes it visible."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from trunkline.db.calls import spark as calls
from trunkline.errors import InvalidOption
from trunkline.spark.database import close_all, plain
from trunkline.spark.options import ReadOptions
from trunkline.spark.session.python_workers import settle
from trunkline.spark.source import loss, offsets, planner
from trunkline.spark.source.columns import Shape
from trunkline.spark.source.log_reader import resolved
from trunkline.spark.source.ranges import Head, OffsetRange, tasks
from trunkline.spark.source.tiered_reader import Reading, read

# Seconds between polls without new messages: by default Spark polls without a pause, which would run a hundred queries
# a second. The longer a stream is idle, the longer it waits.
_IDLE_WAIT = 0.1
_LONGEST_IDLE_WAIT = 0.5
_SLOWER = 1.25


class Task(InputPartition):
    """The ranges that one task reads, in this order."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


def planned(ranges: Sequence[OffsetRange], options: ReadOptions) -> list[InputPartition]:
    """Divide these ranges into tasks by the options for number and size."""
    bundles = tasks(
        ranges,
        min_tasks=options.min_partitions,
        max_rows=options.max_records_per_partition,
        max_tasks=options.max_connections,
    )
    return [Task(bundle) for bundle in bundles]


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        if options.table != "messages":
            raise InvalidOption(f"table {options.table} cannot be read as a stream", hint="Use spark.read.")
        if options.ending is not None or options.ending_time is not None:
            raise InvalidOption(
                "a stream has no ending offsets",
                hint="Omit them. To stop at the current end, use trigger(availableNow=True).",
            )
        self._options = options
        self._how = Reading(
            Shape(schema), options.tier, options.fail_on_data_loss, resolved(options.url.reveal(), options.selection)
        )
        self._cap: list[Head] | None = None
        self._heads: list[Head] = []
        self._next: tuple[dict[str, Any], dict[str, Any], list[OffsetRange]] | None = None
        self._last_batch = time.monotonic()
        self._polled_at = float("-inf")
        self._wait = 0.0

    def initialOffset(self) -> dict[str, Any]:
        positions, found = planner.initial(self._options)
        document = offsets.to_document(positions, found)
        self._show(document)
        return document

    def prepareForTriggerAvailableNow(self) -> None:
        self._cap = planner.heads(self._options)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._cap is None:
            time.sleep(max(0.0, self._polled_at + self._wait - time.monotonic()))
        heads, begin, positions = self._poll(start)
        if self._cap is None:
            self._polled_at = time.monotonic()
            waiting = offsets.behind(positions, heads)
            self._wait = 0.0 if waiting else min(max(_IDLE_WAIT, self._wait * _SLOWER), _LONGEST_IDLE_WAIT)
            if self._too_few(waiting, limit):
                return dict(start)
        end = offsets.to_document(offsets.admit(positions, heads, most), heads, begin)
        if offsets.same(start, end):
            return dict(start)
        # Check for missing offsets before Spark records the end: a checkpoint of the wrong database would be useless.
        self._next = dict(start), end, self._ranges(start, end)
        self._last_batch = time.monotonic()
        return end

    def _poll(self, start: Mapping[str, Any]) -> tuple[list[Head], offsets.Positions, offsets.Positions]:
        """Return the heads, the start of the next batch, and the first readable offsets from there on."""
        self._heads = planner.heads(self._options) if self._cap is None else self._cap
        begin = offsets.begin(start, self._heads)
        return self._heads, begin, planner.first_readable(self._options, self._heads, begin)

    def _ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[OffsetRange]:
        heads = self._heads or planner.heads(self._options)
        return loss.of_batch(start, end, planner.stored(self._options, heads), heads, fail=self._options.fail_on_data_loss)

    def _too_few(self, waiting: int, limit: ReadLimit) -> bool:
        least = limit.min_rows if isinstance(limit, ReadMinRows) else self._options.min_offsets_per_trigger
        if least is None or waiting >= least:
            return False
        return time.monotonic() - self._last_batch < self._options.max_trigger_delay.total_seconds()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if not self._heads:
            return None
        positions: offsets.Positions = {}
        for head in self._heads:
            positions.setdefault(head.topic, {})[head.partition] = head.head
        return offsets.to_document(positions, self._heads)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        if self._next is not None and self._next[:2] == (start, end):
            return planned(self._next[2], self._options)
        return planned(self._ranges(start, end), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle()
        for range_ in partition.ranges if isinstance(partition, Task) else ():
            yield from read(self._options.url.reveal(), range_, self._how)

    def commit(self, end: Mapping[str, Any]) -> None:
        self._show(end)

    def _show(self, document: Mapping[str, Any]) -> None:
        if self._options.group is None:
            return
        with plain(self._options.url.reveal()) as conn:
            for topic, positions in offsets.from_document(document).items():
                calls.advance_group(conn, topic, self._options.group, positions)

    def stop(self) -> None:
        close_all()
