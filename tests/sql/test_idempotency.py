"""Idempotency keys: one key, one message, one id, for at least the window (promise P3)."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import Connect, call, claim, contents, enqueue, head, publish, read, refused, sequence, upkeep, value

DAY = 24 * 3600


@pytest.fixture(autouse=True)
def topic(conn: Connection) -> None:
    call(conn, "create_topic", "t")


def answer(conn: Connection, payload: str = "1", key: str = "k", **named: Any) -> tuple[Any, bool]:
    [row] = call(conn, "publish", "t", payload, p_idempotency_key=key, **named)
    return row.id, row.duplicate


def test_a_repeat_answers_the_first_id_and_adds_nothing(conn: Connection) -> None:
    first, duplicate = answer(conn)
    assert not duplicate
    for _ in range(3):
        assert answer(conn) == (first, True)
    assert answer(conn, key="other") != (first, True)
    assert head(conn, "t") == 2


@pytest.mark.parametrize("verb", ["publish", "publish_bytes", "enqueue", "enqueue_bytes"])
def test_a_given_id_is_a_key(conn: Connection, verb: str) -> None:
    """Receivers that take each id once would drop a second message with it."""
    call(conn, "create_queue", "t")
    mine = uuid4()
    assert call(conn, verb, "t", "1", p_id=mine) == [(1, mine, False)]
    for _ in range(2):
        assert call(conn, verb, "t", "1", p_id=mine) == [(1, mine, True)]
    with refused("TL022", str(mine)):
        call(conn, verb, "t", "2", p_id=mine)
    assert call(conn, verb, "t", "1", p_id=mine, p_idempotency_key="mine") == [(1, mine, False)], "the key decides"
    sequence(conn)
    assert len(read(conn, "t") if verb.startswith("publish") else claim(conn, "t")) == 2


@pytest.mark.parametrize("verb", ["publish_many", "enqueue_many"])
def test_given_ids_of_a_batch_are_keys(conn: Connection, verb: str) -> None:
    call(conn, "create_queue", "t")
    one, two = uuid4(), uuid4()
    first = call(conn, verb, "t", [b"1", b"1", b"2", b"3"], p_ids=[one, one, None, two])
    assert [row.duplicate for row in first] == [False, True, False, False]
    assert [first[n].id for n in (0, 1, 3)] == [one, one, two]
    again = call(conn, verb, "t", [b"3", b"4", b"1"], p_ids=[two, None, one], p_idempotency_keys=[None, None, "k"])
    assert [row.duplicate for row in again] == [True, False, False]
    with refused("TL001", "one element per message"):
        call(conn, verb, "t", [b"1"], p_ids=[one, two])


def test_jobs_with_an_id_need_no_key(conn: Connection) -> None:
    """A unique job, and one that waits for others, is started once anyway."""
    call(conn, "create_queue", "q")
    call(conn, "enqueue_unique", "q", "u", b"1", "job", p_id=uuid4())
    [parent] = enqueue(conn, "q", 1, p_label="job")
    call(conn, "enqueue_after", "q", [parent], b"2", "job", p_id=uuid4())
    for row in claim(conn, "q"):
        call(conn, "settle_jobs", "ack", [row.receipt], [row.id], p_results=[b"5"], p_tracked=[True])
    assert contents(claim(conn, "q")) == [2]
    assert value(conn, "select count(*) from trunkline.idempotency") == 0


def test_a_key_belongs_to_its_topic(conn: Connection) -> None:
    call(conn, "create_topic", "other")
    call(conn, "create_queue", "t")
    ids = {publish(conn, name, 1, p_idempotency_key="k")[0] for name in ("t", "other")}
    ids.add(enqueue(conn, "t", 1, p_idempotency_key="k")[0])
    assert len(ids) == 3


def test_the_same_key_for_another_message_is_a_conflict(conn: Connection) -> None:
    answer(conn, '{"a": 1}', p_label="x")
    assert answer(conn, '{"a":  1}', p_label="x")[1]
    for other in ({"payload": "2"}, {"p_label": "y"}, {"p_key": "z"}, {"p_headers": "{}"}, {"p_routing_key": "r"}):
        with refused("TL022", "k"):
            answer(conn, **{"payload": '{"a": 1}', "p_label": "x", **other})
    assert head(conn, "t") == 1


def test_a_key_holds_across_the_border_of_two_windows(conn: Connection, clock: Clock) -> None:
    into_window = value(conn, "select mod(extract(epoch from trunkline.clock())::bigint, 86400)")
    clock.advance(DAY - into_window - 5)
    first, _ = answer(conn)
    for seconds in (10, 3600, DAY - 7200):
        clock.advance(seconds)
        upkeep(conn)
        assert answer(conn) == (first, True)
    assert head(conn, "t") == 1


def test_a_key_holds_a_whole_window_and_is_free_after_two(conn: Connection, clock: Clock) -> None:
    first, _ = answer(conn)
    clock.advance(DAY - 60)
    upkeep(conn)
    assert answer(conn) == (first, True)
    clock.advance(DAY + 120)
    upkeep(conn)
    again, duplicate = answer(conn)
    assert (duplicate, again != first) == (False, True)
    clock.advance(5 * DAY)
    upkeep(conn, 2)
    assert not answer(conn)[1]


def test_old_windows_are_emptied(conn: Connection, clock: Clock) -> None:
    for _ in range(6):
        answer(conn)
        clock.advance(DAY)
        upkeep(conn)
    assert value(conn, "select count(*) from trunkline.idempotency") <= 4


def test_a_rollback_frees_the_key(conn: Connection) -> None:
    conn.execute("begin")
    first, _ = answer(conn)
    conn.execute("rollback")
    second, duplicate = answer(conn, "2")
    assert (duplicate, second != first) == (False, True)
    assert contents(read(conn, "t")) == [2]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_second_publisher_waits_for_the_first_and_answers_right(conn: Connection, connect: Connect, end: str) -> None:
    other = connect()
    other.execute("begin")
    first, _ = answer(other)
    answers: list[tuple[Any, bool]] = []
    waiter = connect()
    thread = threading.Thread(target=lambda: answers.append(answer(waiter)))
    thread.start()
    wait_for_lock(conn, waiter.info.backend_pid)
    other.execute(end)
    thread.join(30)
    assert answers[0][1] is (end == "commit")
    assert (answers[0][0] == first) is (end == "commit")
    assert head(conn, "t") == 1


def wait_for_lock(conn: Connection, pid: int) -> None:
    """Until the session waits for another one."""
    for _ in range(1000):
        if value(conn, "select cardinality(pg_blocking_pids(%s))", pid):
            return
        conn.execute("select pg_sleep(0.01)")
    raise AssertionError("the session never waited")


def test_many_publishers_of_one_key_make_one_message(conn: Connection, connect: Connect) -> None:
    answers: list[tuple[Any, bool]] = []
    connections = [connect() for _ in range(6)]
    start = threading.Barrier(len(connections))

    def repeat(mine: Connection) -> None:
        start.wait()
        for n in range(20):
            answers.append((n, *answer(mine, str(n), f"k{n}")))  # type: ignore[arg-type]

    threads = [threading.Thread(target=repeat, args=(mine,)) for mine in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 120
    assert len({row[1] for row in answers}) == 20
    assert sum(not row[2] for row in answers) == 20
    assert head(conn, "t") == 20


def test_a_batch_may_repeat_a_key_inside_and_outside(conn: Connection) -> None:
    first, _ = answer(conn, "0", "old")
    keys = ["old", "new", None, "new", None, "old"]
    payloads = [b"0", b"1", b"2", b"1", b"2", b"0"]
    types = ["application/json"] * 6
    rows = call(conn, "publish_many", "t", payloads, p_content_types=types, p_idempotency_keys=keys)
    assert [row.duplicate for row in rows] == [True, False, False, True, False, True]
    assert rows[0].id == rows[5].id == first
    assert rows[1].id == rows[3].id
    assert len({row.id for row in rows}) == 4
    assert contents(read(conn, "t")) == [0, 1, 2, 2]
    assert [m.id for m in read(conn, "t")][1] == rows[1].id


def test_a_batch_with_one_conflict_stores_nothing(conn: Connection) -> None:
    with refused("TL022", "k"):
        call(conn, "publish_many", "t", [b"1", b"2", b"3"], p_idempotency_keys=["a", "k", "k"])
    assert head(conn, "t") == 0
    assert not answer(conn, key="a")[1]


def test_a_delayed_message_has_one_key_too(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    ids = [call(conn, "enqueue", "q", "1", p_idempotency_key="k", p_delay=timedelta(minutes=1))[0] for _ in range(3)]
    assert [row.duplicate for row in ids] == [False, True, True]
    assert len({row.id for row in ids}) == 1
    clock.advance(61)
    assert [delivery.id for delivery in claim(conn, "q")] == [ids[0].id]
