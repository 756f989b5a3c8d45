"""Delayed and redriven messages keep the time of their publish.

ttl, age and seeks by time go by the time at which they entered the log.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import (
    assert_conserved,
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
    settle_all,
    value,
)

MINUTE = timedelta(minutes=1)


def now(conn: Connection) -> datetime:
    moment: datetime = value(conn, "select trunkline.clock()")
    return moment


def explain(conn: Connection, message: Any) -> Any:
    return value(conn, "select trunkline.explain_message(%s)", message)


def release(conn: Connection, clock: Clock, after: float) -> None:
    clock.advance(after)
    run_upkeep(conn, "pass", 2)
    conn.execute("call trunkline.sequence()")


def bury(conn: Connection, queue: str) -> Any:
    """Claim one message and make it a dead letter."""
    conn.execute("call trunkline.sequence()")
    [delivery] = claim(conn, queue, 1)
    settle_all(conn, "bury", [delivery], p_error="broken")
    return delivery


@pytest.mark.parametrize("own_tables", [False, True])
def test_a_delayed_message_of_a_queue(conn: Connection, clock: Clock, own_tables: bool) -> None:
    call(conn, "create_queue", "q", p_segment_rows=16 if own_tables else None)
    before = now(conn)
    [message, _] = enqueue(conn, "q", 1, 2, p_delay="1 hour")
    release(conn, clock, 3601)
    assert all(row.created_at < before + MINUTE for row in call(conn, "peek_queue", "q"))
    assert explain(conn, message)["published_at"] < (before + MINUTE).isoformat()
    delivered = claim(conn, "q")
    assert contents(delivered) == [1, 2]
    assert all(before <= delivery.created_at < before + MINUTE for delivery in delivered)
    settle_all(conn, "nack", delivered, p_delay="0")
    run_upkeep(conn, "pass", 2)
    assert all(delivery.created_at < before + MINUTE for delivery in claim(conn, "q"))
    assert rows(conn, "select created_at from trunkline.list_completed('q')") == []


def test_a_delayed_message_of_a_topic(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t", 4)
    call(conn, "create_group", "t", "g")
    before = now(conn)
    publish(conn, "t", 1, p_delay="1 hour", p_key="k")
    clock.advance(1800)
    middle = now(conn)
    release(conn, clock, 1801)
    partition = value(conn, "select trunkline._partition_of('k', 4)")
    [message] = read(conn, "t", partition=partition)
    assert before <= message.created_at < before + MINUTE
    [fetched] = fetch(conn, "t")
    assert (fetched.partition, fetched.created_at) == (partition, message.created_at)
    # it entered the log after this moment, so a seek to it finds the message
    assert value(conn, "select trunkline.offset_at('t', %s, %s)", partition, middle) == 1


def test_ttl_and_age_begin_when_a_message_is_due(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q", p_ttl="10 minutes")
    enqueue(conn, "q", 1, 2, p_delay="1 hour")
    release(conn, clock, 3601)
    assert queue_stats(conn, "q").oldest_age < 600
    [first] = claim(conn, "q", 1)
    settle_all(conn, "nack", [first], p_delay="0")
    run_upkeep(conn, "pass", 2)
    assert contents(claim(conn, "q", 1)) == [1]
    clock.advance(601)
    assert claim(conn, "q") == []


def test_what_an_earlier_release_has_delayed(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1, p_delay="1 hour")
    conn.execute("update trunkline.delayed set published_at = null")
    release(conn, clock, 3601)
    [delivery] = claim(conn, "q")
    assert delivery.created_at > now(conn) - MINUTE


def test_a_redriven_message_keeps_its_routing_key_and_time(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q", p_ttl="2 hours")
    call(conn, "subscribe", "q", "t")
    before = now(conn)
    [message] = publish(conn, "t", 1, p_routing_key="a.b")
    for number in (1, 2):
        delivery = bury(conn, "q")
        assert (delivery.id, delivery.routing_key) == (message, "a.b"), number
        assert delivery.created_at < before + MINUTE
        [dead] = call(conn, "list_dead_letters", "q")
        assert dead.created_at == delivery.created_at
        # longer than the ttl, which begins again
        clock.advance(3 * 3600)
        assert value(conn, "select trunkline.redrive('q')") == 1
    [row] = call(conn, "peek_queue", "q")
    assert row.created_at == delivery.created_at
    [delivery] = claim(conn, "q")
    assert delivery.created_at == row.created_at
    assert value(conn, "select array_agg((origin).topic order by id) from trunkline.store") == ["t", "t"]


def test_explain_shows_what_was_before_a_redrive(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    call(conn, "create_queue", "other")
    call(conn, "subscribe", "q", "t")
    [message] = publish(conn, "t", 1)
    bury(conn, "q")
    call(conn, "redrive", "q", p_to="other")
    assert len(explain(conn, message)["redrives"]) == 1, "before it has an offset"
    bury(conn, "other")
    call(conn, "redrive", "other", p_to="q")
    conn.execute("call trunkline.sequence()")
    found = explain(conn, message)
    assert found["redriven_at"] == found["redrives"][-1]["at"]
    assert [(step["queue"], step["topic"], step["offset"], step["error"]) for step in found["redrives"]] == [
        ("q", "t", 1, "broken"),
        ("other", None, 1, "broken"),
    ]
    assert [[step["outcome"] for step in redrive["history"]] for redrive in found["redrives"]] == [["buried"], ["buried"]]


def test_a_replayed_message_keeps_its_time(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t")
    publish(conn, "t", 1)
    conn.execute("call trunkline.sequence()")
    first = claim(conn, "q")
    settle_all(conn, "ack", first)
    run_upkeep(conn, "pass", 2)
    clock.advance(3600)
    assert value(conn, "select trunkline.replay('q', array[%s]::uuid[])", first[0].id) == 1
    conn.execute("call trunkline.sequence()")
    [again] = claim(conn, "q")
    assert again.created_at == first[0].created_at


def test_what_is_copied_out_of_the_store_keeps_its_origin(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q", p_ttl="30 days")
    before = now(conn)
    enqueue(conn, "q", 1, p_delay="1 hour")
    release(conn, clock, 3601)
    enqueue(conn, "q", 2)
    clock.advance(5 * 3600)
    run_upkeep(conn, "segments", 3)
    clock.advance(25 * 3600)
    run_upkeep(conn, "retention", 10)
    assert value(conn, "select count(*) from trunkline.topic_1") == 2
    assert value(conn, "select count(origin) from trunkline.topic_1") == 1
    delayed, plain = claim(conn, "q")
    assert before <= delayed.created_at < before + MINUTE
    assert plain.created_at > before + 30 * MINUTE


@pytest.mark.parametrize("ordered", [False, True])
def test_purged_delayed_messages_are_counted(conn: Connection, clock: Clock, ordered: bool) -> None:
    call(conn, "create_queue", "q", p_ordered=ordered)
    enqueue(conn, "q", 1, 2, 3, p_delay="1 hour")
    enqueue(conn, "q", 4)
    conn.execute("call trunkline.sequence()")
    audit = assert_conserved(conn, "q")
    assert (audit.accepted, audit.pending) == (4, 3)
    assert value(conn, "select trunkline.purge_queue('q')") == 4
    assert value(conn, "select trunkline.purge_queue('q')") == 0
    run_upkeep(conn, "pass", 2)
    stats = queue_stats(conn, "q")
    assert (stats.purged, stats.delayed, stats.ready) == (4, 0, 0)
    audit = assert_conserved(conn, "q")
    assert (audit.accepted, audit.purged) == (4, 4)


def test_purged_leases_are_counted(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1, 2, 3)
    conn.execute("call trunkline.sequence()")
    claim(conn, "q", 1)
    conn.execute("select trunkline.purge_queue('q'), trunkline._drop_leases('q')")
    run_upkeep(conn, "pass", 2)
    stats = queue_stats(conn, "q")
    assert (stats.purged, stats.expired, stats.leased) == (3, 0, 0)
