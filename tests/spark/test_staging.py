"""Staged writes, without Spark: once for each version, in order, and nothing by halves."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import timedelta

import pyarrow as pa
import pytest

from tests.conftest import Clock, Connection
from trunkline.errors import InvalidArgument, PayloadTooLarge, StageLost, TopicNotFound
from trunkline.spark.staging import Committed, Staged, commit, discard, newest_version, stage


def batch(first: int, count: int, **columns: pa.Array) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        {"payload": pa.array([str(n).encode() for n in numbers]), "key": pa.array([f"k{n % 5}" for n in numbers])} | columns
    )


def payloads(conn: Connection, topic: str, partition: int = 0) -> list[int]:
    return [int(row[0]) for row in conn.execute("select payload from trunkline.read(%s, %s, 1, 100000)", (topic, partition))]


def staged_rows(conn: Connection) -> int:
    names = [row[0] for row in conn.execute("select 'trunkline.stage_' || stage_id from trunkline.stages")]
    return sum(conn.execute(f"select count(*) from {name}").fetchone()[0] for name in names)  # type: ignore[index]


def test_once_and_in_the_order_of_tasks(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    second = stage(db, "w", [batch(100, 50), batch(150, 50)], topic="t")
    lost = stage(db, "w", [batch(0, 30)], topic="t")  # an attempt that died before it could tell
    first = stage(db, "w", [batch(0, 100)], topic="t")
    assert (first.rows, first.topics, lost.rows) == (100, (("t", 100),), 30)
    assert payloads(conn, "t") == []
    assert commit(db, "w", 0, [first, second]) == Committed(True, 200)
    assert payloads(conn, "t") == list(range(200))
    assert commit(db, "w", 0, [first, second]) == Committed(False, 0)
    assert commit(db, "w", -1, [stage(db, "w", [batch(0, 5)], topic="t")]) == Committed(False, 0)
    assert (newest_version(db, "w"), newest_version(db, "other")) == (0, None)
    assert commit(db, "other", 0, [stage(db, "other", [batch(200, 3)], topic="t")]) == Committed(True, 3)
    assert payloads(conn, "t") == list(range(203))


def test_keys_go_where_publish_puts_them(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('staged', 8), trunkline.create_topic('published', 8)")
    keys = ["", "ä", "x" * 1000, *(f"key {n}" for n in range(200))]
    rows = pa.record_batch({"payload": pa.array([str(n).encode() for n in range(len(keys))]), "key": pa.array(keys)})
    commit(db, "w", 0, [stage(db, "w", [rows], topic="staged")])
    for number, key in enumerate(keys):
        conn.execute("select trunkline.publish('published', %s::jsonb, p_key => %s)", (str(number), key))
    for partition in range(8):
        assert payloads(conn, "staged", partition) == payloads(conn, "published", partition)


def test_every_column_arrives(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('a', 3), trunkline.create_topic('b'), trunkline.create_queue('q')")
    given = uuid.uuid4()
    rows = pa.record_batch(
        {
            "payload": pa.array([b"1", b"2", b"3", b"4"]),
            "topic": pa.array(["a", "b", "queue:q", "a"]),
            "partition": pa.array([2, None, None, 2], pa.int32()),
            "routing_key": pa.array(["r", None, None, None]),
            "label": pa.array(["l", None, None, None]),
            "headers": pa.array(['{"h": 1}', None, None, None]),
            "header_keys": pa.array([None, ["x", "y"], [], None], pa.list_(pa.string())),
            "header_values": pa.array([None, ["1", None], [], None], pa.list_(pa.string())),
            "content_type": pa.array(["text/plain", None, None, None]),
            "id": pa.array([str(given), None, None, None]),
        }
    )
    commit(db, "w", 0, [stage(db, "w", [rows, rows.slice(3)])])
    found = conn.execute(
        "select payload, routing_key, label, headers, content_type, id from trunkline.read('a', 2, 1)"
    ).fetchall()
    assert found[0] == (b"1", "r", "l", {"h": 1}, "text/plain", given)
    assert [row[0] for row in found] == [b"1", b"4", b"4"]
    assert found[1][4] == "application/json" and found[1][5].version == 7
    assert conn.execute("select headers from trunkline.read('b', 0, 1)").fetchall() == [({"x": "1", "y": None},)]
    assert conn.execute("select payload, headers from trunkline.claim('q', 10)").fetchall() == [(b"3", None)]


def test_a_crash_that_emptied_the_stage(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    first, second = (stage(db, "w", [batch(n, 10)], topic="t") for n in (0, 10))
    conn.execute("delete from trunkline.stage_1 where attempt = %s", (second.attempt,))
    with pytest.raises(StageLost, match="10 of 20 staged rows"):
        commit(db, "w", 0, [first, second])
    assert (payloads(conn, "t"), newest_version(db, "w")) == ([], None)
    discard(db, "w")
    with pytest.raises(StageLost):
        commit(db, "w", 0, [first])
    again = [stage(db, "w", [batch(n, 10)], topic="t") for n in (0, 10)]
    assert commit(db, "w", 0, again).rows == 20


def test_two_drivers_with_the_same_version(db: str, conn: Connection, connect: Callable[[], Connection]) -> None:
    conn.execute("select trunkline.create_topic('t')")
    staged = [stage(db, "w", [batch(0, 50)], topic="t") for _ in range(4)]
    done: list[Committed] = []
    threads = [threading.Thread(target=lambda one=one: done.append(commit(db, "w", 7, [one]))) for one in staged]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.rows for one in done) == [0, 0, 0, 50]
    assert payloads(conn, "t") == list(range(50))


def test_refusals_publish_nothing(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t', p_max_payload => 100)")
    with pytest.raises(InvalidArgument, match="value of a row is null"):
        stage(db, "w", [pa.record_batch({"payload": pa.array([b"x", None])})], topic="t")
    with pytest.raises(InvalidArgument, match="key has 1001 characters"):
        stage(db, "w", [batch(0, 1, key=pa.array(["x" * 1001]))], topic="t")
    with pytest.raises(InvalidArgument, match="not a uuid"):
        stage(db, "w", [batch(0, 1, id=pa.array(["x"]))], topic="t")
    with pytest.raises(InvalidArgument, match="no topic"):
        stage(db, "w", [batch(0, 1)])
    with pytest.raises(InvalidArgument, match="a row has no topic"):
        stage(db, "w", [batch(0, 2, topic=pa.array(["t", None]))])

    def refused(kind: type[Exception], said: str, rows: pa.RecordBatch, topic: str | None = "t") -> None:
        made = stage(db, "w", [batch(0, 3), rows], topic=topic)
        with pytest.raises(kind, match=said):
            commit(db, "w", 0, [made])

    plain = pa.record_batch({"payload": pa.array([b"x" * 101]), "key": pa.array(["k"])})
    refused(PayloadTooLarge, "101 bytes", plain)
    refused(TopicNotFound, "nobody", batch(0, 1), topic="nobody")
    for rows, said in [
        (batch(0, 1, partition=pa.array([1], pa.int32())), "partition is 1"),
        (batch(0, 1, partition=pa.array([-1], pa.int32())), "partition is -1"),
        (batch(0, 1, headers=pa.array(["[1]"])), "not a JSON object"),
    ]:
        made = stage(db, "w", [rows], topic="t")
        with pytest.raises(InvalidArgument, match=said):
            commit(db, "w", 0, [made])
    assert (payloads(conn, "t"), newest_version(db, "w")) == ([], None)


def test_nothing_staged_still_counts_as_done(db: str, conn: Connection) -> None:
    empty = stage(db, "w", [batch(0, 0)], topic="t")
    assert empty == Staged("w", empty.attempt, 0, ())
    assert commit(db, "w", 3, [empty]) == Committed(True, 0)
    assert commit(db, "w", 3, [empty]) == Committed(False, 0)


def test_a_large_stage_is_emptied_and_an_old_one_dropped(db: str, conn: Connection, clock: Clock) -> None:
    conn.execute("select trunkline.create_topic('t')")
    commit(db, "w", 0, [stage(db, "w", [batch(0, 10)], topic="t")])
    assert staged_rows(conn) == 10, "a few rows are not worth new files"
    large = pa.record_batch({"payload": pa.array([b"x" * 900_000] * 1)})
    rows = pa.record_batch({"payload": pa.array([bytes(1500)] * 7000)})
    commit(db, "w", 1, [stage(db, "w", [large, rows], topic="t")])
    assert staged_rows(conn) == 0
    clock.advance(timedelta(days=2))
    commit(db, "w", 2, [stage(db, "w", [batch(0, 1)], topic="t")])
    stage(db, "left behind", [batch(0, 1)], topic="t")
    clock.advance(timedelta(hours=23))
    assert conn.execute("select trunkline.run_duty('stages')").fetchone() == (0,)
    clock.advance(timedelta(hours=2))
    assert conn.execute("select trunkline.run_duty('stages')").fetchone() == (2,)
    assert conn.execute("select count(*) from pg_class where relname like 'stage\\_%'").fetchone() == (0,)
    # what was published is remembered by its newest version
    assert conn.execute("select version from trunkline.sink_commits").fetchall() == [(2,)]
    assert newest_version(db, "w") == 2


def test_a_commit_stops_no_publisher(db: str, conn: Connection, connect: Callable[[], Connection]) -> None:
    """Also not where it goes over the border of a segment."""
    conn.execute("select trunkline.create_topic('t', p_segment_rows => 64)")
    made = stage(db, "w", [batch(0, 500)], topic="t")
    conn.execute("select trunkline.make_room('{t}', '{500}')")
    committer, publisher = connect(), connect()
    committer.execute("begin")
    committer.execute("select trunkline.commit_stage('w', 'w', 0, '{t}', array[%s::uuid], '{500}')", (made.attempt,))
    publisher.execute("set lock_timeout = '2s'")
    publisher.execute("select trunkline.publish('t', '-1')")
    assert payloads(conn, "t") == [-1]
    committer.execute("commit")
    assert sorted(payloads(conn, "t")) == list(range(-1, 500))
