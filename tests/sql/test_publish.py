"""Publishing: what goes in comes out, in order, whole, and only when its transaction commits."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.conftest import Connection
from tests.sql.calls import Connect, call, claim, contents, head, publish, read, refused, value


@pytest.fixture(autouse=True)
def topic(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")


def test_every_field_comes_back(conn: Connection) -> None:
    given = uuid4()
    when = datetime(2020, 2, 29, 12, 0, tzinfo=UTC)
    [answer] = call(
        conn,
        "publish",
        "t",
        '{"b": 1, "a": [null]}',
        p_key="k",
        p_routing_key="a.b",
        p_label="job",
        p_headers='{"x": "y"}',
        p_id=given,
        p_occurred_at=when,
    )
    assert (answer.ord, answer.id, answer.duplicate) == (1, given, False)
    [message] = read(conn, "t")
    assert message[:8] == ("t", 0, 1, given, "k", "a.b", "job", {"x": "y"})
    assert (message.content_type, message.occurred_at) == ("application/json", when)
    assert contents([message]) == [{"a": [None], "b": 1}]


@pytest.mark.parametrize("payload", [b"", b"\x00", bytes(range(256)), b'{"b":1,  "a":2}', b"x" * 100_000])
def test_bytes_are_kept_exactly(conn: Connection, payload: bytes) -> None:
    call(conn, "publish_bytes", "t", payload, "application/x-test")
    call(conn, "enqueue_bytes", "q", payload)
    assert [(m.payload, m.content_type) for m in read(conn, "t")] == [(payload, "application/x-test")]
    assert [(m.payload, m.content_type) for m in claim(conn, "q")] == [(payload, "application/octet-stream")]


def test_ids_are_version_7_and_sort_by_time(conn: Connection) -> None:
    ids = publish(conn, "t", *range(5))
    assert all(isinstance(one, UUID) and one.version == 7 for one in ids)
    stamps = [one.int >> 80 for one in ids]
    assert stamps == sorted(stamps)


def test_a_batch_answers_in_input_order_and_keeps_it(conn: Connection) -> None:
    given = [uuid4() if n % 2 else None for n in range(50)]
    answers = call(
        conn,
        "publish_many",
        "t",
        [str(n).encode() for n in range(50)],
        p_ids=given,
        p_labels=[None if n % 3 else str(n) for n in range(50)],
        p_headers=[Jsonb({"n": n}) for n in range(50)],
    )
    assert [answer.ord for answer in answers] == list(range(1, 51))
    assert all(one in (None, answer.id) for one, answer in zip(given, answers, strict=True))
    messages = read(conn, "t")
    assert contents(messages) == [message.headers["n"] for message in messages] == list(range(50))
    assert [message.id for message in messages] == [answer.id for answer in answers]
    assert [message.label for message in messages[:4]] == ["0", None, None, "3"]


def test_a_batch_with_keys_spreads_over_partitions_in_order(conn: Connection) -> None:
    call(conn, "create_topic", "wide", 4)
    keys = [str(n % 7) for n in range(100)]
    call(conn, "publish_many", "wide", [str(n).encode() for n in range(100)], p_keys=keys)
    seen: dict[str, list[int]] = {}
    for partition in range(4):
        for message in read(conn, "wide", partition=partition):
            seen.setdefault(message.key, []).extend(contents([message]))
    assert {key: len(numbers) for key, numbers in seen.items()} == {str(n): 15 if n < 2 else 14 for n in range(7)}
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_a_batch_larger_than_a_segment_is_whole(conn: Connection) -> None:
    call(conn, "create_topic", "small", p_segment_rows=16)
    for start in range(0, 300, 100):
        call(conn, "publish_many", "small", [str(n).encode() for n in range(start, start + 100)])
    assert head(conn, "small") == 300
    assert contents(read(conn, "small")) == list(range(300))


def test_a_publish_is_visible_if_and_only_if_its_transaction_commits(conn: Connection, connect: Connect) -> None:
    other = connect()
    other.execute("begin")
    publish(other, "t", *range(3))
    assert read(conn, "t") == []
    other.execute("rollback")
    assert read(conn, "t") == []
    other.execute("begin")
    publish(other, "t", *range(3))
    other.execute("commit")
    assert contents(read(conn, "t")) == [0, 1, 2]
    assert [message.log_offset for message in read(conn, "t")] == [1, 2, 3]


def test_open_publishers_do_not_stop_others_even_at_a_new_segment(conn: Connection, connect: Connect) -> None:
    call(conn, "create_topic", "small", p_segment_rows=16)
    conn.execute("set lock_timeout = '1s'")
    slow = connect()
    slow.execute("begin")
    publish(slow, "small", "slow")
    for n in range(100):
        publish(conn, "small", n)
        head(conn, "small")
    slow.execute("commit")
    assert sorted(map(str, contents(read(conn, "small")))) == sorted([*map(str, range(100)), "slow"])


def test_publish_is_durable_whatever_the_session_says(conn: Connection) -> None:
    for verb, target in (("publish", "t"), ("enqueue", "q")):
        with conn.transaction():
            conn.execute("set local synchronous_commit = off")
            call(conn, verb, target, "1")
            assert value(conn, "show synchronous_commit") == "on"
        with conn.transaction():
            conn.execute("set local synchronous_commit = off")
            call(conn, f"{verb}_many", target, [b"1", b"2"])
            assert value(conn, "show synchronous_commit") == "on"


def test_topics_and_inboxes_of_one_name_are_apart(conn: Connection) -> None:
    call(conn, "create_topic", "q")
    publish(conn, "q", "topic")
    call(conn, "enqueue", "q", '"queue"')
    assert contents(read(conn, "q")) == ["topic"]
    assert contents(claim(conn, "q")) == ["queue"]


@pytest.mark.parametrize("at", ["infinity", "-infinity", "294276-01-01", "10000-01-01 00:00+00", "0001-12-31 BC"])
def test_times_that_clients_cannot_represent_are_refused(conn: Connection, at: str) -> None:
    many = "select trunkline.publish_many('t', array['x'::bytea, 'y'], p_occurred_ats => array[null, %s::timestamptz])"
    for statement in (
        "select trunkline.publish('t', '1', p_occurred_at => %s::timestamptz)",
        "select trunkline.publish('t', '1', p_occurred_at => %s::timestamptz, p_delay => '1 minute')",
        "select trunkline.enqueue('q', '1', p_occurred_at => %s::timestamptz)",
        many,
    ):
        with refused("TL001", "occurred_at must be in the years 1 to 9999"):
            value(conn, statement, at)
    for fine in ("0001-01-01 00:00+00", "9999-12-31 23:59:59.999999+00"):
        value(conn, many, fine)
