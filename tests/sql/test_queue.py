"""Queues: claims, settlement, redelivery, settings, and functions on whole queues."""

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
    fetch,
    passes,
    publish,
    queue_stats,
    refused,
    rows,
    run_together,
    sequence,
    settle,
    settle_all,
    upkeep,
    value,
)


def attempts(conn: Connection, queue: str) -> list[int]:
    return [delivery.attempt for delivery in claim(conn, queue)]


def test_message_goes_from_enqueue_to_ack(conn: Connection) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", {"n": 1})
    [delivery] = claim(conn, "mail")
    assert (delivery.attempt, delivery.payload, delivery.topic) == (1, b'{"n": 1}', None)
    assert claim(conn, "mail") == []
    assert settle(conn, "ack", delivery.receipt) == ["done"]
    assert settle(conn, "ack", delivery.receipt) == ["done"]
    for verb in ("nack", "bury", "release", "extend"):
        assert settle(conn, verb, delivery.receipt) == ["lost"]
    assert_conserved(conn, "mail")


def test_expired_lease_can_do_nothing_and_message_returns(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", 1)
    [old] = claim(conn, "mail")
    clock.advance(31)
    assert settle(conn, "ack", old.receipt) == ["lost"]
    [new] = claim(conn, "mail")
    assert new.attempt == 2
    assert settle(conn, "extend", old.receipt) == ["lost"]
    assert settle(conn, "ack", old.receipt, new.receipt) == ["lost", "done"]
    clock.advance(3600)
    assert claim(conn, "mail") == []


def test_claim_answers_in_order_and_at_most_what_was_asked_for(conn: Connection) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", *range(25))
    batches = [claim(conn, "mail", 10, p_consumer="c") for _ in range(4)]
    assert [len(batch) for batch in batches] == [10, 10, 5, 0]
    assert contents(delivery for batch in batches for delivery in batch) == list(range(25))
    assert len({delivery.receipt for batch in batches for delivery in batch}) == 25


def test_two_claims_at_once_are_disjoint(conn: Connection, connect: Connect) -> None:
    call(conn, "create_queue", "mail", p_partitions=4)
    for n in range(200):
        enqueue(conn, "mail", n, p_key=str(n))
    other = connect()
    other.execute("begin")
    theirs = claim(other, "mail", 50)
    ours = claim(conn, "mail", 1000)
    other.execute("commit")
    rest = claim(conn, "mail", 1000)
    assert sorted(contents([*theirs, *ours, *rest])) == list(range(200))


def test_a_claim_rolled_back_did_not_happen(conn: Connection) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", 1)
    conn.execute("begin")
    [gone] = claim(conn, "mail")
    conn.execute("rollback")
    assert settle(conn, "ack", gone.receipt) == ["lost"]
    [again] = claim(conn, "mail")
    assert again.attempt == 1
    assert settle(conn, "ack", gone.receipt, again.receipt) == ["lost", "done"]


def test_an_ack_in_the_callers_transaction_counts_only_with_it(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", 1)
    [delivery] = claim(conn, "mail")
    conn.execute("begin")
    assert settle(conn, "ack", delivery.receipt) == ["done"]
    conn.execute("rollback")
    assert queue_stats(conn, "mail").leased == 1
    assert settle(conn, "ack", delivery.receipt) == ["done"]
    clock.advance(3600)
    assert claim(conn, "mail") == []


def test_an_open_ack_wins_over_expiry(conn: Connection, connect: Connect, clock: Clock) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", 1)
    [delivery] = claim(conn, "mail")
    worker = connect()
    worker.execute("begin")
    assert settle(worker, "ack", delivery.receipt) == ["done"]
    clock.advance(31)
    passes(conn)
    assert claim(conn, "mail") == []
    worker.execute("commit")
    passes(conn)
    assert claim(conn, "mail") == []
    assert queue_stats(conn, "mail").acked == 1


def test_receipts_of_one_lease_are_settled_as_those_of_many(conn: Connection) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", *range(6))
    first, *rest = (delivery.receipt for delivery in claim(conn, "mail", 5))
    [other] = claim(conn, "mail")
    tail = first.partition(".")[2]
    assert settle(conn, "ack", rest[2], first) == ["done", "done"]
    assert settle(conn, "ack", f"77.{tail}", *rest, f"0{first}") == ["unknown", *["done"] * 5]
    assert settle(conn, "ack", first, rest[0], other.receipt) == ["done", "done", "done"]
    # a comma in a receipt must not hide that one is missing
    with refused("TL001", "receipts must not contain null"):
        conn.execute("select trunkline.ack(%s)", ([first, f"{rest[0]},{rest[1]}", None],))
    assert value(conn, "select trunkline.ack_lease(%s, %s)", tail, [2**63 - 1, 1]) == ["unknown", "done"]


def test_answers_are_per_receipt_and_in_input_order(conn: Connection) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", *range(4))
    a, b, c, d = (delivery.receipt for delivery in claim(conn, "mail"))
    settle(conn, "bury", b)
    assert settle(conn, "ack", d, "nonsense", b, a, a, c) == ["done", "unknown", "lost", "done", "done", "done"]
    assert_conserved(conn, "mail")


@pytest.mark.parametrize("verb", ["ack", "nack", "bury", "release", "extend"])
def test_a_receipt_given_twice_counts_once(conn: Connection, verb: str) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", 1)
    [delivery] = claim(conn, "mail")
    assert set(settle(conn, verb, *[delivery.receipt] * 10)) == {"done"}
    assert assert_conserved(conn, "mail").accepted == 1


def test_nack_waits_for_its_delay_and_keeps_the_error(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "mail", p_max_attempts=2)
    enqueue(conn, "mail", 1)
    [delivery] = claim(conn, "mail")
    settle(conn, "nack", delivery.receipt, p_delay="30 seconds", p_error="no route")
    assert queue_stats(conn, "mail").delayed == 1
    clock.advance(25)
    assert claim(conn, "mail") == []
    clock.advance(6)
    [again] = claim(conn, "mail")
    assert again.attempt == 2
    settle(conn, "nack", again.receipt, p_error="still no route")
    [dead] = call(conn, "list_dead_letters", "mail")
    assert (dead.attempts, dead.error, dead.reason) == (2, "still no route", "attempts")


def test_release_does_not_count_an_attempt(conn: Connection) -> None:
    call(conn, "create_queue", "mail", p_max_attempts=1)
    enqueue(conn, "mail", 1)
    for _ in range(5):
        [delivery] = claim(conn, "mail")
        assert delivery.attempt == 1
        assert settle(conn, "release", delivery.receipt) == ["done"]
    assert queue_stats(conn, "mail").dead == 0


def test_extend_keeps_one_receipt_and_not_its_neighbours(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", *range(3))
    kept, *others = claim(conn, "mail")
    assert settle(conn, "extend", kept.receipt, p_for="2 minutes") == ["done"]
    clock.advance(31)
    assert sorted(contents(claim(conn, "mail"))) == [1, 2]
    assert settle(conn, "ack", *[delivery.receipt for delivery in others]) == ["lost", "lost"]
    clock.advance(60)
    assert settle(conn, "extend", kept.receipt, p_for="2 minutes") == ["done"]
    clock.advance(60)
    assert settle(conn, "ack", kept.receipt) == ["done"]
    assert_conserved(conn, "mail")


def test_extend_never_shortens_a_lease(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", 1)
    [delivery] = claim(conn, "mail")
    assert settle(conn, "extend", delivery.receipt, p_for="1 second") == ["done"]
    clock.advance(20)
    assert claim(conn, "mail") == []
    assert settle(conn, "ack", delivery.receipt) == ["done"]


def test_an_extended_lease_ends_too(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", 1)
    [delivery] = claim(conn, "mail")
    settle(conn, "extend", delivery.receipt, p_for="60 seconds")
    clock.advance(40)
    assert claim(conn, "mail") == []
    clock.advance(21)
    assert settle(conn, "ack", delivery.receipt) == ["lost"]
    assert attempts(conn, "mail") == [2]


def test_attempts_are_counted_at_delivery_and_expiry_uses_them_up(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "mail", p_max_attempts=3)
    enqueue(conn, "mail", 1)
    for attempt in (1, 2, 3):
        assert attempts(conn, "mail") == [attempt]
        clock.advance(31)
    assert claim(conn, "mail") == []
    [dead] = call(conn, "list_dead_letters", "mail")
    assert (dead.attempts, dead.reason, dead.error) == (3, "attempts", "the lease expired before the message was settled")
    assert_conserved(conn, "mail")


def test_backoff_grows_by_its_factor_up_to_its_cap(conn: Connection) -> None:
    settings = {"p_backoff_base": "2 seconds", "p_backoff_factor": 3.0, "p_backoff_cap": "50 seconds"}
    call(conn, "create_queue", "mail", p_max_attempts=1000, p_backoff_jitter=0.0, **settings)
    waits = rows(conn, "select trunkline._backoff(q, a) from trunkline.queues q, unnest(array[1,2,3,4,5,900]) a")
    assert [wait.total_seconds() for (wait,) in waits] == [2, 6, 18, 50, 50, 50]
    call(conn, "alter_queue", "mail", p_backoff_jitter=0.25)
    waits = rows(conn, "select trunkline._backoff(q, 2) from trunkline.queues q, generate_series(1, 200)")
    seconds = [wait.total_seconds() for (wait,) in waits]
    assert 4.5 <= min(seconds) < 5.5
    assert 6.5 < max(seconds) <= 7.5


def test_nack_without_a_delay_uses_the_backoff(conn: Connection, clock: Clock) -> None:
    settings = {"p_backoff_base": "100 seconds", "p_backoff_factor": 2.0, "p_backoff_jitter": 0.0}
    call(conn, "create_queue", "mail", **settings)
    enqueue(conn, "mail", 1)
    for wait in (100, 200, 400):
        [delivery] = claim(conn, "mail")
        settle(conn, "nack", delivery.receipt)
        clock.advance(wait - 20)
        assert claim(conn, "mail") == []
        clock.advance(21)


def test_labels_are_claimed_apart_and_the_others_stay(conn: Connection) -> None:
    call(conn, "create_queue", "jobs")
    for n, label in enumerate(["a", "b", None, "a", "c", "b"]):
        enqueue(conn, "jobs", n, p_label=label)
    assert contents(claim(conn, "jobs", p_labels=["b"])) == [1, 5]
    assert claim(conn, "jobs", p_labels=["b"]) == []
    assert queue_stats(conn, "jobs").ready == 4
    rest = claim(conn, "jobs", p_labels=["a", "c"])
    assert sorted(contents(rest)) == [0, 3, 4]
    assert {delivery.attempt for delivery in rest} == {1}
    assert contents(claim(conn, "jobs")) == [2]
    assert_conserved(conn, "jobs")


def test_ttl_expires_what_was_never_claimed_and_what_came_back(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "mail", p_ttl="60 seconds")
    enqueue(conn, "mail", "returned", "old")
    [returned] = claim(conn, "mail", 1)
    settle(conn, "nack", returned.receipt, p_delay="0")
    clock.advance(61)
    enqueue(conn, "mail", "fresh")
    assert contents(claim(conn, "mail")) == ["fresh"]
    assert claim(conn, "mail") == []
    assert queue_stats(conn, "mail").expired == 2
    assert_conserved(conn, "mail")


def test_delivery_delay_holds_every_message_back(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "mail", p_delivery_delay="10 seconds")
    enqueue(conn, "mail", 1)
    clock.advance(6)
    enqueue(conn, "mail", 2)
    assert claim(conn, "mail") == []
    clock.advance(5)
    assert contents(claim(conn, "mail")) == [1]
    clock.advance(5)
    assert contents(claim(conn, "mail")) == [2]


def test_a_paused_queue_takes_in_and_settles_but_gives_nothing_out(conn: Connection) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", 1)
    [delivery] = claim(conn, "mail")
    call(conn, "pause_queue", "mail")
    enqueue(conn, "mail", 2)
    assert claim(conn, "mail") == []
    assert settle(conn, "nack", delivery.receipt, p_delay="0") == ["done"]
    assert claim(conn, "mail") == []
    assert queue_stats(conn, "mail").paused
    call(conn, "resume_queue", "mail")
    assert sorted(contents(claim(conn, "mail"))) == [1, 2]


def test_purge_removes_what_is_not_leased(conn: Connection) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", *range(10))
    kept, returned = claim(conn, "mail", 2)
    settle(conn, "nack", returned.receipt, p_delay="1 hour")
    enqueue(conn, "mail", "later", p_delay="1 hour")
    assert value(conn, "select trunkline.purge_queue('mail')") >= 9
    assert claim(conn, "mail") == []
    assert settle(conn, "ack", kept.receipt) == ["done"]
    stats = queue_stats(conn, "mail")
    assert (stats.ready, stats.delayed, stats.leased, stats.acked, stats.purged) == (0, 0, 0, 1, 10)
    assert_conserved(conn, "mail")


def test_purge_removes_what_an_open_label_claim_has_passed_over(conn: Connection, connect: Connect) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", 1, 2, p_label="slow")
    enqueue(conn, "mail", 3, p_label="fast")
    other = connect()
    with other.transaction():
        (kept,) = claim(other, "mail", 10, p_labels=["fast"])
        call(conn, "purge_queue", "mail")
    for _ in range(3):
        assert claim(conn, "mail") == []
        assert_conserved(conn, "mail")
        sequence(conn)
    assert queue_stats(conn, "mail").purged == 2
    assert settle(conn, "ack", kept.receipt) == ["done"]


def send_back(conn: Connection, connect: Connect, *values: object) -> None:
    """One message returns after a nack, one because its claim was rolled back; both are due in the next pass."""
    enqueue(conn, "mail", *values)
    other = connect()
    other.execute("begin")
    claim(other, "mail", 1)
    other.execute("rollback")
    passes(conn)
    settle(conn, "nack", *(each.receipt for each in claim(conn, "mail", 1)), p_delay="0")


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_purge_removes_what_a_pass_returns_meanwhile(conn: Connection, connect: Connect, end: str) -> None:
    call(conn, "create_queue", "mail")
    send_back(conn, connect, 1, 2)
    other = connect()
    other.execute("begin")
    call(other, "run_pass", ["mail"])
    call(conn, "purge_queue", "mail")
    enqueue(conn, "mail", 3)
    other.execute(end)
    passes(conn)
    (kept,) = claim(conn, "mail", 10)
    settle(conn, "nack", kept.receipt, p_delay="0")
    passes(conn)
    assert contents(claim(conn, "mail", 10)) == [3]
    passes(conn)
    assert_conserved(conn, "mail")
    stats = queue_stats(conn, "mail")
    assert (stats.ready, stats.leased, stats.purged) == (0, 1, 2)


def test_purge_that_stays_open_takes_what_passes_return_meanwhile(conn: Connection, connect: Connect) -> None:
    call(conn, "create_queue", "mail")
    send_back(conn, connect, 1, 2)
    other = connect()
    other.execute("begin")
    call(other, "purge_queue", "mail")
    passes(conn)
    other.execute("commit")
    send_back(conn, connect, 3, 4)
    passes(conn)
    assert sorted(contents(claim(conn, "mail", 10))) == [3, 4]
    passes(conn)
    assert_conserved(conn, "mail")
    assert queue_stats(conn, "mail").purged == 2


def test_purge_that_stays_open_takes_nothing_that_comes_after_it(conn: Connection, connect: Connect) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", 0)
    other = connect()
    other.execute("begin")
    call(other, "purge_queue", "mail")
    send_back(conn, connect, 1, 2)
    passes(conn)
    other.execute("commit")
    passes(conn)
    assert sorted(contents(claim(conn, "mail", 10))) == [1, 2]
    passes(conn)
    assert_conserved(conn, "mail")


@pytest.mark.parametrize("ordered", [False, True])
def test_a_purge_takes_nothing_that_comes_after_it_when_the_clock_is_set_back(
    conn: Connection, clock: Clock, ordered: bool
) -> None:
    call(conn, "create_queue", "mail", p_ordered=ordered)
    enqueue(conn, "mail", "old", "older", p_key="k")
    leased = claim(conn, "mail", 1)
    call(conn, "purge_queue", "mail")
    clock.advance(-3600)
    enqueue(conn, "mail", 1, 2, p_label="slow", p_key="k")
    if ordered:
        assert settle(conn, "ack", leased[0].receipt) == ["done"]
    else:
        # one passes them over, one sends one of them back
        assert claim(conn, "mail", 10, p_labels=["fast"]) == []
        sequence(conn)
    (first,) = claim(conn, "mail", 1)
    settle(conn, "nack", first.receipt, p_delay="0")
    found = []
    for _ in range(3):
        sequence(conn)
        deliveries = claim(conn, "mail", 10)
        found += contents(deliveries)
        settle(conn, "ack", *(each.receipt for each in deliveries))
    assert sorted(found) == [1, 2]
    assert_conserved(conn, "mail")


@pytest.mark.parametrize("count", [1, 3])
def test_claim_that_returned_messages_itself_and_was_rolled_back(conn: Connection, count: int) -> None:
    """Without a service a claim runs the pass in its own transaction: both are undone, but the draw is not."""
    call(conn, "create_queue", "mail", p_backoff_base="0")
    enqueue(conn, "mail", *range(count))
    for _ in range(5):
        got = claim(conn, "mail", 10)
        assert len(got) == count
        settle(conn, "release", *[row.receipt for row in got])
        with conn.transaction(force_rollback=True):
            assert len(claim(conn, "mail", 10)) == count
        assert_conserved(conn, "mail")
        stats = queue_stats(conn, "mail")
        assert (stats.ready, stats.leased, stats.delayed) == (count, 0, 0)


@pytest.mark.parametrize("newest", ["seen by a pass", "not seen by a pass"])
def test_rows_of_another_cluster_count_once(conn: Connection, newest: str) -> None:
    """After a restore, rows have numbers of transactions that this cluster has not used yet, and will use."""
    call(conn, "create_queue", "mail", p_backoff_base="0")
    enqueue(conn, "mail", *range(4))
    one, two, three = claim(conn, "mail", 3)
    settle(conn, "ack", one.receipt)
    sequence(conn)
    settle(conn, "nack", two.receipt)
    if newest == "seen by a pass":
        sequence(conn)
    for table in ("leases", "settled"):
        conn.execute(f"update trunkline.{table} set xid = (xid::text::bigint + 500)::text::xid8".encode())
    conn.execute(
        "update trunkline.passes set snapshot = format('%s:%s:', pg_snapshot_xmin(snapshot)::text::bigint + 500,"
        " pg_snapshot_xmax(snapshot)::text::bigint + 500)::pg_snapshot"
    )
    sequence(conn)
    found = claim(conn, "mail")
    assert sorted((row.payload, row.attempt) for row in found) == [(b"1", 2), (b"3", 1)]
    sequence(conn)
    for _ in range(800):
        conn.execute("select pg_current_xact_id()")
    for _ in range(3):
        sequence(conn)
        assert claim(conn, "mail") == []
    stats = queue_stats(conn, "mail")
    assert (stats.ready, stats.delayed, stats.leased, stats.acked) == (0, 0, 3, 1)
    assert_conserved(conn, "mail")
    assert settle(conn, "ack", three.receipt, *[row.receipt for row in found]) == ["done"] * 3


def test_pass_with_the_number_of_a_row_of_another_cluster_counts_it_once(conn: Connection) -> None:
    """The first pass after a restore may itself get a number that an old row has."""
    call(conn, "create_queue", "mail", p_backoff_base="0")
    enqueue(conn, "mail", *range(4))
    one, two, _ = claim(conn, "mail", 3)
    settle(conn, "ack", one.receipt)
    settle(conn, "release", two.receipt)
    sequence(conn)
    before = rows(conn, "select * from trunkline.audit_queue('mail')")
    conn.execute(
        "update trunkline.passes set snapshot = format('%s:%s:', pg_snapshot_xmin(snapshot)::text::bigint + 500,"
        " pg_snapshot_xmax(snapshot)::text::bigint + 500)::pg_snapshot"
    )
    with conn.transaction():
        number = value(conn, "select pg_current_xact_id()::text")
        for table in ("leases", "settled"):
            conn.execute(f"update trunkline.{table} set xid = %s::xid8".encode(), [number])
        # a new message, so that the pass has something to do
        enqueue(conn, "mail", 4)
        assert value(conn, "select trunkline._pass(null)") is not None
    for _ in range(3):
        sequence(conn)
    [(accepted, ready, *rest)] = before
    assert rows(conn, "select * from trunkline.audit_queue('mail')") == [(accepted + 1, ready + 1, *rest)]
    assert sorted(row.payload for row in claim(conn, "mail")) == [b"1", b"3", b"4"]


def test_cleanup_removes_finished_messages_now(conn: Connection) -> None:
    call(conn, "create_queue", "mail", p_segment_rows=16)
    enqueue(conn, "mail", *range(40))
    settle(conn, "ack", *[delivery.receipt for delivery in claim(conn, "mail", 39)])
    last = claim(conn, "mail", 1)
    assert value(conn, "select trunkline.trim_queue('mail')") >= 1
    settle(conn, "nack", last[0].receipt, p_delay="0")
    last = claim(conn, "mail", 1)
    assert contents(last) == [39]
    settle(conn, "ack", last[0].receipt)
    value(conn, "select trunkline.trim_queue('mail')")
    assert value(conn, "select count(*) from trunkline.topic_1") == 0
    enqueue(conn, "mail", "next")
    assert contents(claim(conn, "mail")) == ["next"]
    assert_conserved(conn, "mail")


def test_create_ensure_alter_list_delete(conn: Connection) -> None:
    [made] = call(conn, "create_queue", "b", p_lease="10 seconds", p_max_attempts=5)
    assert (made.lease, made.max_attempts, made.ordered, made.paused) == (timedelta(seconds=10), 5, False, False)
    with refused("TL020", 'queue "b" already exists'):
        call(conn, "create_queue", "b")
    assert call(conn, "ensure_queue", "b") == [made]
    assert call(conn, "ensure_queue", "a")[0].max_attempts == 20
    [changed] = call(conn, "alter_queue", "b", p_lease="20 seconds", p_ttl="1 day", p_max_payload=3)
    assert (changed.lease, changed.max_attempts, changed.ttl) == (timedelta(seconds=20), 5, timedelta(days=1))
    with refused("TL003", "3"):
        enqueue(conn, "b", 1234)
    assert [queue.name for queue in call(conn, "list_queues")] == ["a", "b"]
    enqueue(conn, "b", 1)
    [delivery] = claim(conn, "b")
    settle(conn, "bury", delivery.receipt)
    with refused("TL021", "dead letters"):
        call(conn, "delete_queue", "b")
    call(conn, "delete_queue", "b", True)
    assert [queue.name for queue in call(conn, "list_queues")] == ["a"]
    with refused("TL011", 'queue "b" does not exist'):
        enqueue(conn, "b", 1)
    call(conn, "create_queue", "b")
    assert claim(conn, "b") == []


def test_a_new_lease_time_holds_for_new_claims(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "mail", p_lease="10 seconds")
    enqueue(conn, "mail", 1, 2)
    call(conn, "claim", "mail", 1)
    call(conn, "claim", "mail", 1, p_lease="100 seconds")
    clock.advance(50)
    assert contents(claim(conn, "mail")) == [1]


def test_claims_and_acks_are_as_durable_as_they_say(conn: Connection) -> None:
    call(conn, "create_queue", "mail")
    enqueue(conn, "mail", 1, 2)
    claim(conn, "mail", 1)
    with conn.transaction():
        [delivery] = claim(conn, "mail", 1, p_relaxed=True)
        assert value(conn, "show synchronous_commit") == "off"
        settle(conn, "ack", delivery.receipt)
        assert value(conn, "show synchronous_commit") == "on"
    enqueue(conn, "mail", 3)
    with conn.transaction():
        claim(conn, "mail", 1, p_relaxed=True)
        assert value(conn, "show synchronous_commit") == "on", "it had to give out offsets"


def test_a_queue_reads_its_inbox_and_its_topics(conn: Connection) -> None:
    call(conn, "create_topic", "news")
    call(conn, "create_queue", "mail")
    call(conn, "subscribe", "mail", "news")
    enqueue(conn, "mail", "inbox")
    publish(conn, "news", "topic")
    assert {(d.topic, d.payload) for d in claim(conn, "mail")} == {(None, b'"inbox"'), ("news", b'"topic"')}


def test_ensure_makes_it_so(conn: Connection) -> None:
    first = call(conn, "ensure_queue", "q", p_lease="1 minute", p_ttl="1 hour", p_partitions=2)[0]
    assert (str(first.lease), first.max_attempts) == ("0:01:00", 20)
    assert (
        call(conn, "ensure_queue", "q") == call(conn, "ensure_queue", "q", p_lease="60 seconds", p_ordered=False) == [first]
    )
    changed = call(conn, "ensure_queue", "q", p_max_attempts=3, p_ttl="0", p_history="0", p_retention="2 days")[0]
    assert (changed.max_attempts, changed.ttl, changed.history, changed.lease) == (3, None, None, first.lease)
    assert str(call(conn, "get_queue", "q")[0].retention) == "2 days, 0:00:00"
    for named in ({"p_ordered": True}, {"p_partitions": 1}, {"p_priorities": 3}):
        with refused("TL020", 'queue "q" already exists with'):
            call(conn, "ensure_queue", "q", p_max_attempts=9, **named)
    with refused("TL005", "lease"):
        call(conn, "ensure_queue", "q", p_lease="0")
    assert call(conn, "get_queue", "q")[0].max_attempts == 3
    levels = call(conn, "ensure_queue", "levels", p_priorities=3)[0]
    assert call(conn, "ensure_queue", "levels", p_priorities=3, p_partitions=1) == [levels]


def test_a_nacked_message_is_invisible_for_its_delay(conn: Connection, clock: Clock) -> None:
    """nack with 30 s: invisible for 30 s."""
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1)
    settle(conn, "nack", claim(conn, "q")[0].receipt, p_delay="30 seconds")
    clock.advance(28)
    upkeep(conn)
    assert claim(conn, "q") == []
    clock.advance(3)
    assert contents(claim(conn, "q")) == [1]


def test_an_acked_message_never_returns(conn: Connection, connect: Connect, clock: Clock) -> None:
    """ack and nack of one message in parallel, 1000 times: an acked message never returns."""
    call(conn, "create_queue", "q", p_lease="12 hours")
    call(conn, "enqueue_many", "q", [str(n).encode() for n in range(1000)])
    receipts = [delivery.receipt for n in range(10) for delivery in claim(conn, "q", 100)]
    assert len(receipts) == 1000
    answers: dict[str, list[str]] = {"ack": [], "nack": []}
    step = threading.Barrier(2, timeout=60)

    def answer(verb: str, mine: Connection) -> None:
        for receipt in receipts:
            step.wait()
            named = {} if verb == "ack" else {"p_delay": "0"}
            answers[verb] += settle(mine, verb, receipt, **named)

    run_together([threading.Thread(target=answer, args=(verb, connect())) for verb in answers])
    outcome = list(zip(answers["ack"], answers["nack"], strict=True))
    assert set(outcome) <= {("done", "lost"), ("lost", "done")}
    returned = [n for n, pair in enumerate(outcome) if pair == ("lost", "done")]
    clock.advance(24 * 3600)
    upkeep(conn)
    assert sorted(contents(claim_all(conn, "q"))) == returned


def test_a_late_ack_is_refused(conn: Connection, clock: Clock) -> None:
    """Late ack with an old lease: refused, and does not complete the new holder's delivery."""
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1)
    [old] = claim(conn, "q")
    clock.advance(31)
    [new] = claim(conn, "q")
    assert settle(conn, "ack", old.receipt) == ["lost"]
    assert queue_stats(conn, "q").leased == 1
    assert settle(conn, "nack", new.receipt, p_delay="0") == ["done"]
    assert len(claim(conn, "q")) == 1


@pytest.mark.parametrize("name", ["order", "My-Queue", "q" * 64, "q" * 200])
def test_odd_names_work(conn: Connection, name: str) -> None:
    """Queue named `order`, `My-Queue`, 63+ characters: works or clean error."""
    call(conn, "create_queue", name)
    call(conn, "create_topic", name)
    call(conn, "subscribe", name, name)
    enqueue(conn, name, 1)
    publish(conn, name, 2)
    deliveries = claim(conn, name)
    assert sorted(contents(deliveries)) == [1, 2]
    assert settle_all(conn, "ack", deliveries) == ["done", "done"]
    assert contents(fetch(conn, name, name, name)) == [2]
    upkeep(conn)
    call(conn, "delete_queue", name)
    call(conn, "delete_topic", name, True)


def pages(conn: Connection, query: str) -> int:
    """Pages that a query touches, as the least of several runs: the first ones fill caches."""
    counts = []
    for _ in range(4):
        [(plan,)] = conn.execute("explain (analyze, buffers, format json) " + query).fetchall()  # type: ignore[arg-type]
        top = plan[0]["Plan"]
        counts.append(top["Shared Hit Blocks"] + top["Shared Read Blocks"])
    return min(counts)


def finish(conn: Connection, batches: int) -> None:
    for _ in range(batches):
        call(conn, "enqueue_many", "q", [b"1"] * 1000)
        settle_all(conn, "ack", claim(conn, "q", 1000))


def test_completed_messages_do_not_slow_a_claim(conn: Connection) -> None:
    """A table full of finished messages: the work of a claim is unchanged."""
    call(conn, "create_queue", "q")
    finish(conn, 2)
    call(conn, "enqueue_many", "q", [b"1"] * 100)
    claim(conn, "q", 1)
    before = pages(conn, "select * from trunkline.claim('q', 10)")
    settle_all(conn, "ack", claim(conn, "q", 100))
    finish(conn, 200)
    call(conn, "enqueue_many", "q", [b"1"] * 100)
    claim(conn, "q", 1)
    after = pages(conn, "select * from trunkline.claim('q', 10)")
    assert after <= 1.5 * before + 20
