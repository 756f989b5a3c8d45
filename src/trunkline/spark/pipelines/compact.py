"""Compact a topic: write the latest message of each key to a table, a topic or both.

An empty payload is a tombstone.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import InvalidArgument
from trunkline.spark.archive import positions
from trunkline.spark.pipelines import frames, output_tables
from trunkline.spark.pipelines.frames import Target
from trunkline.spark.pipelines.replay import topic_number
from trunkline.spark.run import Progress, running
from trunkline.spark.sink.staging import newest_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NULL_KEYS = ("error", "skip")
_KEPT = ("key", "value", "partition", "offset", "timestamp", "headers", "routing_key", "label", "content_type", "id")


class CompactReport(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a run."""

    topic: str
    read: int
    keys: int
    tombstones: int
    without_key: int
    table: str | None
    published: int
    seconds: float
    dry_run: bool = False


def compact(
    url: str,
    topic: str,
    table: str | None = None,
    *,
    to_topic: str | None = None,
    start: positions.Position = "earliest",
    end: positions.Position = "latest",
    null_keys: str = "error",
    tombstones: timedelta | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    master: str | None = None,
    on_progress: Progress | None = None,
) -> CompactReport:
    """Write the latest message of each key from `start` to `end` (exclusive).

    Tombstones are kept, with `deleted` true; those older than `tombstones` are dropped. `null_keys` decides whether
    messages without a key are an error or skipped. Publishing is idempotent: a second run over the same offsets adds
    nothing to the topic.
    """
    started = time.monotonic()
    if null_keys not in NULL_KEYS:
        raise InvalidArgument(f"null_keys must be {' or '.join(NULL_KEYS)}, got {null_keys!r}")
    if table is None and to_topic is None and not dry_run:
        raise InvalidArgument("no table or topic to write to", hint="Give a table (--table), a topic (--to), or both.")
    if table is not None:
        output_tables.check(table, overwrite=overwrite)
    with running(url, f"compact:{topic}", "compact", spark=spark, master=master, on_progress=on_progress) as run:
        target = None if to_topic is None else Target("topic", to_topic)
        if target is not None:
            target.check(url)
        spans = positions.spans(url, topic, start, end)
        total = positions.count(spans)
        whole = frames.messages(run, topic, spans)
        only_keys = frames.messages(run, topic, spans, schema="key binary")
        without = only_keys.where("key is null").count() if total else 0
        if without and null_keys == "error":
            raise InvalidArgument(
                f"{without} of {total} messages of topic {topic!r} have no key",
                hint="Messages without a key cannot be compacted. Skip them with null_keys=skip (--null-keys skip).",
            )
        latest = _latest(whole, tombstones).persist()
        try:
            keys, dead = latest.count(), latest.where("deleted").count()
            run.advance(total, total)
            published = 0
            if not dry_run:
                if table is not None:
                    output_tables.write(latest, table, overwrite=overwrite)
                if target is not None:
                    # by numbers: topics that are created again have other messages
                    writer = f"compact:{topic_number(url, topic)}:{target.number(url)}:{positions.digest(spans)}"
                    if newest_version(url, writer) is None:
                        frames.write(run, frames.publishable(latest.drop("id")), target, writer, 1)
                        published = keys
        finally:
            latest.unpersist()
    return CompactReport(
        topic=topic,
        read=total,
        keys=keys,
        tombstones=dead,
        without_key=without,
        table=table,
        published=published,
        seconds=round(time.monotonic() - started, 3),
        dry_run=dry_run,
    )


def _latest(frame: DataFrame, tombstones: timedelta | None) -> DataFrame:
    from pyspark.sql import functions as f

    names = [name for name in _KEPT if name in frame.columns and name != "key"]
    row = f.struct(*names)
    # In a partition the highest offset wins. After partitions were added, a key can be in two: then the time decides.
    by_partition = frame.where("key is not null").groupBy("key", "partition").agg(f.max_by(row, "offset").alias("m"))
    latest = by_partition.groupBy("key").agg(f.max_by("m", "m.timestamp").alias("m"))
    out = latest.select(f.col("key").cast("string").alias("key"), "m.*").withColumn("deleted", f.octet_length("value") == 0)
    if tombstones is not None:
        out = out.where(~f.col("deleted") | (f.col("timestamp") >= f.lit(datetime.now(UTC) - tombstones)))
    return out
