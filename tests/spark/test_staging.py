"""Staged writes, without Spark: once for each version, in order, and nothing by halves."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from tests.conftest import Clock, Connection
from trunkline.errors import InvalidArgument, PayloadTooLarge, PermissionDenied, StagedRowsLost, TopicNotFound
from trunkline.spark.database import close_all
from trunkline.spark.sink import staging
from trunkline.spark.sink.key_partitions import PROBE, hashes
from trunkline.spark.sink.staging import Committed, Staged, commit, discard, header_lists, newest_version, stage


def batch(first: int, count: int, **columns: pa.Array) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        {"payload": pa.array([str(n).encode() for n in numbers]), "key": pa.array([f"k{n % 5}" for n in numbers])} | columns
    )


def payloads(conn: Connection, topic: str, partition: int = 0) -> list[int]:
    conn.execute("call trunkline.sequence()")
    return [int(row[0]) for row in conn.execute("select payload from trunkline.read(%s, %s, 1, 100000)", (topic, partition))]


def waiting(conn: Connection) -> int:
    """Rows that a commit could publish."""
    row = conn.execute("select coalesce(sum(n), 0)::int from trunkline.staged where complete").fetchone()
    return row[0] if row else 0


def test_once_and_in_the_order_of_tasks(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    second = stage(db, [batch(100, 50), batch(150, 50)], topic="t")
    lost = stage(db, [batch(0, 30)], topic="t")  # an attempt that died before it could tell
    first = stage(db, [batch(0, 100)], topic="t")
    assert (first.rows, lost.rows) == (100, 30)
    assert payloads(conn, "t") == []
    assert commit(db, "w", 0, [first, second]) == Committed(True, 200)
    assert payloads(conn, "t") == list(range(200))
    assert commit(db, "w", 0, [first, second]) == Committed(False, 0)
    with pytest.raises(InvalidArgument, match='version of writer "w" must be above 0, got -1'):
        commit(db, "w", -1, [stage(db, [batch(0, 5)], topic="t")])
    assert (newest_version(db, "w"), newest_version(db, "other")) == (0, None)
    assert commit(db, "other", 0, [stage(db, [batch(200, 3)], topic="t")]) == Committed(True, 3)
    assert payloads(conn, "t") == list(range(203))


def test_keys_go_where_publish_puts_them(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('staged', 8), trunkline.create_topic('published', 8)")
    keys = ["", "ä", "x" * 1000, *(f"key {n}" for n in range(200))]
    rows = pa.record_batch({"payload": pa.array([str(n).encode() for n in range(len(keys))]), "key": pa.array(keys)})
    commit(db, "w", 0, [stage(db, [rows], topic="staged")])
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
    commit(db, "w", 0, [stage(db, [rows, rows.slice(3)])])
    found = conn.execute(
        "select payload, routing_key, label, headers, content_type, id from trunkline.read('a', 2, 1)"
    ).fetchall()
    assert found[0] == (b"1", "r", "l", {"h": 1}, "text/plain", given)
    assert [row[0] for row in found] == [b"1", b"4", b"4"]
    assert found[1][4] == "application/json" and found[1][5].version == 7
    assert conn.execute("select headers from trunkline.read('b', 0, 1)").fetchall() == [({"x": "1", "y": None},)]
    assert conn.execute("select payload, headers from trunkline.claim('q', 10)").fetchall() == [(b"3", None)]


def test_a_crash_that_lost_a_stage(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    first, second = (stage(db, [batch(n, 10)], topic="t") for n in (0, 10))
    conn.execute("delete from trunkline.staged where attempt = %s", (second.attempt,))
    with pytest.raises(StagedRowsLost, match="expected 20 staged rows, got 10"):
        commit(db, "w", 0, [first, second])
    assert (payloads(conn, "t"), newest_version(db, "w")) == ([], None)
    discard(db, [first])
    with pytest.raises(StagedRowsLost):
        commit(db, "w", 0, [first])
    again = [stage(db, [batch(n, 10)], topic="t") for n in (0, 10)]
    assert commit(db, "w", 0, again).rows == 20
    discard(db, again)
    assert payloads(conn, "t") == list(range(20)), "what is published is out of reach"


def test_a_version_that_was_never_published_is_refused_after_a_later_one(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    for version in (3, 5):
        assert commit(db, "w", version, [stage(db, [batch(version, 1)], topic="t")]).done
    with pytest.raises(InvalidArgument, match='version of writer "w" must be above 5, got 4'):
        commit(db, "w", 4, [stage(db, [batch(4, 1)], topic="t")])
    assert not commit(db, "w", 3, [stage(db, [batch(3, 1)], topic="t")]).done, "its record says that it was published"
    # without its record, it is unknown
    conn.execute("update trunkline.sink_commits set at = at - interval '2 days'")
    conn.execute("select trunkline._upkeep_stages()")
    with pytest.raises(InvalidArgument, match='version of writer "w" must be above 5, got 3'):
        commit(db, "w", 3, [stage(db, [batch(3, 1)], topic="t")])
    assert payloads(conn, "t") == [3, 5]


def staged_rows(conn: Connection) -> int:
    row = conn.execute("select coalesce(sum(n), 0)::int from trunkline.staged").fetchone()
    return row[0] if row else 0


def test_attempts_that_fail_or_run_twice_give_their_rows_up(
    db: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn.execute("select trunkline.create_topic('t')")
    monkeypatch.setattr(staging, "_ROWS", 10)

    def failing() -> Iterator[pa.RecordBatch]:
        yield batch(0, 10)
        yield batch(10, 10)
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError):
        stage(db, failing(), topic="t", job="w 0")
    assert staged_rows(conn) == 0
    killed, twin, made = (stage(db, [batch(0, 10)], topic="t", job="w 0") for _ in range(3))
    other = stage(db, [batch(50, 5)], topic="t", job="w 1")
    assert commit(db, "w", 0, [made]) == Committed(True, 10)
    assert staged_rows(conn) == 5, "only those of the other job"
    # a repeat gives its own up too
    stage(db, [batch(0, 10)], topic="t", job="w 0")
    assert commit(db, "w", 0, [stage(db, [batch(0, 10)], topic="t", job="w 0")]) == Committed(False, 0)
    assert commit(db, "w", 1, [other]) == Committed(True, 5)
    assert staged_rows(conn) == 0
    assert payloads(conn, "t") == [*range(10), *range(50, 55)]
    with pytest.raises(StagedRowsLost):
        commit(db, "w", 2, [killed, twin])


NOT_TEXT = pa.array([b"ok", b"\xff\xfe", b"ok"])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": NOT_TEXT}, r"key of row 101 of the task is not UTF-8 text: b'\\xff\\xfe'"),
        ({"label": NOT_TEXT}, "label of row 101 "),
        ({"id": NOT_TEXT}, "id of row 101 "),
        (
            {"partition": pa.array([0, 1 << 40, 0])},
            "partition of row 101 of the task does not fit into 32 bits: 1099511627776",
        ),
        ({"headers": pa.array(["{}", "{", "{}"])}, "headers of row 101 of the task are not a JSON object: { "),
        ({"headers": pa.array(["{}", None, "[1]"])}, r"headers of row 102 of the task are not a JSON object: \[1\]"),
        ({"occurred_at": pa.array([0, None, 1 << 62], pa.timestamp("us", "UTC"))}, "occurred_at of row 102 "),
        ({"id": pa.array([None, "x", None])}, "the id 'x' of row 101 of the task is not a uuid"),
        ({"key": pa.array(["a", "b\0", None])}, "key of row 101 of the task has a NUL character"),
        ({"headers": pa.array(["{}", '{"a": "\\u0000"}', None])}, "headers of row 101 of the task have a NUL character"),
    ],
)
def test_errors_name_the_column_the_row_and_what_to_do(
    db: str, conn: Connection, columns: dict[str, pa.Array], said: str
) -> None:
    conn.execute("select trunkline.create_topic('t')")
    first = pa.record_batch({"payload": pa.array([b"x"] * 100)})
    rows = pa.record_batch({"payload": pa.array([b"x"] * 3)} | columns)
    full = {name: pa.nulls(100, column.type) for name, column in columns.items()}
    with pytest.raises(InvalidArgument, match=said) as raised:
        stage(db, [pa.record_batch({"payload": first.column(0)} | full), rows], topic="t")
    assert raised.value.hint
    assert staged_rows(conn) == 0


def test_two_drivers_with_the_same_version(db: str, conn: Connection, connect: Callable[[], Connection]) -> None:
    conn.execute("select trunkline.create_topic('t')")
    staged = [stage(db, [batch(0, 50)], topic="t") for _ in range(4)]
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
    with pytest.raises(InvalidArgument, match="value of row 1 of the task is null"):
        stage(db, [pa.record_batch({"payload": pa.array([b"x", None])})], topic="t")
    with pytest.raises(InvalidArgument, match="key of row 0 of the task has 1001 characters"):
        stage(db, [batch(0, 1, key=pa.array(["x" * 1001]))], topic="t")
    with pytest.raises(InvalidArgument, match="not a uuid"):
        stage(db, [batch(0, 1, id=pa.array(["x"]))], topic="t")
    with pytest.raises(InvalidArgument, match="no topic"):
        stage(db, [batch(0, 1)])
    with pytest.raises(InvalidArgument, match="a row has no topic"):
        stage(db, [batch(0, 2, topic=pa.array(["t", None]))])

    plain = pa.record_batch({"payload": pa.array([b"x" * 101]), "key": pa.array(["k"])})
    for rows, topic, kind, said in [
        (plain, "t", PayloadTooLarge, "101 bytes"),
        # as the server said it, without the driver's words
        (batch(0, 1), "nobody", TopicNotFound, r'^topic "nobody" does not exist \(Create it with'),
        (
            batch(0, 1, headers=pa.array(["{x"])),
            "t",
            InvalidArgument,
            "^headers of row 0 of the task are not a JSON object: {x",
        ),
        (batch(0, 1, partition=pa.array([1], pa.int32())), "t", InvalidArgument, "partition must be between 0 and 0, got 1"),
        (
            batch(0, 1, partition=pa.array([-1], pa.int32())),
            "t",
            InvalidArgument,
            "partition must be between 0 and 0, got -1",
        ),
        (batch(0, 1, headers=pa.array(["[1]"])), "t", InvalidArgument, "not a JSON object"),
    ]:
        with pytest.raises(kind, match=said):
            stage(db, [rows], topic=topic)
    assert waiting(conn) == 0
    assert (payloads(conn, "t"), newest_version(db, "w")) == ([], None)


def test_nothing_staged_still_counts_as_done(db: str, conn: Connection) -> None:
    empty = stage(db, [batch(0, 0)], topic="t")
    assert empty == Staged(empty.attempt, 0)
    assert commit(db, "w", 3, [empty]) == Committed(True, 0)
    assert commit(db, "w", 3, [empty]) == Committed(False, 0)


def test_a_commit_stops_no_publisher(db: str, conn: Connection, connect: Callable[[], Connection]) -> None:
    """Nor does a stage; and what was published before the commit comes before it."""
    conn.execute("select trunkline.create_topic('t', p_segment_rows => 64)")
    committer, publisher = connect(), connect()
    made = stage(db, [batch(0, 500)], topic="t")
    publisher.execute("set lock_timeout = '2s'")
    publisher.execute("select trunkline.publish('t', '-2')")
    committer.execute("begin")
    committer.execute("select trunkline.commit_stage('w', 0, array[%s::uuid], '{500}')", (made.attempt,))
    publisher.execute("select trunkline.publish('t', '-1')")
    committer.execute("commit")
    assert payloads(conn, "t") == [-2, *range(500), -1]


def test_only_rows_that_are_there_get_offsets(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    attempt, other = uuid.uuid4(), uuid.uuid4()
    first = f"select * from trunkline.open_stage('t', '{attempt}', '{{0}}', '{{2}}')"
    _, table, first_id, _, at = conn.execute(first.encode()).fetchone() or ()
    insert = f"insert into trunkline.{table} (id, message_id, payload, created_at) values (%s, %s, 'x', %s)"
    conn.execute(insert.encode(), (first_id, uuid.uuid4(), at))

    def refused(said: str, call: str, *args: object) -> None:
        with pytest.raises(psycopg.Error, match=said):
            conn.execute(f"select trunkline.{call}".encode(), args)

    refused("expected 2 staged rows, got 1", "close_stage(%s)", attempt)
    refused("expected 2 staged rows, got 0", "commit_stage('w', 0, array[%s], '{2}')", attempt)
    conn.execute(insert.encode(), (first_id + 1, uuid.uuid4(), at + timedelta(days=1)))
    refused("created_at must not be in the future", "close_stage(%s)", attempt)
    conn.execute(f"update trunkline.{table} set created_at = %s".encode(), (at,))
    assert conn.execute("select trunkline.close_stage(%s)", (attempt,)).fetchone() == (2,)
    refused("expected 4 staged rows, got 2", "commit_stage('w', 0, array[%s, %s], '{2, 2}')", attempt, other)
    refused("expected 4 staged rows, got 2", "commit_stage('w', 0, array[%s, %s], '{2, 2}')", attempt, attempt)
    assert conn.execute("select trunkline.commit_stage('w', 0, array[%s], '{2}')", (attempt,)).fetchone() == (2,)
    refused("expected 2 staged rows, got 0", "commit_stage('w', 1, array[%s], '{2}')", attempt)
    refused("partition 1 is out of range", "open_stage('t', %s, '{1}', '{2}')", other)
    refused("rows must be between 1 and 16777216, got 0", "open_stage('t', %s, '{0}', '{0}')", other)
    assert conn.execute("select count(*) from trunkline.read('t', 0, 1)").fetchone() == (2,)


def test_publishers_and_commits_in_turn(db: str, conn: Connection) -> None:
    """Ids jump to and fro; offsets, also after the ticks were merged in another slot, do not."""
    conn.execute("select trunkline.create_topic('t', p_segment_rows => 100), trunkline.create_group('t', 'g')")
    expected: list[int] = []
    for turn in range(30):
        conn.execute(
            "select trunkline.publish('t', to_jsonb(n)) from generate_series(%s::int, %s) n",
            (len(expected), len(expected) + turn),
        )
        expected += range(len(expected), len(expected) + turn + 1)
        commit(db, "w", turn, [stage(db, [batch(len(expected), 7 * turn + 1)], topic="t")])
        expected += range(len(expected), len(expected) + 7 * turn + 1)
        if turn % 5 == 0:
            conn.execute("select trunkline.run_upkeep('rotate')")
    assert payloads(conn, "t") == expected
    for _ in range(3):
        assert conn.execute("select trunkline.run_upkeep('rotate')").fetchone() == (1,)
        assert payloads(conn, "t") == expected
    fetched: list[int] = []
    while rows := conn.execute("select payload, generation, log_offset from trunkline.fetch('t', 'g', 'm', 500)").fetchall():
        fetched += [int(row[0]) for row in rows]
        conn.execute("select trunkline.commit('t', 'g', 0, %s, %s)", (rows[-1][1], rows[-1][2]))
    assert fetched == expected


def test_retention_drops_what_was_staged(db: str, conn: Connection, clock: Clock) -> None:
    conn.execute("select trunkline.create_topic('t', p_retention => '8 hours', p_segment_rows => 100)")
    conn.execute("select trunkline.publish('t', '-1')")
    commit(db, "w", 0, [stage(db, [batch(0, 250)], topic="t")])
    discard(db, [stage(db, [batch(0, 150)], topic="t")])
    left = stage(db, [batch(250, 10)], topic="t")

    def upkeep() -> list[tuple[int, int | None]]:
        for duty in ("stages", "segments", "segments", "retention"):
            conn.execute("select trunkline.run_upkeep(%s)", (duty,))
        return conn.execute("select segment - (1 << 30), last_offset from trunkline.staged_segments order by 1").fetchall()

    assert upkeep() == [(0, 101), (1, 201), (2, 251), (4, None)], "a segment that holds only what was given up is gone"
    assert commit(db, "w", 1, [left]).rows == 10
    clock.advance(timedelta(hours=2))
    assert upkeep() == [(0, 101), (1, 201), (2, 251), (4, 261)]
    assert payloads(conn, "t") == [-1, *range(260)]
    clock.advance(timedelta(hours=7))
    assert upkeep() == [(4, 261)]
    assert conn.execute("select earliest_offset, head from trunkline.topic_stats('t')").fetchone() == (252, 261)
    commit(db, "w", 2, [stage(db, [batch(260, 5)], topic="t")])
    rows = conn.execute("select payload from trunkline.read('t', 0, 252)").fetchall()
    assert [int(row[0]) for row in rows] == list(range(250, 265))
    old = stage(db, [batch(0, 1)], topic="t")
    clock.advance(timedelta(days=4))
    conn.execute("select trunkline.run_upkeep('stages')")
    with pytest.raises(StagedRowsLost):
        commit(db, "w", 3, [old])
    clock.advance(timedelta(hours=9))
    assert upkeep() == []
    # what was published is remembered by its newest version
    assert conn.execute("select version from trunkline.sink_commits").fetchall() == [(2,)]
    conn.execute("select trunkline.delete_topic('t')")
    for _ in range(2):
        conn.execute("select trunkline.run_upkeep('retention')")
    assert conn.execute("select count(*) from pg_class where relname like 'topic\\_%'").fetchone() == (0,)


def test_a_sealed_segment_takes_no_late_commit(db: str, conn: Connection, connect: Callable[[], Connection]) -> None:
    """Nor is one sealed under a commit that is not finished."""
    conn.execute("select trunkline.create_topic('t', p_segment_rows => 16)")
    made = stage(db, [batch(0, 16)], topic="t")
    committer = connect()
    committer.execute("begin")
    committer.execute("select trunkline.commit_stage('w', 0, array[%s::uuid], '{16}')", (made.attempt,))
    assert conn.execute("select trunkline.run_upkeep('stages')").fetchone() == (0,)
    committer.execute("commit")
    assert conn.execute("select trunkline.run_upkeep('stages')").fetchone() == (1,)
    assert conn.execute("select last_offset from trunkline.staged_segments").fetchone() == (16,)
    late = stage(db, [batch(16, 16)], topic="t")
    conn.execute("update trunkline.staged_segments set sealed_at = now(), last_offset = 0 where sealed_at is null")
    with pytest.raises(StagedRowsLost, match="staged rows were abandoned"):
        commit(db, "w", 1, [late])


def test_hashes_are_those_of_the_database(conn: Connection) -> None:
    texts = ["", PROBE, "ä", "€uro", *("x" * n for n in range(60)), "y" * 4000, *(str(n) for n in range(1000))]
    found = conn.execute(
        "select array(select hashtextextended(k, 0) from unnest(%s::text[]) with ordinality u(k, o) order by o)", (texts,)
    )
    assert hashes(pa.array(texts)).tolist() == (found.fetchone() or ([],))[0]
    assert hashes(pa.array(["a", *texts]).slice(1)).tolist() == hashes(pa.array(texts)).tolist()
    assert hashes(pa.array([], pa.string())).tolist() == []


@pytest.fixture
def publishers(db: str, conn: Connection) -> Iterator[list[str]]:
    """URLs of two logins that may publish."""
    conn.execute("select trunkline.create_topic('t', 2)")
    names = [f"spark_{uuid.uuid4().hex[:8]}" for _ in range(2)]
    for name in names:
        conn.execute(f"create role {name} login password 'x' in role trunkline_publisher".encode())
    yield [make_conninfo(db, user=name, password="x") for name in names]
    close_all()
    for name in names:
        conn.execute(f"drop owned by {name}".encode())
        conn.execute(f"drop role {name}".encode())


def test_a_publisher_may_write_and_nothing_else(conn: Connection, publishers: list[str]) -> None:
    assert commit(publishers[0], "w", 0, [stage(publishers[0], [batch(0, 50)], topic="t")]).rows == 50
    with psycopg.connect(publishers[0], autocommit=True) as other, pytest.raises(psycopg.errors.InsufficientPrivilege):
        other.execute(
            "insert into trunkline.topic_1 (partition, id, message_id, payload, content_type, created_at)"
            " values (0, 7, gen_random_uuid(), 'x', 'x', now())"
        )


def test_a_writer_belongs_to_the_role_of_its_first_commit(conn: Connection, publishers: list[str]) -> None:
    """Another publisher can neither skip its versions nor commit them."""
    ours, theirs = publishers
    assert commit(ours, "export", 0, [stage(ours, [batch(0, 10)], topic="t")]).rows == 10
    with psycopg.connect(theirs, autocommit=True) as other:
        for version in (9223372036854775807, 0):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match='writer "export" belongs to role "spark_'):
                other.execute("select trunkline.commit_stage('export', %s, '{}', '{}')", (version,))
    with pytest.raises(PermissionDenied, match="belongs to role") as caught:
        commit(theirs, "export", 1, [stage(theirs, [batch(10, 10)], topic="t")])
    assert "trunkline.assign_writer" in str(caught.value.hint)
    assert commit(ours, "export", 1, [stage(ours, [batch(10, 10)], topic="t")]).rows == 10
    # an owner hands it over, or reserves a name before its first use
    name = psycopg.conninfo.conninfo_to_dict(theirs)["user"]
    conn.execute("select trunkline.assign_writer('export', %s), trunkline.assign_writer('new', %s)", (name, name))
    assert commit(theirs, "export", 2, [stage(theirs, [batch(20, 10)], topic="t")]).rows == 10
    with pytest.raises(PermissionDenied):
        commit(ours, "new", 0, [])
    with pytest.raises(psycopg.Error, match='role "nobody_there" does not exist'):
        conn.execute("select trunkline.assign_writer('export', 'nobody_there')")
    with psycopg.connect(ours, autocommit=True) as other, pytest.raises(psycopg.errors.InsufficientPrivilege):
        other.execute("select trunkline.assign_writer('export', current_user)")


def test_an_attempt_belongs_to_the_role_that_opened_it(conn: Connection, publishers: list[str]) -> None:
    ours, theirs = publishers
    attempt = uuid.uuid4()
    with psycopg.connect(ours, autocommit=True) as task, psycopg.connect(theirs, autocommit=True) as other:
        found = task.execute("select * from trunkline.open_stage('t', %s, '{0}', '{1}')", (attempt,)).fetchone()
        _, table, first_id, _, at = found or ()
        insert = (
            f"insert into trunkline.{table} (id, message_id, payload, created_at) values (%s, gen_random_uuid(), 'x', %s)"
        )
        # nor can it take the ids, with which the attempt would fail
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            other.execute(insert.encode(), (first_id, at))
        task.execute(insert.encode(), (first_id, at))
        assert other.execute("select trunkline.close_stage(%s)", (attempt,)).fetchone() == (0,)
        assert task.execute("select trunkline.close_stage(%s)", (attempt,)).fetchone() == (1,)
        other.execute("select trunkline.drop_stage(array[%s])", (attempt,))
        with pytest.raises(psycopg.Error, match="expected 1 staged rows, got 0"):
            other.execute("select trunkline.commit_stage('w', 0, array[%s], '{1}')", (attempt,))
        assert task.execute("select trunkline.commit_stage('w', 0, array[%s], '{1}')", (attempt,)).fetchone() == (1,)


def test_rows_are_not_older_than_their_stage(conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    attempt = uuid.uuid4()
    row = conn.execute("select segment, first_id from trunkline.open_stage('t', %s, '{0}', '{1}')", (attempt,)).fetchone()
    table, first_id = row or ()
    conn.execute(
        f"insert into trunkline.{table} (id, message_id, payload, created_at)"
        " values (%s, gen_random_uuid(), 'x', '2001-01-01')".encode(),
        (first_id,),
    )
    with pytest.raises(psycopg.Error, match="created_at must not be before the time of open_stage"):
        conn.execute("select trunkline.close_stage(%s)", (attempt,))


def test_a_role_can_be_dropped_when_its_segments_are_sealed(db: str, conn: Connection, clock: Clock) -> None:
    conn.execute("select trunkline.create_topic('t')")
    name = f"spark_{uuid.uuid4().hex[:8]}"
    conn.execute(f"create role {name} login password 'x' in role trunkline_publisher".encode())
    url = make_conninfo(db, user=name, password="x")
    commit(url, "w", 0, [stage(url, [batch(0, 5)], topic="t")])
    close_all()
    clock.advance(timedelta(days=31))
    conn.execute("select trunkline.run_upkeep('stages')")
    conn.execute(f"drop role {name}".encode())
    # and the writer is free again
    assert commit(db, "w", 1, [stage(db, [batch(5, 5)], topic="t")]).rows == 5


def test_staged_segments_are_limited(conn: Connection, publishers: list[str]) -> None:
    conn.execute("select trunkline.create_topic('small', p_segment_rows => 16)")
    conn.execute("update trunkline.settings set value = '5' where name = 'staged_segments_per_role'")
    conn.execute("update trunkline.settings set value = '8' where name = 'staged_segments'")
    relations = "select count(*) from pg_class where relnamespace = 'trunkline'::regnamespace"
    before = conn.execute(relations).fetchone()
    attempts = [uuid.uuid4() for _ in publishers]
    open_stage = "select count(*) from trunkline.open_stage('small', %s, '{0}', %s)"
    with (
        psycopg.connect(publishers[0], autocommit=True) as first,
        psycopg.connect(publishers[1], autocommit=True) as second,
    ):
        with pytest.raises(psycopg.Error, match=r'role "spark_\w+" cannot have more than 5 open segments') as caught:
            first.execute(open_stage, (attempts[0], [16777216]))
        assert caught.value.sqlstate == "TL004" and "staged_segments_per_role" in str(caught.value.diag.message_hint)
        assert conn.execute(relations).fetchone() == before
        first.execute(open_stage, (attempts[0], [80]))
        with pytest.raises(psycopg.Error, match="cannot have more than 5"):
            first.execute(open_stage, (attempts[0], [1]))
        with pytest.raises(psycopg.Error, match="the database cannot have more than 8 open segments"):
            second.execute(open_stage, (attempts[1], [64]))
        first.execute("select trunkline.drop_stage(array[%s])", (attempts[0],))
        conn.execute("select trunkline.run_upkeep('stages')")
        second.execute(open_stage, (attempts[1], [64]))


def test_stages_of_an_earlier_release_are_committed(db: str, conn: Connection) -> None:
    """It knew no roles, and gave out ids in the middle of a segment."""
    conn.execute("select trunkline.create_topic('t', p_segment_rows => 16)")
    old = stage(db, [batch(0, 5)], topic="t")
    conn.execute("update trunkline.staged set role = null")
    conn.execute("update trunkline.staged_segments set role = null")
    conn.execute("delete from trunkline.staged_ids")
    conn.execute("select setval('trunkline.topic_1_0_staged', (1::bigint << 30) * 16 + 4)")
    new = stage(db, [batch(5, 5)], topic="t")
    assert commit(db, "w", 0, [old, new]).rows == 10
    assert payloads(conn, "t") == list(range(10))
    assert conn.execute("select trunkline.run_upkeep('stages')").fetchone() == (1,)


@pytest.mark.parametrize("seed", range(4))
def test_readers_see_both_kinds_of_rows_once_and_in_order(db: str, conn: Connection, clock: Clock, seed: int) -> None:
    """Publishes, commits of what was staged, attempts that are given up, upkeep, a queue and a group, in any order."""
    source = random.Random(seed)
    segment_rows = source.choice([16, 50])
    conn.execute(
        "select trunkline.create_topic('t', p_retention => '1 hour', p_segment_rows => %s),"
        " trunkline.create_group('t', 'g'),"
        " trunkline.create_queue('q', p_lease => '1 minute', p_max_attempts => 100), trunkline.subscribe('q', 't')",
        (segment_rows,),
    )
    count, version = 0, 0
    fetched: list[int] = []
    worked: list[int] = []

    def publish() -> None:
        nonlocal count
        n = source.randint(1, 40)
        conn.execute(
            "select trunkline.publish('t', to_jsonb(n)) from generate_series(%s::int, %s) n", (count, count + n - 1)
        )
        count += n

    def write() -> None:
        nonlocal count, version
        attempts = []
        for _ in range(source.randint(1, 3)):
            n = source.randint(1, 90)
            attempts.append(stage(db, [batch(count, n)], topic="t"))
            count += n
            if source.random() < 0.3:
                stage(db, [batch(-1000, source.randint(1, 30))], topic="t")  # and is given up
        commit(db, "w", version, attempts)
        version += 1

    def fetch() -> None:
        rows = conn.execute(
            "select payload, generation, log_offset from trunkline.fetch('t', 'g', 'm', %s)", (source.randint(1, 300),)
        ).fetchall()
        if rows:
            fetched.extend(int(row[0]) for row in rows)
            conn.execute("select trunkline.commit('t', 'g', 0, %s, %s)", (rows[-1][1], rows[-1][2]))

    def work() -> None:
        rows = conn.execute("select payload, receipt from trunkline.claim('q', %s)", (source.randint(1, 200),)).fetchall()
        back = [row for row in rows if source.random() < 0.1]
        conn.execute("select count(*) from trunkline.nack(%s, '0')", ([row[1] for row in back],))
        done = [row for row in rows if row not in back]
        answers = conn.execute("select result from trunkline.ack(%s)", ([row[1] for row in done],)).fetchall()
        worked.extend(int(row[0]) for row, (answer,) in zip(done, answers, strict=True) if answer == "done")

    def keep() -> None:
        clock.advance(timedelta(minutes=source.choice([0, 5, 30])))
        for duty in source.sample(["pass", "stages", "segments", "segments", "retention", "rotate", "sequence"], 4):
            conn.execute("select trunkline.run_upkeep(%s)", (duty,))

    for _ in range(150):
        source.choices([publish, write, fetch, work, keep], [3, 2, 3, 3, 3])[0]()
    while len(fetched) < count:
        fetch()
    assert fetched == list(range(count))
    while len(worked) < count:
        clock.advance(timedelta(minutes=2))
        work()
    assert sorted(worked) == list(range(count))
    for duty in ("stages", "segments", "segments", "segments", "pass", "retention"):
        conn.execute("select trunkline.run_upkeep(%s)", (duty,))
        clock.advance(timedelta(minutes=40))
    lowest, head = conn.execute("select earliest_offset, head from trunkline.topic_stats('t')").fetchone() or (0, 0)
    assert head == count and lowest > 1, "retention took some of it"
    rest = conn.execute("select payload from trunkline.read('t', 0, %s, 100000)", (lowest,)).fetchall()
    assert [int(row[0]) for row in rest] == list(range(lowest - 1, count))


def test_headers_that_are_nested_too_deeply_are_refused(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    deep = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    with pytest.raises(InvalidArgument, match="headers of row 1 of the task are not a JSON object"):
        stage(db, [batch(0, 3, headers=pa.array([None, deep, None]))], topic="t", job="w 0")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"key": None, "value": b"x"}, "headers of row 12 of the task: the key of a header is null"),
        (None, "headers of row 12 of the task: the key of a header is null"),
        ({"key": "a\0", "value": b"x"}, "headers of row 12 of the task: the key of a header has a NUL character"),
        ({"key": "a", "value": b"\0"}, "headers of row 12 of the task: the value of a header has a NUL character"),
        ({"key": "a", "value": b"\xff"}, "headers of row 12 of the task: the value of a header is not UTF-8 text"),
        ({"key": "b", "value": b"2"}, "headers of row 12 of the task: the name 'b' occurs twice"),
    ],
)
def test_bad_entries_of_headers_name_their_row(entry: dict[str, Any] | None, said: str) -> None:
    good, other = {"key": "c", "value": None}, {"key": "b", "value": None}
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    with pytest.raises(InvalidArgument, match=said):
        header_lists(pa.array([[good, other], None, [good, other, entry], [good, entry]], kind), 10)
