"""Delivery history: consumer, times and outcome of each message; the archive; retention of both."""

from __future__ import annotations

from tests.conftest import Clock, Connection
from tests.sql.calls import claim, enqueue, passes, refused, rows, run_upkeep, settle, value


def deliveries(conn: Connection, queue: str = "q") -> list[tuple[int, int, int, str | None, str | None, str | None]]:
    return rows(
        conn,
        "select first_offset, last_offset, attempt, consumer, outcome, error from trunkline.list_deliveries(%s)"
        " order by claimed_at, first_offset",
        queue,
    )


def make(conn: Connection, **settings: object) -> None:
    named = "".join(f", p_{name} => %({name})s" for name in settings)
    conn.execute(f"select trunkline.create_queue('q'{named})".encode(), settings)


def test_every_outcome_is_written_down_with_who_and_why(conn: Connection) -> None:
    make(conn, max_attempts=2)
    enqueue(conn, "q", *range(1, 8))
    taken = claim(conn, "q", 7, p_consumer="anna")
    receipts = [delivery.receipt for delivery in taken]
    assert deliveries(conn) == [(1, 7, 1, "anna", None, None)]
    settle(conn, "ack", *receipts[0:2])
    settle(conn, "nack", receipts[2], p_delay="0", p_error="busy")
    settle(conn, "bury", receipts[3], p_error="bad")
    settle(conn, "release", receipts[4])
    settle(conn, "ack", *receipts[5:7])
    expected = {
        (1, 2, 1, "anna", "acked", None),
        (3, 3, 1, "anna", "nacked", "busy"),
        (4, 4, 1, "anna", "buried", "bad"),
        (5, 5, 1, "anna", "released", None),
        (6, 7, 1, "anna", "acked", None),
    }
    assert set(deliveries(conn)) == expected
    passes(conn)
    assert set(deliveries(conn)) == expected, "closing the lease changes nothing of what is told"
    assert value(conn, "select count(*) from trunkline.history") == 5
    again = claim(conn, "q", 10, p_consumer="bert")
    assert sorted((d.log_offset, d.attempt) for d in again) == [(3, 2), (5, 1)]
    for delivery in again:
        settle(conn, "nack", delivery.receipt, p_error="still busy")
    assert (3, 3, 2, "bert", "dead", "still busy") in deliveries(conn)
    assert (5, 5, 1, "bert", "nacked", "still busy") in deliveries(conn)


def test_a_lease_that_ended_is_told_as_expired(conn: Connection, clock: Clock) -> None:
    make(conn)
    enqueue(conn, "q", 1)
    claim(conn, "q", 1, p_consumer="anna")
    clock.advance(31)
    passes(conn, 2)
    assert deliveries(conn) == [(1, 1, 1, "anna", "expired", None)]


def test_history_survives_rotation_of_the_hot_tables(conn: Connection) -> None:
    make(conn)
    enqueue(conn, "q", 1, 2)
    first, second = claim(conn, "q", 2, p_consumer="anna")
    settle(conn, "ack", first.receipt)
    run_upkeep(conn, "rotate", 3)
    settle(conn, "nack", second.receipt, p_error="late")
    run_upkeep(conn, "rotate", 3)
    passes(conn)
    run_upkeep(conn, "rotate", 3)
    assert deliveries(conn) == [(1, 1, 1, "anna", "acked", None), (2, 2, 1, "anna", "nacked", "late")]


def test_off_and_on_per_queue(conn: Connection) -> None:
    make(conn, history="0")
    enqueue(conn, "q", 1)
    settle(conn, "ack", claim(conn, "q")[0].receipt)
    passes(conn)
    assert value(conn, "select count(*) from trunkline.history") == 0
    assert deliveries(conn) == []
    conn.execute("select trunkline.alter_queue('q', p_history => '1 day')")
    enqueue(conn, "q", 2)
    settle(conn, "ack", claim(conn, "q")[0].receipt)
    passes(conn)
    assert [row[:2] for row in deliveries(conn)] == [(2, 2)]
    conn.execute("select trunkline.alter_queue('q', p_history => '0')")
    assert value(conn, "select history from trunkline.queues") is None
    with refused("TL005", "history"):
        conn.execute("select trunkline.alter_queue('q', p_history => '31 days')")


def test_history_is_kept_as_long_as_asked_and_emptied_by_day(conn: Connection, clock: Clock) -> None:
    make(conn, history="2 days", retention="100 days")
    for day in range(5):
        enqueue(conn, "q", day)
        settle(conn, "ack", claim(conn, "q")[0].receipt)
        passes(conn)
        clock.advance(86400)
        run_upkeep(conn, "history")
    assert value(conn, "select count(*) from trunkline.history") <= 3
    told = value(conn, "select count(*) from trunkline.list_deliveries('q', '30 days')")
    assert told == value(
        conn, "select count(*) from trunkline.history where settled_at > trunkline.clock() - interval '2 days'"
    )


def test_archive_shows_finished_messages_with_their_bytes(conn: Connection) -> None:
    make(conn)
    enqueue(conn, "q", "one", "two", "three")
    first, second, _ = claim(conn, "q", 3)
    settle(conn, "ack", first.receipt)
    settle(conn, "bury", second.receipt)
    [finished] = rows(conn, "select queue, payload, created_at, processed_at, log_offset from trunkline.completed")
    assert (finished.queue, finished.payload, finished.log_offset) == ("q", b'"one"', 1)
    assert finished.processed_at > finished.created_at
    passes(conn)
    assert value(conn, "select count(*) from trunkline.completed") == 1


def test_archive_ends_where_the_log_ends(conn: Connection) -> None:
    make(conn, segment_rows=16)
    for number in range(40):
        enqueue(conn, "q", number)
    for delivery in claim(conn, "q", 40):
        settle(conn, "ack", delivery.receipt)
    conn.execute("select trunkline.trim_queue('q')")
    base = value(conn, "select base_offset from trunkline.logs where topic_id > 0")
    assert base > 1
    left = rows(conn, "select log_offset from trunkline.list_completed('q')")
    assert sorted(row.log_offset for row in left) == list(range(base, 41))
