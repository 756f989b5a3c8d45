"""Failures and lifetime: retries, dead letters, expiry, retention, crashes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from uuid import uuid4

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import (
    assert_conserved,
    call,
    claim,
    claim_all,
    commit,
    contents,
    enqueue,
    fetch,
    passes,
    publish,
    queue_stats,
    read,
    refused,
    rows,
    settle,
    settle_all,
    upkeep,
    value,
)


def delays(conn: Connection, clock: Clock, queue: str, attempts: int) -> list[float]:
    """Delay of a message after each failed attempt, with the queue's own backoff."""
    found = []
    for _ in range(attempts):
        [delivery] = claim(conn, queue)
        settle(conn, "nack", delivery.receipt)
        passes(conn)
        due = "select extract(epoch from due_at - trunkline.clock())::float8 from trunkline._returned(%s)"
        found.append(value(conn, due, value(conn, "select trunkline.queue_number(%s)", queue)))
        clock.advance(found[-1] + 1)
    return found


def test_a_failed_message_is_retried_by_itself(conn: Connection, clock: Clock) -> None:
    """After a nack or an expired lease, until it works, without a request."""
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1)
    [first] = claim(conn, "q")
    settle(conn, "nack", first.receipt)
    clock.advance(5)
    [second] = claim(conn, "q")
    clock.advance(31)
    [third] = claim(conn, "q")
    assert [d.attempt for d in (first, second, third)] == [1, 2, 3]
    assert settle(conn, "ack", third.receipt) == ["done"]
    clock.advance(timedelta(days=1))
    upkeep(conn)
    assert claim(conn, "q") == []


def test_retries_back_off_exponentially(conn: Connection, clock: Clock) -> None:
    """Base, factor, cap; jitter spreads it, by no more than it says."""
    call(conn, "create_queue", "even", p_backoff_base="2 s", p_backoff_factor=3, p_backoff_cap="20 s", p_backoff_jitter=0)
    enqueue(conn, "even", 1)
    for found, expected in zip(delays(conn, clock, "even", 4), [2, 6, 18, 20], strict=True):
        assert expected - 1 < found <= expected
    call(conn, "create_queue", "spread", p_backoff_base="100 s", p_backoff_factor=1, p_backoff_jitter=0.5, p_max_attempts=99)
    enqueue(conn, "spread", 1)
    many = delays(conn, clock, "spread", 40)
    assert all(49 < found <= 150 for found in many)
    assert max(many) - min(many) > 20


def test_the_last_attempt_makes_a_dead_letter(conn: Connection, clock: Clock) -> None:
    """Attempts may be nacked or never settled; the message is never in both places."""
    call(conn, "create_queue", "q", p_max_attempts=3)
    enqueue(conn, "q", "nacked", "silent")
    for attempt in (1, 2, 3):
        deliveries = claim(conn, "q")
        assert [d.attempt for d in deliveries] == [attempt] * 2
        for delivery in deliveries:
            if contents([delivery]) == ["nacked"]:
                settle(conn, "nack", delivery.receipt, p_delay="0")
        clock.advance(31)
        passes(conn)
    assert claim(conn, "q") == []
    dead = call(conn, "list_dead_letters", "q")
    assert sorted(contents(dead)) == ["nacked", "silent"]
    assert {(letter.attempts, letter.reason) for letter in dead} == {(3, "attempts")}
    assert assert_conserved(conn, "q").dead == 2


def test_dead_letters_are_listed_redriven_and_purged(conn: Connection) -> None:
    """List, look at one, send back (here or elsewhere), remove; per queue, in pages and bounded steps."""
    for name in ("q", "other", "repair"):
        call(conn, "create_queue", name)
    ids = enqueue(conn, "q", *range(10), p_key="k", p_label="l", p_headers='{"h": 1}', p_routing_key="r")
    enqueue(conn, "other", 99)
    for name in ("q", "other"):
        settle_all(conn, "bury", claim_all(conn, name), p_error="broken")
    first = call(conn, "list_dead_letters", "q", 0, 4)
    rest = call(conn, "list_dead_letters", "q", first[-1].dead_id)
    assert [letter.id for letter in first + rest] == ids
    [one] = call(conn, "get_dead_letter", "q", ids[3])
    assert (one.key, one.label, one.headers, one.routing_key, one.error) == ("k", "l", {"h": 1}, "r", "broken")
    with refused("TL014"):
        call(conn, "get_dead_letter", "other", ids[3])
    assert value(conn, "select trunkline.redrive('q', %s)", [ids[3], uuid4()]) == 1
    [back] = claim(conn, "q")
    assert (back.id, back.attempt, back.headers) == (ids[3], 1, {"h": 1})
    assert value(conn, "select trunkline.redrive('q', p_to => 'repair', p_limit => 4)") == 4
    assert [delivery.id for delivery in claim(conn, "repair")] == [ids[n] for n in (0, 1, 2, 4)]
    assert [value(conn, "select trunkline.purge_dead_letters('q', p_limit => 3)") for _ in range(3)] == [3, 2, 0]
    assert len(call(conn, "list_dead_letters", "other")) == 1


def test_a_dead_letter_has_the_last_error(conn: Connection) -> None:
    call(conn, "create_queue", "q", p_max_attempts=2)
    enqueue(conn, "q", 1)
    for error in ("first", "second: ü\nline 2"):
        settle(conn, "nack", claim(conn, "q")[0].receipt, p_delay="0", p_error=error)
    assert [letter.error for letter in call(conn, "list_dead_letters", "q")] == ["second: ü\nline 2"]


