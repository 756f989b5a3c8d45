"""Report on the traffic of topics and queues in a period, as Parquet tables and an HTML page.

Messages are read from log and archive through the data source, deliveries from the delivery history, and lag from the
rollups, which cover 25 hours.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from trunkline.db.calls import report as calls
from trunkline.db.sync import calls as kernel
from trunkline.errors import ArchiveDamaged, InvalidArgument
from trunkline.spark.archive.positions import count, spans
from trunkline.spark.pipelines import report_page
from trunkline.spark.pipelines.frames import messages
from trunkline.spark.run import Progress, Run, running

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_log = logging.getLogger(__name__)
Rows = list[dict[str, Any]]
_DELIVERIES = 200_000
_POINTS = 120
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400)
_HOT_KEYS = 20
_OUTCOMES = ("acked", "nacked", "expired", "released", "buried", "dead", "gone")
_RUNS = pa.schema(
    [
        *((name, pa.string()) for name in ("queue", "topic")),
        ("partition", pa.int32()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("attempt", pa.int32()),
        ("consumer", pa.string()),
        *((name, pa.timestamp("us", "UTC")) for name in ("claimed_at", "settled_at")),
        ("outcome", pa.string()),
        ("error", pa.string()),
        *((name, pa.timestamp("us", "UTC")) for name in ("published_first", "published_last")),
    ]
)


class ReportSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Paths and totals of a report."""

    page: str
    tables: list[str]
    messages: int
    deliveries: int
    dead_letters: int
    seconds: float
    skipped: dict[str, str] = {}
    """Topics that the report omits because their archive cannot be read, with the reason."""


def report(
    url: str,
    folder: str,
    *,
    topics: Sequence[str] | None = None,
    since: timedelta = timedelta(days=1),
    step: timedelta | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    on_progress: Progress | None = None,
) -> ReportSummary:
    """Write `report.html` and its tables to a folder. `topics` limits the topics; all queues are always included."""
    started = time.monotonic()
    if since < timedelta(minutes=1):
        raise InvalidArgument(f"the period must be at least 1 min, got {since}", hint="Report on a longer period.")
    target = _folder(folder)
    end = datetime.now(UTC)
    step = step or _step(since)
    with running(url, "report", "report", spark=spark, master=master, on_progress=on_progress) as run:
        with psycopg.connect(url, autocommit=True) as conn:
            names = list(topics) if topics else [topic.name for topic in kernel.list_topics(conn)]
            deliveries = calls.delivery_times(conn, since, limit=_DELIVERIES)
            dead = calls.dead_letter_errors(conn, since)
            lags = calls.reader_lags(conn, since, step)
        tables: dict[str, Rows] = {"lag": lags}
        skipped: dict[str, str] = {}
        tables |= _messages(run, names, end - since, step, skipped)
        tables |= _deliveries(run, names, deliveries, end - since, step)
        tables["dead_letters"] = _dead_letters(run, dead)
        written = [_write(target, name, rows) for name, rows in tables.items() if rows]
        for name in tables.keys() - {name for name, rows in tables.items() if rows}:
            # Remove the table of an earlier run.
            (target / f"{name}.parquet").unlink(missing_ok=True)
        html = report_page.render(tables, start=end - since, end=end, step=step)
        (target / "report.html").write_text(html, encoding="utf-8")
    return ReportSummary(
        page=str(target / "report.html"),
        tables=written,
        messages=sum(row["messages"] for row in tables["topics"]),
        deliveries=sum(row["deliveries"] for row in tables["queues"]),
        dead_letters=len(dead),
        seconds=round(time.monotonic() - started, 3),
        skipped=skipped,
    )


def _folder(name: str) -> Path:
    target = Path(name).absolute()
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target):
            pass
    except OSError as exc:
        raise InvalidArgument(f"folder {name} cannot be written: {exc.strerror}", hint="Give another folder.") from exc
    return target


def _step(since: timedelta) -> timedelta:
    """Return a round step that gives charts at most about 120 points."""
    exact = since.total_seconds() / _POINTS
    return timedelta(seconds=next((step for step in _STEPS if step >= exact), _STEPS[-1]))


def _write(target: Path, name: str, rows: Rows) -> str:
    path = target / f"{name}.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, compression="zstd")
    return str(path)


def _collect(frame: DataFrame) -> Rows:
    rows: Rows = frame.toArrow().to_pylist()
    return rows


# Messages


