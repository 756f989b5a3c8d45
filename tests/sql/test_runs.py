"""Runs: bulk actions that upkeep executes in steps."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.conftest import Clock, Connection
from tests.sql.calls import (
    Connect,
    assert_conserved,
    call,
    claim,
    claim_all,
    commit,
    contents,
    enqueue,
    fetch,
    publish,
    queue_stats,
    refused,
    rows,
    run_upkeep,
    settle_all,
    value,
)

# the positions of all groups
POSITIONS = """
    select c.partition, (trunkline._position(c)).committed from trunkline.cursors c
    where c.subscription_id is not null and c.queue_id is null order by 1"""


def bury(conn: Connection, queue: str, n: int, error: str = "broken", **named: Any) -> list[Any]:
    """Make n dead letters with the contents 0 to n - 1."""
    payloads = [str(i).encode() for i in range(n)]
    ids = [row.id for row in call(conn, "enqueue_many", queue, payloads, **named)] if n else []
    while batch := claim(conn, queue, 1000):
        settle_all(conn, "bury", batch, p_error=error)
    return ids


def start(conn: Connection, kind: str, selector: dict[str, Any], expected: int | None = None, **options: Any) -> int:
    n = call(conn, "preview_run", kind, Jsonb(selector))[0][0]["messages"] if expected is None else expected
    return int(value(conn, "select trunkline.start_run(%s, %s, %s, %s)", kind, Jsonb(selector), n, Jsonb(options)))


def steps(conn: Connection, n: int = 1) -> None:
    run_upkeep(conn, "runs", n)


def run(conn: Connection, id: int) -> Any:
    [row] = call(conn, "get_run", id)
    return row


@pytest.fixture
def mail(conn: Connection) -> Connection:
    call(conn, "create_queue", "mail", p_max_attempts=1)
    return conn


def test_a_redrive_by_fingerprint_takes_its_group_only(mail: Connection) -> None:
    bury(mail, "mail", 3, "timeout after 30 s")
    bury(mail, "mail", 2, "no such user")
    group = next(row for row in call(mail, "dead_groups", "mail") if "timeout" in row.error)
    assert (group.messages, group.error) == (3, "timeout after <n> s")
    id = start(mail, "redrive", {"queue": "mail", "fingerprint": group.fingerprint})
    assert run(mail, id).state == "waiting"
    assert queue_stats(mail, "mail").dead == 5
    steps(mail, 3)
    done = run(mail, id)
    assert (done.state, done.total, done.done, done.failed) == ("done", 3, 3, 0)
    assert [entry["event"] for entry in done.log] == ["started", "step", "done"]
    assert contents(claim(mail, "mail")) == [0, 1, 2]
    assert queue_stats(mail, "mail").dead == 2
    assert_conserved(mail, "mail")


def test_more_than_one_step_and_what_dies_again_is_not_redriven_again(mail: Connection) -> None:
    bury(mail, "mail", 1000)
    bury(mail, "mail", 700)
    id = start(mail, "redrive", {"queue": "mail", "all": True})
    steps(mail)
    assert (run(mail, id).state, run(mail, id).done) == ("running", 1000)
    # all that was redriven dies again before the next step
    bury(mail, "mail", 0)
    steps(mail, 4)
    row = run(mail, id)
    assert (row.state, row.done, row.failed) == ("done", 1700, 1000)
    assert len(row.failures) == 5
    assert row.failures[0]["error"] == "broken"
    assert queue_stats(mail, "mail").dead == 1000


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ({}, "must not be empty"),
        ({"queue": "mail"}, "nothing but a queue"),
        ({"queue": "mail", "all": False}, "nothing but a queue"),
        ({"queue": "mail", "colour": "red"}, "unknown field"),
        ({"queue": "mail", "ids": []}, "wrong value"),
        ({"queue": "mail", "ids": ["x"]}, "wrong value"),
        ({"queue": "mail", "error": 5}, "wrong value"),
        ({"queue": "mail", "since": "yesterdayish"}, "must be a time"),
    ],
)
def test_selectors_that_are_refused(mail: Connection, selector: dict[str, Any], text: str) -> None:
    with refused("TL001", text):
        call(mail, "preview_run", "redrive", Jsonb(selector))
    with refused("TL001", text):
        start(mail, "redrive", selector, 0)


def test_other_arguments_that_are_refused(mail: Connection) -> None:
    everything = {"queue": "mail", "all": True}
    with refused("TL001", "kind of a run"):
        start(mail, "seek", everything, 0)
    with refused("TL011"):
        start(mail, "redrive", {"queue": "nope", "all": True}, 0)
    with refused("TL011"):
        start(mail, "redrive", everything, 0, to="nope")
    with refused("TL001", "no option"):
        start(mail, "purge_dead_letters", everything, 0, canary=3)
    with refused("TL001", "rate must be between"):
        start(mail, "redrive", everything, 0, rate=0)
    with refused("TL001", "wrong type"):
        start(mail, "redrive", everything, 0, rate="fast")
    with refused("TL001", "no start time"):
        start(mail, "replay", {"queue": "mail"}, 0)
    for verb in ("get_run", "pause_run", "resume_run", "abort_run"):
        with refused("TL019", "run 77 does not exist"):
            call(mail, verb, 77)


def test_a_count_that_moved_needs_a_new_preview(mail: Connection) -> None:
    bury(mail, "mail", 20)
    selector = {"queue": "mail", "reason": "buried"}
    with refused("TL025", "20 messages match now, 17 matched in the preview"):
        start(mail, "redrive", selector, 17)
    with refused("TL025"):
        start(mail, "redrive", selector, 0)
    start(mail, "redrive", selector, 19)


def test_filters(mail: Connection) -> None:
    bury(mail, "mail", 1, "a 100% of it", p_labels=["job"], p_keys=["k"])
    bury(mail, "mail", 2, "b")

    def count(kind: str = "redrive", **selector: Any) -> int:
        return int(call(mail, "preview_run", kind, Jsonb({"queue": "mail"} | selector))[0][0]["messages"])

    assert count(label="job") == count(key="k") == count(error="100%") == count("retry_jobs", reason="buried") == 1
    assert count(reason="buried") == count(since="2020-01-01T00:00:00Z") == 3
    assert count(until="2020-01-01T00:00:00Z") == count(error="a_") == count(topic="t") == count(headers={"a": 1}) == 0
    assert count(error="a", key="k", reason="buried") == 1
    assert count(error="it' or true --") == 0


def test_a_purge_has_a_grace_and_can_be_aborted(mail: Connection, clock: Clock) -> None:
    bury(mail, "mail", 3)
    id = start(mail, "purge_dead_letters", {"queue": "mail", "all": True})
    steps(mail, 2)
    assert value(mail, "select trunkline.abort_run(%s, 'wrong queue')", id) == "waiting"
    clock.advance(timedelta(seconds=60))
    steps(mail, 2)
    assert (run(mail, id).state, run(mail, id).reason, queue_stats(mail, "mail").dead) == ("aborted", "wrong queue", 3)
    id = start(mail, "purge_dead_letters", {"queue": "mail", "all": True})
    clock.advance(timedelta(seconds=11))
    steps(mail, 2)
    assert (run(mail, id).state, queue_stats(mail, "mail").dead) == ("done", 0)
    with refused("TL021", "it is done"):
        call(mail, "abort_run", id)


def test_pause_resume_and_rate(mail: Connection, clock: Clock) -> None:
    bury(mail, "mail", 50)
    id = start(mail, "redrive", {"queue": "mail", "all": True}, rate=10)
    steps(mail)
    assert run(mail, id).done == 1
    # no more than the messages of two seconds, however long there was no upkeep
    clock.advance(timedelta(seconds=100))
    steps(mail)
    assert run(mail, id).done == 21
    assert value(mail, "select trunkline.pause_run(%s)", id) == "running"
    clock.advance(timedelta(seconds=100))
    steps(mail)
    assert (run(mail, id).state, run(mail, id).done) == ("paused", 21)
    assert value(mail, "select trunkline.resume_run(%s)", id) == "paused"
    steps(mail)
    assert run(mail, id).done == 22


def test_a_canary_that_passes(mail: Connection, clock: Clock) -> None:
    bury(mail, "mail", 20)
    id = start(mail, "redrive", {"queue": "mail", "all": True}, canary=5, stop_share=0.2)
    steps(mail)
    assert (run(mail, id).state, run(mail, id).done) == ("canary", 5)
    batch = claim_all(mail, "mail")
    assert contents(batch) == [0, 1, 2, 3, 4]
    settle_all(mail, "ack", batch[:3])
    clock.advance(timedelta(seconds=2))
    steps(mail)
    assert (run(mail, id).state, run(mail, id).done) == ("canary", 5)
    settle_all(mail, "ack", batch[3:4])
    settle_all(mail, "bury", batch[4:])
    clock.advance(timedelta(seconds=2))
    steps(mail, 4)
    row = run(mail, id)
    assert (row.state, row.done, row.failed) == ("done", 20, 1)
    assert "canary passed" in [entry["event"] for entry in row.log]


def test_a_canary_that_fails_stops_the_run_and_keeps_the_rest(mail: Connection, clock: Clock) -> None:
    bury(mail, "mail", 20)
    id = start(mail, "redrive", {"queue": "mail", "all": True}, canary=5, stop_share=0.2)
    steps(mail)
    settle_all(mail, "bury", claim_all(mail, "mail")[:2], p_error="still broken")
    clock.advance(timedelta(seconds=2))
    steps(mail, 3)
    row = run(mail, id)
    assert (row.state, row.reason, row.done) == ("stopped", "2 of 5 messages of the canary failed", 5)
    assert queue_stats(mail, "mail").dead == 17
    assert value(mail, "select trunkline.resume_run(%s)", id) == "stopped"
    steps(mail, 4)
    assert (run(mail, id).state, run(mail, id).done) == ("done", 20)


def test_a_canary_that_nobody_claims_stops_the_run(mail: Connection, clock: Clock) -> None:
    bury(mail, "mail", 20)
    id = start(mail, "redrive", {"queue": "mail", "all": True}, canary=5, canary_timeout=30)
    steps(mail)
    clock.advance(timedelta(seconds=29))
    steps(mail)
    assert run(mail, id).state == "canary"
    clock.advance(timedelta(seconds=2))
    steps(mail)
    assert (run(mail, id).state, run(mail, id).reason) == ("stopped", "no message of the canary was delivered within 30 s")


def test_the_rule_stops_at_a_second_failure_in_the_middle(mail: Connection, clock: Clock) -> None:
    bury(mail, "mail", 400)
    id = start(mail, "redrive", {"queue": "mail", "all": True}, canary=10, rate=50, stop_share=0.1, stop_window=50)
    for _ in range(20):
        steps(mail)
        for delivery in claim_all(mail, "mail"):
            bad = json.loads(delivery.payload) >= 150
            settle_all(mail, "bury" if bad else "ack", [delivery], p_error="second") if bad else settle_all(
                mail, "ack", [delivery]
            )
        clock.advance(timedelta(seconds=1.5))
        if run(mail, id).state == "stopped":
            break
    row = run(mail, id)
    assert row.state == "stopped"
    assert 150 < row.done < 400
    assert "consecutive messages failed again" in row.reason
    assert row.failed == row.done - 150
    assert_conserved(mail, "mail")


def test_what_another_session_has_locked_is_not_forgotten(mail: Connection, connect: Connect) -> None:
    ids = bury(mail, "mail", 5)
    other = connect()
    other.autocommit = False
    other.execute("select from trunkline.dead_letters where id = any (%s) for update", [ids[1:3]])
    id = start(mail, "redrive", {"queue": "mail", "all": True})
    steps(mail, 4)
    assert (run(mail, id).state, run(mail, id).done) == ("running", 3)
    other.rollback()
    steps(mail, 4)
    assert (run(mail, id).state, run(mail, id).done) == ("done", 5)
    assert sorted(contents(claim_all(mail, "mail"))) == [0, 1, 2, 3, 4]


def test_replay_enqueues_what_was_acked_in_the_time(mail: Connection) -> None:
    enqueue(mail, "mail", *range(5))
    settle_all(mail, "ack", claim_all(mail, "mail"))
    run_upkeep(mail, "pass", 2)
    id = start(mail, "replay", {"queue": "mail", "from": str(value(mail, "select now() - interval '1 hour'"))})
    # acked after the run was made: not part of it
    enqueue(mail, "mail", 5)
    settle_all(mail, "ack", claim_all(mail, "mail"))
    steps(mail, 3)
    assert (run(mail, id).state, run(mail, id).total, run(mail, id).done) == ("done", 5, 5)
    assert contents(claim_all(mail, "mail")) == [0, 1, 2, 3, 4]
    assert_conserved(mail, "mail")


def test_purge_of_a_queue(mail: Connection, clock: Clock) -> None:
    enqueue(mail, "mail", *range(5))
    assert call(mail, "preview_run", "purge_queue", Jsonb({"queue": "mail"}))[0][0]["messages"] in (0, 5)
    run_upkeep(mail, "sequence")
    id = start(mail, "purge_queue", {"queue": "mail"})
    clock.advance(timedelta(seconds=11))
    steps(mail)
    assert (run(mail, id).state, run(mail, id).done) == ("done", 5)
    assert claim(mail, "mail") == []


def test_retry_of_jobs_withdraws_their_cancel_requests(mail: Connection) -> None:
    [job] = bury(mail, "mail", 1, p_labels=["send"])
    [other] = bury(mail, "mail", 1)
    call(mail, "cancel_job", job)
    id = start(mail, "retry_jobs", {"queue": "mail", "reason": "buried"})
    steps(mail, 2)
    assert run(mail, id).state == "done"
    assert rows(mail, "select from trunkline.job_cancels") == []
    assert [d.id for d in call(mail, "list_dead_letters", "mail")] == [other]
    assert [d.id for d in claim(mail, "mail")] == [job]


def test_undo_of_a_seek_restores_the_exact_positions(conn: Connection) -> None:
    call(conn, "create_topic", "t", 2)
    call(conn, "create_group", "t", "g")
    publish(conn, "t", *range(10), p_key="a")
    batch = fetch(conn, "t")
    commit(conn, "t", batch, upto=4)
    before = {row.partition: row.committed for row in rows(conn, POSITIONS)}
    assert set(before.values()) == {0, 4}
    call(conn, "seek", "t", "g", "latest")
    [seek] = call(conn, "list_runs")
    assert (seek.kind, seek.state, seek.selector) == ("seek", "done", {"topic": "t", "group": "g", "to": "latest"})
    publish(conn, "t", 10, p_key="a")
    commit(conn, "t", fetch(conn, "t", member="other"))
    assert value(conn, "select trunkline.undo_run(%s)", seek.run_id) == 2
    assert {row.partition: row.committed for row in rows(conn, POSITIONS)} == before
    assert run(conn, seek.run_id).state == "undone"
    with refused("TL021", "it is undone"):
        call(conn, "undo_run", seek.run_id)
    # the undo is a seek itself
    [undo, _] = call(conn, "list_runs")
    call(conn, "undo_run", undo.run_id)
    assert set(value(conn, "select array_agg(committed) from (" + POSITIONS + ") x")) == {0, 11}


def test_only_a_seek_can_be_undone(mail: Connection) -> None:
    bury(mail, "mail", 1)
    id = start(mail, "redrive", {"queue": "mail", "all": True})
    with refused("TL023", "it is a redrive"):
        call(mail, "undo_run", id)


def test_a_step_that_fails_changes_nothing_and_stops_its_run_only(mail: Connection) -> None:
    call(mail, "create_queue", "away")
    call(mail, "create_queue", "fine")
    bury(mail, "mail", 3)
    bury(mail, "fine", 3)
    bad = start(mail, "redrive", {"queue": "mail", "all": True}, to="away")
    good = start(mail, "redrive", {"queue": "fine", "all": True})
    call(mail, "delete_queue", "away", True)
    steps(mail, 3)
    assert (run(mail, bad).state, run(mail, bad).done, queue_stats(mail, "mail").dead) == ("stopped", 0, 3)
    assert "TL011" in run(mail, bad).reason
    assert run(mail, good).state == "done"
    assert [row.run_id for row in call(mail, "list_runs")] == [good, bad]
    assert [row.run_id for row in call(mail, "list_runs", ["stopped"])] == [bad]
    call(mail, "delete_queue", "mail", True)
    call(mail, "resume_run", bad)
    steps(mail)
    assert (run(mail, bad).state, run(mail, bad).reason) == ("aborted", "the queue was deleted")
