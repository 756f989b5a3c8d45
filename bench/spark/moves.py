"""Trunkline's side: reads, writes and streams through the format "trunkline"."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bench.spark.bed import CORES, Bed
from trunkline.spark.source.ranges import Head

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

_ALL = (
    "topic string, partition int, offset bigint, id string, key string, routing_key string, label string, headers string,"
    " value binary, content_type string, occurred_at timestamp, timestamp timestamp"
)


def read(bed: Bed, topic: str, *, tasks: int, tier: str = "live", until: Sequence[Head] = ()) -> DataFrame:
    """Read Kafka's seven columns, up to the heads in `until`."""
    reader = _reader(bed, topic, tasks, tier)
    if until:
        reader = reader.option("endingOffsets", _document(topic, {head.partition: head.head for head in until}))
    return reader.load()


def read_all_columns(bed: Bed, topic: str, spans: dict[int, tuple[int, int]], *, tasks: int) -> DataFrame:
    """Read all columns that the archive stores, for these offsets."""
    reader = _reader(bed, topic, tasks, "live").schema(_ALL)
    for side, option in enumerate(("startingOffsets", "endingOffsets")):
        reader = reader.option(option, _document(topic, {partition: span[side] for partition, span in spans.items()}))
    return reader.load()


def write(bed: Bed, frame: DataFrame, topic: str) -> None:
    frame.write.format("trunkline").option("url", bed.url).option("topic", topic).mode("append").save()


def to_nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def sustained(bed: Bed, source: str, *, rows: int, per_batch: int, target: str | None = None) -> float:
    """Return the rows per second of a stream, without its first batch, which includes the start."""
    frame = (
        bed.spark.readStream.format("trunkline")
        .option("url", bed.url)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .option("minPartitions", CORES)
        .option("maxConnections", CORES)
        .option("includeMetadata", "false")
        .option("tier", "live")
        .load()
    )
    with bed.output() as output, bed.output() as checkpoint:
        writer = (frame if target is None else frame.select("key", "value")).writeStream
        if target is None:
            writer = writer.format("parquet").option("path", output)
        else:
            writer = writer.format("trunkline").option("url", bed.url).option("topic", target)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return _rate(query, rows)


def _rate(query: StreamingQuery, rows: int) -> float:
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    seen = sum(progress["numInputRows"] for progress in batches)
    if seen != rows or len(batches) < 3:
        raise RuntimeError(f"the stream read {seen} of {rows} rows in {len(batches)} batches")
    later = batches[1:]
    milliseconds = sum(progress["durationMs"]["triggerExecution"] for progress in later)
    return sum(progress["numInputRows"] for progress in later) / milliseconds * 1000


def _reader(bed: Bed, topic: str, tasks: int, tier: str) -> Any:
    return (
        bed.spark.read.format("trunkline")
        .option("url", bed.url)
        .option("subscribe", topic)
        .option("minPartitions", tasks)
        .option("includeMetadata", "false")
        .option("tier", tier)
    )


def _document(topic: str, offsets: dict[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})
