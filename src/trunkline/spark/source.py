"""The data source "trunkline": what Spark calls. The work is done in modules that know nothing of Spark.

No `pushFilters`: Spark 4.3 keeps pushed filters for the whole DataFrame, so that its next use gets the rows of the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from trunkline.spark import offsets, planning, tables
from trunkline.spark.columns import HEADERS_SCHEMA, KAFKA_SCHEMA, METADATA_SCHEMA, Shape
from trunkline.spark.options import ReadOptions, WriteOptions
from trunkline.spark.ranges import tasks
from trunkline.spark.reading import resolved
from trunkline.spark.sink import BatchSink, StreamSink
from trunkline.spark.stream import Task, TopicStream
from trunkline.spark.tiering import Reading, read


class TrunklineSource(DataSource):
    """`spark.read.format("trunkline")` and its three siblings."""

    @classmethod
    def name(cls) -> str:
        return "trunkline"

    def schema(self) -> str:
        options = ReadOptions.parse(self.options)
        if options.table != "messages":
            return tables.SCHEMAS[options.table]
        parts = [KAFKA_SCHEMA]
        if options.include_headers:
            parts.append(HEADERS_SCHEMA)
        if options.include_metadata:
            parts.append(METADATA_SCHEMA)
        return ", ".join(parts)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.parse(self.options)
        wanted = to_arrow_schema(schema, timezone="UTC")
        if options.table != "messages":
            return TableReader(options, wanted)
        return TopicReader(options, wanted)

    def streamReader(self, schema: StructType) -> TopicStream:
        return TopicStream(ReadOptions.parse(self.options), to_arrow_schema(schema, timezone="UTC"))

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        return BatchSink(WriteOptions.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        return StreamSink(WriteOptions.parse(self.options), schema)

    def __repr__(self) -> str:
        return "TrunklineSource()"


class TopicReader(DataSourceReader):
    """A batch: planned once, so that a DataFrame gives the same rows each time it is used."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._how = Reading(
            Shape(schema), options.tier, options.fail_on_data_loss, resolved(options.url.reveal(), options.selection)
        )

    def partitions(self) -> list[InputPartition]:
        found = planning.heads(self._options)
        start = planning.starting(self._options, found, "earliest")
        end = planning.ending(self._options, found)
        ranges = offsets.ranges(start, end, {head.topic: head.topic_id for head in found})
        made = tasks(
            ranges,
            min_tasks=self._options.min_partitions,
            max_rows=self._options.max_records_per_partition,
            max_tasks=self._options.max_connections,
        )
        return [Task(bundle) for bundle in made]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes a task of its own when there is nothing to read
        for range_ in partition.ranges if isinstance(partition, Task) else ():
            yield from read(self._options.url.reveal(), range_, self._how)


class TableReader(DataSourceReader):
    """Dead letters or the history of deliveries, in one task."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        tables.check(options.table, schema)

    def partitions(self) -> list[InputPartition]:
        tables.probe(self._options)
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return tables.read(self._options, self._schema)