def _messages(run: Run, topics: Sequence[str], since: datetime, step: timedelta, skipped: dict[str, str]) -> dict[str, Rows]:
    """Compute the message tables. Caches the messages of all topics, with the sizes of payloads instead of payloads."""
    from pyspark.sql import functions as f

    columns = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
    frames = []
    total = 0
    archived: dict[str, int] = {}
    for topic in topics:
        try:
            offsets = spans(run.url, topic, since)
            _check_reading(run.url, topic, offsets)
        except (ArchiveDamaged, InvalidArgument) as exc:
            _log.warning("topic omitted from the report topic=%s error=%s", topic, exc)
            skipped[topic] = str(exc)
            continue
        if count(offsets):
            total += count(offsets)
            archived[topic] = _archived(run.url, topic, offsets)
            frames.append(messages(run, topic, offsets, schema=columns))
    empty: dict[str, Rows] = {"topics": [], "throughput": [], "sizes": [], "hot_keys": []}
    if not frames:
        return empty
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.union(frame)
    seen = whole.select(
        "topic", "timestamp", f.col("key").cast("string").alias("key"), f.octet_length("value").alias("size")
    ).persist()
    try:
        by_topic = seen.groupBy("topic").agg(
            f.count("*").alias("messages"),
            f.sum("size").alias("bytes"),
            _distinct_keys().alias("keys"),
            f.min("timestamp").alias("first_at"),
            f.max("timestamp").alias("last_at"),
            f.percentile_approx("size", [0.5, 0.95, 0.99]).alias("p"),
            f.max("size").alias("size_max"),
        )
        rows = _collect(by_topic.orderBy(f.desc("messages")))
        for row in rows:
            row["archived"] = archived.get(row["topic"], 0)
            row["size_p50"], row["size_p95"], row["size_p99"] = row.pop("p")
        run.advance(total, total)
        width = f"{int(step.total_seconds())} seconds"
        through = seen.groupBy("topic", f.window("timestamp", width)["start"].alias("at")).agg(
            f.count("*").alias("messages"), f.sum("size").alias("bytes")
        )
        upto = f.expr("cast(pow(2, ceil(log2(greatest(size, 1)))) as bigint)").alias("upto")
        sizes = seen.groupBy("topic", upto).agg(f.count("*").alias("messages"))
        keys = (
            seen.where("key is not null")
            .groupBy("topic", "key")
            .agg(f.count("*").alias("messages"), f.sum("size").alias("bytes"))
            .orderBy(f.desc("messages"), "topic", "key")
            .limit(_HOT_KEYS)
        )
        totals = {row["topic"]: row["messages"] for row in rows}
        hot = [{**row, "share": row["messages"] / totals[row["topic"]]} for row in _collect(keys)]
        return {
            "topics": rows,
            "throughput": _filled(_collect(through.orderBy("at")), step),
            "sizes": _collect(sizes),
            "hot_keys": hot,
        }
    finally:
        seen.unpersist()


def _distinct_keys() -> Column:
    """Return about how many keys there are: an estimate a few percent too high or low, but at most one per message."""
    from pyspark.sql import functions as f

    return f.least(f.approx_count_distinct("key"), f.count("key"))


def _check_reading(url: str, topic: str, offsets: dict[int, tuple[int, int]]) -> None:
    """Read one message of each partition: an unreachable archive must exclude its topic, not fail the report."""
    from trunkline.spark.source.columns import Shape
    from trunkline.spark.source.log_reader import heads
    from trunkline.spark.source.ranges import OffsetRange
    from trunkline.spark.source.tiered_reader import Reading, read

    how = Reading(Shape(pa.schema([("offset", pa.int64())])), "auto", True, None)
    for head in heads(url, [topic]) if count(offsets) else ():
        lo, hi = offsets.get(head.partition, (0, 0))
        if lo < hi:
            list(read(url, OffsetRange(topic, head.topic_id, head.partition, lo, lo + 1), how))


def _archived(url: str, topic: str, offsets: dict[int, tuple[int, int]]) -> int:
    """Return the number of these messages that are only in the archive."""
    from trunkline.spark.source.log_reader import heads

    return sum(
        max(0, min(head.base, offsets[head.partition][1]) - offsets[head.partition][0])
        for head in heads(url, [topic])
        if head.partition in offsets
    )


def _filled(rows: Rows, step: timedelta) -> Rows:
    """Add rows with zero for steps without messages, so that chart lines do not bridge gaps."""
    if not rows:
        return rows
    existing = {(row["topic"], row["at"]): row for row in rows}
    first, last = rows[0]["at"], rows[-1]["at"]
    times = [first + step * n for n in range(int((last - first) / step) + 1)]
    return [
        existing.get((topic, at)) or {"topic": topic, "at": at, "messages": 0, "bytes": 0}
        for topic in sorted({row["topic"] for row in rows})
        for at in times
    ]


