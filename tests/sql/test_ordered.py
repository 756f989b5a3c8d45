"""Ordered queues: one open lease per partition, and nothing overtakes a message of its key (promise Q9)."""

from __future__ import annotations

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import assert_conserved, call, claim, contents, enqueue, passes, queue_stats, refused, settle


@pytest.fixture(autouse=True)
def queue(conn: Connection) -> None:
    call(conn, "create_queue", "o", p_ordered=True, p_backoff_base="10 seconds", p_backoff_jitter=0.0)


def test_one_open_lease_at_a_time(conn: Connection) -> None:
    enqueue(conn, "o", *range(5))
    first, second = claim(conn, "o", 2)
    assert claim(conn, "o") == []
    settle(conn, "ack", first.receipt)
    assert claim(conn, "o") == []
    settle(conn, "ack", second.receipt)
    assert contents(claim(conn, "o")) == [2, 3, 4]


def test_one_open_lease_per_partition(conn: Connection) -> None:
    call(conn, "create_queue", "wide", p_ordered=True, p_partitions=4)
    for n in range(40):
        enqueue(conn, "wide", n, p_key=str(n % 8))
    batches = [claim(conn, "wide", 3) for _ in range(6)]
    homes = [{delivery.partition for delivery in batch} for batch in batches if batch]
    used = [partition for home in homes for partition in home]
    assert len(used) == len(set(used))
    seen: dict[str, list[int]] = {}
    while any(batches):
        for batch in batches:
            for delivery in batch:
                seen.setdefault(delivery.key, []).extend(contents([delivery]))
            settle(conn, "ack", *[delivery.receipt for delivery in batch])
        batches = [claim(conn, "wide", 3)]
    assert {key: numbers == sorted(numbers) for key, numbers in seen.items()} == {str(n): True for n in range(8)}
    assert sum(map(len, seen.values())) == 40


def test_nack_sends_the_rest_of_the_lease_back_without_an_attempt(conn: Connection, clock: Clock) -> None:
    enqueue(conn, "o", *range(4))
    a, b, c, d = claim(conn, "o")
    assert settle(conn, "ack", a.receipt) == ["done"]
    assert settle(conn, "nack", b.receipt) == ["done"]
    assert settle(conn, "ack", c.receipt, d.receipt) == ["lost", "lost"]
    assert claim(conn, "o") == []
    clock.advance(11)
    [again] = claim(conn, "o")
    assert (contents([again]), again.attempt) == ([1], 2)
    assert claim(conn, "o") == []
    settle(conn, "ack", again.receipt)
    rest = claim(conn, "o")
    assert (contents(rest), {delivery.attempt for delivery in rest}) == ([2, 3], {1})
    assert_conserved(conn, "o")


def test_acked_behind_a_nack_stays_acked(conn: Connection, clock: Clock) -> None:
    enqueue(conn, "o", *range(3))
    a, _, c = claim(conn, "o")
    settle(conn, "ack", c.receipt)
    settle(conn, "nack", a.receipt, p_delay="0")
    got = []
    for _ in range(5):
        batch = claim(conn, "o")
        got += contents(batch)
        settle(conn, "ack", *[delivery.receipt for delivery in batch])
    assert got == [0, 1]
    assert queue_stats(conn, "o").acked == 3


def test_new_messages_wait_behind_one_that_is_delayed(conn: Connection, clock: Clock) -> None:
    enqueue(conn, "o", 1)
    [delivery] = claim(conn, "o")
    settle(conn, "nack", delivery.receipt)
    enqueue(conn, "o", 2)
    assert claim(conn, "o") == []
    clock.advance(11)
    assert contents(claim(conn, "o")) == [1]


def test_an_expired_lease_comes_back_in_order(conn: Connection, clock: Clock) -> None:
    enqueue(conn, "o", *range(4))
    old = claim(conn, "o", 3)
    clock.advance(31)
    new = claim(conn, "o", 2)
    assert (contents(new), {delivery.attempt for delivery in new}) == ([0, 1], {2})
    assert settle(conn, "ack", *[delivery.receipt for delivery in old]) == ["lost"] * 3
    settle(conn, "ack", *[delivery.receipt for delivery in new])
    assert contents(claim(conn, "o")) == [2]


def test_extending_a_part_keeps_the_whole_lease(conn: Connection, clock: Clock) -> None:
    enqueue(conn, "o", 1, 2)
    first, second = claim(conn, "o")
    settle(conn, "extend", second.receipt, p_for="5 minutes")
    clock.advance(31)
    passes(conn)
    assert claim(conn, "o") == []
    clock.advance(300)
    assert settle(conn, "ack", first.receipt, second.receipt) == ["lost", "lost"]
    got = []
    for _ in range(3):
        batch = claim(conn, "o")
        got += contents(batch)
        settle(conn, "ack", *[delivery.receipt for delivery in batch])
    assert got == [1, 2]


def test_a_whole_extended_lease_stays(conn: Connection, clock: Clock) -> None:
    enqueue(conn, "o", 1, 2)
    receipts = [delivery.receipt for delivery in claim(conn, "o")]
    settle(conn, "extend", *receipts, p_for="5 minutes")
    clock.advance(31)
    passes(conn)
    assert claim(conn, "o") == []
    assert settle(conn, "ack", *receipts) == ["done", "done"]


def test_the_last_attempt_makes_room(conn: Connection, clock: Clock) -> None:
    call(conn, "alter_queue", "o", p_max_attempts=1)
    enqueue(conn, "o", 1, 2, 3)
    first, second, third = claim(conn, "o")
    settle(conn, "nack", first.receipt)
    assert queue_stats(conn, "o").dead == 1
    assert settle(conn, "ack", second.receipt) == ["done"]
    assert settle(conn, "bury", third.receipt) == ["done"]
    enqueue(conn, "o", 4)
    assert contents(claim(conn, "o")) == [4]


def test_ttl_holds_for_what_came_back(conn: Connection, clock: Clock) -> None:
    call(conn, "alter_queue", "o", p_ttl="60 seconds")
    enqueue(conn, "o", "old")
    [delivery] = claim(conn, "o")
    settle(conn, "nack", delivery.receipt, p_delay="0")
    clock.advance(61)
    enqueue(conn, "o", "fresh")
    assert contents([*claim(conn, "o"), *claim(conn, "o")]) == ["fresh"]
    assert queue_stats(conn, "o").expired == 1
    assert_conserved(conn, "o")


def test_labels_do_not_go_with_order(conn: Connection) -> None:
    with refused("TL023", '"o"'):
        claim(conn, "o", p_labels=["a"])
