"""Replay: messages of a range, from log or archive, once more into a topic or a queue. Exactly once, and resumable.

A replay has an id. Its plan (source, offsets, target, chunk size) is kept under that id at the first start; a chunk is one
version of one writer. So who starts it again goes on with the first chunk that was not published, and publishes none twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg

from trunkline.db import archive
from trunkline.errors import Conflict
from trunkline.spark.pipelines import frames, spans, transforms
from trunkline.spark.pipelines.frames import Target
from trunkline.spark.pipelines.running import Progress, Run, running
from trunkline.spark.reading import heads
from trunkline.spark.staging import newest_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHUNK_ROWS = 200_000
# With a rate, a chunk is what may be published in this time.
_RATE_SECONDS = 2
# Where a message was, for whoever gets it again.
ORIGIN = {
    "replay-topic": "topic",
    "replay-partition": "partition",
    "replay-offset": "offset",
    "replay-time": "date_format(timestamp, \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\")",
}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay does; kept, so that a second start does the same."""

    topic: str
    kind: str
    target: str
    offsets: dict[str, tuple[int, int]]
    chunk_rows: int
    filter: str | None
    transform: str | None
    topic_id: int | None = None
    """Offsets are those of the topic with this number; one that is created again under its name has others."""
    target_id: int | None = None

    @property
    def spans(self) -> spans.Spans:
        return {int(partition): ends for partition, ends in self.offsets.items()}


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did: messages read, and published by this run."""

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
    start: spans.Place = "earliest",
    end: spans.Place = "latest",
    filter: str | None = None,
    transform: str | None = None,
    rate: float | None = None,
    chunk_rows: int = CHUNK_ROWS,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    master: str | None = None,
    told: Progress | None = None,
) -> ReplayReport:
    """Publish the messages from `start` up to before `end` again, in the order of their partitions.

    `filter` is a SQL condition; `transform` a .py or .sql file that works row by row; `rate` messages per second at most,
    in chunks of two seconds. `dry_run` reads and transforms, and publishes nothing.
    """
    target = Target.of(to_topic, to_queue)
    change = transforms.load(transform) if transform else None
    with running(url, f"replay:{id}", "replay", spark=spark, master=master, told=told) as run:
        target.check(url)
        wanted = Plan(
            topic=topic,
            kind=target.kind,
            target=target.name,
            offsets={str(partition): ends for partition, ends in spans.spans(url, topic, start, end).items()},
            # a chunk is the unit of the rate too
            chunk_rows=min(chunk_rows, max(1, int(rate * _RATE_SECONDS))) if rate else chunk_rows,
            filter=filter,
            transform=transform,
            topic_id=topic_number(url, topic),
            target_id=target.number(url),
        )
        plan = wanted if dry_run else keep(url, run.name, wanted)

        def make(frame: DataFrame) -> DataFrame:
            kept = frames.readable(frame).where(filter).drop("text", "body") if filter else frame
            placed = frames.with_headers(kept, ORIGIN)
            return frames.publishable(change(run.spark, placed) if change else _as_it_was(placed))

        copied = copy(run, plan, make, target, rate=rate, dry_run=dry_run)
    return ReplayReport(id=id, topic=topic, target=target.name, dry_run=dry_run, **copied)


def _as_it_was(frame: DataFrame) -> DataFrame:
    """The message as it was, except for its id: a second message is not the first."""
    return frame.drop("id")


def keep(url: str, name: str, wanted: Plan) -> Plan:
    """The plan under this name: that of the first start. What is asked for now must be the same, but for the offsets."""
    with psycopg.connect(url, autocommit=True) as conn:
        kept = msgspec.convert(archive.keep_plan(conn, name, msgspec.to_builtins(wanted)), Plan)
    for field in ("topic", "kind", "target", "filter", "transform"):
        if getattr(kept, field) != getattr(wanted, field):
            raise Conflict(
                f"{name} was started with {field} {getattr(kept, field)!r}, not {getattr(wanted, field)!r}",
                hint="give it another id, or the same settings",
            )
    if kept.topic_id not in (None, wanted.topic_id):
        raise _created_again(name, "topic", kept.topic)
    if kept.target_id not in (None, wanted.target_id):
        raise _created_again(name, kept.kind, kept.target)
    return kept


def _created_again(name: str, kind: str, other: str) -> Conflict:
    return Conflict(
        f"{name} was started with {kind} {other!r} before that was deleted and created again", hint="give it another id"
    )


def topic_number(url: str, topic: str) -> int:
    """Return the number of a topic."""
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
    """Chunk by chunk from the source to the target, each chunk published once per writer, whatever happens."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    started = time.monotonic()
    total = spans.count(plan.spans)
    writer = writer or run.name
    last = None if dry_run else newest_version(run.url, writer)
    read = published = skipped = version = 0
    warm = False
    for version, part in enumerate(spans.chunks(plan.spans, plan.chunk_rows), 1):
        read += spans.count(part)
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
            time.sleep(max(0.0, spans.count(part) / rate - (time.monotonic() - begun if warm else 0)))
        warm = True
    return {
        "read": read,
        "published": published,
        "chunks": version,
        "skipped_chunks": skipped,
        "seconds": round(time.monotonic() - started, 3),
    }
