"""System events: messages of topic trunkline.events."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import call, claim, contents, enqueue, queue_stats, read, refused, rows, run_upkeep, settle_all, value
from tests.sql.test_runs import bury, start, steps

TOPIC = "trunkline.events"


def events(conn: Connection) -> list[Any]:
    """Publish what is due, and return all events so far."""
    run_upkeep(conn, "events")
    return contents(read(conn, TOPIC))


@pytest.fixture
def watched(conn: Connection) -> Connection:
    call(conn, "create_queue", "mail", p_max_attempts=1)
    bury(conn, "mail", 1, "before the topic was created")
    call(conn, "create_topic", TOPIC)
    assert events(conn) == []
    return conn


def test_nothing_happens_without_the_topic(conn: Connection) -> None:
    call(conn, "create_queue", "mail")
    bury(conn, "mail", 3)
    assert run_upkeep(conn, "events") == [0]
    assert rows(conn, "select from trunkline.event_sources") == []


def test_dead_letters_are_summed_up(watched: Connection) -> None:
    bury(watched, "mail", 700, "timeout after 3 s")
    for n in range(60):
        bury(watched, "mail", 1, f"kind {chr(97 + n % 26)}{chr(97 + n // 26)}")
    found = events(watched)
    assert len(found) == 51
    assert (found[0]["event"], found[0]["queue"], found[0]["error"]) == ("dead_lettered", "mail", "timeout after <n> s")
    assert found[0]["messages"] == 700
    assert (found[-1]["groups"], found[-1]["messages"]) == (11, 11)
    assert sum(event["messages"] for event in found) == 760
    assert len(events(watched)) == 51


def test_an_event_causes_no_event(watched: Connection) -> None:
    call(watched, "create_queue", "alerts", p_max_attempts=1)
    call(watched, "subscribe", "alerts", TOPIC)
    call(watched, "create_endpoint", "pager", "https://example.com/")
    call(watched, "bind_queue", "alerts", "pager")
    bury(watched, "mail", 1)
    assert len(events(watched)) == 1
    settle_all(watched, "bury", claim(watched, "alerts"), p_error="the pager is broken")
    assert queue_stats(watched, "alerts").dead == 1
    call(watched, "disable_endpoint", "pager", "410 Gone")
    assert len(events(watched)) == 1


def test_endpoints_schedules_and_runs(watched: Connection, clock: Clock) -> None:
    call(watched, "create_endpoint", "crm", "https://example.com/")
    call(watched, "create_schedule", "nightly", "0 3 * * *", p_queue="mail")
    assert events(watched) == []
    call(watched, "disable_endpoint", "crm", "410 Gone")
    call(watched, "pause_schedule", "nightly")
    found = events(watched)
    assert [event["event"] for event in found] == ["endpoint_disabled", "schedule_paused"]
    assert (found[0]["endpoint"], found[0]["reason"]) == ("crm", "410 Gone")
    call(watched, "resume_endpoint", "crm")
    call(watched, "delete_schedule", "nightly")
    assert [event["event"] for event in events(watched)[2:]] == ["endpoint_recovered"]
    assert rows(watched, "select from trunkline.event_states where kind = 'schedule'") == []
    id = start(watched, "redrive", {"queue": "mail", "all": True}, canary=1, canary_timeout=10)
    steps(watched)
    clock.advance(timedelta(seconds=11))
    steps(watched)
    [stopped] = events(watched)[3:]
    assert (stopped["event"], stopped["run_id"], stopped["done"]) == ("run_stopped", id, 1)
    assert "no message of the canary" in stopped["reason"]


def test_alerts_and_the_switch(watched: Connection) -> None:
    watched.execute("insert into trunkline.alerts (at, kind, detail) values (now(), 'retention_overtook_reader', '{}')")
    assert [event["kind"] for event in events(watched)] == ["retention_overtook_reader"]
    watched.execute("update trunkline.settings set value = 'off' where name = 'events'")
    bury(watched, "mail", 1)
    assert len(events(watched)) == 1
    # nothing is published later for the time in which it was off
    watched.execute("update trunkline.settings set value = 'on' where name = 'events'")
    assert len(events(watched)) == 1


def test_redrive_edited(conn: Connection) -> None:
    call(conn, "create_queue", "mail", p_max_payload=20)
    [id] = enqueue(conn, "mail", {"n": 1}, p_key="k", p_label="job", p_headers='{"a": 1}')
    settle_all(conn, "bury", claim(conn, "mail"))
    with refused("TL003"):
        value(conn, "select trunkline.redrive_edited('mail', %s, %s)", id, b"x" * 21)
    assert queue_stats(conn, "mail").dead == 1
    assert value(conn, "select trunkline.redrive_edited('mail', %s, %s)", id, b'{"n": 2}') == id
    [again] = claim(conn, "mail")
    assert (again.id, again.payload, again.key, again.label, again.headers) == (id, b'{"n": 2}', "k", "job", {"a": 1})
    assert (again.attempt, again.content_type) == (1, "application/json")
    with refused("TL014"):
        value(conn, "select trunkline.redrive_edited('mail', %s, '1')", id)
    settle_all(conn, "bury", [again])
    value(conn, "select trunkline.redrive_edited('mail', %s, 'a', '{\"b\": 2}', 'text/plain')", id)
    [again] = claim(conn, "mail")
    assert (again.payload, again.headers, again.content_type) == (b"a", {"b": 2}, "text/plain")
