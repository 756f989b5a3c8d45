"""Jobs in the shape of the Spark guide's Kafka examples, of which only the format and the options are other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import Connection
from tests.spark.topics import load
from trunkline import SyncClient
from trunkline.types import NewMessage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.xdist_group("spark")

KAFKA_OPTIONS = {
    "subscribe": "lines",
    "startingOffsets": "earliest",
    "maxOffsetsPerTrigger": "40",
    "minPartitions": "2",
    "failOnDataLoss": "true",
    "kafka.group.id": "counting",
}


# From here on as for Kafka: these take the format and the options, and know no more.


def read(spark: SparkSession, source: str, options: dict[str, str]) -> DataFrame:
    return spark.readStream.format(source).options(**options).load()


def word_count(lines: DataFrame) -> DataFrame:
    text = lines.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
    return text.selectExpr("explode(split(value, ' ')) as word").groupBy("word").count()


def sessions(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    timed = events.selectExpr("CAST(key AS STRING) AS user", "timestamp").withWatermark("timestamp", "10 minutes")
    return timed.groupBy(f.session_window("timestamp", "5 minutes"), "user").count()


def copy(lines: DataFrame, sink: str, options: dict[str, str]) -> DataStreamWriter:
    return lines.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").writeStream.format(sink).options(**options)


# To here.


def publish(db: str, counts: DataFrame) -> DataStreamWriter:
    """A difference: Spark's Python sinks have no output mode `update`; a batch writer does the same, once per batch."""

    def write(batch: DataFrame, number: int) -> None:
        rows = batch.selectExpr("CAST(word AS STRING) AS key", "CAST(count AS STRING) AS value")
        options = {"url": db, "topic": "counts", "txnAppId": "word-count", "txnVersion": str(number)}
        rows.write.format("trunkline").options(**options).mode("append").save()

    return counts.writeStream.outputMode("update").foreachBatch(write)


@pytest.fixture
def lines(db: str, conn: Connection) -> str:
    with SyncClient(db) as mq:
        mq.topics.create("lines", partitions=2)
        mq.topics.create("counts")
        mq.topics.create("copy")
        mq.publish_many("lines", [NewMessage(body=b"to be or not to be", key=f"user-{n % 4}") for n in range(100)])
    return db


def run(writer: DataStreamWriter, checkpoint: Path, **options: Any) -> None:
    writer.option("checkpointLocation", str(checkpoint)).options(**options).trigger(
        availableNow=True
    ).start().awaitTermination()


def test_word_count_and_sessions(spark: SparkSession, lines: str, tmp_path: Path) -> None:
    source = read(spark, "trunkline", KAFKA_OPTIONS | {"url": lines})
    run(copy(source, "trunkline", {"topic": "copy", "url": lines}), tmp_path / "copy")
    assert load(spark, lines, "copy").count() == 100
    run(publish(lines, word_count(source)), tmp_path / "counts")
    rows = load(spark, lines, "counts", schema="key string, value string, offset bigint").orderBy("offset").collect()
    assert {row.key: int(row.value) for row in rows} == {"to": 200, "be": 200, "or": 100, "not": 100}
    assert len(rows) > 4, "several batches, each with what changed"
    found = sessions(source).writeStream.outputMode("complete").format("memory").queryName("sessions")
    run(found, tmp_path / "sessions")
    assert {(row.user, row["count"]) for row in spark.table("sessions").collect()} == {(f"user-{n}", 25) for n in range(4)}
