"""What needs attention: each rule with the state that it lists, and with the state after it was dealt with."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import (
    call,
    claim,
    enqueue,
    fetch,
    passes,
    publish,
    run_upkeep,
    seal,
    sequence,
    settle,
    settle_all,
    upkeep,
)


def rules(conn: Connection) -> dict[tuple[str, str], Any]:
    return {(row.rule, row.subject): row for row in call(conn, "attention")}


def roll_up(conn: Connection) -> None:
    run_upkeep(conn, "sequence")
    passes(conn)
    run_upkeep(conn, "rollups")


@pytest.fixture
def quiet(conn: Connection) -> Connection:
    """A database whose server settings and other sessions do not matter: test servers run without fsync."""
    for rule in ("durability", "transactions", "slots", "sequencing"):
        conn.execute(
            f"create or replace function trunkline._attention_{rule}() returns setof trunkline.attention_row language sql"  # type: ignore[arg-type]
            " as $$ select * from unnest('{}'::trunkline.attention_row[]) $$"
        )
    upkeep(conn)
    assert call(conn, "attention") == []
    return conn


def test_a_queue_without_a_consumer(quiet: Connection, clock: Clock) -> None:
    call(quiet, "create_queue", "q")
    enqueue(quiet, "q", 1, 2)
    for _ in range(8):
        roll_up(quiet)
        clock.advance(60)
    upkeep(quiet)
    row = rules(quiet)["no_consumer", "q"]
    assert (row.severity, row.kind, row.n) == ("stopped", "queue", 2)
    assert row.cause and row.next_step and row.since is not None
    settle_all(quiet, "ack", claim(quiet, "q"))
    upkeep(quiet)
    assert rules(quiet) == {}


def test_a_queue_that_waits_longer_than_usual(quiet: Connection, clock: Clock) -> None:
    call(quiet, "create_queue", "q", p_history="1 day")
    for n in range(4):
        enqueue(quiet, "q", n)
        settle_all(quiet, "ack", claim(quiet, "q"))
        clock.advance(60)
        roll_up(quiet)
    enqueue(quiet, "q", *range(100))
    for _ in range(4):
        settle_all(quiet, "ack", claim(quiet, "q", 1))
        clock.advance(60)
        roll_up(quiet)
    upkeep(quiet)
    row = rules(quiet)["queue_waits", "q"]
    assert (row.severity, row.n) == ("slow", 96)


def test_a_paused_queue(quiet: Connection) -> None:
    call(quiet, "create_queue", "q")
    call(quiet, "pause_queue", "q")
    assert rules(quiet) == {}, "nothing waits"
    enqueue(quiet, "q", 1)
    roll_up(quiet)
    assert rules(quiet)["queue_paused", "q"].severity == "note"


def test_a_group_without_a_member_and_one_that_falls_behind(quiet: Connection, clock: Clock) -> None:
    call(quiet, "create_topic", "t")
    call(quiet, "create_group", "t", "alone")
    call(quiet, "create_group", "t", "slow")
    for n in range(15):
        publish(quiet, "t", *range(n + 1))
        sequence(quiet)
        fetch(quiet, "t", "slow", p_limit=1, p_lease="1 hour")
        roll_up(quiet)
        clock.advance(60)
    upkeep(quiet)
    found = rules(quiet)
    assert (found["no_member", "t/alone"].severity, found["no_member", "t/alone"].n) == ("stopped", 120)
    assert found["falls_behind", "t/slow"].severity == "slow"


def test_data_that_will_be_lost_comes_first_with_its_deadline(quiet: Connection, clock: Clock) -> None:
    call(quiet, "create_topic", "t", p_segment_rows=16, p_retention="1 hour", p_hard_retention="1 day")
    call(quiet, "create_group", "t", "g")
    call(quiet, "create_queue", "q")
    call(quiet, "pause_queue", "q")
    enqueue(quiet, "q", 1)
    publish(quiet, "t", *range(20))
    sequence(quiet)
    seal(quiet, 2)
    clock.advance(3600)
    upkeep(quiet)
    first = call(quiet, "attention")[0]
    [deadline] = [row for row in call(quiet, "retention_deadlines") if row.reader == "g"]
    assert (first.rule, first.subject, first.severity) == ("data_lost_soon", "t/g", "loss")
    assert (first.deadline, first.n) == (deadline.lost_at, 20)
    clock.advance(90_000)
    run_upkeep(quiet, "retention", 3)
    upkeep(quiet)
    assert rules(quiet)["retention_overtook_reader", "t"].severity == "loss"
    [left] = [row for row in call(quiet, "retention_deadlines") if row.reader == "g"]
    assert (left.next_offset, left.unread) == (16, 5)


def test_an_endpoint_with_an_open_breaker(quiet: Connection) -> None:
    call(quiet, "create_queue", "q")
    call(quiet, "create_endpoint", "e", "https://example.com/")
    call(quiet, "bind_queue", "q", "e")
    enqueue(quiet, "q", 1)
    quiet.execute("select trunkline.dispatch_plan('d')")
    roll_up(quiet)
    assert rules(quiet) == {}
    quiet.execute("select trunkline.open_breaker(endpoint_id, openings) from trunkline.endpoints")
    assert (rules(quiet)["endpoint_breaker", "e"].severity, rules(quiet)["endpoint_breaker", "e"].n) == ("stopped", 1)
    call(quiet, "disable_endpoint", "e", "410 Gone")
    assert "410 Gone" in rules(quiet)["endpoint_disabled", "e"].cause


def test_new_dead_letters_with_their_error(quiet: Connection, clock: Clock) -> None:
    call(quiet, "create_queue", "q")
    roll_up(quiet)
    clock.advance(60)
    enqueue(quiet, "q", 1)
    settle(quiet, "bury", claim(quiet, "q")[0].receipt, p_error="no such address")
    roll_up(quiet)
    row = rules(quiet)["dead_letters", "q"]
    assert row.n == 1
    assert "no such address" in row.cause
    clock.advance(3 * 3600)
    upkeep(quiet)
    assert rules(quiet) == {}, "not new any more"


def test_a_schedule_that_an_error_has_paused(quiet: Connection, clock: Clock) -> None:
    call(quiet, "create_topic", "t")
    call(quiet, "create_schedule", "s", "* * * * *", "t")
    quiet.execute("update trunkline.schedules set topic = 'gone'")
    clock.advance(120)
    upkeep(quiet)
    assert rules(quiet)["schedule_paused", "s"].severity == "stopped"
    quiet.execute("update trunkline.schedules set topic = 't'")
    call(quiet, "resume_schedule", "s")
    assert rules(quiet) == {}


def test_upkeep_that_does_not_run(quiet: Connection, clock: Clock) -> None:
    clock.advance(3 * 3600)
    assert rules(quiet)["upkeep_silent", "upkeep"].severity == "stopped"
    upkeep(quiet)
    assert rules(quiet) == {}


def test_a_required_archive_that_stands_still(quiet: Connection, clock: Clock) -> None:
    call(quiet, "create_topic", "t", p_segment_rows=16, p_retention="1 hour")
    call(quiet, "require_archive", "t")
    publish(quiet, "t", *range(20))
    sequence(quiet)
    seal(quiet, 2)
    assert rules(quiet) == {}
    clock.advance(7200)
    upkeep(quiet)
    assert rules(quiet)["archive_stands_still", "t"].severity == "stopped"


def test_a_broken_object_or_rule_stops_no_other(quiet: Connection) -> None:
    call(quiet, "create_queue", "q")
    call(quiet, "pause_queue", "q")
    enqueue(quiet, "q", 1)
    roll_up(quiet)
    quiet.execute(
        "create or replace function trunkline._attention_groups() returns setof trunkline.attention_row language plpgsql"
        " as $$ begin raise exception 'broken'; end $$"
    )
    found = rules(quiet)
    assert found.keys() == {("queue_paused", "q"), ("rule_failed", "groups")}
    assert "broken" in found["rule_failed", "groups"].cause


def test_a_server_that_may_lose_messages(conn: Connection) -> None:
    off = {
        row[0]
        for row in conn.execute(
            "select name from pg_settings where name in ('fsync', 'full_page_writes') and setting = 'off'"
        )
    }
    assert {subject for rule, subject in rules(conn) if rule == "not_durable"} == off


def test_an_old_transaction(conn: Connection, connect: Any) -> None:
    conn.execute("update trunkline.settings set value = '0' where name = 'attention_transaction'")
    other = connect()
    other.execute("begin isolation level repeatable read")
    pid = other.execute("select pg_backend_pid(), txid_current()").fetchone()[0]
    assert ("old_transaction", str(pid)) in rules(conn)
    other.execute("rollback")
    assert ("old_transaction", str(pid)) not in rules(conn)


def test_thresholds_are_settings(quiet: Connection, clock: Clock) -> None:
    call(quiet, "create_queue", "q")
    enqueue(quiet, "q", 1)
    for _ in range(8):
        roll_up(quiet)
        clock.advance(60)
    upkeep(quiet)
    assert len(rules(quiet)) == 1
    quiet.execute("update trunkline.settings set value = '1 day' where name = 'attention_wait'")
    assert rules(quiet) == {}
