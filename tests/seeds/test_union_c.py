"""Features of the field, part C: reading the log. The number in a name is the row of the table."""

from __future__ import annotations

import threading
import time

import pytest

from tests.conftest import Clock, Connection
from tests.sql.verbs import (
    Connect,
    call,
    commit,
    contents,
    fetch,
    head,
    now,
    offsets,
    publish,
    read,
    refused,
    run_together,
    seal,
    upkeep,
    value,
)


@pytest.fixture(autouse=True)
def topic(conn: Connection) -> None:
    call(conn, "create_topic", "t")


def test_row_37_groups_with_their_own_offset(conn: Connection) -> None:
    publish(conn, "t", *range(1, 6))
    fetch(conn, "t", "idle")
    assert commit(conn, "t", fetch(conn, "t", "fast"), group="fast") == "done"
    batch = fetch(conn, "t", "slow", p_limit=2)
    assert contents(batch) == [1, 2]
    assert commit(conn, "t", batch, group="slow") == "done"
    places = {row.group_name: row.next_offset for row in call(conn, "group_stats", "t")}
    assert places == {"fast": 6, "slow": 3, "idle": 1}


def test_row_38_pull_the_next_batch(conn: Connection) -> None:
    publish(conn, "t", *range(1, 8))
    seen = []
    while batch := fetch(conn, "t", p_limit=3):
        seen.append(contents(batch))
        assert commit(conn, "t", batch) == "done"
    assert seen == [[1, 2, 3], [4, 5, 6], [7]]
    assert fetch(conn, "t") == []


def test_row_39_pull_without_advancing(conn: Connection) -> None:
    """A pull moves nothing; a commit finishes everything up to an offset, not one message."""
    publish(conn, "t", *range(1, 6))
    batch = fetch(conn, "t")
    again = fetch(conn, "t", p_generation=batch[0].generation)
    assert offsets(again) == offsets(batch) == [1, 2, 3, 4, 5]
    assert call(conn, "group_stats", "t", "g")[0].next_offset == 1
    assert commit(conn, "t", again, 3) == "done"
    assert contents(fetch(conn, "t", p_generation=batch[0].generation)) == [4, 5]


def test_row_40_ack_is_monotonic_and_idempotent(conn: Connection) -> None:
    publish(conn, "t", *range(1, 6))
    batch = fetch(conn, "t")
    for place, expected in ((4, 5), (4, 5), (2, 5), (1, 5), (5, 6), (5, 6)):
        assert commit(conn, "t", batch, place) == "done"
        assert call(conn, "group_stats", "t", "g")[0].next_offset == expected
    with refused("TL007", "the last fetched offset is"):
        commit(conn, "t", batch, 6)


def test_row_41_claim_ahead_by_range(conn: Connection, connect: Connect, clock: Clock) -> None:
    """At most once: the position moves with the claim. At least once: with the commit. The caller chooses."""
    publish(conn, "t", *range(1, 11))
    dying = connect()
    [taken] = call(dying, "claim_range", "t", "most", 4)
    fetch(dying, "t", "least", p_limit=4)
    dying.close()
    clock.advance(31)
    assert (taken.first_offset, taken.last_offset) == (1, 4)
    assert [tuple(row) for row in call(conn, "claim_range", "t", "most", 100)] == [(0, 5, 10)]
    assert contents(fetch(conn, "t", "least")) == list(range(1, 11))
    call(conn, "init_consumer_group", "recipe", "t")
    assert [tuple(row) for row in call(conn, "claim_offsets", "recipe", 4, "t")] == [(1, 4)]
    assert [row.c_offset for row in call(conn, "get_messages", 1, 4, "t")] == [1, 2, 3, 4]


def test_row_42_members_get_disjoint_ranges(conn: Connection, connect: Connect, clock: Clock) -> None:
    """Concurrently, in both forms; a dead member's messages are redelivered after its lease; its commit is refused."""
    publish(conn, "t", *range(100))
    ranges: list[tuple[int, int]] = []

    def take(mine: Connection) -> None:
        # A member does not wait for a partition that another one has: then it gets nothing.
        end = time.monotonic() + 60
        while len(ranges) < 10 and time.monotonic() < end:
            ranges.extend((row.first_offset, row.last_offset) for row in call(mine, "claim_range", "t", "r", 10))

    run_together([threading.Thread(target=take, args=(connect(),)) for _ in range(3)])
    assert sorted(ranges) == [(first, first + 9) for first in range(1, 101, 10)]
    lost = fetch(conn, "t", member="a", p_limit=10)
    assert fetch(connect(), "t", member="b") == []
    clock.advance(31)
    taken = fetch(connect(), "t", member="b", p_limit=10)
    assert offsets(taken) == offsets(lost)
    assert (commit(conn, "t", lost), commit(conn, "t", taken)) == ("lost", "done")


def test_row_43_implicit_and_explicit_groups(conn: Connection) -> None:
    publish(conn, "t", 1, 2)
    assert contents(fetch(conn, "t", "by-fetch")) == [1, 2]
    call(conn, "create_group", "t", "new", "latest")
    assert fetch(conn, "t", "new") == []
    with refused("TL020"):
        call(conn, "create_group", "t", "new")
    call(conn, "ensure_group", "t", "new")
    with refused("TL012", "create_group('t', 'nope')"):
        fetch(conn, "t", "nope", p_create=False)


