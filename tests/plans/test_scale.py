"""Cost follows what is due and what has changed, not what is open or how many queues, groups and topics there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.conftest import Connection
from tests.plans import seeding
from tests.sql.calls import call, enqueue, run_upkeep, value


def rows_read(conn: Connection, work: Callable[[], object]) -> dict[str, int]:
    """Rows that a call reads of each table, by scans and by index."""
    counters = seeding.Counters(conn)
    work()
    return {name: counts[1] + counts[2] for name, counts in counters.since().items() if counts[1] + counts[2]}


def lease(conn: Connection, count: int) -> None:
    """Lease messages for an hour, each in a separate lease."""
    conn.execute(
        f"do $$ begin for i in 1 .. {count} loop"
        " perform from trunkline.claim('q', 1, '1 hour', p_relaxed => true); commit; end loop; end $$"
    )
    for _ in range(3):
        run_upkeep(conn, "pass")


def test_the_lowest_needed_offset_is_found_without_reading_all_open_leases(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    log = value(conn, "select log from trunkline.cursors where kind = 'log'")
    read = []
    for _ in range(2):
        for _ in range(2):
            enqueue(conn, "q", *range(300))
        run_upkeep(conn, "sequence")
        lease(conn, 300)
        # longer than the 250 ms that leases share a row of `later`
        conn.execute("select pg_sleep(0.3)")
        lease(conn, 300)
        assert value(conn, "select trunkline._needed_from(%s)", log) == 1
        counts = rows_read(conn, lambda: value(conn, "select trunkline._needed_from(%s)", log))
        read.append(counts.get("leases_0", 0))
    assert read[1] <= read[0] < 600, read


def test_the_lowest_needed_offset_is_exact(conn: Connection) -> None:
    """Leases, what was sent back, what is delayed and what is leased again, each as the only one that is left."""
    call(conn, "create_queue", "q")
    log = value(conn, "select log from trunkline.cursors where kind = 'log'")

    def needed() -> int:
        exact: int = value(conn, "select trunkline._needed_from(%s)", log)
        for upto in range(1, 9):
            one = value(conn, "select trunkline._needed_from(%s, %s)", log, upto)
            assert (one <= upto) == (exact <= upto)
        return exact

    def passes() -> None:
        for _ in range(3):
            run_upkeep(conn, "pass")

    enqueue(conn, "q", *range(7))
    run_upkeep(conn, "sequence")
    assert needed() == 1
    first, second, third, *others = (row.receipt for row in take(conn, 7))
    assert needed() == 1
    call(conn, "ack", [first])
    call(conn, "ack", others)
    passes()
    assert needed() == 2
    call(conn, "nack", [second], "1 hour")
    assert needed() == 2
    passes()
    assert needed() == 2
    call(conn, "purge_queue", "q")
    passes()
    assert needed() == 3
    call(conn, "release", [third])
    assert needed() == 3
    passes()
    assert needed() == 3
    (third,) = (row.receipt for row in take(conn, 1))
    assert needed() == 3
    passes()
    assert needed() == 3
    call(conn, "ack", [third])
    assert needed() == 8
    passes()
    assert needed() == 8


def test_a_lease_that_a_pass_has_accounted_for_and_not_counted_is_needed(conn: Connection) -> None:
    """It committed after the snapshot of the pass and before the pass read the leases: its totals show nothing leased."""
    call(conn, "create_queue", "q")
    log, cursor = conn.execute("select log, cursor_id from trunkline.cursors where kind = 'log'").fetchone() or (0, 0)
    enqueue(conn, "q", 1)
    run_upkeep(conn, "sequence")
    take(conn, 1)
    conn.execute(
        "insert into trunkline.cursor_states"
        " select s.rotation, s.cursor_id, 0, 1, 1, 1, '{}', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0"
        " from trunkline.cursors c cross join lateral trunkline._cursor_state(c) s where c.cursor_id = %s",
        (cursor,),
    )
    assert value(conn, "select trunkline._needed_from(%s)", log) == 1
    assert value(conn, "select trunkline._needed_from(%s, 1)", log) == 1


def take(conn: Connection, count: int) -> list[Any]:
    rows = call(conn, "claim", "q", count, "1 hour")
    assert len(rows) == count
    return rows


def test_retention_touches_no_segment_that_is_not_due(conn: Connection, connect: Callable[[], Connection]) -> None:
    """Not even for its size, which needs a lock on it."""
    call(conn, "create_topic", "t")
    segment = value(conn, "select format('trunkline.topic_%s_0_0', topic_id) from trunkline.topics where name = 't'")
    with connect().transaction() as other:
        other.connection.execute(f"lock table {segment} in access exclusive mode")
        run_upkeep(conn, "retention")


def test_idle_groups_are_rolled_up_in_turn(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    for group in range(12):
        call(conn, "create_group", "t", f"g{group}")
    call(conn, "publish", "t", "1")
    run_upkeep(conn, "sequence")
    call(conn, "fetch", "t", "g11", "m")
    conn.execute("create or replace function trunkline._upkeep_batch() returns int language sql immutable as 'select 25'")
    new = "select count(*) from trunkline.rollups where kind = 'group'"
    rows, before = [], 0
    for _ in range(4):
        run_upkeep(conn, "rollups")
        rows.append(value(conn, new) - before)
        before += rows[-1]
    # five in turn and the one with a member
    assert rows == [6, 6, 2, 6]
    assert value(conn, "select count(distinct subject) from trunkline.rollups where kind = 'group'") == 12


def test_a_pass_does_not_visit_cursors_of_groups(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    for group in range(200):
        call(conn, "create_group", "t", f"g{group}")
    conn.execute("analyze trunkline.cursors")
    run_upkeep(conn, "pass")
    assert rows_read(conn, lambda: run_upkeep(conn, "pass")).get("cursors", 0) < 50


def test_what_is_new_is_read_once_for_many_queues(conn: Connection) -> None:
    """By rollups, statistics and passes: not once for each queue or cursor."""
    queues = 40
    for number in range(queues):
        call(conn, "create_queue", f"q{number}")
        enqueue(conn, f"q{number}", 1)
    run_upkeep(conn, "sequence")
    for number in range(queues):
        call(conn, "claim", f"q{number}")
    assert rows_read(conn, lambda: run_upkeep(conn, "rollups")).get("leases_0", 0) <= 3 * queues
    assert value(conn, "select count(*) from trunkline.rollups where kind = 'queue' and leased = 1") == queues
    statistics = "select count(*) from trunkline.queue_stats()"
    assert rows_read(conn, lambda: conn.execute(statistics).fetchall()).get("leases_0", 0) <= 3 * queues
    read = rows_read(conn, lambda: run_upkeep(conn, "pass"))
    assert read.get("leases_0", 0) <= 20 * queues, read


def test_a_message_is_explained_without_visiting_each_log(conn: Connection) -> None:
    for number in range(60):
        call(conn, "create_queue", f"q{number}")
        enqueue(conn, f"q{number}", 1)
    run_upkeep(conn, "sequence")
    message = value(conn, "select message_id from trunkline.store order by id desc limit 1")
    explained: dict[str, Any] = {}
    read = rows_read(conn, lambda: explained.update(value(conn, "select trunkline.explain_message(%s)", message)))
    assert (explained["state"], explained["queue"]) == ("in_log", "q59")
    assert read.get("ticks_0", 0) < 30, read
    assert value(conn, "select trunkline.explain_message(trunkline.new_id())")["state"] == "unknown"


def test_upkeep_leaves_segments_alone_that_need_nothing(conn: Connection) -> None:
    call(conn, "create_topic", "t", 20)
    conn.execute("update trunkline.segments set created_at = clock_timestamp() - interval '2 hours'")
    conn.execute("set track_functions = 'pl'")
    calls = "select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname = '_seal'"
    conn.execute("select pg_stat_force_next_flush()")
    before = value(conn, calls)
    run_upkeep(conn, "segments")
    conn.execute("select pg_stat_force_next_flush()")
    # that of the store, and now and then one by chance
    assert 1 <= value(conn, calls) - before <= 6


def test_upkeep_checks_a_sample_of_many_waiting_jobs(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    conn.execute(
        "select count(trunkline.enqueue_after('q', array[gen_random_uuid()], '1', 'job')) from generate_series(1, 10000)"
    )
    conn.execute("vacuum (analyze) trunkline.job_waiting, trunkline.job_parents, trunkline.job_results")
    read = rows_read(conn, lambda: run_upkeep(conn, "jobs"))
    assert 300 < read["job_parents"] < 1_500, read


def test_waiting_jobs_are_read_once_whenever_the_plan_was_made(conn: Connection) -> None:
    """A plan of empty tables must not read all parents for each job that waits."""
    call(conn, "create_queue", "q")
    for _ in range(8):
        run_upkeep(conn, "jobs")
    conn.execute("vacuum (analyze) trunkline.job_waiting, trunkline.job_parents, trunkline.job_results")
    for _ in range(8):
        run_upkeep(conn, "jobs")
    conn.execute(
        "select count(trunkline.enqueue_after('q', array[gen_random_uuid()], '1', 'job')) from generate_series(1, 300)"
    )
    read = rows_read(conn, lambda: run_upkeep(conn, "jobs"))
    assert read.get("job_parents", 0) <= 600, read
