"""Batch readers for messages, dead letters and delivery history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from trunkline.spark.options import ReadOptions
from trunkline.spark.session.python_workers import settle
from trunkline.spark.source import planner, tables
from trunkline.spark.source.columns import Shape
from trunkline.spark.source.log_reader import resolved
from trunkline.spark.source.micro_batch import Task, planned
from trunkline.spark.source.tiered_reader import Reading, read


class TopicReader(DataSourceReader):
    """Read messages. Spark plans the offsets once, so a DataFrame returns the same rows each time it is used."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._how = Reading(
            Shape(schema), options.tier, options.fail_on_data_loss, resolved(options.url.reveal(), options.selection)
        )

    def partitions(self) -> list[InputPartition]:
        return planned(planner.batch_ranges(self._options), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle()
        # With nothing to read, Spark still runs one task, with a plain InputPartition.
        for range_ in partition.ranges if isinstance(partition, Task) else ():
            yield from read(self._options.url.reveal(), range_, self._how)


class TableReader(DataSourceReader):
    """Read dead letters or the delivery history in one task."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        tables.check(options.table, schema)

    def partitions(self) -> list[InputPartition]:
        tables.probe(self._options)
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return tables.read(self._options, self._schema)
