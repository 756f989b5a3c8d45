"""Delayed messages: never before they are due by the database's clock, and in due order (promise Q6)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import (
    call,
    claim,
    contents,
    enqueue,
    fetch,
    publish,
    queue_stats,
    read,
    rows,
    run_upkeep,
    settle,
    upkeep,
    value,
)


def test_delay_holds_a_message_back_until_due(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    enqueue(conn, "q", "later", p_delay="1 hour")
    enqueue(conn, "q", "now")
    [first] = claim(conn, "q")
    assert contents([first]) == ["now"]
    settle(conn, "ack", first.receipt)
    clock.advance(3590)
    run_upkeep(conn, "pass", 2)
    assert claim(conn, "q") == []
    assert queue_stats(conn, "q").delayed == 1
    clock.advance(11)
    [delivery] = claim(conn, "q")
    assert (contents([delivery]), delivery.attempt) == (["later"], 1)
    assert queue_stats(conn, "q").delayed == 0


def test_deliver_at_enters_the_log_when_due(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t")
    at = value(conn, "select trunkline.clock()") + timedelta(minutes=5)
    fields = {"p_key": "k", "p_routing_key": "r", "p_label": "l", "p_headers": '{"h": 1}'}
    [id_] = publish(conn, "t", "later", p_deliver_at=at, **fields)
    publish(conn, "t", "now")
    clock.advance(290)
    upkeep(conn)
    assert contents(read(conn, "t")) == ["now"]
    clock.advance(11)
    upkeep(conn)
    [_, message] = read(conn, "t")
    assert (message.id, message.log_offset, message.key, message.routing_key) == (id_, 2, "k", "r")
    assert (message.label, message.headers, message.payload) == ("l", {"h": 1}, b'"later"')
    assert message.created_at < at - timedelta(minutes=4), "the time of the publish"
    assert contents(fetch(conn, "t")) == ["now", "later"]


def test_due_order_is_delivery_order(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    for seconds in (30, 10, 20, 10):
        enqueue(conn, "q", seconds, p_delay=timedelta(seconds=seconds))
    clock.advance(40)
    assert contents(claim(conn, "q")) == [10, 10, 20, 30]


@pytest.mark.parametrize("delay", ["0", "1 microsecond"])
def test_no_delay_is_now(conn: Connection, clock: Clock, delay: str) -> None:
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1, p_delay=delay)
    enqueue(conn, "q", 2, p_deliver_at="2001-01-01 00:00+00")
    clock.advance(1)
    got = contents(claim(conn, "q")) + contents(claim(conn, "q"))
    assert sorted(got) == [1, 2]


def test_a_batch_mixes_now_and_later_and_answers_in_order(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    delays = [None, timedelta(minutes=1), None, timedelta(minutes=2)]
    answers = call(conn, "enqueue_many", "q", [b"0", b"1", b"2", b"3"], p_delays=delays)
    first = claim(conn, "q")
    assert contents(first) == [0, 2]
    settle(conn, "ack", *[delivery.receipt for delivery in first])
    clock.advance(121)
    second = claim(conn, "q")
    assert contents(second) == [1, 3]
    by_value = {contents([d])[0]: d.id for d in first + second}
    assert [by_value[n] for n in range(4)] == [answer.id for answer in answers]


def test_a_delayed_publish_rolled_back_is_gone(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    conn.execute("begin")
    enqueue(conn, "q", 1, p_delay="1 minute")
    conn.execute("rollback")
    clock.advance(61)
    assert claim(conn, "q") == []


def test_a_deleted_topic_takes_its_delayed_messages_with_it(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t")
    publish(conn, "t", 1, p_delay="1 minute")
    call(conn, "delete_topic", "t")
    clock.advance(61)
    run_upkeep(conn, "pass", 3)
    assert rows(conn, "select from trunkline.later where due > (select max(walked) from trunkline.passes)") == []


def test_a_delayed_message_is_not_early(conn: Connection, clock: Clock) -> None:
    """A message delayed 5 s is not delivered before 5 s."""
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1, p_delay="5 minutes")
    clock.advance(295)
    upkeep(conn)
    assert claim(conn, "q") == []
    clock.advance(6)
    [delivery] = claim(conn, "q")
    assert delivery.created_at <= value(conn, "select trunkline.clock()")
