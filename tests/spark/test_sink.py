"""Writes: every row once, in order, whatever fails on the way; and a repeat changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import Connection
from tests.spark.topics import flat, in_order_of_keys, load, payloads, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def write(frame: DataFrame, db: str, **options: Any) -> None:
    frame.write.format("trunkline").option("url", db).options(**options).mode("append").save()


def numbers(spark: SparkSession, count: int, tasks: int = 4) -> DataFrame:
    return spark.range(0, count, numPartitions=tasks).selectExpr(
        "cast(id as string) as value", "concat('k', id % 10) as key"
    )


def failing(frame: DataFrame) -> DataFrame:
    """Each task fails at the end of its first attempt, when all its rows have been handed to the writer."""

    def fails_once(batches):  # type: ignore[no-untyped-def]
        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]
            raise RuntimeError("on purpose")

    return frame.mapInArrow(fails_once, frame.schema)


def test_tasks_that_fail_and_a_job_that_runs_twice(spark: SparkSession, db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t', 2)")
    for _ in range(2):
        write(failing(numbers(spark, 5000)), db, topic="t", txnAppId="job", txnVersion="1")
    found = payloads(conn, "t")
    assert flat(found) == list(range(5000))
    assert in_order_of_keys(found)
    with pytest.raises(Exception, match='version of writer "job" must be above 1, got 0'):
        write(numbers(spark, 10), db, topic="t", txnAppId="job", txnVersion="0")
    assert len(flat(payloads(conn, "t"))) == 5000
    assert conn.execute("select count(*) from trunkline.staged").fetchone() == (0,), "repeats are given up"


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t', p_max_payload => 100)")
    bad = numbers(spark, 1000).selectExpr("if(value = '777', repeat('x', 101), value) as value")
    with pytest.raises(Exception, match="a payload has 101 bytes"):
        write(bad, db, topic="t")
    with pytest.raises(Exception, match="value of row 0 of the task is null"):
        write(numbers(spark, 10).selectExpr("nullif(value, '7') as value"), db, topic="t")
    assert payloads(conn, "t") == [[]]


def test_rows_say_where_they_go_and_what_they_are(spark: SparkSession, db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('a'), trunkline.create_topic('b'), trunkline.create_queue('q')")
    frame = spark.range(6).selectExpr(
        "cast(id as string) as value",
        "if(id % 2 = 0, 'a', 'b') as topic",
        "map('h', cast(id as string)) as headers",
        "'x.y' as routing_key",
        "'text/plain' as content_type",
    )
    write(frame, db)
    assert payloads(conn, "a") == [[0, 2, 4]] and payloads(conn, "b") == [[1, 3, 5]]
    assert conn.execute("select headers, routing_key, content_type from trunkline.read('b', 0, 3)").fetchone() == (
        {"h": "5"},
        "x.y",
        "text/plain",
    )
    # what was read can be written as it is, headers as Kafka has them included
    write(load(spark, db, "b", includeHeaders="true"), db, topic="a")
    assert payloads(conn, "a") == [[0, 2, 4, 1, 3, 5]]
    assert conn.execute("select headers from trunkline.read('a', 0, 6)").fetchone() == ({"h": "5"},)
    write(numbers(spark, 3, tasks=1), db, queue="q")
    assert [row[0] for row in conn.execute("select payload from trunkline.claim('q', 10)")] == [b"0", b"1", b"2"]


VALUE = "cast(id as string) as value"


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["cast(id as string) as v"], {"topic": "t"}, "no column value"),
        (["id as value"], {"topic": "t"}, "column value must be string or binary, got bigint"),
        ([VALUE, "id as colour"], {"topic": "t"}, "messages have no column colour"),
        ([VALUE], {}, "no topic for the rows"),
        ([VALUE], {"topic": "nobody"}, 'topic "nobody" does not exist'),
        ([VALUE, "array(struct('k' as key, unhex('FF') as value)) as headers"], {"topic": "t"}, "not UTF-8"),
    ],
)
def test_bad_writes(
    spark: SparkSession, db: str, conn: Connection, columns: list[str], options: dict[str, str], said: str
) -> None:
    conn.execute("select trunkline.create_topic('t')")
    with pytest.raises(Exception, match=said):
        write(spark.range(3).selectExpr(*columns), db, **options)
    assert payloads(conn, "t") == [[]]


def test_overwrite_is_refused(spark: SparkSession, db: str) -> None:
    with pytest.raises(Exception, match="Use append"):
        numbers(spark, 1).write.format("trunkline").option("url", db).option("topic", "t").mode("overwrite").save()


def test_topic_to_topic_once(spark: SparkSession, db: str, conn: Connection, tmp_path: Path) -> None:
    """Tasks fail, the response of a commit is lost after it was published, and the query is restarted."""
    conn.execute("select trunkline.create_topic('t', 2), trunkline.create_topic('out', 2)")
    publish(conn, "t", 2000)

    def run() -> list[Any]:
        frame = (
            spark.readStream.format("trunkline")
            .options(url=db, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="700")
            .schema("key binary, value binary")
            .load()
        )
        query = (
            failing(frame)
            .writeStream.format("trunkline")
            .options(url=db, topic="out", checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query.recentProgress

    run()
    # as if the driver had died between publishing the last batch and writing that down
    commits = sorted((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (tmp_path / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    publish(conn, "t", 100, first=2000)
    run()
    found = payloads(conn, "out")
    assert flat(found) == list(range(2100))
    assert in_order_of_keys(found)
    versions = [row[0] for row in conn.execute("select version from trunkline.sink_commits order by 1")]
    assert versions == list(range(len(versions))) and len(versions) >= 4


@pytest.mark.parametrize(
    "limits",
    [
        {"minPartitions": "2", "maxConnections": "2"},
        {"maxRecordsPerPartition": "2", "maxConnections": "3"},
        {"minPartitions": "5", "maxRecordsPerPartition": "1"},
    ],
)
def test_the_order_of_a_key_is_kept_however_tasks_are_cut(
    spark: SparkSession, db: str, conn: Connection, limits: dict[str, str]
) -> None:
    conn.execute("select trunkline.create_topic('t', 2), trunkline.create_topic('out')")
    publish(conn, "t", 19, keys=2)
    frame = load(spark, db, schema="key string, value string, partition int, offset bigint", **limits)
    places = [(row.partition, row.offset) for row in frame.collect()]
    assert places == sorted(places)
    write(frame.select("key", "value"), db, topic="out")
    assert in_order_of_keys(payloads(conn, "out"), keys=2)


def test_a_new_checkpoint_of_foreach_batch_publishes_anew(
    spark: SparkSession, db: str, conn: Connection, tmp_path: Path
) -> None:
    conn.execute("select trunkline.create_topic('t'), trunkline.create_topic('out')")

    def run(checkpoint: str, first: int) -> None:
        frame = (
            spark.readStream.format("trunkline")
            .options(url=db, subscribe="t", startingOffsets=f'{{"t": {{"0": {first}}}}}', maxOffsetsPerTrigger="4")
            .schema("value string")
            .load()
        )

        def forward(batch: DataFrame, number: int) -> None:
            for _ in range(2):
                write(batch, db, topic="out", txnAppId="copy", txnVersion=str(number))

        options = {"checkpointLocation": str(tmp_path / checkpoint)}
        frame.writeStream.foreachBatch(forward).options(**options).trigger(availableNow=True).start().awaitTermination()

    publish(conn, "t", 10)
    run("one", 1)
    publish(conn, "t", 5, first=10)
    run("two", 11)
    assert payloads(conn, "out") == [list(range(15))]
