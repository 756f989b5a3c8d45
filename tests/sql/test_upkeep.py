"""Upkeep: each task does its work, one session at a time, and takes nothing from anybody."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import (
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
    passes,
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

TASKS = ["pass", "delayed", "sequence", "segments", "retention", "rotate", "windows"]
SLOW = "create or replace function trunkline._upkeep_delayed() returns int language sql as 'select 1 from pg_sleep(60)'"


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
    assert value(conn, "select trunkline.run_upkeep('pass', '1 hour')") == 0
    assert value(conn, "select trunkline.run_upkeep('pass', '1 hour')") is None
    assert value(conn, "select trunkline.run_upkeep('pass')") == 0


@pytest.mark.parametrize("name", ["nothing", "", "EXPIRE", "a b", 'x"; drop table trunkline.logs', None])
def test_an_unknown_task_is_named(conn: Connection, name: str | None) -> None:
    with refused("TL001", "pass, schedules"):
        call(conn, "run_upkeep", name)


def test_a_pass_ends_overdue_leases(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    enqueue(conn, "q", *range(3))
    claim(conn, "q")
    passes(conn, 2)
    assert run_upkeep(conn, "pass") == [0], "an open lease costs nothing until it is due"
    clock.advance(31)
    assert run_upkeep(conn, "pass") == [1]
    assert queue_stats(conn, "q").ready == 3
    passes(conn, 2)
    assert run_upkeep(conn, "pass") == [0]


def test_a_pass_moves_delayed_messages_into_their_logs(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    publish(conn, "t", 1, p_delay="1 minute")
    enqueue(conn, "q", 2, p_delay="1 minute")
    assert run_upkeep(conn, "pass", 2) == [1, 0]
    clock.advance(61)
    assert run_upkeep(conn, "pass", 2) == [1, 0]
    assert contents(read(conn, "t")) == [1]
    assert contents(claim(conn, "q")) == [2]


def test_sequence_gives_offsets_to_idle_logs(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    publish(conn, "t", 1)
    enqueue(conn, "q", 1)
    assert run_upkeep(conn, "sequence", 2) == [2, 0]
    assert rows(conn, "select log, n from trunkline.ticks where log > 1 order by log") == [(64, 1), (128, 1)]


def test_segments_are_made_ahead_and_sealed_behind(conn: Connection) -> None:
    call(conn, "create_topic", "t", p_segment_rows=16)
    for n in range(5):
        publish(conn, "t", *range(16))
        run_upkeep(conn, "segments", 3)
        made = {row.segment: row.sealed_at is not None for row in rows(conn, "select * from trunkline.segments")}
        used = (16 * (n + 1)) // 16
        assert set(made) == set(range(used + 1)), "the next one is made in the middle of a segment"
        assert [made[segment] for segment in range(used)] == [True] * used
    publish(conn, "t", *range(8))
    run_upkeep(conn, "segments")
    assert {row.segment for row in rows(conn, "select * from trunkline.segments where log = 64")} == set(range(7))
    assert contents(read(conn, "t")) == [*list(range(16)) * 5, *range(8)]


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
    batch = fetch(conn, "t", p_limit=6)
    assert commit(conn, "t", batch, 4) == "done"
    run_upkeep(conn, "rotate", 3)
    assert commit(conn, "t", batch, 5) == "done"
    run_upkeep(conn, "rotate", 3)
    assert call(conn, "group_stats", "t", "g")[0].next_offset == 6
    assert commit(conn, "t", batch, 6) == "done"
    run_upkeep(conn, "rotate", 3)
    assert contents(fetch(conn, "t")) == [7, 8, 9, 10]


def test_rotation_leaves_nothing_old_behind(conn: Connection) -> None:
    conn.execute("update trunkline.settings set value = '0' where name = 'rotate_bytes'")
    call(conn, "create_queue", "q")
    for n in range(50):
        enqueue(conn, "q", n)
        settle_all(conn, "ack", claim(conn, "q"))
    passes(conn)
    run_upkeep(conn, "rotate", 4)
    assert value(conn, "select count(*) from trunkline.leases") <= 4
    assert value(conn, "select count(*) from trunkline.settled") <= 4
    enqueue(conn, "q", "next")
    assert contents(claim(conn, "q")) == ["next"]


@pytest.mark.parametrize("work", ["claim", "fetch", "ack", "publish"])
def test_rotation_gives_way_to_a_transaction_that_has_written_to_the_partition(
    conn: Connection, connect: Connect, work: str
) -> None:
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
    # it has written to the current slot of positions at most: the other one is emptied
    assert run_upkeep(conn, "rotate") == [1]
    before = digest(conn)
    assert run_upkeep(conn, "rotate") == [int(work != "fetch")]
    if work == "fetch":
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
    assert call(conn, "topic_stats", "t")[0].earliest_offset == 16


def test_one_broken_queue_does_not_stop_the_others(conn: Connection, clock: Clock) -> None:
    """A message that was removed by hand is reported for its own queue only."""
    call(conn, "create_queue", "broken")
    call(conn, "create_queue", "sound")
    for queue in ("broken", "sound"):
        enqueue(conn, queue, 1)
        claim(conn, queue)
    conn.execute("delete from trunkline.store where log = 64")
    clock.advance(31)
    assert contents(claim(conn, "sound")) == [1]


def break_task(conn: Connection, name: str, error: str) -> None:
    """The task raises this error from now on."""
    body = f"begin raise exception '{error}' using errcode = 'P0001'; end"
    conn.execute(f"create or replace function trunkline._upkeep_{name}() returns int language plpgsql as $$ {body} $$")


def stats(conn: Connection, task: str) -> Any:
    [row] = rows(conn, "select * from trunkline.upkeep_stats() where task = %s", task)
    return row


def test_one_failing_task_does_not_stop_the_others(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    publish(conn, "t", "x")
    break_task(conn, "delayed", "broken")
    conn.execute("call trunkline.upkeep()")
    ran = {row.task: row.last_run_at is not None for row in call(conn, "upkeep_stats")}
    assert len(ran) == 15 and all(ran.values())
    assert value(conn, "select n from trunkline.ticks") == 1, "sequence comes after the task that failed"
    assert value(conn, "select last_value from trunkline.upkeep_delayed") > 0, "it waits for its interval"
    assert {row.task for row in call(conn, "upkeep_stats") if row.state != "ok"} == {"delayed"}


def test_a_failing_task_is_reported_once_per_change(conn: Connection) -> None:
    reported: list[tuple[str | None, str | None]] = []
    conn.add_notice_handler(lambda notice: reported.append((notice.severity, notice.message_primary)))

    def run() -> list[tuple[str | None, str | None]]:
        reported.clear()
        upkeep(conn)
        return reported[:]

    assert run() == []
    sound = value(conn, "select pg_get_functiondef('trunkline._upkeep_delayed'::regproc)")
    break_task(conn, "delayed", "queue 17 is broken")
    assert run() == [("WARNING", 'upkeep task "delayed" failed: queue 17 is broken')]
    since = stats(conn, "delayed").failing_since
    assert run() == []
    break_task(conn, "delayed", "queue 18 is broken")
    assert run() == [], "only the number changed"
    break_task(conn, "delayed", "topic 18 is broken")
    assert run() == [("WARNING", 'upkeep task "delayed" failed: topic 18 is broken')]
    failing = stats(conn, "delayed")
    assert (failing.state, failing.error_code, failing.error) == ("failing", "P0001", "topic 18 is broken")
    assert failing.failing_since == since
    conn.execute(sound)
    assert run() == [("NOTICE", 'upkeep task "delayed" recovered')]
    assert run() == []
    assert (stats(conn, "delayed").state, stats(conn, "delayed").error) == ("ok", None)


def test_a_task_that_keeps_failing_leaves_no_dead_rows(conn: Connection) -> None:
    break_task(conn, "delayed", "broken")
    upkeep(conn)
    before = rows(conn, "select ctid, xmin from trunkline.upkeep_tasks where since is not null")
    upkeep(conn, 3)
    assert rows(conn, "select ctid, xmin from trunkline.upkeep_tasks where since is not null") == before


def test_a_task_that_works_by_hand_is_no_longer_failing(conn: Connection) -> None:
    sound = value(conn, "select pg_get_functiondef('trunkline._upkeep_delayed'::regproc)")
    break_task(conn, "delayed", "broken")
    upkeep(conn)
    with pytest.raises(psycopg.errors.RaiseException, match="broken"):
        run_upkeep(conn, "delayed")
    assert stats(conn, "delayed").state == "failing"
    conn.execute(sound)
    run_upkeep(conn, "delayed")
    assert stats(conn, "delayed").state == "ok"


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_upkeep_sets_its_isolation_level(conn: Connection, connect: Connect, level: str) -> None:
    """A database or role may have another default, also where pg_cron calls upkeep."""
    conn.execute(f"alter database {conn.info.dbname} set default_transaction_isolation = '{level}'")
    other = connect()
    assert value(other, "show default_transaction_isolation") == level
    other.execute("call trunkline.upkeep()")
    assert {row.state for row in call(conn, "upkeep_stats")} == {"ok"}
    assert value(other, "show transaction_isolation") == level, "the session keeps its own"


def test_states_of_a_task(conn: Connection, clock: Clock) -> None:
    assert {row.state for row in call(conn, "upkeep_stats")} == {"never"}
    upkeep(conn)
    assert {row.state for row in call(conn, "upkeep_stats")} == {"ok"}
    clock.advance(70)
    late = {row.task for row in call(conn, "upkeep_stats") if row.state == "late"}
    assert late == {"pass", "delayed", "schedules", "sequence", "segments", "retention", "jobs", "runs", "events"}
    clock.advance(-3600)
    assert {row.state for row in call(conn, "upkeep_stats")} == {"ahead"}
    assert stats(conn, "delayed").age_seconds < -3000
    conn.execute("call trunkline.upkeep()")
    assert {row.state for row in call(conn, "upkeep_stats")} == {"ok"}


# A clock that was ahead once

DAY = 24 * 3600


class Ahead:
    """Run this block with a clock that is a day ahead."""

    def __init__(self, conn: Connection, clock: Clock) -> None:
        self._conn, self._clock = conn, clock

    def __enter__(self) -> None:
        self._clock.advance(DAY)

    def __exit__(self, *_: object) -> None:
        # upkeep runs all the time; its marks show that the clock was ahead
        upkeep(self._conn)
        self._clock.advance(-DAY)


@pytest.fixture
def ahead(conn: Connection, clock: Clock) -> Ahead:
    return Ahead(conn, clock)


@pytest.mark.parametrize("name", TASKS)
def test_a_mark_in_the_future_does_not_stop_a_task(conn: Connection, ahead: Ahead, name: str) -> None:
    with ahead:
        pass
    assert value(conn, "select trunkline.run_upkeep(%s, '1 hour')", name) is not None
    assert value(conn, "select trunkline.run_upkeep(%s, '1 hour')", name) is None, "its mark is right again"


def test_upkeep_goes_back_with_the_clock(conn: Connection, clock: Clock, ahead: Ahead) -> None:
    call(conn, "create_topic", "t")
    with ahead:
        pass
    publish(conn, "t", "later", p_delay="1 second")
    clock.advance(2)
    conn.execute("call trunkline.upkeep()")
    assert contents(read(conn, "t")) == ["later"]
    [alert] = rows(conn, "select kind, detail from trunkline.alerts")
    assert alert.kind == "clock_went_back" and abs(alert.detail["seconds"] - DAY) < 60
    conn.execute("call trunkline.upkeep()")
    upkeep(conn)
    assert value(conn, "select count(*) from trunkline.alerts") == 1, "once"


def test_a_correction_that_fails_is_tried_again(conn: Connection, connect: Connect, clock: Clock, ahead: Ahead) -> None:
    reported: list[str | None] = []
    conn.add_notice_handler(lambda notice: reported.append(notice.message_primary))
    call(conn, "ensure_limit", "l", 1)
    with ahead:
        assert value(conn, "select trunkline.acquire_limit('dead', '{l}', '{1}')") == [1]
    other = connect()
    other.execute("begin; lock table trunkline.job_limit_shares in exclusive mode")
    conn.execute("set lock_timeout = '10ms'")
    conn.execute("call trunkline.upkeep()")
    conn.execute("call trunkline.upkeep()")
    assert [text for text in reported if text and "clock" in text] == [
        "server clock went back; cannot correct schedules and time limits that were set in between:"
        " canceling statement due to lock timeout"
    ]
    other.execute("rollback")
    conn.execute("call trunkline.upkeep()")
    clock.advance(16)
    assert value(conn, "select trunkline.acquire_limit('alive', '{l}', '{1}')") == [1]
    assert rows(conn, "select from trunkline.upkeep_tasks where task = 'clock'") == []


def test_a_small_step_back_is_no_alert(conn: Connection, clock: Clock) -> None:
    upkeep(conn)
    clock.advance(-20)
    conn.execute("call trunkline.upkeep()")
    assert {row.state for row in call(conn, "upkeep_stats")} == {"ok"}
    assert rows(conn, "select from trunkline.alerts") == []


def test_a_task_that_never_ends_does_not_keep_marks_in_the_future(conn: Connection, clock: Clock) -> None:
    """Tasks whose mark is ahead come first, not last: a time-out of the caller would keep them waiting."""
    upkeep(conn)
    clock.advance(-30)
    conn.execute("select trunkline.run_upkeep('delayed')")
    conn.execute(SLOW)
    clock.advance(1)
    conn.execute("set statement_timeout = '1s'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        conn.execute("call trunkline.upkeep()")
    conn.execute("set statement_timeout = 0")
    assert {row.state for row in call(conn, "upkeep_stats") if row.task != "delayed"} == {"ok"}


def test_a_schedule_goes_back_with_the_clock(conn: Connection, clock: Clock, ahead: Ahead) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_schedule", "every-minute", "* * * * *", p_payload="1", p_topic="t")
    call(conn, "create_schedule", "paused", "* * * * *", p_payload="1", p_topic="t")
    call(conn, "pause_schedule", "paused")
    yearly = call(conn, "create_schedule", "yearly", "0 0 1 1 *", p_payload="1", p_topic="t")[0].next_at
    with ahead:
        call(conn, "create_schedule", "made-ahead", "* * * * *", p_payload="2", p_topic="t")
    fired = head(conn, "t")
    conn.execute("call trunkline.upkeep()")
    clock.advance(61)
    upkeep(conn)
    assert head(conn, "t") == fired + 2, "the two that run every minute"
    assert value(conn, "select next_at from trunkline.schedules where name = 'yearly'") == yearly


def test_a_schedule_does_not_fire_again_after_a_small_step_back(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_schedule", "hourly", "0 * * * *", p_payload="1", p_topic="t")
    clock.advance(value(conn, "select next_at - trunkline.clock() from trunkline.schedules"))
    upkeep(conn)
    assert head(conn, "t") == 1
    clock.advance(-30)
    conn.execute("call trunkline.upkeep()")
    clock.advance(30)
    upkeep(conn)
    assert head(conn, "t") == 1


def test_a_member_that_died_ahead_gives_its_partition_away(conn: Connection, clock: Clock, ahead: Ahead) -> None:
    call(conn, "create_topic", "t", 2)
    conn.execute("select trunkline.publish('t', to_jsonb(n), p_key => n::text) from generate_series(1, 100) n")
    with ahead:
        assert fetch(conn, "t", member="dead")
        assert fetch(conn, "t", member="dead")
    conn.execute("call trunkline.upkeep()")
    assert fetch(conn, "t", member="alive") == [], "the lease of the other lasts for 30 seconds"
    clock.advance(31)
    assert len({row.partition for _ in range(2) for row in fetch(conn, "t", member="alive")}) == 2


def test_a_limit_that_a_dead_worker_held_is_free(conn: Connection, clock: Clock, ahead: Ahead) -> None:
    call(conn, "ensure_limit", "l", 1)
    with ahead:
        assert value(conn, "select trunkline.acquire_limit('dead', '{l}', '{1}')") == [1]
    conn.execute("call trunkline.upkeep()")
    assert value(conn, "select trunkline.acquire_limit('alive', '{l}', '{1}')") == [0], "it was held for 15 seconds"
    clock.advance(16)
    assert value(conn, "select trunkline.acquire_limit('alive', '{l}', '{1}')") == [1]


def test_a_rate_limit_goes_back_with_the_clock(conn: Connection, clock: Clock, ahead: Ahead) -> None:
    call(conn, "ensure_limit", "l", None, 1.0, 1.0)
    take = "select granted from trunkline.acquire_tokens('l', 1)"
    with ahead:
        assert value(conn, take) == 1
    value(conn, take)
    clock.advance(2)
    assert value(conn, take) == 1


def test_an_endpoint_goes_back_with_the_clock(conn: Connection, clock: Clock, ahead: Ahead) -> None:
    call(conn, "create_endpoint", "e", "https://example.com/", p_rate=1.0, p_burst=1)
    number = value(conn, "select endpoint_id from trunkline.endpoints")
    with ahead:
        call(conn, "acquire_permits", number, 1)
        call(conn, "open_breaker", number, 0)
        call(conn, "defer_endpoint", number, "10 seconds")
    conn.execute("call trunkline.upkeep()")
    assert value(conn, "select open_until < trunkline.clock() + interval '3 s' from trunkline.endpoints")
    assert value(conn, "select held_until < trunkline.clock() + interval '11 s' from trunkline.endpoints")
    clock.advance(15)
    assert value(conn, "select trunkline.acquire_probe(%s)", number)
    permits = "select cardinality(delays) from trunkline.acquire_permits(%s, 1)"
    assert value(conn, permits, number) == 0, "the last permit may be a moment old"
    clock.advance(2)
    assert value(conn, permits, number) == 1


def test_rollups_go_back_with_the_clock(conn: Connection, clock: Clock, ahead: Ahead) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    run_upkeep(conn, "rollups")
    with ahead:
        pass
    conn.execute("call trunkline.upkeep()")
    assert value(conn, "select bool_and(at <= trunkline.clock()) from trunkline.rollups")
    enqueue(conn, "q", 1)
    settle_all(conn, "ack", claim(conn, "q"))
    clock.advance(60)
    run_upkeep(conn, "pass")
    run_upkeep(conn, "rollups")
    assert value(conn, "select wait_max is not null from trunkline.rollups where kind = 'queue' order by at desc limit 1")


def test_a_task_that_takes_too_long_does_not_stop_the_others(conn: Connection) -> None:
    """A time-out of the caller ends the whole call; the next one begins with those that had no turn."""
    conn.execute(SLOW)
    conn.execute("set statement_timeout = '500ms'")
    for _ in range(20):
        with pytest.raises(psycopg.errors.QueryCanceled):
            conn.execute("call trunkline.upkeep()")
        # It is due again immediately, as for a caller that calls once a minute.
        conn.execute("select setval('trunkline.upkeep_delayed', last_value - 1000) from trunkline.upkeep_delayed")
        if value(conn, "select ran_at from trunkline.upkeep_tasks where task = 'rotate'") > 0:
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
    while value(conn, "select count(*) from trunkline.returns") < 120:
        run("pass")
    settle_all(conn, "ack", claim_all(conn, "q"))
    # all but the inbox, which is empty
    while value(conn, "select count(*) from trunkline.logs where base_offset = 1 and log > 1") > 1:
        clock.advance(2)
        for name in ("pass", "segments", "retention"):
            run(name)
    assert_conserved(conn, "q")


def test_leases_that_end_while_their_partition_is_emptied_are_counted(conn: Connection, clock: Clock) -> None:
    """The pass of a rotation ends them; what it settles is counted by the next pass, after the partition was emptied."""
    call(conn, "create_queue", "q", p_max_attempts=2)
    conn.execute("update trunkline.settings set value = '0' where name = 'rotate_bytes'")
    enqueue(conn, "q", *range(5))
    claim(conn, "q", 3)
    passes(conn)
    for _ in range(2):
        run_upkeep(conn, "rotate")
    clock.advance(60)
    assert value(conn, "select count(*) from trunkline.leases_0") == 1
    run_upkeep(conn, "rotate")
    assert value(conn, "select count(*) from trunkline.leases_0") == 0, "it was emptied"
    passes(conn)
    stats = queue_stats(conn, "q")
    assert (stats.ready, stats.leased) == (5, 0)
    assert_conserved(conn, "q")
    assert [row.kind for row in rows(conn, "select * from trunkline.history")] == ["x"]


def test_retention_runs_by_itself_in_bounded_steps(conn: Connection, clock: Clock) -> None:
    """Retention and cleanup run by themselves, in bounded batches."""
    call(conn, "create_topic", "t", p_segment_rows=64, p_retention="1 hour")
    call(conn, "create_queue", "q", p_segment_rows=64, p_retention="1 hour")
    for _ in range(5):
        call(conn, "publish_many", "t", [b"1"] * 100)
        call(conn, "enqueue_many", "q", [b"1"] * 100)
    settle_all(conn, "ack", claim(conn, "q", 1000))
    upkeep(conn, 10)
    clock.advance(2 * 3600)
    upkeep(conn, 10)
    clock.advance(2 * 3600)
    upkeep(conn, 5)
    assert value(conn, "select count(*) from trunkline.topic_1") == 0
    assert value(conn, "select count(*) from trunkline.topic_2") == 0
    assert value(conn, "select count(*) from trunkline.segments where log = 64") <= 4
    publish(conn, "t", "new")
    assert head(conn, "t") == 501
    assert contents(read(conn, "t", 501)) == ["new"]
