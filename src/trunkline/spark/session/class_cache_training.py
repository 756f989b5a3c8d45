"""Run a typical session, so that Java archives its classes in FILE.

Run as `python -m trunkline.spark.session.class_cache_training FILE`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from trunkline.spark.session.class_cache import training_options
from trunkline.spark.session.session import open_session

_SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
_ROWS = 100


def _rows() -> Iterator[pa.RecordBatch]:
    time = pa.timestamp("us", "UTC")
    yield pa.record_batch(
        {
            "key": pa.array([b"k"] * _ROWS),
            "value": pa.array([b"1"] * _ROWS),
            "topic": pa.array(["t"] * _ROWS),
            "partition": pa.array([0] * _ROWS, pa.int32()),
            "offset": pa.array(range(_ROWS), pa.int64()),
            "timestamp": pa.array([0] * _ROWS, time),
        }
    )


class _Reader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows()


class Training(DataSource):
    """Source of generated messages with the columns of the real one."""

    @classmethod
    def name(cls) -> str:
        return "trunkline_training"

    def schema(self) -> str:
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader()


def train(target: Path) -> None:
    conf = {"spark.driver.extraJavaOptions": training_options(target)}
    spark = open_session("training", master="local[2]", conf=conf)
    spark.dataSource.register(Training)
    frame = spark.read.format("trunkline_training").load()
    frame.first()
    frame.groupBy("key").count().collect()
    frame.write.format("noop").mode("overwrite").save()
    spark.stop()


if __name__ == "__main__":
    # Import the module by name, so that workers can unpickle its classes.
    from trunkline.spark.session import class_cache_training

    class_cache_training.train(Path(sys.argv[1]))
