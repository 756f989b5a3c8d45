"""Stats: the numbers of a scripted day, and the law that none is lost (promise Q1)."""

from __future__ import annotations

import random

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import (
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
    run_upkeep,
    settle,
    upkeep,
    value,
)


def test_the_states_of_a_queue_after_a_scripted_day(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q", p_ttl="1 day")
    enqueue(conn, "q", *range(10))
    enqueue(conn, "q", "later", p_delay="1 hour")
    a, b, c, d, *_ = claim(conn, "q", 5)
    settle(conn, "ack", a.receipt)
    settle(conn, "nack", b.receipt, p_delay="10 minutes")
    settle(conn, "bury", c.receipt)
    settle(conn, "release", d.receipt)
    stats = queue_stats(conn, "q")
    assert (stats.ready, stats.delayed, stats.leased, stats.dead, stats.acked) == (6, 2, 1, 1, 1)
    clock.advance(20)
    assert 20 <= queue_stats(conn, "q").oldest_age < 50
    clock.advance(700)
    passes(conn, 2)
    stats = queue_stats(conn, "q")
    assert (stats.ready, stats.delayed, stats.leased) == (8, 1, 0)
    clock.advance(90_000)
    run_upkeep(conn, "pass", 2)
    assert contents(claim(conn, "q", 100)) == ["later"]
    stats = queue_stats(conn, "q")
    assert (stats.ready, stats.expired, stats.leased, stats.acked, stats.dead) == (0, 8, 1, 1, 1)
    assert_conserved(conn, "q")


def test_messages_that_wait_for_the_delivery_delay_are_delayed(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q", p_delivery_delay="1 minute")
    enqueue(conn, "q", 1, 2)
    assert claim(conn, "q") == []
    stats = queue_stats(conn, "q")
    assert (stats.ready, stats.delayed) == (0, 2)
    clock.advance(61)
    stats = queue_stats(conn, "q")
    assert (stats.ready, stats.delayed) == (2, 0)


def test_an_empty_queue_is_all_zeros(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    assert tuple(queue_stats(conn, "q")) == ("q", 0, 0, 0, 0, 0, 0, 0, 0, False)


def test_stats_of_all_and_of_one(conn: Connection) -> None:
    for name in ("a", "b"):
        call(conn, "create_queue", name)
        call(conn, "create_topic", name)
        call(conn, "create_group", name, "g")
    assert [row.queue for row in call(conn, "queue_stats")] == ["a", "b"]
    assert [row.topic for row in call(conn, "topic_stats")] == ["a", "b"]
    assert [row.topic for row in call(conn, "group_stats")] == ["a", "b"]
    assert [row.topic for row in call(conn, "group_stats", "b")] == ["b"]
    for verb, code in (
        ("queue_stats", "TL011"),
        ("topic_stats", "TL010"),
        ("group_stats", "TL010"),
        ("audit_queue", "TL011"),
    ):
        with refused(code, "'nope'"):
            call(conn, verb, "nope")
    with refused("TL012", '"nope"'):
        call(conn, "group_stats", "a", "nope")


def test_topic_stats(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t", 2)
    empty = call(conn, "topic_stats", "t")
    assert [(s.partition, s.earliest_offset, s.head, s.rate_per_second, s.delayed) for s in empty] == [
        (0, 1, 0, 0, 0),
        (1, 1, 0, 0, 0),
    ]
    for n in range(60):
        publish(conn, "t", n, p_key=str(n))
        clock.advance(0.5)
        if n % 10 == 0:
            call(conn, "topic_stats")
    publish(conn, "t", "later", p_delay="1 hour")
    stats = call(conn, "topic_stats", "t")
    assert sum(row.head for row in stats) == 60
    assert 1 <= sum(row.rate_per_second for row in stats) <= 3
    assert {row.delayed for row in stats} == {1}
    assert all(row.bytes > 0 and row.segments == 1 for row in stats)
    clock.advance(120)
    assert sum(row.rate_per_second for row in call(conn, "topic_stats", "t")) == 0


def test_group_stats(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    publish(conn, "t", *range(10))
    batch = fetch(conn, "t", p_limit=6)
    value(conn, "select trunkline.commit('t', 'g', 0, %s, 4)", batch[0].generation)
    [stats] = call(conn, "group_stats", "t", "g")
    assert tuple(stats)[:7] == ("t", "g", 0, 5, 6, 10, 6)
    assert (stats.member, stats.deadline) == ("m", batch[0].deadline)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("ordered", [False, True])
def test_none_is_lost_or_doubled_by_any_order_of_verbs(conn: Connection, clock: Clock, ordered: bool, seed: int) -> None:
    choose = random.Random(seed)
    call(conn, "create_topic", "t", p_segment_rows=16, p_retention="5 minutes")
    call(
        conn, "create_queue", "q", p_ordered=ordered, p_max_attempts=3, p_ttl="20 minutes", p_segment_rows=16, p_partitions=2
    )
    call(conn, "subscribe", "q", "t", "keep.#")
    receipts: list[str] = []
    finished: set[str] = set()
    for step in range(150):
        action = choose.choice(["in", "in", "claim", "claim", "settle", "settle", "wait", "upkeep", "odd"])
        if action == "in":
            enqueue(conn, "q", step, p_key=str(step))
            publish(conn, "t", step, p_routing_key=choose.choice(["keep.x", "drop.x"]))
        elif action == "claim":
            batch = claim(conn, "q", choose.randint(1, 5))
            assert not {str(delivery.id) for delivery in batch} & finished
            receipts += [delivery.receipt for delivery in batch]
            names = {delivery.receipt: str(delivery.id) for delivery in batch}
            if batch and choose.random() < 0.5:
                done = settle(conn, "ack", batch[0].receipt)
                finished |= {names[batch[0].receipt]} if done == ["done"] else set()
        elif action == "settle" and receipts:
            some = choose.sample(receipts, min(3, len(receipts)))
            verb = choose.choice(["nack", "release", "extend", "bury"])
            assert set(settle(conn, verb, *some)) <= {"done", "lost", "unknown"}
        elif action == "wait":
            clock.advance(choose.choice([1, 10, 40, 200]))
        elif action == "upkeep":
            upkeep(conn)
        elif step % 5 == 0:
            call(conn, "redrive", "q")
        elif step % 11 == 0:
            call(conn, "purge_queue", "q")
        assert_conserved(conn, "q")
    clock.advance(3600)
    for _ in range(20):
        settle(conn, "ack", *[delivery.receipt for delivery in claim_all(conn, "q")])
    passes(conn, 3)
    audit = assert_conserved(conn, "q")
    assert (audit.ready, audit.pending, audit.leased) == (0, 0, 0)


def test_statistics_of_all_queues_keep_no_lock_on_their_sequences(conn: Connection) -> None:
    for name in ("a", "b", "c"):
        call(conn, "create_queue", name)
        enqueue(conn, name, 1)
        claim(conn, name)
    with conn.transaction():
        assert len(call(conn, "queue_stats")) == 3
        assert (
            value(
                conn,
                "select count(*) from pg_locks k join pg_class c on c.oid = k.relation"
                " where k.pid = pg_backend_pid() and c.relname ~ '^cursor_'",
            )
            == 0
        )


def test_stats_show_every_state(conn: Connection) -> None:
    """Stats show visible, leased, delayed, dead."""
    call(conn, "create_queue", "q")
    enqueue(conn, "q", *range(8))
    enqueue(conn, "q", "later", p_delay="1 hour")
    a, b, _ = claim(conn, "q", 3)
    settle(conn, "bury", a.receipt)
    settle(conn, "nack", b.receipt, p_delay="1 hour")
    stats = queue_stats(conn, "q")
    assert (stats.ready, stats.leased, stats.delayed, stats.dead) == (5, 1, 2, 1)
