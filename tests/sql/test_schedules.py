"""Cron schedules: each tick becomes one message, in the transaction that moves the schedule on."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import call, claim, contents, read, refused, rows, run_upkeep, upkeep, value

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
"""A Tuesday."""


def create(conn: Connection, name: str = "s", cron: str = "*/10 * * * *", **named: Any) -> Any:
    if "p_topic" not in named and "p_queue" not in named:
        named["p_topic"] = "t"
    return call(conn, "create_schedule", name, cron, **named)[0]


def schedule(conn: Connection, name: str = "s") -> Any:
    [row] = [row for row in call(conn, "list_schedules") if row.name == name]
    return row


@pytest.fixture
def noon(conn: Connection, clock: Clock) -> Clock:
    """The clock, stopped at noon until it is moved; topic t and queue q exist."""
    conn.execute(
        "create or replace function trunkline.clock() returns timestamptz language sql volatile as"
        f" $$ select '{NOON.isoformat()}'::timestamptz + (select skew from public.test_clock) $$"
    )
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    return clock


def ticks(conn: Connection) -> list[str]:
    """The times of the messages in topic t."""
    return [message.occurred_at.astimezone(UTC).strftime("%H:%M") for message in read(conn, "t")]


def test_a_tick_becomes_a_message_at_its_time(conn: Connection, noon: Clock) -> None:
    fields = {"p_key": "k", "p_routing_key": "a.b", "p_label": "l", "p_headers": json.dumps({"x": 1})}
    row = create(conn, p_payload='{"n": 1}', **fields)
    assert (row.name, row.topic, row.queue, row.cron, row.timezone, row.catch_up) == (
        "s",
        "t",
        None,
        "*/10 * * * *",
        "UTC",
        "one",
    )
    assert (row.paused, row.next_at, row.last_at, row.last_id) == (False, NOON + timedelta(minutes=10), None, None)
    noon.advance(599)
    assert run_upkeep(conn, "schedules") == [0]
    noon.advance(1)
    assert run_upkeep(conn, "schedules", 2) == [1, 0]
    [message] = read(conn, "t")
    assert (message.payload, message.content_type, message.key) == (b'{"n": 1}', "application/json", "k")
    assert (message.routing_key, message.label) == ("a.b", "l")
    assert message.headers == {"x": 1, "trunkline-schedule": "s"}
    assert message.occurred_at == NOON + timedelta(minutes=10)
    row = schedule(conn)
    assert (row.next_at, row.last_at, row.last_id) == (
        NOON + timedelta(minutes=20),
        NOON + timedelta(minutes=10),
        message.id,
    )


def test_upkeep_fires_schedules(conn: Connection, noon: Clock) -> None:
    create(conn, p_queue="q")
    noon.advance(601)
    upkeep(conn, 2)
    [delivery] = claim(conn, "q")
    assert (contents([delivery]), delivery.headers) == ([None], {"trunkline-schedule": "s"})


def test_time_zone_of_a_schedule(conn: Connection, noon: Clock) -> None:
    row = create(conn, cron="30 9 * * *", p_timezone="America/New_York")
    assert row.next_at == NOON + timedelta(hours=2, minutes=30)


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [("skip", ["12:50"]), ("one", ["12:50"]), ("all", ["12:10", "12:20", "12:30", "12:40", "12:50"])],
)
def test_missed_ticks_with_the_newest_on_time(conn: Connection, noon: Clock, catch_up: str, expected: list[str]) -> None:
    create(conn, p_catch_up=catch_up)
    noon.advance(51 * 60)
    assert run_upkeep(conn, "schedules", 2) == [len(expected), 0]
    assert ticks(conn) == expected
    assert schedule(conn).next_at == NOON + timedelta(hours=1)


@pytest.mark.parametrize(("catch_up", "expected"), [("skip", []), ("one", ["12:20"]), ("all", ["12:10", "12:20"])])
def test_missed_ticks_with_all_of_them_late(conn: Connection, noon: Clock, catch_up: str, expected: list[str]) -> None:
    create(conn, p_catch_up=catch_up)
    noon.advance(25 * 60)
    assert run_upkeep(conn, "schedules", 2) == [len(expected), 0]
    assert ticks(conn) == expected
    row = schedule(conn)
    assert row.next_at == NOON + timedelta(minutes=30)
    assert (row.last_at is None) == (catch_up == "skip")


def test_a_year_of_missed_minutes_is_one_message(conn: Connection, noon: Clock) -> None:
    create(conn, cron="* * * * *")
    noon.advance(timedelta(days=365))
    assert run_upkeep(conn, "schedules", 2) == [1, 0]
    assert schedule(conn).last_at == NOON + timedelta(days=365)


def test_catching_up_is_bounded_per_run_and_goes_on(conn: Connection, noon: Clock) -> None:
    create(conn, cron="* * * * *", p_catch_up="all")
    create(conn, "other", cron="0 * * * *", p_catch_up="all", p_topic="t")
    noon.advance(timedelta(minutes=1500))
    assert run_upkeep(conn, "schedules", 3) == [1000, 525, 0]
    stamps = [message.occurred_at for message in read(conn, "t", limit=2000) if message.headers["trunkline-schedule"] == "s"]
    assert stamps == [NOON + timedelta(minutes=n) for n in range(1, 1501)]


def test_a_schedule_without_its_target_is_paused_and_the_others_go_on(conn: Connection, noon: Clock) -> None:
    create(conn, "a", p_topic="t")
    create(conn, "b", p_queue="q")
    create(conn, "c")
    # as if the target had been deleted while the schedule was made
    conn.execute("update trunkline.schedules set topic = 'gone' where name = 'a'")
    conn.execute("update trunkline.schedules set queue = 'lost' where name = 'b'")
    noon.advance(601)
    assert run_upkeep(conn, "schedules", 2) == [1, 0]
    assert [(row.name, row.paused) for row in call(conn, "list_schedules")] == [("a", True), ("b", True), ("c", False)]
    notices = rows(conn, "select kind, detail from trunkline.alerts order by detail ->> 'schedule'")
    assert [(n.kind, n.detail["schedule"], n.detail["code"]) for n in notices] == [
        ("schedule_paused", "a", "TL010"),
        ("schedule_paused", "b", "TL011"),
    ]
    with refused("TL010", "gone"):
        call(conn, "resume_schedule", "a")
    call(conn, "create_topic", "gone")
    call(conn, "resume_schedule", "a")
    noon.advance(600)
    assert run_upkeep(conn, "schedules") == [2]


def test_a_message_that_the_topic_no_longer_takes_pauses_the_schedule(conn: Connection, noon: Clock) -> None:
    create(conn, p_payload=json.dumps("x" * 100))
    call(conn, "alter_topic", "t", p_max_payload=10)
    noon.advance(601)
    assert run_upkeep(conn, "schedules") == [0]
    assert schedule(conn).paused
    assert value(conn, "select detail ->> 'code' from trunkline.alerts") == "TL003"


def test_pause_and_resume(conn: Connection, noon: Clock) -> None:
    """Ticks during a pause do not count as missed."""
    create(conn, p_catch_up="all")
    call(conn, "pause_schedule", "s")
    noon.advance(25 * 60)
    assert run_upkeep(conn, "schedules") == [0]
    call(conn, "resume_schedule", "s")
    call(conn, "resume_schedule", "s")
    assert run_upkeep(conn, "schedules") == [0]
    noon.advance(5 * 60)
    assert run_upkeep(conn, "schedules") == [1]
    assert ticks(conn) == ["12:30"]


def test_resume_of_a_running_schedule_keeps_what_is_due(conn: Connection, noon: Clock) -> None:
    create(conn)
    noon.advance(601)
    call(conn, "resume_schedule", "s")
    assert run_upkeep(conn, "schedules") == [1]


def test_delete(conn: Connection, noon: Clock) -> None:
    create(conn)
    call(conn, "delete_schedule", "s")
    noon.advance(601)
    assert run_upkeep(conn, "schedules") == [0]
    assert call(conn, "list_schedules") == []


def test_run_now_is_apart_from_the_ticks(conn: Connection, noon: Clock) -> None:
    create(conn)
    call(conn, "pause_schedule", "s")
    noon.advance(61)
    id_ = value(conn, "select trunkline.run_schedule('s')")
    [message] = read(conn, "t")
    assert (message.id, message.occurred_at) == (id_, NOON + timedelta(seconds=61))
    row = schedule(conn)
    assert (row.last_id, row.last_at, row.next_at) == (id_, NOON + timedelta(seconds=61), NOON + timedelta(minutes=10))


def test_firing_rolls_back_with_the_move(conn: Connection, noon: Clock) -> None:
    create(conn)
    noon.advance(601)
    with conn.transaction(force_rollback=True):
        assert run_upkeep(conn, "schedules") == [1]
    assert ticks(conn) == []
    assert run_upkeep(conn, "schedules") == [1]
    assert ticks(conn) == ["12:10"]


def test_ensure_creates_and_changes(conn: Connection, noon: Clock) -> None:
    def ensure(cron: str, **named: Any) -> Any:
        return call(conn, "ensure_schedule", "s", cron, **named)[0]

    first = ensure("*/10 * * * *", p_topic="t", p_payload="1", p_headers='{"a": 1}')
    noon.advance(700)
    # the tick that is due stays due when only the message changes
    second = ensure("*/10 * * * *", p_topic="t", p_payload="2")
    assert (second.schedule_id, second.next_at, second.headers) == (first.schedule_id, first.next_at, None)
    assert run_upkeep(conn, "schedules") == [1]
    assert contents(read(conn, "t")) == [2]
    call(conn, "pause_schedule", "s")
    third = ensure("0 * * * *", p_queue="q", p_timezone="Asia/Kolkata", p_catch_up="all")
    assert (third.paused, third.topic, third.queue, third.catch_up) == (True, None, "q", "all")
    assert third.next_at == NOON + timedelta(minutes=30)
    assert third.last_id is not None


@pytest.mark.parametrize(
    ("code", "named", "arguments"),
    [
        ("TL010", '"nowhere"', {"p_topic": "nowhere"}),
        ("TL011", '"nowhere"', {"p_queue": "nowhere"}),
        ("TL001", "either a topic or a queue, got both", {"p_topic": "t", "p_queue": "q"}),
        ("TL001", "either a topic or a queue, got neither", {"p_topic": None}),
        ("TL001", "matches no date", {"p_topic": "t", "p_cron": "0 0 30 2 *"}),
        ("TL001", "5 fields", {"p_topic": "t", "p_cron": "nonsense"}),
        ("TL001", "time zone", {"p_topic": "t", "p_timezone": "Mars"}),
        ("TL001", 'catch_up must be "skip", "one" or "all", got "some"', {"p_topic": "t", "p_catch_up": "some"}),
        ("TL001", 'catch_up must be "skip", "one" or "all", got null', {"p_topic": "t", "p_catch_up": None}),
        ("TL001", "payload must not be null", {"p_topic": "t", "p_payload": None}),
        ("TL003", "at most 10 bytes, got 13", {"p_topic": "small", "p_payload": '"12345678901"'}),
        ("TL001", "headers", {"p_topic": "t", "p_headers": "[1]"}),
        ("TL001", "key must have at most 1,000 characters", {"p_topic": "t", "p_key": "k" * 1001}),
        ("TL002", "schedule name", {"p_topic": "t", "p_name": "no spaces"}),
    ],
)
@pytest.mark.parametrize("verb", ["create_schedule", "ensure_schedule"])
def test_refusals(conn: Connection, noon: Clock, verb: str, code: str, named: str, arguments: dict[str, Any]) -> None:
    call(conn, "create_topic", "small", p_max_payload=10)
    with refused(code, named):
        call(conn, verb, **{"p_name": "s", "p_cron": "@daily", **arguments})
    assert call(conn, "list_schedules") == []


def test_a_name_can_be_used_once(conn: Connection, noon: Clock) -> None:
    create(conn)
    with refused("TL020", 'schedule "s" already exists'):
        create(conn)


@pytest.mark.parametrize("verb", ["pause_schedule", "resume_schedule", "delete_schedule", "run_schedule"])
def test_unknown_schedules(conn: Connection, noon: Clock, verb: str) -> None:
    with refused("TL015", 'schedule "nope" does not exist'):
        call(conn, verb, "nope")


def test_a_target_is_deleted_with_its_schedules_or_not_at_all(conn: Connection, noon: Clock) -> None:
    call(conn, "create_topic", "gone")
    call(conn, "create_queue", "lost")
    create(conn, "a", p_topic="gone")
    create(conn, "b", p_queue="lost")
    create(conn, "c")
    with refused("TL021", 'schedule "a"'):
        call(conn, "delete_topic", "gone")
    with refused("TL021", 'schedule "b"'):
        call(conn, "delete_queue", "lost")
    call(conn, "delete_topic", "gone", True)
    call(conn, "delete_queue", "lost", True)
    assert [row.name for row in call(conn, "list_schedules")] == ["c"]
