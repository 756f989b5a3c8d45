"""Lists: jobs, delayed messages, consumers, limits, fires, events, progress, alerts. Each has pages without gaps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import call, claim, enqueue, publish, refused, rows, sequence, settle, value


@pytest.fixture
def queue(conn: Connection) -> str:
    call(conn, "create_queue", "q")
    return "q"


def pages(conn: Connection, function: str, *arguments: object, limit: int, **named: object) -> list[Any]:
    """Read all pages. Each is full but the last."""
    found: list[Any] = []
    after = None
    while True:
        page = call(conn, function, *arguments, p_after=after, p_limit=limit, **named)
        assert len(page) <= limit
        found += page
        if len(page) < limit:
            return found
        after = page[-1].position


def fill(conn: Connection, queue: str, *, kind: str = "mail") -> dict[str, list[Any]]:
    """Put jobs in each state; return the ids by state."""
    ids: dict[str, list[Any]] = {}
    enqueue(conn, queue, *range(3), p_label=kind)
    sequence(conn)
    done = claim(conn, queue, 3)
    for delivery in done:
        assert settle(conn, "ack", delivery.receipt) == ["done"]
    ids["done"] = [row.id for row in done]
    enqueue(conn, queue, *range(3), p_label=kind)
    sequence(conn)
    dead = claim(conn, queue, 3)
    for delivery in dead:
        settle(conn, "bury", delivery.receipt, p_error="broken")
    ids["dead"] = [row.id for row in dead]
    enqueue(conn, queue, *range(6), p_label=kind)
    sequence(conn)
    again = claim(conn, queue, 6)
    for n, delivery in enumerate(again):
        settle(conn, "nack", delivery.receipt, p_delay="0" if n < 3 else "1 hour", p_error=f"try {n}")
    enqueue(conn, queue, *range(3), p_label=kind, p_delay="2 hours")
    sequence(conn)
    ids["delayed"] = [row.id for row in again[3:]]
    running = claim(conn, queue, 3)
    assert sorted(row.id for row in running) == sorted(row.id for row in again[:3])
    ids["running"] = [row.id for row in running]
    ids["ready"] = enqueue(conn, queue, *range(3), p_label=kind)
    ids["blocked"] = [call(conn, "enqueue_after", queue, [running[0].id], b"1", kind)[0].id for _ in range(3)]
    enqueue(conn, queue, "not a job")
    sequence(conn)
    return ids


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_jobs_of_every_state_in_pages(conn: Connection, queue: str, limit: int) -> None:
    call(conn, "create_queue", "other")
    ids, others = fill(conn, queue), fill(conn, "other", kind="thumb")
    listed = pages(conn, "list_jobs", limit=limit)
    states = ["running", "ready", "delayed", "blocked", "dead"]
    # by state, then by queue
    keys = [(states.index(row.state), row.queue) for row in listed]
    assert keys == sorted(keys)
    assert len({row.id for row in listed}) == len(listed)
    for state in states:
        for name, known in (("q", ids), ("other", others)):
            found = [row.id for row in listed if (row.queue, row.state) == (name, state)]
            assert set(known[state]) <= set(found)
            # three were nacked for later, and three were published with a delay
            assert len(found) == (6 if state == "delayed" else 3), state
    assert {row.error for row in listed if row.state == "dead"} == {"broken"}
    done = pages(conn, "list_jobs", "q", "done", limit=limit)
    assert sorted(row.id for row in done) == sorted(ids["done"])
    assert all(row.ended_at is not None for row in done)
    assert {row.kind for row in pages(conn, "list_jobs", p_kind="thumb", limit=limit)} == {"thumb"}
    assert pages(conn, "list_jobs", p_kind="none", limit=limit) == []


def test_jobs_of_a_kind_among_others(conn: Connection, queue: str) -> None:
    for _ in range(10):
        enqueue(conn, queue, *range(200), p_label="many")
    [rare] = enqueue(conn, queue, 1, p_label="rare")
    sequence(conn)
    assert [row.id for row in call(conn, "list_jobs", "q", p_kind="rare", p_limit=1)] == [rare]


@pytest.mark.parametrize("after", ["x", "ready/q/g/1; drop", "ready/q", "ready/../../g/1/1/1/1/1", "never/q/g/1/1"])
def test_a_position_that_was_made_up(conn: Connection, queue: str, after: str) -> None:
    with refused("TL001"):
        call(conn, "list_jobs", p_after=after)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_delayed_and_returned_messages(conn: Connection, limit: int, ordered: bool) -> None:
    call(conn, "create_queue", "q", p_ordered=ordered)
    for n in range(6):
        enqueue(conn, "q", n, p_key=f"k{n}")
    sequence(conn)
    taken = claim(conn, "q", 6)
    for n, delivery in enumerate(taken):
        settle(conn, "nack", delivery.receipt, p_delay="0" if n < 2 else f"{n} hours", p_error=f"try {n}")
    later = enqueue(conn, "q", 7, p_delay="1 day")
    sequence(conn)
    found = pages(conn, "list_delayed", "q", limit=limit)
    assert {row.id for row in found} == {row.id for row in taken} | set(later)
    assert len(found) == 7
    assert found[-1].id == later[0]
    assert found[-1].log_offset is None
    assert {row.state for row in found} <= {"ready", "delayed"}
    delayed = [row for row in found if row.state == "delayed"]
    assert [row.due_at for row in delayed[:-1]] == sorted(row.due_at for row in delayed[:-1])
    # in an ordered queue, the first one that comes back takes the rest of its partition along
    errors = {"try 0", None} if ordered else {f"try {n}" for n in range(6)}
    assert {row.error for row in found if row.log_offset is not None} == errors


def test_delayed_messages_of_a_topic(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "publish", "t", "1", p_delay="1 hour", p_label="x")
    publish(conn, "t", 2)
    sequence(conn)
    [row] = pages(conn, "list_delayed", p_topic="t", limit=10)
    assert (row.state, row.topic, row.label, row.attempt) == ("delayed", "t", "x", 0)
    with refused("TL001"):
        call(conn, "list_delayed")


def test_consumers(conn: Connection, queue: str) -> None:
    enqueue(conn, queue, *range(5))
    sequence(conn)
    one = call(conn, "claim", "q", 2, p_consumer="one")
    settle(conn, "ack", one[0].receipt)
    settle(conn, "nack", one[1].receipt, p_delay="1 hour")
    call(conn, "claim", "q", 2, p_consumer="two")
    sequence(conn)
    found = {row.consumer: row for row in call(conn, "list_consumers", "q")}
    assert (found["one"].leased, found["one"].settled, found["one"].failed) == (0, 2, 1)
    assert (found["two"].leased, found["two"].settled) == (2, 0)
    assert found["two"].oldest_claim_at is not None


def test_a_cancel_request_is_withdrawn(conn: Connection, queue: str) -> None:
    [job] = enqueue(conn, queue, 1, p_label="mail")
    sequence(conn)
    assert value(conn, "select trunkline.cancel_job(%s, 'no')", job) == "requested"
    assert value(conn, "select trunkline.uncancel_job(%s)", job) == "withdrawn"
    assert rows(conn, "select * from trunkline.list_cancels()") == []
    assert value(conn, "select trunkline.uncancel_job(%s)", job) == "ready"
    with refused("TL018"):
        value(conn, "select trunkline.uncancel_job('019a8d2e-7c1b-7000-8000-000000000000')")


def test_limits_with_holders_and_those_that_wait(conn: Connection) -> None:
    call(conn, "ensure_limit", "db", 3)
    call(conn, "ensure_limit", "mail", None, 2.0)
    conn.execute("select trunkline.acquire_limit('a', '{db}', '{2}')")
    conn.execute("select trunkline.acquire_limit('b', '{db}', '{4}')")
    db, mail = call(conn, "list_limits")
    assert (db.name, db.max_running, db.running, db.waiting) == ("db", 3, 3, 1)
    assert [(each["worker"], each["running"], each["waits"]) for each in db.holders] == [("a", 2, False), ("b", 1, True)]
    assert (mail.rate, mail.burst, mail.tokens, mail.holders) == (2.0, 2.0, 2.0, [])
    # once the worker gets what it wants, it no longer waits
    conn.execute("select trunkline.forget_worker('a')")
    conn.execute("select trunkline.acquire_limit('b', '{db}', '{3}')")
    [db, _] = call(conn, "list_limits")
    assert (db.running, db.waiting) == (3, 0)


def test_a_worker_keeps_its_schemas(conn: Connection) -> None:
    conn.execute("""select trunkline.register_worker('w', '{"pid": 1}', '{"mail": {"type": "object"}}')""")
    conn.execute("""select trunkline.register_worker('w', '{"pid": 2}')""")
    [row] = call(conn, "list_workers")
    assert (row.info, row.schemas) == ({"pid": 2}, {"mail": {"type": "object"}})


def fires(conn: Connection, name: str = "s") -> list[Any]:
    return [row.outcome for row in call(conn, "list_fires", name)]


def at(conn: Connection, clock: Clock, moment: datetime) -> None:
    clock.advance(moment - value(conn, "select trunkline.clock()"))


def test_fires_of_a_schedule(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t")
    for policy in ("skip", "one", "all"):
        call(conn, "create_schedule", policy, "*/10 * * * *", "t", p_catch_up=policy)
    run = "select trunkline.run_upkeep('schedules')"
    at(conn, clock, datetime(2030, 1, 1, 0, 0, 1, tzinfo=UTC))
    conn.execute("update trunkline.schedules set next_at = '2030-01-01 00:00:00+00'")
    conn.execute(run)
    for policy in ("skip", "one", "all"):
        assert fires(conn, policy) == ["on_time"]
    at(conn, clock, datetime(2030, 1, 1, 0, 11, 0, tzinfo=UTC))
    conn.execute(run)
    assert fires(conn, "all") == ["late", "on_time"]
    at(conn, clock, datetime(2030, 1, 1, 0, 45, 0, tzinfo=UTC))
    conn.execute(run)
    assert fires(conn, "all")[:3] == ["caught_up"] * 3
    assert fires(conn, "one")[:2] == ["caught_up", "skipped"]
    assert fires(conn, "skip")[:1] == ["skipped"]
    call(conn, "run_schedule", "all")
    [manual] = call(conn, "list_fires", "all", p_limit=1)
    assert manual.outcome == "manual"
    assert manual.id is not None
    rest = call(conn, "list_fires", "all", p_before=manual.fire_no)
    assert [row.outcome for row in rest] == ["caught_up"] * 3 + ["late", "on_time"]
    call(conn, "delete_topic", "t", p_force=True)
    with refused("TL015"):
        call(conn, "list_fires", "all")


def test_a_schedule_that_fails_has_a_row(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_schedule", "s", "* * * * *", "t")
    conn.execute(
        "update trunkline.schedules set next_at = trunkline.clock() - interval '1 second', label = repeat('x', 100000)"
    )
    conn.execute("set client_min_messages = error")
    conn.execute("select trunkline.run_upkeep('schedules')")
    [row] = call(conn, "list_fires", "s")
    assert (row.outcome, row.id) == ("failed", None)
    assert "label" in row.error


def test_attempts_by_outcome_status_and_time(conn: Connection) -> None:
    call(conn, "create_endpoint", "e", "https://example.com/")
    number = value(conn, "select endpoint_id from trunkline.endpoints")
    for status, outcome, age in (
        (200, "acked", 1),
        (503, "nacked", 2),
        (404, "buried", 3),
        (None, "nacked", 4),
        (500, "nacked", 4000),
    ):
        conn.execute(
            "select trunkline.settle_attempts('d', array[%s::int], array[null::int], array[null::text],"
            " array[trunkline.new_id()], '{1}', array[%s::float8], '{0.1}', array[%s::int], array[%s::text],"
            " array[null::interval], '{why}', '{body}')",
            (number, age, status, outcome),
        )

    def found(**named: object) -> list[Any]:
        return [(row.status, row.outcome) for row in call(conn, "list_attempts", "e", **named)]

    assert found() == [(200, "acked"), (503, "nacked"), (404, "buried"), (None, "nacked"), (500, "nacked")]
    assert found(p_outcome="acked") == [(200, "acked")]
    assert found(p_outcome="nacked") == [(503, "nacked"), (None, "nacked"), (500, "nacked")]
    assert found(p_status=5) == [(503, "nacked"), (500, "nacked")]
    assert found(p_status=2) == [(200, "acked")]
    assert found(p_status=404) == [(404, "buried")]
    assert found(p_status=0) == [(None, "nacked")]
    now = value(conn, "select trunkline.clock()")
    assert found(p_from=now - timedelta(hours=2), p_to=now - timedelta(hours=1)) == [(500, "nacked")]
    [first, second] = call(conn, "list_attempts", "e", p_limit=2)
    assert found(p_before=second.started_at, p_before_id=second.id)[0] == (404, "buried")
    assert found(p_before=first.started_at, p_before_id=first.id, p_status=5) == [(503, "nacked"), (500, "nacked")]
    with refused("TL001"):
        found(p_outcome="odd")
    with refused("TL001"):
        found(p_status=42)


def test_events_of_an_endpoint(conn: Connection) -> None:
    call(conn, "create_endpoint", "e", "https://example.com/")
    number = value(conn, "select endpoint_id from trunkline.endpoints")
    call(conn, "open_breaker", number, 0)
    call(conn, "open_breaker", number, 0)
    call(conn, "close_breaker", number)
    call(conn, "close_breaker", number)
    for _ in range(3):
        conn.execute("select trunkline.defer_endpoint(%s, '1 minute')", (number,))
    call(conn, "pause_endpoint", "e", "deploy")
    call(conn, "resume_endpoint", "e")
    call(conn, "rotate_secret", "e")
    events = call(conn, "list_endpoint_events", "e")
    # a repeat is no event
    names = ["secret_rotated", "enabled", "paused", "backing_off", "breaker_closed", "breaker_opened"]
    assert [row.event for row in events] == names
    assert events[2].detail == "deploy"
    assert [row.event for row in call(conn, "list_endpoint_events", "e", events[2].event_no)] == names[3:]


def test_progress_and_commits(conn: Connection, clock: Clock) -> None:
    for batch in range(3):
        call(conn, "report_pipeline", "p", "copy", p_batch=batch, p_rows=batch * 10, p_detail='{"durations": {"write": 5}}')
        # neither an empty report nor one within five seconds is kept
        call(conn, "report_pipeline", "p", "copy", p_rows=1000)
        clock.advance(6)
        call(conn, "report_pipeline", "p", "copy")
    found = call(conn, "list_progress", "p")
    assert [row.batch for row in found] == [2, 1, 0]
    assert found[0].detail == {"durations": {"write": 5}}
    assert [row.batch for row in call(conn, "list_progress", "p", found[1].report_no)] == [0]
    conn.execute("insert into trunkline.sink_commits values ('w', 1, 10, now()), ('w', 2, 20, now()), ('v', 1, 1, now())")
    assert [(row.version, row.rows) for row in call(conn, "list_commits", "w")] == [(2, 20), (1, 10)]
    assert [row.version for row in call(conn, "list_commits", "w", 2)] == [1]


def test_old_rows_go_with_their_partition(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_schedule", "s", "0 0 1 1 *", "t")
    call(conn, "run_schedule", "s")
    for _ in range(10):
        clock.advance(timedelta(days=12))
        conn.execute("select trunkline.run_upkeep('history')")
    assert call(conn, "list_fires", "s") == []
    assert value(conn, "select count(*) from trunkline.schedule_fires") == 0


def test_alerts_are_closed_once(conn: Connection) -> None:
    for kind in ("one", "two"):
        conn.execute("insert into trunkline.alerts (at, kind, detail) values (now(), %s, '{}')", (kind,))
    [two, one] = call(conn, "list_alerts")
    assert value(conn, "select trunkline.close_alert(%s, 'me')", one.alert_id) is True
    assert value(conn, "select trunkline.close_alert(%s, 'you')", one.alert_id) is False
    assert [row.kind for row in call(conn, "list_alerts")] == ["two"]
    [_, closed] = call(conn, "list_alerts", False)
    assert (closed.done_by, closed.done_at is not None) == ("me", True)
    assert [row.kind for row in call(conn, "list_alerts", False, two.alert_id)] == ["one"]
    with refused("TL001"):
        value(conn, "select trunkline.close_alert(99)")


def test_upkeep_reports_how_long_its_tasks_took(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_schedule", "s", "* * * * *", "t")
    conn.execute("update trunkline.schedules set next_at = trunkline.clock() - interval '1 second'")
    conn.execute("select trunkline.run_upkeep('schedules')")
    took = {row.task: row.took_seconds for row in call(conn, "upkeep_stats")}
    assert took["schedules"] > 0
    assert took["stages"] is None


def test_sessions_segments_and_sizes(conn: Connection, connect: Any) -> None:
    call(conn, "create_topic", "t", 2)
    publish(conn, "t", 1)
    other = connect()
    with other.transaction():
        other.execute("select pg_current_xact_id()")
        pid = other.info.backend_pid
        [mine] = [row for row in call(conn, "list_sessions", "0") if row.pid == pid]
        assert set(mine.holds) == {"xmin", "idle"}
    segments = call(conn, "list_segments", "t")
    assert {row.partition for row in segments} == {0, 1}
    assert all(row.bytes > 0 and row.name == "t" and row.kind == "topic" for row in segments)
    first = segments[0]
    assert call(conn, "list_segments", "t", None, first.log, first.segment) == segments[1:]
    sizes = {row.part: row for row in call(conn, "list_sizes")}
    assert sizes["log"].bytes > 0
    assert sizes["deliveries"].tables >= 20


def test_the_use_of_a_token_is_written_at_most_once_a_minute(conn: Connection, clock: Clock) -> None:
    conn.execute("select trunkline._create_token('a', 'shop', '\\x00', '{read:*}')")
    assert value(conn, "select made_by = session_user from trunkline.tokens") is True
    note = "select trunkline._note_token_use('{a}')"
    used = "select last_used_at from trunkline.tokens"
    conn.execute(note)
    first = value(conn, used)
    clock.advance(timedelta(seconds=59))
    conn.execute(note)
    assert value(conn, used) == first
    clock.advance(timedelta(seconds=2))
    conn.execute(note)
    assert value(conn, used) > first


def test_audit_newest_first_with_filters(conn: Connection) -> None:
    for actor, action, object_ in (
        ("a", "POST /v1/queues", "q1"),
        ("b", "DELETE /v1/queues/{queue}", "q1"),
        ("a", "PATCH x", "q2"),
    ):
        conn.execute("select trunkline._record_audit(%s, null, %s, %s)", (actor, action, object_))

    def found(*given: object) -> list[Any]:
        query = (
            "select audit_id from trunkline._find_audit(%s::text, %s::text, %s::text, %s::timestamptz, %s::timestamptz,"
            " %s::bigint, 10)"
        )
        return [row.audit_id for row in rows(conn, query, *given)]

    assert found(None, None, None, None, None, None) == [3, 2, 1]
    assert found("a", None, None, None, None, None) == [3, 1]
    assert found(None, "delete", None, None, None, None) == [2]
    assert found(None, None, "q1", None, None, 2) == [1]
    assert found(None, None, None, "2999-01-01", None, None) == []
