"""Upkeep: each task does its work, one session at a time, and takes nothing from anybody."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import Clock, Connection
from tests.sql.verbs import (
    Connect,
    assert_conserved,
    call,
    claim,
    claim_all,
    commit,
    contents,
    digest,
    enqueue,
    fetch,
    head,
    publish,
    queue_stats,
    read,
    refused,
    rows,
    run_upkeep,
    seal,
    settle,
    settle_all,
    upkeep,
    value,
)

TASKS = ["expire", "due", "sequence", "segments", "retention", "rotate", "windows"]


@pytest.mark.parametrize("name", TASKS)
def test_a_task_runs_on_nothing_and_twice(conn: Connection, name: str) -> None:
    assert None not in run_upkeep(conn, name, 2)
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    assert None not in run_upkeep(conn, name, 2)


@pytest.mark.parametrize("name", TASKS)
def test_of_two_sessions_one_acts(conn: Connection, connect: Connect, name: str) -> None:
    other = connect()
    other.execute("begin")
    assert run_upkeep(other, name) != [None]
    assert run_upkeep(conn, name) == [None]
    other.execute("commit")
    assert run_upkeep(conn, name) != [None]


def test_a_task_runs_only_when_it_is_due(conn: Connection) -> None:
    assert value(conn, "select trunkline.run_upkeep('expire', '1 hour')") == 0
    assert value(conn, "select trunkline.run_upkeep('expire', '1 hour')") is None
    assert value(conn, "select trunkline.run_upkeep('expire')") == 0


@pytest.mark.parametrize("name", ["nothing", "", "EXPIRE", "a b", 'x"; drop table trunkline.logs', None])
def test_an_unknown_task_is_named(conn: Connection, name: str | None) -> None:
    with refused("TL001", "expire, due"):
        call(conn, "run_upkeep", name)


def test_expire_ends_overdue_leases(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    enqueue(conn, "q", *range(3))
    claim(conn, "q")
    assert run_upkeep(conn, "expire") == [0]
    clock.advance(31)
    assert run_upkeep(conn, "expire")[0]
    assert queue_stats(conn, "q").ready == 3
    assert run_upkeep(conn, "expire") == [0]


def test_due_moves_scheduled_messages_into_their_logs(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    publish(conn, "t", 1, p_delay="1 minute")
    enqueue(conn, "q", 2, p_delay="1 minute")
    assert run_upkeep(conn, "due") == [0]
    clock.advance(61)
    assert run_upkeep(conn, "due", 2) == [2, 0]
    assert contents(read(conn, "t")) == [1]
    assert contents(claim(conn, "q")) == [2]


def test_sequence_gives_offsets_to_idle_logs(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    publish(conn, "t", 1)
    enqueue(conn, "q", 1)
    assert run_upkeep(conn, "sequence", 2) == [2, 0]
    assert rows(conn, "select log, n from trunkline.ticks order by log") == [(64, 1), (128, 1)]


def test_segments_are_made_ahead_and_sealed_behind(conn: Connection) -> None:
    call(conn, "create_topic", "t", p_segment_rows=16)
    for n in range(5):
        publish(conn, "t", *range(16))
        run_upkeep(conn, "segments", 3)
        made = {row.segment: row.sealed_at is not None for row in rows(conn, "select * from trunkline.segments")}
        used = (16 * (n + 1)) // 16
        assert set(made) == set(range(used + 2))
        assert [made[segment] for segment in range(used)] == [True] * used
    assert contents(read(conn, "t")) == list(range(16)) * 5


def test_rotation_keeps_open_leases_and_their_receipts(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    enqueue(conn, "q", *range(6))
    acked, nacked, extended, returned, *rest = claim(conn, "q")
    settle(conn, "ack", acked.receipt)
    settle(conn, "nack", returned.receipt, p_delay="0")
    [retried] = claim(conn, "q")
    settle(conn, "extend", extended.receipt, p_for="1 hour")
    for _ in range(5):
        assert run_upkeep(conn, "rotate") == [1]
        assert_conserved(conn, "q")
    assert claim(conn, "q") == []
    assert settle(conn, "ack", acked.receipt) == ["done"]
    assert settle(conn, "nack", nacked.receipt, p_delay="0") == ["done"]
    assert settle(conn, "ack", retried.receipt) == ["done"]
    clock.advance(31)
    assert settle(conn, "ack", extended.receipt) == ["done"]
    assert settle_all(conn, "ack", rest) == ["lost", "lost"]
    again = claim_all(conn, "q")
    assert sorted(contents(again)) == [1, 4, 5]
    settle_all(conn, "ack", again)
    run_upkeep(conn, "rotate", 3)
    assert queue_stats(conn, "q").acked == assert_conserved(conn, "q").acked == 6
    assert claim(conn, "q") == []


def test_rotation_keeps_positions_and_generations(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    publish(conn, "t", *range(1, 11))
    batch = fetch(conn, "t", p_max=6)
    assert commit(conn, "t", batch, 4) == "done"
    run_upkeep(conn, "rotate", 3)
    assert commit(conn, "t", batch, 5) == "done"
    run_upkeep(conn, "rotate", 3)
    assert call(conn, "group_stats", "t", "g")[0].next_offset == 6
    assert commit(conn, "t", batch, 6) == "done"
    run_upkeep(conn, "rotate", 3)
    assert contents(fetch(conn, "t")) == [7, 8, 9, 10]


def test_rotation_leaves_nothing_old_behind(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    for n in range(50):
        enqueue(conn, "q", n)
        settle_all(conn, "ack", claim(conn, "q"))
    run_upkeep(conn, "expire")
    run_upkeep(conn, "rotate", 2)
    assert value(conn, "select count(*) from trunkline.leases") <= 4
    assert value(conn, "select count(*) from trunkline.lease_events") <= 4
    enqueue(conn, "q", "next")
    assert contents(claim(conn, "q")) == ["next"]


@pytest.mark.parametrize("work", ["claim", "fetch", "ack", "publish"])
def test_rotation_gives_way_to_an_open_transaction(conn: Connection, connect: Connect, work: str) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    publish(conn, "t", 1)
    enqueue(conn, "q", 1, 2)
    [delivery] = claim(conn, "q", 1)
    run_upkeep(conn, "rotate")
    other = connect()
    other.execute("begin")
    if work == "claim":
        claim(other, "q")
    elif work == "fetch":
        fetch(other, "t")
    elif work == "ack":
        settle(other, "ack", delivery.receipt)
    else:
        publish(other, "t", 2)
    before = digest(conn)
    expected = 1 if work == "publish" else 0
    assert run_upkeep(conn, "rotate") == [expected]
    if not expected:
        assert digest(conn) == before
    other.execute("commit")
    assert run_upkeep(conn, "rotate") == [1]
    assert_conserved(conn, "q")


def test_retention_gives_way_to_an_open_reader(conn: Connection, connect: Connect, clock: Clock) -> None:
    call(conn, "create_topic", "t", p_segment_rows=16, p_retention="1 hour")
    publish(conn, "t", *range(40))
    seal(conn, 2)
    clock.advance(7200)
    reader = connect()
    reader.execute("begin")
    assert len(read(reader, "t")) == 40
    assert run_upkeep(conn, "retention") == [0]
    assert len(read(reader, "t")) == 40
    reader.execute("commit")
    assert run_upkeep(conn, "retention") == [2]
    with refused("TL006", "32"):
        read(conn, "t")


def test_upkeep_does_all_that_is_due(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t", p_segment_rows=16, p_retention="1 hour")
    call(conn, "create_queue", "q", p_max_attempts=1)
    publish(conn, "t", *range(20))
    publish(conn, "t", "later", p_delay="30 seconds")
    enqueue(conn, "q", 1)
    claim(conn, "q")
    upkeep(conn, 3)
    clock.advance(31)
    upkeep(conn)
    assert queue_stats(conn, "q").dead == 1
    assert contents(read(conn, "t"))[-1] == "later"
    clock.advance(2 * 3600)
    upkeep(conn, 4)
    assert call(conn, "topic_stats", "t")[0].lowest_offset == 16


def test_one_broken_queue_does_not_stop_the_others(conn: Connection, clock: Clock) -> None:
    """A segment that somebody removed by hand is reported for its own queue only."""
    call(conn, "create_queue", "broken")
    call(conn, "create_queue", "sound")
    for queue in ("broken", "sound"):
        enqueue(conn, queue, 1)
        claim(conn, queue)
    conn.execute("truncate trunkline.topic_1_0_0")
    clock.advance(31)
    assert contents(claim(conn, "sound")) == [1]


def test_one_failing_task_does_not_stop_the_others(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    publish(conn, "t", "x")
    conn.execute("create or replace function trunkline._upkeep_due() returns int language sql as 'select 1 / 0'")
    told: list[str] = []
    conn.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
    with pytest.raises(psycopg.errors.DivisionByZero, match="upkeep task due: division by zero"):
        conn.execute("call trunkline.upkeep()")
    assert told == ["upkeep task due: division by zero"]
    assert head(conn, "t") == 1, "sequence comes after the task that failed"
    assert value(conn, "select last_value from trunkline.upkeep_due") > 0, "it waits for its next turn"


def test_a_task_that_takes_too_long_does_not_stop_the_others(conn: Connection) -> None:
    """A time-out of the caller ends the whole call; the next one begins with those that had no turn."""
    slow = "create or replace function trunkline._upkeep_due() returns int language sql as 'select 1 from pg_sleep(60)'"
    conn.execute(slow)
    conn.execute("set statement_timeout = '500ms'")
    for _ in range(20):
        with pytest.raises(psycopg.errors.QueryCanceled):
            conn.execute("call trunkline.upkeep()")
        # it is due again at once, as for somebody who calls once a minute
        conn.execute("select setval('trunkline.upkeep_due', last_value - 1000) from trunkline.upkeep_due")
        if value(conn, "select last_value from trunkline.upkeep_rotate") > 0:
            return
    raise AssertionError("the slots were never rotated")


def test_a_run_takes_on_only_so_much(conn: Connection, clock: Clock) -> None:
    """The locks of a run are bounded; runs that follow come to everything."""
    conn.execute("create or replace function trunkline._upkeep_batch() returns int language sql as 'select 10'")
    call(conn, "create_topic", "t", 12, p_segment_rows=16, p_retention="1 second")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t")
    conn.execute("select trunkline.publish('t', to_jsonb(n), p_key => n::text) from generate_series(1, 120) n")
    assert len(claim_all(conn, "q")) == 120

    def run(name: str) -> None:
        """With the cursors or logs of which it has locks."""
        with conn.transaction():
            run_upkeep(conn, name)
            held = "select count(*) from pg_locks where pid = pg_backend_pid() and classid in (778001, 778002)"
            assert value(conn, held) <= 10

    clock.advance(31)
    while value(conn, "select count(*) from trunkline.pending") < 120:
        run("expire")
    settle_all(conn, "ack", claim_all(conn, "q"))
    # all but the inbox, which is empty
    while value(conn, "select count(*) from trunkline.logs where base_offset = 1") > 1:
        clock.advance(2)
        for name in ("expire", "segments", "retention"):
            run(name)
    assert_conserved(conn, "q")
