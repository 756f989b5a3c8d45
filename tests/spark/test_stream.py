"""Streams: size of a batch, where it stops and resumes, and errors when messages are missing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.conftest import Connection
from tests.spark.topics import publish
from trunkline.spark.sink.key_partitions import partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


class Collector:
    """Runs a query until it has read what there is, and keeps its rows batch by batch."""

    def __init__(self, spark: SparkSession, db: str, home: Path) -> None:
        self.spark, self.db, self.home = spark, db, home
        self.batches: list[list[Any]] = []
        self.between: Callable[[int], None] = lambda batch: None

    def run(self, topic: str = "t", name: str | None = None, **options: Any) -> list[Any]:
        given = {"url": self.db, "subscribe": topic, "startingOffsets": "earliest"} | options
        if "subscribePattern" in given:
            del given["subscribe"]
        frame = (
            self.spark.readStream.format("trunkline")
            .options(**given)
            .schema("topic string, partition int, offset bigint, value string")
            .load()
        )

        def take(batch: Any, number: int) -> None:
            self.batches.append([tuple(row) for row in batch.collect()])
            self.between(number)

        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self.home)).trigger(availableNow=True)
        query = (writer.queryName(name) if name else writer).start()
        query.awaitTermination()
        return query.recentProgress

    @property
    def rows(self) -> list[Any]:
        return [row for batch in self.batches for row in batch]


@pytest.fixture
def collector(spark: SparkSession, db: str, tmp_path: Path) -> Collector:
    return Collector(spark, db, tmp_path)


def test_batches_restarts_and_the_end_seen_at_the_start(collector: Collector, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t', 2)")
    publish(conn, "t", 1000)
    # Publishing continues while the query runs: it stops at the head at its start.
    collector.between = lambda number: publish(conn, "t", 50, first=1000 + 50 * number)
    progress = collector.run(maxOffsetsPerTrigger="300", group="g")
    assert [len(batch) for batch in collector.batches] == [300, 300, 300, 100]
    assert all({row[1] for row in batch} == {0, 1} for batch in collector.batches), "a limit is shared by all partitions"
    assert [entry["numInputRows"] for entry in progress] == [300, 300, 300, 100]
    collector.between = lambda number: None
    collector.run()
    assert sorted(int(row[3]) for row in collector.rows) == list(range(1200))
    # the group shows where the query is; one batch late, because Spark tells the source when it plans the next
    assert conn.execute("select sum(next_offset - 1) from trunkline.group_stats('t', 'g')").fetchone() == (900,)


def test_partitions_and_topics_that_come_later(collector: Collector, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t1')")
    publish(conn, "t1", 20)

    def grow(number: int) -> None:
        if number == 0:
            conn.execute("select trunkline.alter_topic('t1', 3), trunkline.create_topic('t2')")
            publish(conn, "t1", 100, first=20)
            publish(conn, "t2", 10, first=120)

    collector.between = grow
    collector.run(subscribePattern="t[0-9]")
    collector.run(subscribePattern="t[0-9]")
    assert sorted(int(row[3]) for row in collector.rows) == list(range(130))
    assert {(row[0], row[1]) for row in collector.rows} == {("t1", 0), ("t1", 1), ("t1", 2), ("t2", 0)}


def fails(collector: Collector, said: str, **options: Any) -> None:
    with pytest.raises(Exception, match=re.escape(said)):
        collector.run(**options)


def test_checkpoints_that_do_not_fit_any_more(
    collector: Collector, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    conn.execute("select trunkline.create_topic('t', p_segment_rows => 16), trunkline.create_topic('u')")
    publish(conn, "t", 40)
    collector.run()
    fails(collector, "the checkpoint contains topics that this query does not read: t", topic="u")
    publish(conn, "t", 60, first=40)
    conn.execute("call trunkline.sequence()")
    conn.execute(
        "select trunkline._empty_segment(topic_id, 0, s, s * 16 + 15)"
        " from trunkline.list_topics(), generate_series(0, 3) s where name = 't'"
    )
    fails(collector, "offsets 41 to 63 of partition 0 of topic t are gone")
    collector.run(failOnDataLoss="false")
    assert [int(row[3]) for row in collector.rows] == [*range(40), *range(63, 100)]
    conn.execute("select trunkline.delete_topic('t'), trunkline.create_topic('t')")
    fails(collector, "deleted and created again")
    with pytest.raises(Exception, match="a stream has no ending offsets"):
        collector.run(endingOffsets="latest")


def drop(conn: Connection, segments: int, partition: int = 0) -> None:
    """Remove the first segments of a partition of t, as retention does."""
    conn.execute("call trunkline.sequence()")
    conn.execute(
        "select trunkline._empty_segment(topic_id, %s, s, s * 16 + 15)"
        " from trunkline.list_topics(), generate_series(0, %s::int - 1) s where name = 't'",
        (partition, segments),
    )


def crash(collector: Collector, **options: Any) -> None:
    """Plan a batch, and let it fail."""

    def fail(number: int) -> None:
        raise RuntimeError("crashed")

    collector.between = fail
    fails(collector, "crashed", **options)
    collector.between = lambda number: None
    collector.batches.clear()


def values(collector: Collector) -> list[int]:
    return sorted(int(row[3]) for row in collector.rows)


def test_a_new_partition_that_retention_has_cut_is_not_passed_over(collector: Collector, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t', p_segment_rows => 16)")
    publish(conn, "t", 5)
    collector.run()
    collector.batches.clear()
    conn.execute("select trunkline.alter_topic('t', 2)")
    key = next(f"k{n}" for n in range(100) if partitions(pa.array([f"k{n}"]), 2)[0] == 1)
    conn.execute("select trunkline.publish('t', to_jsonb(n), p_key => %s) from generate_series(100, 139) n", (key,))
    crash(collector)
    drop(conn, 2, partition=1)
    # the batch is in the checkpoint, and is repeated
    fails(collector, "offsets 1 to 31 of partition 1 of topic t are gone")
    assert collector.rows == []
    collector.run(failOnDataLoss="false")
    assert values(collector) == list(range(131, 140))


def test_the_first_batch_is_repeated_as_it_was(collector: Collector, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t', p_segment_rows => 16)")
    publish(conn, "t", 40)
    crash(collector)
    publish(conn, "t", 5, first=40)
    # a start at "latest" must not skip the batch that was planned before
    collector.run(startingOffsets="latest")
    assert values(collector) == list(range(45))


def test_the_first_batch_is_not_repeated_without_what_retention_took(collector: Collector, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t', p_segment_rows => 16)")
    publish(conn, "t", 40)
    crash(collector)
    drop(conn, 1)
    fails(collector, "offsets 1 to 15 of partition 0 of topic t are gone")
    collector.run(failOnDataLoss="false")
    assert values(collector) == list(range(15, 40))


def test_a_topic_that_was_created_again_is_read_from_its_beginning(collector: Collector, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    publish(conn, "t", 20)
    collector.run()
    collector.batches.clear()
    conn.execute("select trunkline.delete_topic('t'), trunkline.create_topic('t')")
    publish(conn, "t", 30, first=100)
    fails(collector, "deleted and created again")
    collector.run(failOnDataLoss="false")
    assert values(collector) == list(range(100, 130))


def test_progress_is_told(collector: Collector, conn: Connection) -> None:
    from trunkline.spark.options import Secret
    from trunkline.spark.progress import pipelines
    from trunkline.spark.session.listener import ProgressListener

    conn.execute("select trunkline.create_topic('t')")
    publish(conn, "t", 30)
    listener = ProgressListener(Secret(collector.db))
    collector.spark.streams.addListener(listener)
    try:
        collector.run(name="copy", maxOffsetsPerTrigger="20")

        def broken(number: int) -> None:
            raise RuntimeError("no room left")

        publish(conn, "t", 5, first=30)
        collector.between = broken
        fails(collector, "no room left", name="copy")
        # the listener hears of the end a moment after the query
        for _ in range(100):
            found = pipelines(collector.db)
            if found and found[0].state == "failed":
                break
            conn.execute("select pg_sleep(0.1)")
    finally:
        collector.spark.streams.removeListener(listener)
    assert [(one.name, one.kind, one.state) for one in found] == [("copy", "stream", "failed")]
    assert "no room left" in (found[0].error or "")
    kept = conn.execute("select detail from trunkline.list_progress('copy')").fetchall()
    [detail, *_] = [row[0] for row in kept if "sources" in row[0]]
    assert detail["durations"]["triggerExecution"] >= 0
    assert detail["sources"][0]["rows"] > 0
    assert "description" in detail["sink"]
