"""Replay a range of messages from log or archive to a topic or queue. Exactly once, and resumable.

The first start stores the plan (source, offsets, target, chunk size) under the replay's id. Each chunk is one version
of one writer, so a restart continues with the first unpublished chunk and publishes none twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg

from trunkline.db.calls import archive
from trunkline.errors import Conflict
from trunkline.spark.archive import positions
from trunkline.spark.pipelines import frames, transforms
from trunkline.spark.pipelines.frames import Target
from trunkline.spark.run import Progress, Run, running
from trunkline.spark.sink.staging import newest_version
from trunkline.spark.source.log_reader import heads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHUNK_ROWS = 200_000
# With a rate, a chunk is what may be published in this time.
_RATE_SECONDS = 2
# Headers that record a message's original position.
ORIGIN = {
    "replay-topic": "topic",
    "replay-partition": "partition",
    "replay-offset": "offset",
    "replay-time": "date_format(timestamp, \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\")",
}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a replay, stored so that a restart uses the same ones."""

    topic: str
    kind: str
    target: str
    offsets: dict[str, tuple[int, int]]
    chunk_rows: int
    filter: str | None
    transform: str | None
    topic_id: int | None = None
    """The topic that the offsets belong to. A recreated topic of the same name has a different id."""
    target_id: int | None = None

    @property
    def spans(self) -> positions.Spans:
        return {int(partition): ends for partition, ends in self.offsets.items()}


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a run: messages read, and messages published by this run."""

    id: str
    topic: str
    target: str
    read: int
    published: int
    chunks: int
    skipped_chunks: int
    seconds: float
    dry_run: bool = False


def replay(
    url: str,
    topic: str,
    *,
    id: str,
    to_topic: str | None = None,
    to_queue: str | None = None,
    start: positions.Position = "earliest",
    end: positions.Position = "latest",
    filter: str | None = None,
    transform: str | None = None,
    rate: float | None = None,
    chunk_rows: int = CHUNK_ROWS,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    master: str | None = None,
    on_progress: Progress | None = None,
) -> ReplayReport:
    """Publish the messages from `start` to `end` (exclusive) again. Keeps the order within each partition.

    `filter` is a SQL condition, `transform` a .py or .sql file that works row by row, `rate` the maximum number of
    messages per second, in chunks of two seconds. `dry_run` reads and transforms without publishing.
    """
    target = Target.of(to_topic, to_queue)
    change = transforms.load(transform) if transform else None
    with running(url, f"replay:{id}", "replay", spark=spark, master=master, on_progress=on_progress) as run:
        target.check(url)
        requested = Plan(
            topic=topic,
            kind=target.kind,
            target=target.name,
            offsets={str(partition): ends for partition, ends in positions.spans(url, topic, start, end).items()},
            # The rate is applied per chunk.
            chunk_rows=min(chunk_rows, max(1, int(rate * _RATE_SECONDS))) if rate else chunk_rows,
            filter=filter,
            transform=transform,
            topic_id=topic_number(url, topic),
            target_id=target.number(url),
        )
        plan = requested if dry_run else keep(url, run.name, requested)

        def make(frame: DataFrame) -> DataFrame:
            selected = frames.readable(frame).where(filter).drop("text", "body") if filter else frame
            marked = frames.with_headers(selected, ORIGIN)
            return frames.publishable(change(run.spark, marked) if change else _without_id(marked))

        copied = copy(run, plan, make, target, rate=rate, dry_run=dry_run)
    return ReplayReport(id=id, topic=topic, target=target.name, dry_run=dry_run, **copied)


def _without_id(frame: DataFrame) -> DataFrame:
    """Drop the ids: a replayed message is a new message."""
    return frame.drop("id")


def keep(url: str, name: str, requested: Plan) -> Plan:
    """Store the plan at the first start and return it at later ones, with the offsets of the first start.

    Raises Conflict if another setting differs.
    """
    with psycopg.connect(url, autocommit=True) as conn:
        plan = msgspec.convert(archive.keep_plan(conn, name, msgspec.to_builtins(requested)), Plan)
    for field in ("topic", "kind", "target", "filter", "transform"):
        if getattr(plan, field) != getattr(requested, field):
            raise Conflict(
                f"{name} was started with {field} {getattr(plan, field)!r}, not {getattr(requested, field)!r}",
                hint="Use another id, or the same settings.",
            )
    if plan.topic_id not in (None, requested.topic_id):
        raise _created_again(name, "topic", plan.topic)
    if plan.target_id not in (None, requested.target_id):
        raise _created_again(name, plan.kind, plan.target)
    return plan


def _created_again(name: str, kind: str, other: str) -> Conflict:
    return Conflict(
        f"{name} was started with {kind} {other!r} before that was deleted and created again", hint="Use another id."
    )


def topic_number(url: str, topic: str) -> int:
    """Return the id of a topic."""
    return heads(url, [topic])[0].topic_id


def copy(
    run: Run,
    plan: Plan,
    make: Callable[[DataFrame], DataFrame],
    target: Target,
    *,
    writer: str | None = None,
    rate: float | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Copy the plan's messages to the target in chunks.

    Each chunk is published once per writer, also after a failure.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    started = time.monotonic()
    total = positions.count(plan.spans)
    writer = writer or run.name
    last = None if dry_run else newest_version(run.url, writer)
    read = published = skipped = version = 0
    warm = False
    for version, part in enumerate(positions.chunks(plan.spans, plan.chunk_rows), 1):
        read += positions.count(part)
        if last is not None and version <= last:
            skipped += 1
            run.advance(read, total, batch=version)
            continue
        # Spark reads by the topic's name
        if plan.topic_id not in (None, topic_number(run.url, plan.topic)):
            raise _created_again(run.name, "topic", plan.topic)
        begun = time.monotonic()
        seen = Observation()
        frame = make(frames.messages(run, plan.topic, part)).observe(seen, f.count(f.lit(1)).alias("rows"))
        if dry_run:
            frame.write.format("noop").mode("overwrite").save()
        else:
            frames.write(run, frame, target, writer, version)
        published += int(seen.get["rows"])
        run.advance(read, total, batch=version, published=published)
        if rate:
            # The first chunk takes longer, because Spark starts; the second must not come right after it.
            time.sleep(max(0.0, positions.count(part) / rate - (time.monotonic() - begun if warm else 0)))
        warm = True
    return {
        "read": read,
        "published": published,
        "chunks": version,
        "skipped_chunks": skipped,
        "seconds": round(time.monotonic() - started, 3),
    }
