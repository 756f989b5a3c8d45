"""Messages as DataFrames: read by offsets from log and archive, shaped for people, and turned back into messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from trunkline.db.sync import calls
from trunkline.errors import InvalidArgument
from trunkline.spark.connections import plain
from trunkline.spark.pipelines.running import Run
from trunkline.spark.staging import check_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamReader

FORMAT = "trunkline"
MESSAGE = ("value", "key", "headers", "topic", "partition", "routing_key", "label", "content_type", "id", "occurred_at")
"""Columns that the sink understands."""
COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>, id string, routing_key string, label string, content_type string, "
    "occurred_at timestamp"
)
"""All that is known about a message."""
_PLACE = ("offset", "timestamp", "timestampType", "text", "body")


class Target(msgspec.Struct, frozen=True):
    """Where messages go: a topic or a queue."""

    kind: str
    name: str

    @classmethod
    def of(cls, topic: str | None, queue: str | None) -> Target:
        if (topic is None) == (queue is None):
            raise InvalidArgument("give a topic or a queue to write to", hint="exactly one of the two")
        return cls("topic", topic) if topic is not None else cls("queue", str(queue))

    def check(self, url: str) -> None:
        """Refuse one that is not there before Spark starts."""
        check_target(url, self.name if self.kind == "topic" else f"queue:{self.name}")

    def number(self, url: str) -> int:
        """Return the number of the topic or of the queue's own log. One that is created again has another."""
        with plain(url) as conn:
            return calls.topic_number(conn, "topic" if self.kind == "topic" else "inbox", self.name)


def messages(run: Run, topic: str, found: Mapping[int, tuple[int, int]], *, schema: str = COLUMNS) -> DataFrame:
    """The messages of these offsets, with all their columns or those of a narrow schema."""
    reader = run.spark.read.format(FORMAT).option("url", run.url).option("subscribe", topic)
    for option, side in (("startingOffsets", 0), ("endingOffsets", 1)):
        offsets = {topic: {str(partition): ends[side] for partition, ends in found.items()}}
        reader = reader.option(option, msgspec.json.encode(offsets).decode())
    return reader.schema(schema).load()


def stream(run: Run, topic: str, start: str, group: str | None = None) -> DataFrame:
    """The messages of a topic as a stream; a checkpoint remembers where it is, and a group shows it."""
    reader: DataStreamReader = run.spark.readStream.format(FORMAT).option("url", run.url).option("subscribe", topic)
    if group is not None:
        reader = reader.option("group", group)
    return reader.option("startingOffsets", start).schema(COLUMNS).load()


def readable(frame: DataFrame) -> DataFrame:
    """With the key as text, and two more columns: `text`, the payload as text, and `body`, as JSON; null if it is none."""
    from pyspark.sql import functions as f

    text = f.try_validate_utf8(f.col("value").cast("string"))
    return frame.withColumns({"key": f.col("key").cast("string"), "text": text, "body": f.try_parse_json(text)})


def publishable(frame: DataFrame) -> DataFrame:
    """What the sink takes. A frame without `value` is published as JSON of its own columns."""
    from pyspark.sql import functions as f

    kept = [name for name in MESSAGE if name in frame.columns and name not in ("topic", "partition")]
    if "value" in kept:
        return frame.select(*kept)
    own = [name for name in frame.columns if name not in (*MESSAGE, *_PLACE)]
    if not own:
        raise InvalidArgument(
            f"the result has no column to publish: {', '.join(frame.columns) or 'none'}",
            hint="select a column `value`, or columns of your own, which become JSON",
        )
    return frame.select(*kept, f.to_json(f.struct(*own)).alias("value"))


def with_headers(frame: DataFrame, added: Mapping[str, str]) -> DataFrame:
    """More headers, each made by an SQL expression of text; one that is there already under that name is replaced."""
    from pyspark.sql import functions as f

    new = f.array(
        *(
            f.struct(f.lit(name).alias("key"), f.expr(f"cast(cast({expression} as string) as binary)").alias("value"))
            for name, expression in added.items()
        )
    )
    old = f.coalesce(
        f.filter("headers", lambda header: ~header["key"].isin(list(added))),
        f.array().cast("array<struct<key:string,value:binary>>"),
    )
    return frame.withColumn("headers", f.concat(old, new))


def write(run: Run, frame: DataFrame, target: Target, writer: str, version: int) -> None:
    """Publish once: a version that was published before adds nothing."""
    out: DataFrameWriter = frame.write.format(FORMAT).option("url", run.url).option(target.kind, target.name)
    out.option("txnAppId", writer).option("txnVersion", version).mode("append").save()
