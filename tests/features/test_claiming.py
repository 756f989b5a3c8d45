"""Claiming from queues: leases, settling, order, completed messages."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import (
    Connect,
    assert_conserved,
    call,
    claim,
    claim_all,
    contents,
    enqueue,
    passes,
    queue_stats,
    refused,
    rows,
    run_together,
    settle,
    settle_all,
    upkeep,
    value,
)


@pytest.fixture(autouse=True)
def queue(conn: Connection) -> None:
    call(conn, "create_queue", "q")


def test_concurrent_claims_neither_wait_nor_overlap(conn: Connection, connect: Connect) -> None:
    """No consumer waits for another's open work or gets another's message."""
    call(conn, "enqueue_many", "q", [b"%d" % n for n in range(400)])
    got: list[list[int]] = [[] for _ in range(4)]

    def work(mine: Connection, found: list[int]) -> None:
        while batch := claim(mine, "q", 7):
            found += contents(batch)
            settle_all(mine, "ack", batch[:3])
            settle_all(mine, "release", batch[3:4])
            settle_all(mine, "ack", batch[4:])

    run_together([threading.Thread(target=work, args=(connect(), found)) for found in got])
    for delivery in claim_all(conn, "q"):
        settle(conn, "ack", delivery.receipt)
    assert {n for found in got for n in found} == set(range(400))
    assert assert_conserved(conn, "q").acked == 400


def test_a_claim_has_a_limit(conn: Connection) -> None:
    for size in (1000, 500):
        call(conn, "enqueue_many", "q", [b"1"] * size)
    assert [len(claim(conn, "q", n)) for n in (1, 10, 1000, 1000)] == [1, 10, 1000, 489]
    with refused("TL001", "limit"):
        claim(conn, "q", 1001)


def test_a_lease_is_set_by_queue_or_claim(conn: Connection, clock: Clock) -> None:
    """Per queue, and per call where the caller knows better."""
    call(conn, "create_queue", "long", p_lease="1 hour")
    for queue in ("q", "long"):
        enqueue(conn, queue, 1, 2)
    claim(conn, "q", 1)
    claim(conn, "q", 1, p_lease="10 minutes")
    claim(conn, "long")
    seen = []
    for step in (31, 600, 3600):
        clock.advance(step)
        seen.append((contents(claim(conn, "q", p_lease="12 hours")), contents(claim(conn, "long"))))
    assert seen == [([1], []), ([2], []), ([], [1, 2])]


def test_an_expired_lease_is_redelivered(conn: Connection, connect: Connect, clock: Clock) -> None:
    """Without anybody's help: the next claim finds it, counted as another attempt."""
    [id_] = enqueue(conn, "q", 1)
    gone = connect()
    claim(gone, "q")
    gone.close()
    clock.advance(29)
    assert claim(conn, "q") == []
    clock.advance(2)
    [again] = claim(conn, "q")
    assert (again.id, again.attempt) == (id_, 2)


def test_a_receipt_acks_one_delivery(conn: Connection) -> None:
    """By a receipt that belongs to this delivery alone; others of the same claim stay out."""
    enqueue(conn, "q", 1, 2, 3)
    a, b, c = claim(conn, "q")
    assert len({a.receipt, b.receipt, c.receipt}) == 3
    assert settle(conn, "ack", b.receipt) == ["done"]
    assert settle(conn, "ack", b.receipt[:-1] + ("0" if b.receipt[-1] != "0" else "1")) == ["lost"]
    assert settle(conn, "ack", "nonsense", a.receipt) == ["unknown", "done"]
    stats = queue_stats(conn, "q")
    assert (stats.acked, stats.leased) == (2, 1)


def test_a_nack_delays_the_next_attempt(conn: Connection, clock: Clock) -> None:
    """Of the caller's choice, zero too; and it holds against an early claim."""
    enqueue(conn, "q", "now", "later", "much later")
    now, later, much = claim(conn, "q")
    settle(conn, "nack", now.receipt, p_delay="0")
    settle(conn, "nack", later.receipt, p_delay="10 minutes", p_error="busy")
    settle(conn, "nack", much.receipt, p_delay="1 day")
    assert contents(claim(conn, "q", p_lease="12 hours")) == ["now"]
    clock.advance(540)
    upkeep(conn)
    assert claim(conn, "q") == []
    clock.advance(61)
    assert contents(claim(conn, "q", p_lease="12 hours")) == ["later"]
    with refused("TL005", "delay"):
        settle(conn, "nack", much.receipt, p_delay="-1 second")


def test_attempts_are_counted(conn: Connection) -> None:
    enqueue(conn, "q", 1)
    seen = []
    for verb in ("nack", "release", "nack", "nack"):
        [delivery] = claim(conn, "q")
        seen.append(delivery.attempt)
        settle(conn, verb, delivery.receipt, **({"p_delay": "0"} if verb == "nack" else {}))
    assert seen == [1, 2, 2, 3], "what is released counts no attempt"