def test_each_queue_counts_its_attempts(conn: Connection, clock: Clock) -> None:
    """Each queue on a topic counts its own attempts of the same message; a group delivers again until it is committed."""
    call(conn, "create_topic", "t")
    for name, limit in (("a", 2), ("b", 9)):
        call(conn, "create_queue", name, p_max_attempts=limit)
        call(conn, "subscribe", name, "t")
    publish(conn, "t", 1)
    for attempt in (1, 2):
        for name in ("a", "b"):
            [delivery] = claim(conn, name)
            assert delivery.attempt == attempt
            settle(conn, "nack", delivery.receipt, p_delay="0")
    assert (queue_stats(conn, "a").dead, queue_stats(conn, "b").dead) == (1, 0)
    assert claim(conn, "b")[0].attempt == 3
    for member in ("m1", "m2", "m3"):
        assert contents(batch := fetch(conn, "t", member=member)) == [1]
        clock.advance(31)
    assert commit(conn, "t", batch) == "lost"


def test_an_expired_message_is_not_delivered(conn: Connection, clock: Clock) -> None:
    """Expired messages are not delivered, also not after a return; they are counted, not lost."""
    call(conn, "create_queue", "q", p_ttl="1 minute", p_lease="5 minutes")
    enqueue(conn, "q", "retried", "unread")
    [delivery] = claim(conn, "q", 1)
    clock.advance(59)
    assert settle(conn, "nack", delivery.receipt, p_delay="0") == ["done"]
    enqueue(conn, "q", "young")
    clock.advance(2)
    young = claim_all(conn, "q")
    assert contents(young) == ["young"]
    assert settle_all(conn, "ack", young) == ["done"]
    audit = assert_conserved(conn, "q")
    assert (audit.expired, audit.acked) == (2, 1)


def test_completed_messages_are_removed_on_demand_and_by_upkeep(conn: Connection, clock: Clock) -> None:
    for name in ("by-hand", "by-itself"):
        call(conn, "create_queue", name, p_segment_rows=16, p_retention="1 hour")
        enqueue(conn, name, *range(32))
        settle_all(conn, "ack", claim(conn, name, 100))
    assert value(conn, "select trunkline.trim_queue('by-hand')") == 3, (
        "ids begin at 1, so the third segment has a message too"
    )
    assert value(conn, "select trunkline.trim_queue('by-hand')") == 0
    [by_hand] = rows(conn, "select inbox_id from trunkline.list_queues() where name = 'by-hand'")
    assert value(conn, f"select count(*) from trunkline.topic_{by_hand.inbox_id}") == 0
    clock.advance(7200)
    upkeep(conn, 8)
    clock.advance(7200)
    upkeep(conn, 8)
    for queue in call(conn, "list_queues"):
        assert value(conn, f"select count(*) from trunkline.topic_{queue.inbox_id}") == 0, queue.name
        enqueue(conn, queue.name, "next")
        assert contents(claim(conn, queue.name)) == ["next"]


def test_retention_limits_time_and_size(conn: Connection, clock: Clock) -> None:
    """Never of what a reader still needs, unless the topic has a hard limit; and then it says so."""
    call(conn, "create_topic", "time", p_segment_rows=16, p_retention="1 hour")
    call(conn, "create_topic", "size", p_segment_rows=16, p_retention_bytes=100_000)
    call(conn, "create_topic", "held", p_segment_rows=16, p_retention="1 hour")
    call(conn, "create_topic", "hard", p_segment_rows=16, p_retention="1 hour", p_hard_retention="90 minutes")
    for topic in ("held", "hard"):
        call(conn, "create_group", topic, "slow")
    for topic in ("time", "size", "held", "hard"):
        for _ in range(5):
            call(conn, "publish_many", topic, [os.urandom(2000)] * 16)
    upkeep(conn, 8)
    clock.advance(7200)
    upkeep(conn, 4)
    lowest = {row.topic: row.earliest_offset for row in call(conn, "topic_stats")}
    assert (lowest["time"] > 64, lowest["size"] > 1, lowest["held"], lowest["hard"] > 64) == (True, True, 1, True)
    assert value(conn, "select bytes from trunkline.topic_stats('size')") <= 200_000
    assert {row.detail["topic"] for row in rows(conn, "select detail from trunkline.alerts")} == {"hard"}
    assert len(fetch(conn, "held", "slow")) == 80
    with refused("TL006", str(lowest["time"])):
        read(conn, "time", 1)


@pytest.mark.parametrize("when", ["claimed", "settling"])
def test_a_killed_worker_loses_nothing(conn: Connection, db: str, clock: Clock, when: str) -> None:
    """kill -9 of the worker's process, after the claim and in the middle of its transaction. More: tests/chaos."""
    call(conn, "create_queue", "q")
    ids = enqueue(conn, "q", *range(5))
    code = (
        "import sys, psycopg; conn = psycopg.connect(sys.argv[1], autocommit=True);"
        "got = [r[0] for r in conn.execute(\"select receipt from trunkline.claim('q', 10)\").fetchall()];"
        "sys.argv[2] == 'settling' and (conn.execute('begin'), conn.execute('select trunkline.ack(%s)', (got,)));"
        "print(len(got), flush=True); sys.stdin.read()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code, db, when], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout
    assert worker.stdout.readline() == "5\n"
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(30)
    clock.advance(31)
    again = claim_all(conn, "q")
    assert sorted(delivery.id for delivery in again) == sorted(ids)
    assert {delivery.attempt for delivery in again} == {2}
    assert settle_all(conn, "ack", again) == ["done"] * 5
    assert assert_conserved(conn, "q").acked == 5