def test_row_44_start_replay_and_rewind(conn: Connection, clock: Clock) -> None:
    """Earliest, latest, an offset, a time; at creation and at any time later."""
    publish(conn, "t", 1, 2)
    clock.advance(60)
    middle = now(conn)
    publish(conn, "t", 3, 4)
    for number, (place, expected) in enumerate((("earliest", 1), ("latest", 5), ("2", 2), (middle, 3))):
        call(conn, "create_group", "t", f"g{number}", place)
        assert contents(fetch(conn, "t", f"g{number}")) == [1, 2, 3, 4][expected - 1 :]
    for place, expected in (("latest", 5), ("earliest", 1), (middle, 3), ("2", 2)):
        old = fetch(conn, "t", "g0")
        assert call(conn, "seek", "t", "g0", place) == [(0, expected)]
        assert not old or commit(conn, "t", old, group="g0") == "lost", "who had it before the seek is no longer the owner"
    with refused("TL007"):
        call(conn, "seek", "t", "g0", "6")


def test_row_45_strict_order_per_topic(conn: Connection, connect: Connect) -> None:
    """For every reader the same order, and each publisher's messages in its own."""

    def publish_many(name: str, mine: Connection) -> None:
        for number in range(30):
            publish(mine, "t", [name, number])
            if number % 7 == 0:
                head(mine, "t")

    run_together([threading.Thread(target=publish_many, args=(name, connect())) for name in "abc"])
    log = contents(read(conn, "t"))
    assert offsets(read(conn, "t")) == list(range(1, 91))
    for name in "abc":
        assert [number for who, number in log if who == name] == list(range(30))
    seen = []
    while batch := fetch(conn, "t", p_limit=13):
        seen += contents(batch)
        commit(conn, "t", batch)
    assert seen == log


def test_row_46_read_any_range_again(conn: Connection) -> None:
    publish(conn, "t", *range(1, 21))
    batch = fetch(conn, "t")
    commit(conn, "t", batch)
    assert contents(read(conn, "t", 5, 3)) == contents(read(conn, "t", 5, 3)) == [5, 6, 7]
    assert read(conn, "t", 1, 20) == read(conn, "t")
    assert read(conn, "t", 21) == []
    assert [bytes(row.payload) for row in call(conn, "get_messages", 19, 40, "t")] == [b"19", b"20"]


def test_row_47_messages_stay_after_consumption(conn: Connection, clock: Clock) -> None:
    """Until retention takes them, and then only a whole prefix, said clearly."""
    call(conn, "create_topic", "short", p_segment_rows=16, p_retention="1 hour")
    for name in ("t", "short"):
        publish(conn, name, *range(1, 41))
        commit(conn, name, fetch(conn, name))
        upkeep(conn, 2)
        assert len(read(conn, name)) == 40
    seal(conn, 2)
    clock.advance(7200)
    upkeep(conn, 3)
    assert len(read(conn, "t")) == 40
    with refused("TL006", "32"):
        read(conn, "short")
    assert offsets(read(conn, "short", 32)) == list(range(32, 41))


def test_row_48_partitions_by_key(conn: Connection) -> None:
    """A key always goes to the same partition, in order; messages without one go anywhere; more can be added."""
    call(conn, "create_topic", "wide", 8)
    for number in range(200):
        publish(conn, "wide", number, p_key=f"k{number % 20}")
    parts = [read(conn, "wide", partition=number) for number in range(8)]
    keys = [{message.key for message in part} for part in parts]
    assert sum(len(part) for part in parts) == 200
    assert sum(len(found) for found in keys) == 20
    assert sum(bool(found) for found in keys) > 3
    for part in parts:
        for key in {message.key for message in part}:
            mine = contents(m for m in part if m.key == key)
            assert mine == sorted(mine)
    call(conn, "alter_topic", "wide", p_partitions=10)
    assert len(call(conn, "topic_stats", "wide")) == 10
    assert [read(conn, "wide", partition=number) for number in range(8)] == parts


def test_row_49_reads_from_replicas(conn: Connection) -> None:
    """A range that has offsets is read without writing: so it can be read where nothing can be written.

    On a real standby: tests/e2e/test_faults.py.
    """
    publish(conn, "t", *range(1, 11))
    assert head(conn, "t") == 10
    conn.execute("begin read only")
    assert contents(read(conn, "t", 1, 10)) == list(range(1, 11))
    assert contents(read(conn, "t", 4, 3)) == [4, 5, 6]
    with refused("25006"):
        fetch(conn, "t")
    conn.execute("rollback")


def test_row_50_consumer_lag(conn: Connection, clock: Clock) -> None:
    """In messages and in seconds, per group and partition; exact, and counted without reading messages."""
    publish(conn, "t", *range(1, 8))
    commit(conn, "t", fetch(conn, "t", p_limit=3))
    clock.advance(90)
    publish(conn, "t", 8)
    [stats] = call(conn, "group_stats", "t", "g")
    assert (stats.next_offset, stats.head, stats.lag) == (4, 8, 5)
    assert 90 <= stats.lag_seconds < 100
    commit(conn, "t", fetch(conn, "t"))
    [stats] = call(conn, "group_stats", "t", "g")
    assert (stats.lag, stats.lag_seconds) == (0, 0)
    assert value(conn, "select sum(lag) from trunkline.group_stats()") == 0
