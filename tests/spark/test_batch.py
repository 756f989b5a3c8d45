"""Batch reads: Kafka's columns and options, every message once, whatever is retried or used twice."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Connection
from tests.spark.topics import load, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

KAFKA = "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"


def offsets(rows: list[object]) -> list[int]:
    return sorted(row.offset for row in rows)  # type: ignore[attr-defined]


def test_columns_are_kafkas_then_ours(spark: SparkSession, db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    publish(conn, "t", 3)
    assert load(spark, db, includeMetadata="false").schema.simpleString() == KAFKA
    rows = load(spark, db, includeHeaders="true").orderBy("offset").collect()
    first = rows[0]
    assert (bytes(first.key), bytes(first.value), first.topic, first.partition, first.offset) == (b"k0", b"0", "t", 0, 1)
    assert [(header.key, header.value and bytes(header.value)) for header in rows[2].headers] == [("n", b"2"), ("x", None)]
    assert (first.routing_key, first.label, first.content_type, len(first.id)) == ("a.0", "l0", "application/json", 36)
    # a schema names what is wanted; text columns can be text
    narrow = load(spark, db, schema="value string, offset bigint, headers string").orderBy("offset").collect()
    assert [(row.value, row.offset, json.loads(row.headers)["n"]) for row in narrow] == [
        ("0", 1, "0"),
        ("1", 2, "1"),
        ("2", 3, "2"),
    ]


def test_one_dataframe_used_twice(spark: SparkSession, db: str, conn: Connection) -> None:
    """Filters that were pushed to the source would leak from one use to the next."""
    conn.execute("select trunkline.create_topic('t', 2)")
    publish(conn, "t", 200)
    frame = load(spark, db, minPartitions="4")
    assert frame.where("offset between 5 and 9").count() == 10
    assert frame.count() == 200
    both = (
        frame.where("offset <= 3")
        .select("partition", "offset")
        .union(frame.where("offset > 90").select("partition", "offset"))
    )
    expected = frame.select("partition", "offset").where("offset <= 3 or offset > 90")
    assert sorted(both.collect()) == sorted(expected.collect())
    # a frame is a snapshot: it does not change while others publish, a new one does
    publish(conn, "t", 10, first=200)
    assert (frame.count(), load(spark, db).count()) == (200, 210)


def test_which_messages(spark: SparkSession, db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t1', 2), trunkline.create_topic('t2'), trunkline.create_topic('other')")
    for topic in ("t1", "t2", "other"):
        publish(conn, topic, 60)
    time.sleep(0.002)
    middle = conn.execute("select extract(epoch from clock_timestamp()) * 1000").fetchone()[0]  # type: ignore[index]
    publish(conn, "t2", 40, first=60)
    small = "topic string, partition int, offset bigint, value string"
    assert load(spark, db, "t1,t2", schema=small).groupBy("topic").count().orderBy("topic").collect() == [
        ("t1", 60),
        ("t2", 100),
    ]
    by_pattern = load(spark, db, None, schema=small, subscribePattern="t.").select("topic").distinct().collect()
    assert sorted(row.topic for row in by_pattern) == ["t1", "t2"]
    assert load(spark, db, None, schema=small, subscribePattern="nothing").count() == 0
    assigned = load(spark, db, None, schema=small, assign='{"t1": [1], "t2": [0]}').groupBy("topic", "partition").count()
    assert sorted((row.topic, row.partition) for row in assigned.collect()) == [("t1", 1), ("t2", 0)]
    piece = load(spark, db, "t2", schema=small, startingOffsets='{"t2": {"0": 10}}', endingOffsets='{"t2": {"0": 13}}')
    assert offsets(piece.collect()) == [10, 11, 12]  # type: ignore[arg-type]
    late = load(spark, db, "t2", schema=small, startingTimestamp=str(int(middle)))
    assert sorted(int(row.value) for row in late.collect())[-40:] == list(range(60, 100))
    early = load(spark, db, "t2", schema=small, endingTimestamp=str(int(middle)))
    assert {int(row.value) for row in early.collect()} <= set(range(60))
    chosen = load(spark, db, "t2", schema=small, routingKey="*.1", label="l1", key="k1")
    assert sorted(int(row.value) for row in chosen.collect()) == [n for n in range(100) if n % 3 == 1 and n % 10 == 1]


def test_tasks_and_retries(spark: SparkSession, db: str, conn: Connection, tmp_path: object) -> None:
    """A task that is tried again reads the same rows in the same order."""
    conn.execute("select trunkline.create_topic('t', 2)")
    publish(conn, "t", 3000)
    frame = load(spark, db, schema="partition int, offset bigint, value string", minPartitions="6")
    assert frame.rdd.getNumPartitions() >= 6
    assert load(spark, db, minPartitions="6", maxConnections="2").rdd.getNumPartitions() == 2

    def fails_once(batches):  # type: ignore[no-untyped-def]
        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            yield batch
            if number == 0 and TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]
                raise RuntimeError("on purpose")

    rows = frame.mapInArrow(fails_once, frame.schema).collect()
    assert len(rows) == 3000
    assert len({(row.partition, row.offset) for row in rows}) == 3000
    for partition in (0, 1):
        mine = [row.offset for row in rows if row.partition == partition]
        assert sorted(mine) == list(range(1, len(mine) + 1))


def test_dead_letters_and_deliveries(spark: SparkSession, db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_queue('q', p_max_attempts => 1)")
    for number in range(3):
        conn.execute("select trunkline.enqueue('q', %s::jsonb, p_key => 'k')", (str(number),))
    receipts = [row[0] for row in conn.execute("select receipt from trunkline.claim('q', 3)")]
    conn.execute("select trunkline.bury(array[%s], 'broken')", (receipts[0],))
    conn.execute("select trunkline.ack(%s)", (receipts[1:],))
    dead = load(spark, db, None, table="dead_letters", queue="q").collect()
    assert [(bytes(row.value), row.error, row.reason, row.key) for row in dead] == [(b"0", "broken", "buried", "k")]
    history = load(spark, db, None, table="deliveries", queue="q", schema="outcome string, n bigint").collect()
    assert sorted((row.outcome, row.n) for row in history) == [("acked", 2), ("buried", 1)]
    with pytest.raises(Exception, match='queue "nobody" does not exist'):
        load(spark, db, None, table="dead_letters", queue="nobody").collect()


def test_views_and_secrets(spark: SparkSession, db: str, conn: Connection, capsys: pytest.CaptureFixture[str]) -> None:
    conn.execute("select trunkline.create_topic('t')")
    publish(conn, "t", 5)
    spark.sql(f"create or replace temporary view messages using trunkline options (url '{db}', subscribe 't')")
    assert spark.sql("select max(offset) as m from messages").collect()[0].m == 5
    found = re.search(r"password=(\S+)", db)
    assert found is not None
    frame = load(spark, db)
    frame.explain(True)
    wrong = db.replace(found[1], "hunter2")
    with pytest.raises(Exception) as caught:
        load(spark, wrong).collect()
    assert "authentication failed" in str(caught.value)
    said = capsys.readouterr()
    for secret in (found[1], "hunter2"):
        assert secret not in said.out + said.err + str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "nobody"}, 'topic "nobody" does not exist (Create it'),
        ({"subscribe": "tt"}, 'topic "tt" does not exist (Did you mean t?)'),
        ({"subscribe": "t", "startingOffsets": '{"t": {"0": 99}}'}, "beyond the end, 6"),
        ({"subscribe": "t", "startingOffsets": '{"t": {"0": 0}}'}, "Offsets count from 1. Start at earliest"),
        ({"subscribe": "t", "startingOffsets": '{"t": {"1": 1}}'}, "no such partition: t 1"),
        ({"subscribe": "t", "endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"subscribe": "t", "startingTimestamp": "4102444800000"}, "has no message at 2100"),
        ({"assign": '{"t": [3]}'}, "no such partition: t 3"),
        ({"subscribe": "t", "routingKey": "a*"}, "must be whole words"),
        ({"subscribe": "t", "startingOffset": "1"}, "Did you mean startingOffsets"),
    ],
)
def test_bad_options_fail_on_the_driver(
    spark: SparkSession, db: str, conn: Connection, options: dict[str, str], said: str
) -> None:
    conn.execute("select trunkline.create_topic('t')")
    publish(conn, "t", 5)
    with pytest.raises(Exception, match=re.escape(said)):
        load(spark, db, None, **options).collect()


def test_schemas_that_do_not_fit(spark: SparkSession, db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    conn.execute("select trunkline.publish_bytes('t', '\\xff'::bytea)")
    for schema, said in [
        ("valeu string", "Did you mean value"),
        ("offset string", "column offset cannot be read as string"),
        ("value string", "Read value as binary"),
    ]:
        with pytest.raises(Exception, match=said):
            load(spark, db, schema=schema).collect()
    with pytest.raises(Exception, match=r"Connection refused"):
        load(spark, "postgresql://127.0.0.1:1/x").collect()
