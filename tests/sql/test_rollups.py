"""Rollups: what dashboards show of the last day, by the minute, without looking at messages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conftest import Clock, Connection
from tests.plans import seeding
from tests.sql.calls import (
    call,
    claim,
    enqueue,
    fetch,
    passes,
    publish,
    refused,
    rows,
    run_upkeep,
    settle,
    settle_all,
    upkeep,
    value,
)

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def noon(conn: Connection, clock: Clock) -> Clock:
    """The clock, standing at half a minute past noon until it is moved: rates and latencies are exact."""
    conn.execute(
        "create or replace function trunkline.clock() returns timestamptz language sql volatile as"
        f" $$ select '{NOON.isoformat()}'::timestamptz + interval '30 seconds' + (select skew from public.test_clock) $$"
    )
    return clock


def roll_up(conn: Connection) -> None:
    assert run_upkeep(conn, "sequence") != [None]
    passes(conn)
    assert run_upkeep(conn, "rollups") != [None]


def test_topic_rates(conn: Connection, noon: Clock) -> None:
    call(conn, "create_topic", "t", 2)
    for n in (0, 60, 120, 0):
        publish(conn, "t", *range(n))
        roll_up(conn)
        noon.advance(60)
    found = call(conn, "topic_rollups", "t")
    assert [row.at for row in found] == [NOON + timedelta(minutes=n) for n in range(4)]
    assert [row.head for row in found] == [0, 60, 180, 180]
    assert [row.published_per_second for row in found] == [None, 1, 2, 0]
    # the last minutes only, with the right rate from the first row on
    assert [row.published_per_second for row in call(conn, "topic_rollups", "t", timedelta(minutes=2))] == [2, 0]


def test_steps_take_the_newest_row_and_the_whole_distance(conn: Connection, noon: Clock) -> None:
    call(conn, "create_topic", "t")
    for n in range(10):
        publish(conn, "t", *range(n))
        roll_up(conn)
        noon.advance(60)
    found = call(conn, "topic_rollups", "t", timedelta(hours=1), timedelta(minutes=5))
    assert [row.at for row in found] == [NOON, NOON + timedelta(minutes=5)]
    assert [row.head for row in found] == [10, 45]
    assert [row.published_per_second for row in found] == [None, 35 / 300]


def test_a_gap_is_a_gap_and_the_rate_spans_it(conn: Connection, noon: Clock) -> None:
    """Upkeep did not run for an hour."""
    call(conn, "create_topic", "t")
    roll_up(conn)
    publish(conn, "t", *range(36))
    noon.advance(3600)
    roll_up(conn)
    assert [row.published_per_second for row in call(conn, "topic_rollups", "t")] == [None, 0.01]


def test_queue_counters_and_states(conn: Connection, noon: Clock) -> None:
    call(conn, "create_queue", "q", p_max_attempts=2, p_backoff_base="0", p_backoff_jitter=0)
    roll_up(conn)
    enqueue(conn, "q", *range(12))
    first = [delivery.receipt for delivery in claim(conn, "q", 6)]
    settle(conn, "ack", *first[:3])
    settle(conn, "nack", first[3])
    settle(conn, "bury", first[4])
    noon.advance(60)
    # the sixth returned when its lease expired
    roll_up(conn)
    row = call(conn, "queue_rollups", "q")[-1]
    counted = (row.accepted, row.delivered, row.acked, row.returned, row.dead, row.expired, row.leased, row.ready)
    assert counted == (12, 6, 3, 2, 1, 0, 0, 8)
    assert (row.accepted_per_second, row.delivered_per_second, row.acked_per_second) == (0.2, 0.1, 0.05)
    assert (row.returned_per_second, row.dead_per_second) == (2 / 60, 1 / 60)
    assert row.oldest_age == 60
    for delivery in claim(conn, "q", 2):
        settle(conn, "nack", delivery.receipt)
    noon.advance(60)
    roll_up(conn)
    row = call(conn, "queue_rollups", "q")[-1]
    assert (row.delivered, row.dead, row.ready) == (8, 3, 6)


def test_expired_messages_are_counted(conn: Connection, noon: Clock) -> None:
    call(conn, "create_queue", "q", p_ttl="10 seconds")
    enqueue(conn, "q", 1, 2)
    noon.advance(11)
    assert claim(conn, "q") == []
    roll_up(conn)
    assert call(conn, "queue_rollups", "q")[-1].expired == 2


def test_queue_with_subscriptions_counts_what_it_accepts(conn: Connection, noon: Clock) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t", "a.#")
    for word in ("a", "b", "a", "b"):
        publish(conn, "t", 1, p_routing_key=word)
    enqueue(conn, "q", 1)
    assert len(claim(conn, "q", 10)) == 3
    roll_up(conn)
    row = call(conn, "queue_rollups", "q")[-1]
    assert (row.accepted, row.delivered, row.leased, row.ready) == (3, 3, 3, 0)


def test_latencies_of_a_queue(conn: Connection, noon: Clock) -> None:
    call(conn, "create_queue", "q")
    roll_up(conn)
    for waited, worked in ((1, 2), (3, 4), (5, 6)):
        enqueue(conn, "q", 1)
        noon.advance(waited)
        [delivery] = claim(conn, "q")
        noon.advance(worked)
        settle(conn, "ack", delivery.receipt)
    roll_up(conn)
    row = call(conn, "queue_rollups", "q")[-1]
    assert (row.wait_p50, row.wait_max, row.work_p50, row.work_max) == (3, 5, 4, 6)
    assert 4.9 < row.wait_p99 <= 5
    noon.advance(60)
    roll_up(conn)
    row = call(conn, "queue_rollups", "q")[-1]
    assert (row.wait_p50, row.work_max) == (None, None)


def test_work_that_takes_longer_than_a_minute_counts_when_it_is_done(conn: Connection, noon: Clock) -> None:
    call(conn, "create_queue", "q", p_lease="1 hour")
    enqueue(conn, "q", 1)
    [delivery] = claim(conn, "q")
    for _ in range(5):
        roll_up(conn)
        noon.advance(60)
        run_upkeep(conn, "rotate")
    settle(conn, "ack", delivery.receipt)
    noon.advance(1)
    roll_up(conn)
    noon.advance(60)
    roll_up(conn)
    found = call(conn, "queue_rollups", "q")
    assert [row.work_max for row in found] == [None] * 5 + [300, None]


def test_group_lag_and_latencies(conn: Connection, noon: Clock) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_group", "t", "g")
    roll_up(conn)
    publish(conn, "t", *range(60))
    noon.advance(2)
    batch = fetch(conn, "t", p_limit=30)
    noon.advance(3)
    call(conn, "commit", "t", "g", 0, batch[0].generation, 30)
    noon.advance(55)
    roll_up(conn)
    row = call(conn, "group_rollups", "t", "g")[-1]
    assert (row.head, row.committed, row.lag, row.oldest_age) == (60, 30, 30, 60)
    assert (row.published_per_second, row.committed_per_second) == (1, 0.5)
    assert (row.wait_p50, row.wait_max, row.work_p50, row.work_max) == (2, 2, 3, 3)
    # going back is no negative rate
    call(conn, "seek", "t", "g", "earliest")
    noon.advance(60)
    roll_up(conn)
    row = call(conn, "group_rollups", "t", "g")[-1]
    assert (row.committed, row.lag, row.committed_per_second) == (0, 60, 0)


def test_rows_go_after_25_hours(conn: Connection, noon: Clock) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    topics = "select count(*) from trunkline.rollups where kind = 'topic'"
    roll_up(conn)
    noon.advance(timedelta(hours=24))
    roll_up(conn)
    assert value(conn, topics) == 2
    noon.advance(timedelta(hours=1, seconds=1))
    roll_up(conn)
    assert value(conn, topics) == 2
    noon.advance(timedelta(days=2))
    roll_up(conn)
    assert value(conn, topics) == 1
    assert value(conn, "select count(*) from trunkline.rollups where kind = 'queue'") <= 1


def test_an_idle_queue_has_a_row_every_few_minutes(conn: Connection, noon: Clock) -> None:
    """And its rate after an idle time is that of the last minute, not of the whole time."""
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1)
    settle_all(conn, "ack", claim(conn, "q"))
    for _ in range(40):
        roll_up(conn)
        noon.advance(60)
    idle = call(conn, "queue_rollups", "q")
    assert 4 <= len(idle) <= 9
    assert idle[1].acked_per_second == 0
    enqueue(conn, "q", *range(60))
    run_upkeep(conn, "sequence")
    roll_up(conn)
    newest = call(conn, "queue_rollups", "q")[-1]
    assert newest.ready == 60
    assert newest.accepted_per_second == pytest.approx(1)


def test_a_queue_with_a_backlog_has_a_row_every_minute(conn: Connection, noon: Clock) -> None:
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1)
    run_upkeep(conn, "sequence")
    for _ in range(8):
        roll_up(conn)
        noon.advance(60)
    ages = [row.oldest_age for row in call(conn, "queue_rollups", "q")]
    assert len(ages) == 8 and ages == sorted(ages)


def test_upkeep_rolls_up_about_once_a_minute(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    upkeep(conn)
    conn.execute("call trunkline.upkeep()")
    assert [row.kind for row in rows(conn, "select kind from trunkline.rollups order by 1")] == ["system", "topic"]


def test_one_damaged_log_does_not_stop_the_others(conn: Connection, noon: Clock) -> None:
    call(conn, "create_queue", "bad")
    call(conn, "create_queue", "good")
    enqueue(conn, "bad", 1, 2)
    enqueue(conn, "good", 1, 2)
    run_upkeep(conn, "sequence")
    conn.execute("delete from trunkline.store where log = 64")
    run_upkeep(conn, "rollups")
    assert [row.ready for row in call(conn, "queue_rollups", "good")] == [2]
    assert call(conn, "queue_rollups", "bad") == []


def test_no_lock_is_held_on_any_log_or_cursor(conn: Connection, noon: Clock) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    publish(conn, "t", 1)
    enqueue(conn, "q", 1)
    with conn.transaction():
        run_upkeep(conn, "rollups")
        held = rows(conn, "select classid::int from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()")
    assert held == [(778004,)]


@pytest.mark.parametrize(
    ("code", "verb", "arguments"),
    [
        ("TL010", "topic_rollups", ("nowhere",)),
        ("TL011", "queue_rollups", ("nowhere",)),
        ("TL010", "group_rollups", ("nowhere", "g")),
        ("TL012", "group_rollups", ("t", "nobody")),
        ("TL005", "topic_rollups", ("t", timedelta(seconds=1))),
        ("TL005", "topic_rollups", ("t", timedelta(days=2))),
        ("TL005", "topic_rollups", ("t", None)),
        ("TL005", "topic_rollups", ("t", timedelta(hours=1), timedelta(seconds=1))),
        ("TL005", "topic_rollups", ("t", timedelta(hours=1), None)),
    ],
)
def test_refusals(conn: Connection, code: str, verb: str, arguments: tuple[Any, ...]) -> None:
    call(conn, "create_topic", "t")
    with refused(code):
        call(conn, verb, *arguments)


def test_reading_a_day_touches_its_own_rows_only(connect: Callable[[], Connection]) -> None:
    """50 queues and a full day: by index, no messages, no leases, no other queue's rows."""
    conn = connect()
    seeding.create(conn)
    conn.execute(
        "insert into trunkline.rollups (kind, subject, at, head)"
        " select kind, subject, clock_timestamp() - n * interval '1 minute', 1000000 - n"
        " from (values ('topic'), ('group'), ('queue')) k(kind), generate_series(1, 50) subject, generate_series(1, 1440) n"
    )
    conn.execute("analyze trunkline.rollups")
    group = value(conn, "select subscription_id from trunkline.subscriptions where kind = 'group'")
    assert group <= 50
    for verb, arguments in (("topic_rollups", ("t",)), ("queue_rollups", ("q",)), ("group_rollups", ("t", "g"))):
        call(conn, verb, *arguments)
        counters = seeding.Counters(conn)
        assert 1400 <= len(call(conn, verb, *arguments)) <= 1441
        read = {name: counts for name, counts in counters.since().items() if any(counts)}
        assert {name for name in read if seeding.is_hot(name)} == set()
        scans, _, by_index, _ = read["rollups"]
        assert (scans, by_index <= 1500) == (0, True), read


def test_the_duty_reads_a_bounded_number_of_rows_whatever_the_past(connect: Callable[[], Connection]) -> None:
    conn = connect()
    seeding.create(conn)
    for _ in range(7):
        run_upkeep(conn, "rollups")
    seeding.fill(conn)
    run_upkeep(conn, "rollups")
    big = seeding.big_tables(conn)
    counters = seeding.Counters(conn)
    for _ in range(3):
        run_upkeep(conn, "rollups")
    read = counters.since()
    assert {name: counts[0] for name, counts in read.items() if name in big and counts[0]} == {}
    touched = {name: counts[1] + counts[2] for name, counts in read.items() if seeding.is_hot(name)}
    assert {name: count for name, count in touched.items() if count > 3 * 2000} == {}
    changed = {name: counts[3] for name, counts in read.items() if seeding.is_hot(name) and counts[3]}
    assert changed == {}
