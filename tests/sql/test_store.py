"""The shared store: queues share tables, each with its own dense log; messages that outlive a segment are copied."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import Clock, Connection
from tests.races.sessions import Session, answer, wait_blocked
from tests.sql.calls import (
    Connect,
    assert_conserved,
    call,
    claim,
    claim_all,
    contents,
    enqueue,
    refused,
    rows,
    run_upkeep,
    settle,
    settle_all,
    value,
)

SEGMENTS = "select segment, sealed_at is not null as sealed from trunkline.segments where log = 1 order by segment"


def roll(conn: Connection, clock: Clock) -> None:
    """Start the next segment and seal the one before: once to note who may still write to it, once to seal."""
    clock.advance(5 * 3600)
    run_upkeep(conn, "segments", 3)


def retire(conn: Connection, clock: Clock) -> None:
    """Expire all sealed segments, and empty those that no reader needs."""
    clock.advance(25 * 3600)
    run_upkeep(conn, "retention", 10)


def relations(conn: Connection) -> set[str]:
    return {
        row.name
        for row in rows(
            conn,
            "select relname::text as name from pg_class where relnamespace = 'trunkline'::regnamespace"
            " union select proname::text from pg_proc where pronamespace = 'trunkline'::regnamespace",
        )
    }


def test_a_queue_has_no_table_and_no_function(conn: Connection) -> None:
    before = relations(conn)
    call(conn, "create_queue", "q", p_partitions=3)
    new = relations(conn) - before
    assert new and all(name.startswith("cursor_") for name in new)


def test_logs_of_queues_are_dense_and_apart(conn: Connection) -> None:
    for name in ("a", "b", "c"):
        call(conn, "create_queue", name)
    for number in range(30):
        enqueue(conn, "abc"[number % 3], number)
    for place, name in enumerate("abc"):
        got = claim(conn, name, 100)
        assert contents(got) == list(range(place, 30, 3))
        assert [row.log_offset for row in got] == list(range(1, 11))


def test_one_scan_gives_offsets_to_a_thousand_and_more_of_each_queue(conn: Connection) -> None:
    for name in ("a", "b"):
        call(conn, "create_queue", name)
    with conn.transaction():
        for _ in range(3):
            for name in ("a", "b"):
                call(conn, "enqueue_many", name, [b"1"] * 900)
    for name in ("a", "b"):
        got = claim_all(conn, name)
        assert [row.log_offset for row in got] == list(range(1, 2701))


def test_a_transaction_that_reads_what_it_wrote_gives_each_message_one_offset(conn: Connection, connect: Connect) -> None:
    call(conn, "create_queue", "q")
    call(conn, "create_queue", "other")
    with conn.transaction():
        enqueue(conn, "q", 1)
        assert contents(claim(conn, "q")) == [1]
        enqueue(conn, "q", 2)
        enqueue(connect(), "other", 3)
        assert contents(claim(conn, "q")) == [2]
        enqueue(conn, "q", 4)
    assert contents(claim(conn, "q")) == [4]
    assert contents(claim(conn, "other")) == [3]


def test_segments_follow_each_other_round_the_ring(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    for number in range(20):
        enqueue(conn, "q", number)
        assert contents(settle_claimed(conn)) == [number]
        roll(conn, clock)
        run_upkeep(conn, "retention", 2)
    segments = rows(conn, SEGMENTS)
    assert segments[-1].segment == 20
    assert len(segments) <= 8
    assert_conserved(conn, "q")


def settle_claimed(conn: Connection) -> list[object]:
    got = claim(conn, "q")
    settle_all(conn, "ack", got)
    return got


def test_a_segment_is_not_started_while_the_next_table_is_in_use(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    conn.execute("update trunkline.topics set retention = '100 days' where topic_id = 0")
    for number in range(12):
        enqueue(conn, "q", number)
        clock.advance(20 * 86400)
        run_upkeep(conn, "segments", 3)
    assert [row.segment for row in rows(conn, SEGMENTS)] == list(range(8))
    assert contents(claim_all(conn, "q")) == list(range(12))


def test_no_segment_is_sealed_before_its_publishers_have_ended(conn: Connection, connect: Connect, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1)
    late = connect()
    late.execute("begin")
    enqueue(late, "q", 2)
    roll(conn, clock)
    assert rows(conn, SEGMENTS) == [(0, False), (1, False)]
    enqueue(conn, "q", 3)
    assert contents(settle_claimed(conn)) == [1, 3]
    retire(conn, clock)
    late.execute("commit")
    assert contents(settle_claimed(conn)) == [2]
    roll(conn, clock)
    retire(conn, clock)
    # of what is finished nothing is left, also of the later segment, whose offset is lower
    assert value(conn, "select count(*) from trunkline.store") == 0
    enqueue(conn, "q", 4)
    assert contents(claim(conn, "q")) == [4]
    assert_conserved(conn, "q")


def test_what_outlives_its_segment_is_copied_out(conn: Connection, clock: Clock) -> None:
    """Whatever state it is in, it is delivered as if it had stayed."""
    call(conn, "create_queue", "q", p_max_attempts=3)
    call(conn, "create_queue", "done")
    enqueue(conn, "done", "finished")
    settle_all(conn, "ack", claim(conn, "done"))
    for number in range(10):
        enqueue(conn, "q", number)
    taken = claim(conn, "q", 5)
    settle(conn, "ack", taken[0].receipt)
    settle(conn, "nack", taken[1].receipt, p_delay="60 days")
    settle(conn, "bury", taken[2].receipt)
    settle(conn, "nack", taken[3].receipt, p_delay="0")
    roll(conn, clock)
    enqueue(conn, "q", 10)
    retire(conn, clock)
    assert [row.segment for row in rows(conn, SEGMENTS)] == [1]
    assert value(conn, "select count(*) from trunkline.store") == 1
    assert sorted(contents(claim_all(conn, "q"))) == [3, 4, 5, 6, 7, 8, 9, 10]
    assert_conserved(conn, "q")
    clock.advance(61 * 86400)
    got = claim_all(conn, "q")
    assert sorted(contents(got)) == [1, 3, 4, 5, 6, 7, 8, 9, 10]
    settle_all(conn, "ack", got)
    call(conn, "redrive", "q")
    assert contents(claim(conn, "q")) == [2]


def test_what_was_copied_out_goes_when_it_is_done(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    for number in range(6):
        enqueue(conn, "q", number)
    roll(conn, clock)
    retire(conn, clock)
    assert value(conn, "select count(*) from trunkline.topic_1") == 6
    settle_all(conn, "ack", claim_all(conn, "q"))
    for _ in range(4):
        clock.advance(25 * 3600)
        run_upkeep(conn, "segments", 3)
        run_upkeep(conn, "retention", 2)
    assert value(conn, "select count(*) from trunkline.topic_1") == 0
    enqueue(conn, "q", 6)
    assert contents(claim(conn, "q")) == [6]


def test_more_than_one_run_copies_at_a_time(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    for _ in range(12):
        call(conn, "enqueue_many", "q", [b"1"] * 1000)
    first = claim(conn, "q", 10)
    roll(conn, clock)
    retire(conn, clock)
    assert value(conn, "select count(*) from trunkline.store") == 0
    got = claim_all(conn, "q")
    assert sorted(row.log_offset for row in got) == list(range(1, 12001))
    assert {row.attempt for row in got if row.log_offset <= len(first)} == {2}


def tick_each(conn: Connection, name: str, count: int) -> None:
    """Each message in a separate tick."""
    for number in range(count):
        enqueue(conn, name, number)
        claim_all(conn, name)


def begin_rotation(conn: Connection, connect: Connect) -> Connection:
    """Copy ticks to the current slot while a reader keeps the older one from being emptied: both have them then."""
    run_upkeep(conn, "rotate")
    reader = connect()
    reader.execute("begin")
    reader.execute("select from trunkline.ticks limit 1")
    return reader


def test_messages_are_copied_out_while_two_ticks_name_them(conn: Connection, connect: Connect, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    tick_each(conn, "q", 4)
    # a tick that is in two segments, and two after it
    enqueue(conn, "q", 4)
    value(conn, "select setval('trunkline.store_ids', (1::bigint << 30) - 1)")
    call(conn, "enqueue_many", "q", [b"5", b"6"])
    claim_all(conn, "q")
    tick_each(conn, "q", 2)
    reader = begin_rotation(conn, connect)
    run_upkeep(conn, "rotate")
    run_upkeep(conn, "segments", 3)
    retire(conn, clock)
    reader.execute("rollback")
    run_upkeep(conn, "rotate", 3)
    assert sorted(row.log_offset for row in claim_all(conn, "q")) == list(range(1, 10))


def test_messages_are_not_copied_out_while_ticks_are_rotated(conn: Connection, connect: Connect, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    # copies of ticks stand for up to 1,000 offsets; that of the last three is a tick apart
    call(conn, "enqueue_many", "q", [b"0"] * 999)
    claim_all(conn, "q")
    tick_each(conn, "q", 4)
    roll(conn, clock)
    reader = begin_rotation(conn, connect)
    rotation = connect()
    rotation.execute("begin")
    run_upkeep(rotation, "rotate")
    retire(conn, clock)
    rotation.execute("commit")
    reader.execute("rollback")
    retire(conn, clock)
    assert value(conn, "select count(*) from trunkline.store") == 0
    assert sorted(row.log_offset for row in claim_all(conn, "q")) == list(range(1, 1004))


def test_a_read_of_two_segments_goes_on_where_the_first_was_copied_to(
    conn: Connection, connect: Connect, clock: Clock
) -> None:
    call(conn, "create_queue", "q")
    call(conn, "enqueue_many", "q", [b"0", b"1"])
    value(conn, "select setval('trunkline.store_ids', (1::bigint << 30) - 1)")
    call(conn, "enqueue_many", "q", [b"2", b"3"])
    run_upkeep(conn, "segments", 3)
    clock.advance(25 * 3600)
    other, reader = connect(), Session(connect())
    other.execute("begin; lock table trunkline.store_0")
    got = reader.start("select payload from trunkline._read(1, 0, 1048576, 1, 4) order by log_offset")
    # it has found the tick and waits for the first table
    wait_blocked(Session(conn), reader)
    run_upkeep(other, "retention", 3)
    assert value(other, "select count(*) from trunkline.store_0") == 0
    other.execute("commit")
    assert answer(got) == [(b"0",), (b"1",), (b"2",), (b"3",)]
    reader.close()


def test_a_queue_may_keep_its_messages_longer_than_the_store(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "short")
    call(conn, "create_queue", "long", p_retention="30 days", p_history="30 days")
    for name in ("short", "long"):
        enqueue(conn, name, 1)
        settle_all(conn, "ack", claim(conn, name))
    roll(conn, clock)
    retire(conn, clock)
    assert value(conn, "select count(*) from trunkline.store") == 0
    assert [row.queue for row in rows(conn, "select * from trunkline.list_completed(null, '30 days')")] == ["long"]


def test_a_reader_keeps_its_table_and_delays_only_its_truncation(conn: Connection, connect: Connect, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1)
    settle_all(conn, "ack", claim(conn, "q"))
    enqueue(conn, "q", 2)
    run_upkeep(conn, "sequence")
    holder = connect()
    holder.execute("begin")
    assert contents(claim(holder, "q")) == [2]
    roll(conn, clock)
    enqueue(conn, "q", 3)
    retire(conn, clock)
    assert contents(claim(conn, "q")) == [3]
    assert [row.segment for row in rows(conn, SEGMENTS)] == [0, 1]
    holder.execute("rollback")
    retire(conn, clock)
    assert [row.segment for row in rows(conn, SEGMENTS)] == [1]
    assert sorted(contents(claim_all(conn, "q"))) == [2, 3]


def test_delete_waits_for_publishers_of_its_own_queue_only(conn: Connection, connect: Connect) -> None:
    for name in ("a", "b"):
        call(conn, "create_queue", name)
    other = connect()
    other.execute("begin")
    enqueue(other, "a", 1)
    call(conn, "delete_queue", "b")
    with pytest.raises(
        psycopg.errors.LockNotAvailable, match='cannot delete queue "a": an open transaction has published to it'
    ):
        call(conn, "delete_queue", "a")
    other.execute("commit")
    call(conn, "delete_queue", "a")


def test_messages_of_a_deleted_queue_get_no_offset(conn: Connection, connect: Connect) -> None:
    for name in ("a", "b"):
        call(conn, "create_queue", name)
    enqueue(conn, "a", 1)
    call(conn, "delete_queue", "a")
    enqueue(conn, "b", 2)
    assert contents(claim(conn, "b")) == [2]
    call(conn, "create_queue", "a")
    assert claim(conn, "a") == []
    run_upkeep(conn, "rotate")
    assert value(conn, "select count(*) from trunkline.ticks where log not in (select log from trunkline.logs)") == 0


def test_a_queue_can_have_tables_of_its_own(conn: Connection) -> None:
    call(conn, "create_queue", "q", p_segment_rows=16)
    for number in range(40):
        enqueue(conn, "q", number)
    assert value(conn, "select count(*) from trunkline.store") == 0
    assert contents(claim(conn, "q", 100)) == list(range(40))


def test_rotation_keeps_the_map(conn: Connection, clock: Clock) -> None:
    """Small ticks are merged, across segments too."""
    for name in ("a", "b"):
        call(conn, "create_queue", name)
    for number in range(12):
        enqueue(conn, "a", number)
        enqueue(conn, "b", -number)
        run_upkeep(conn, "sequence")
        if number % 4 == 3:
            roll(conn, clock)
        run_upkeep(conn, "rotate", 2)
    assert contents(claim(conn, "a", 100)) == list(range(12))
    assert contents(claim(conn, "b", 100)) == [-number for number in range(12)]
    assert value(conn, "select count(*) from trunkline.ticks where log = 1") <= 3


def test_bad_numbers_of_ids(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    for n in (0, -1, 100_001, None):
        with refused("TL001", "n must be"):
            call(conn, "draw_ids", "inbox", "q", n)