# Deliveries


def _deliveries(run: Run, topics: Sequence[str], runs: Rows, since: datetime, step: timedelta) -> dict[str, Rows]:
    from pyspark.sql import functions as f

    if not runs:
        return {"queues": [], "latency": [], "attempts": []}
    table = pa.Table.from_pylist(runs, _RUNS)
    each = _with_times(run, topics, run.spark.createDataFrame(table), since).persist()
    try:
        first = f.when(f.col("attempt") == 1, f.col("wait"))
        counts = [f.count_if(f.col("outcome") == name).alias(name) for name in _OUTCOMES]
        queues = each.groupBy("queue").agg(
            f.count("*").alias("deliveries"),
            *counts,
            f.max("attempt").alias("max_attempt"),
            *_percentiles(first, "wait"),
            *_percentiles(f.col("work"), "work"),
            *_percentiles(f.when(f.col("outcome") == "acked", f.col("total")), "total"),
        )
        width = f"{int(step.total_seconds())} seconds"
        latency = each.groupBy("queue", f.window("claimed_at", width)["start"].alias("at")).agg(
            f.count("*").alias("deliveries"), *_percentiles(first, "wait"), *_percentiles(f.col("work"), "work")
        )
        attempts = each.groupBy("queue", "attempt", "outcome").agg(f.count("*").alias("messages"))
        return {
            "queues": _collect(queues.orderBy(f.desc("deliveries"))),
            "latency": _collect(latency.orderBy("at")),
            "attempts": _collect(attempts.orderBy("queue", "attempt")),
        }
    finally:
        each.unpersist()


def _percentiles(column: Any, name: str) -> list[Any]:
    from pyspark.sql import functions as f

    return [f.percentile_approx(column, p / 100, 10_000).alias(f"{name}_p{p}") for p in (50, 95, 99)]


def _with_times(run: Run, topics: Sequence[str], runs: DataFrame, since: datetime) -> DataFrame:
    """Return one row per delivery, with its waiting, processing and total time in seconds.

    Publish times of topic messages come from the log or archive. Those of direct messages are interpolated between the
    first and last publish time of their run.
    """
    from pyspark.sql import functions as f

    each = runs.withColumn("offset", f.explode(f.sequence("first_offset", "last_offset")))
    width = f.greatest(f.col("last_offset") - f.col("first_offset"), f.lit(1))
    start, stop = (f.col(name).cast("double") for name in ("published_first", "published_last"))
    between = start + (stop - start) * (f.col("offset") - f.col("first_offset")) / width
    each = each.withColumn("published", between)
    from_topics = sorted({row.topic for row in runs.where("topic is not null").select("topic").distinct().collect()})
    found = [_publish_times(run, topic, since) for topic in from_topics if topic in topics]
    if found:
        times = found[0]
        for more in found[1:]:
            times = times.union(more)
        each = each.join(times, ["topic", "partition", "offset"], "left").withColumn(
            "published", f.coalesce("looked_up", "published")
        )
    claimed, settled = f.col("claimed_at").cast("double"), f.col("settled_at").cast("double")
    return each.select(
        "queue",
        "attempt",
        "outcome",
        "claimed_at",
        f.greatest(claimed - f.col("published"), f.lit(0.0)).alias("wait"),
        f.greatest(settled - claimed, f.lit(0.0)).alias("work"),
        f.greatest(settled - f.col("published"), f.lit(0.0)).alias("total"),
    )


def _publish_times(run: Run, topic: str, since: datetime) -> DataFrame:
    # Messages delivered in the period may have been published before it.
    found = spans(run.url, topic, since - timedelta(days=1))
    frame = messages(run, topic, found, schema="topic string, partition int, offset bigint, timestamp timestamp")
    return frame.selectExpr("topic", "partition", "offset", "cast(timestamp as double) as looked_up")


# Dead letters


def _dead_letters(run: Run, dead: Rows) -> Rows:
    """Group dead letters by error, with variable parts such as ids and numbers masked."""
    from pyspark.sql import functions as f

    if not dead:
        return []
    frame = run.spark.createDataFrame(
        [(row["queue"], row["error"], row["masked"], row["dead_at"]) for row in dead],
        "queue string, error string, fingerprint string, dead_at timestamp",
    )
    grouped = frame.groupBy("queue", "fingerprint").agg(
        f.count("*").alias("messages"),
        f.min("dead_at").alias("first_at"),
        f.max("dead_at").alias("last_at"),
        f.max_by("error", "dead_at").alias("example"),
    )
    return _collect(grouped.orderBy(f.desc("messages"), "queue"))
