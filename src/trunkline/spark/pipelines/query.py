"""Pipelines as streaming queries, from a topic to a topic, queue or table. The checkpoint stores the position."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg

from trunkline.db.calls.pipelines import QUERY
from trunkline.db.calls.spark import advance_group
from trunkline.db.sync import calls
from trunkline.errors import InvalidArgument
from trunkline.spark.errors import cause
from trunkline.spark.pipelines import frames, transforms
from trunkline.spark.pipelines.frames import Target
from trunkline.spark.run import Progress, Run, clear_errors, running
from trunkline.spark.source.log_reader import heads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MODES = ("once", "stream")
_POLL_SECONDS = 1


class StreamReport(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a run."""

    name: str
    topic: str
    target: str
    read: int
    batches: int
    seconds: float


def run_file(
    url: str,
    file: str,
    topic: str,
    *,
    checkpoint: str,
    to_topic: str | None = None,
    to_queue: str | None = None,
    table: str | None = None,
    mode: str = "once",
    start: str = "earliest",
    group: str | None = None,
    name: str | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    on_progress: Progress | None = None,
) -> StreamReport:
    """Run a .py or .sql file on the new messages of a topic, up to the head (`once`) or until stopped (`stream`).

    With a `group`, start at the group's position, which may be in the archive, and advance it.
    """
    change = transforms.load(file)
    called = name or Path(file).stem
    return query(
        url,
        f"run:{called}",
        "run",
        topic,
        lambda run, frame: change(run.spark, frame),
        checkpoint=checkpoint,
        target=None if table is not None and to_topic is None and to_queue is None else Target.of(to_topic, to_queue),
        table=table,
        mode=mode,
        start=start if group is None else position(url, topic, group),
        group=group,
        spark=spark,
        master=master,
        on_progress=on_progress,
    )


def position(url: str, topic: str, group: str) -> str:
    """Return a group's position in the format of `startingOffsets`."""
    with clear_errors(), psycopg.connect(url, autocommit=True) as conn:
        positions = {str(row.partition): row.next_offset for row in calls.group_stats(conn, topic, group)}
    return msgspec.json.encode({topic: positions}).decode()


def dedupe(
    url: str,
    topic: str,
    to_topic: str,
    *,
    by: str = "key",
    within: str = "1 hour",
    checkpoint: str,
    mode: str = "once",
    start: str = "earliest",
    spark: SparkSession | None = None,
    master: str | None = None,
    on_progress: Progress | None = None,
) -> StreamReport:
    """Copy a topic without duplicates: messages with an equal SQL expression `by`, less than `within` apart."""

    def distinct(run: Run, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        keyed = frames.readable(frame).withColumn("dedupe_by", f.expr(by).cast("string"))
        once = keyed.withWatermark("timestamp", within).dropDuplicatesWithinWatermark(["dedupe_by"])
        return once.drop("dedupe_by", "text", "body", "id")

    return query(
        url,
        f"dedupe:{topic}:{to_topic}",
        "dedupe",
        topic,
        distinct,
        checkpoint=checkpoint,
        target=Target("topic", to_topic),
        table=None,
        mode=mode,
        start=start,
        spark=spark,
        master=master,
        on_progress=on_progress,
    )


def query(
    url: str,
    name: str,
    kind: str,
    topic: str,
    make: Callable[[Run, DataFrame], DataFrame],
    *,
    checkpoint: str,
    target: Target | None,
    table: str | None,
    mode: str,
    start: str,
    group: str | None = None,
    spark: SparkSession | None,
    master: str | None,
    on_progress: Progress | None,
) -> StreamReport:
    """Run a streaming query to its end and report its progress."""
    if mode not in MODES:
        raise InvalidArgument(f"mode must be {' or '.join(MODES)}, got {mode!r}")
    started = time.monotonic()
    with running(url, name, kind, spark=spark, master=master, on_progress=on_progress) as run:
        heads(url, [topic])
        if target is not None:
            target.check(url)
        output = make(run, frames.stream(run, topic, start, group))
        writer = (output if target is None else frames.publishable(output)).writeStream
        # The session's listener reports rates and lag under the query's name.
        writer = writer.option("checkpointLocation", checkpoint).queryName(name + QUERY)
        if target is None:
            writer = writer.format("parquet").option("path", str(table)).option("compression", "zstd")
        else:
            writer = writer.format(frames.FORMAT).option("url", url).option(target.kind, target.name)
        started_query = writer.trigger(availableNow=True).start() if mode == "once" else writer.start()
        batches = _watch(run, started_query)
        if group is not None:
            _move_group(url, topic, group, started_query)
    return StreamReport(
        name=name,
        topic=topic,
        target=str(table) if target is None else target.name,
        read=run.rows,
        batches=batches,
        seconds=round(time.monotonic() - started, 3),
    )


def _move_group(url: str, topic: str, group: str, ended: StreamingQuery) -> None:
    """Advance the group past the last batch: Spark commits a batch to the source only when the next one starts."""
    last = ended.lastProgress
    if last is not None and last["sources"][0]["endOffset"]:
        end = msgspec.json.decode(str(last["sources"][0]["endOffset"]))
        with psycopg.connect(url, autocommit=True) as conn:
            advance_group(conn, topic, group, {int(partition): at for partition, at in end[topic].items()})


def _rows(progress: Any) -> int:
    """Return the number of rows of a batch. Spark Connect reports it only by source."""
    return int(progress["numInputRows"] or sum(source["numInputRows"] or 0 for source in progress["sources"]))


def _watch(run: Run, running_query: StreamingQuery) -> int:
    """Wait until the query ends and return the number of batches. Ctrl-C stops the query gracefully."""
    seen: dict[int, int] = {}
    try:
        while True:
            ended = running_query.awaitTermination(_POLL_SECONDS)
            for each in running_query.recentProgress:
                seen[each["batchId"]] = max(seen.get(each["batchId"], 0), _rows(each))
            # Report even without new rows: the callback may raise to stop the query.
            run.advance(sum(seen.values()), batch=max(seen, default=None))
            if ended:
                break
    except KeyboardInterrupt:
        running_query.stop()
    except BaseException as exc:
        if running_query.isActive:
            running_query.stop()
        if isinstance(exc, Exception) and type(exc).__module__.startswith(("pyspark", "py4j")):
            raise cause(str(exc)) from exc
        raise
    if running_query.exception() is not None:
        raise cause(str(running_query.exception()))
    return len(seen)
