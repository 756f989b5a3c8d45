"""Messages as DataFrames: read by offset from log and archive, made readable, and converted back to messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from trunkline.db.sync import calls
from trunkline.errors import InvalidArgument
from trunkline.spark.database import plain
from trunkline.spark.run import Run
from trunkline.spark.sink.staging import check_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamReader

FORMAT = "trunkline"
MESSAGE = ("value", "key", "headers", "topic", "partition", "routing_key", "label", "content_type", "id", "occurred_at")
"""Columns that the sink accepts."""
COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>, id string, routing_key string, label string, content_type string, "
    "occurred_at timestamp"
)
"""Schema with all columns of a message."""
_PLACE = ("offset", "timestamp", "timestampType", "text", "body")


class Target(msgspec.Struct, frozen=True):
    """A topic or queue to write to."""

    kind: str
    name: str

    @classmethod
    def of(cls, topic: str | None, queue: str | None) -> Target:
        if (topic is None) == (queue is None):
            raise InvalidArgument("exactly one of topic and queue must be given", hint="Give a topic or a queue.")
        return cls("topic", topic) if topic is not None else cls("queue", str(queue))

    def check(self, url: str) -> None:
        """Raise an error if the target does not exist, before Spark starts."""
        check_target(url, self.name if self.kind == "topic" else f"queue:{self.name}")

    def number(self, url: str) -> int:
        """Return the number of the topic or of the queue's own log. One that is created again has another."""
        with plain(url) as conn:
            return calls.topic_number(conn, "topic" if self.kind == "topic" else "inbox", self.name)


def messages(run: Run, topic: str, spans: Mapping[int, tuple[int, int]], *, schema: str = COLUMNS) -> DataFrame:
    """Return the messages of these offsets, with all columns or those of `schema`."""
    reader = run.spark.read.format(FORMAT).option("url", run.url).option("subscribe", topic)
    for option, side in (("startingOffsets", 0), ("endingOffsets", 1)):
        offsets = {topic: {str(partition): ends[side] for partition, ends in spans.items()}}
        reader = reader.option(option, msgspec.json.encode(offsets).decode())
    return reader.schema(schema).load()


def stream(run: Run, topic: str, start: str, group: str | None = None) -> DataFrame:
    """Return the messages of a topic as a stream. The checkpoint stores the position; `group` makes it visible."""
    reader: DataStreamReader = run.spark.readStream.format(FORMAT).option("url", run.url).option("subscribe", topic)
    if group is not None:
        reader = reader.option("group", group)
    return reader.option("startingOffsets", start).schema(COLUMNS).load()


def readable(frame: DataFrame) -> DataFrame:
    """Return the frame with the key as text and the payload in two more columns: `text`, and `body` as JSON.

    `text` and `body` are null if the payload is not valid UTF-8 or JSON.
    """
    from pyspark.sql import functions as f

    text = f.try_validate_utf8(f.col("value").cast("string"))
    return frame.withColumns({"key": f.col("key").cast("string"), "text": text, "body": f.try_parse_json(text)})


def publishable(frame: DataFrame) -> DataFrame:
    """Return a frame that the sink accepts. Without a column `value`, the user's columns become a JSON payload."""
    from pyspark.sql import functions as f

    columns = [name for name in MESSAGE if name in frame.columns and name not in ("topic", "partition")]
    if "value" in columns:
        return frame.select(*columns)
    own = [name for name in frame.columns if name not in (*MESSAGE, *_PLACE)]
    if not own:
        raise InvalidArgument(
            f"the result has no column to publish, got {', '.join(frame.columns) or 'none'}",
            hint="Select a column `value`, or other columns to publish as JSON.",
        )
    return frame.select(*columns, f.to_json(f.struct(*own)).alias("value"))


def with_headers(frame: DataFrame, added: Mapping[str, str]) -> DataFrame:
    """Add headers whose values are SQL expressions. Existing headers of the same name are replaced."""
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
    """Publish the frame once: a version that is already published adds nothing."""
    out: DataFrameWriter = frame.write.format(FORMAT).option("url", run.url).option(target.kind, target.name)
    out.option("pipelineWriter", writer).option("txnVersion", version).mode("append").save()