def test_a_claim_selects_labels(conn: Connection) -> None:
    """Nothing is lost or kept back by passing it over; an oldest message of another label does not block."""
    for number in range(12):
        enqueue(conn, "q", number, p_label="abc"[number % 3])
    assert contents(claim(conn, "q", 2, p_labels=["c"])) == [2, 5]
    passes(conn)
    assert sorted(contents(claim(conn, "q", 100, p_labels=["b", "c"]))) == [1, 4, 7, 8, 10, 11]
    assert claim(conn, "q", p_labels=["nobody", "b"]) == []
    rest = claim_all(conn, "q")
    assert (contents(rest), {delivery.attempt for delivery in rest}) == ([0, 3, 6, 9], {1})
    assert assert_conserved(conn, "q").leased == 12


def test_a_lease_names_its_consumer(conn: Connection) -> None:
    enqueue(conn, "q", 1, 2)
    for consumer in ("worker-1", "worker-2"):
        claim(conn, "q", 1, p_consumer=consumer)
    query = "select consumer, outcome from trunkline.deliveries where queue = 'q' order by first_offset"
    assert rows(conn, query) == [("worker-1", None), ("worker-2", None)]


def test_a_lease_is_extended(conn: Connection, clock: Clock) -> None:
    """Again and again, some messages of a claim and not others; never shorter than it was."""
    enqueue(conn, "q", 1, 2)
    kept, left = claim(conn, "q")
    for _ in range(10):
        clock.advance(20)
        assert settle(conn, "extend", kept.receipt, p_for="30 seconds") == ["done"]
    [again] = claim(conn, "q")
    assert contents([again]) == [2]
    assert settle(conn, "extend", left.receipt) == ["lost"]
    settle(conn, "extend", kept.receipt, p_for="1 hour")
    settle(conn, "extend", kept.receipt, p_for="1 second")
    clock.advance(1800)
    assert settle(conn, "ack", kept.receipt) == ["done"]


def test_a_lost_lease_is_a_result(conn: Connection, clock: Clock) -> None:
    """For each receipt separately: a worker stops the job that it lost, and continues with the others."""
    enqueue(conn, "q", 1)
    [lost] = claim(conn, "q")
    clock.advance(31)
    [taken] = claim(conn, "q")
    enqueue(conn, "q", 2)
    [mine] = claim(conn, "q")
    for verb in ("extend", "ack", "nack", "bury", "release"):
        assert settle(conn, verb, lost.receipt) == ["lost"]
    assert settle(conn, "extend", lost.receipt, mine.receipt) == ["lost", "done"]
    assert settle(conn, "ack", lost.receipt, taken.receipt, mine.receipt) == ["lost", "done", "done"]


def test_the_oldest_message_is_claimed_first(conn: Connection, clock: Clock) -> None:
    enqueue(conn, "q", *range(10))
    assert contents(claim(conn, "q", 4)) == [0, 1, 2, 3]
    clock.advance(31)
    passes(conn)
    assert contents(claim(conn, "q", 100)) == list(range(10)), "what came back goes before what is new"


def test_a_claim_belongs_to_the_callers_transaction(conn: Connection, connect: Connect) -> None:
    """Commit keeps claim and work together; a rollback gives the message back at once, with no attempt counted."""
    conn.execute("create table public.work (n int)")
    enqueue(conn, "q", 1)
    other = connect()
    for end in ("rollback", "commit"):
        other.execute("begin")
        [delivery] = claim(other, "q")
        other.execute("insert into public.work values (1)")
        settle(other, "ack", delivery.receipt)
        other.execute(end)
        assert delivery.attempt == 1
    assert value(conn, "select count(*) from public.work") == 1
    assert claim(conn, "q") == []
    enqueue(conn, "q", 2)
    with conn.transaction():
        [job] = call(conn, "claim_job", "q")
        assert (bytes(job.payload), value(conn, "select trunkline.archive_job(%s)", job.id)) == (b"2", "done")


def test_completed_messages_can_be_queried(conn: Connection) -> None:
    """Acked messages can be queried: payload, arrival and completion time."""
    [id_] = enqueue(conn, "q", {"n": 1})
    enqueue(conn, "q", "open")
    settle(conn, "ack", claim(conn, "q", 1)[0].receipt)
    upkeep(conn, 2)
    [done] = rows(conn, "select * from trunkline.completed where queue = 'q'")
    assert (done.id, contents([done])) == (id_, [{"n": 1}])
    assert done.created_at <= done.processed_at


def test_completed_messages_are_kept_until_retention(conn: Connection, clock: Clock) -> None:
    """By retention on its own, or now by hand; open ones are not touched."""
    call(conn, "create_queue", "small", p_segment_rows=16, p_retention="1 day", p_lease="12 hours")
    enqueue(conn, "small", *range(40))
    [inbox] = rows(conn, "select inbox_id from trunkline.list_queues() where name = 'small'")
    table = f"trunkline.topic_{inbox.inbox_id}"
    settle_all(conn, "ack", claim(conn, "small", 32))
    [kept] = claim(conn, "small", 1)
    upkeep(conn, 4)
    assert value(conn, f"select count(*) from {table}") == 40
    assert value(conn, "select trunkline.trim_queue('small')") >= 1
    assert value(conn, f"select count(*) from {table}") < 40
    assert settle(conn, "nack", kept.receipt, p_delay="0") == ["done"]
    settle_all(conn, "ack", claim_all(conn, "small"))
    clock.advance(timedelta(days=2))
    upkeep(conn, 6)
    clock.advance(timedelta(days=2))
    upkeep(conn, 6)
    assert value(conn, f"select count(*) from {table}") == 0
    assert queue_stats(conn, "small").acked == 40
