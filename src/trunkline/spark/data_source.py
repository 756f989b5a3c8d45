"""The data source "trunkline": Spark's entry points. Modules without Spark dependencies do the work.

`pushFilters` is not implemented: Spark 4.3 keeps pushed filters with the DataFrame, and its next use would return the
rows of the first.

Readers and writers are imported lazily: Spark starts one process each to find the source, to get its schema and to
plan, and each would import everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from trunkline.spark.source.schemas import HEADERS, KAFKA, METADATA, TABLES

if TYPE_CHECKING:
    from trunkline.spark.sink.writer import BatchSink, StreamSink
    from trunkline.spark.source.micro_batch import TopicStream


class TrunklineSource(DataSource):
    """Data source of `read`, `readStream`, `write` and `writeStream` with the format "trunkline"."""

    @classmethod
    def name(cls) -> str:
        return "trunkline"

    def schema(self) -> str:
        from trunkline.spark.options import ReadOptions

        options = ReadOptions.parse(self.options)
        if options.table != "messages":
            return TABLES[options.table]
        parts = [KAFKA]
        if options.include_headers:
            parts.append(HEADERS)
        if options.include_metadata:
            parts.append(METADATA)
        return ", ".join(parts)

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark.sql.pandas.types import to_arrow_schema

        from trunkline.spark.options import ReadOptions
        from trunkline.spark.source.batch import TableReader, TopicReader

        options = ReadOptions.parse(self.options)
        wanted = to_arrow_schema(schema, timezone="UTC")
        if options.table != "messages":
            return TableReader(options, wanted)
        return TopicReader(options, wanted)

    def streamReader(self, schema: StructType) -> TopicStream:
        from pyspark.sql.pandas.types import to_arrow_schema

        from trunkline.spark.options import ReadOptions
        from trunkline.spark.source.micro_batch import TopicStream

        return TopicStream(ReadOptions.parse(self.options), to_arrow_schema(schema, timezone="UTC"))

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        from trunkline.spark.options import WriteOptions
        from trunkline.spark.sink.writer import BatchSink

        return BatchSink(WriteOptions.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        from trunkline.spark.options import WriteOptions
        from trunkline.spark.sink.writer import StreamSink

        return StreamSink(WriteOptions.parse(self.options), schema)

    def __repr__(self) -> str:
        return "TrunklineSource()"
