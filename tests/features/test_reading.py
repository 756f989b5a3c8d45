"""Reading the log: groups, positions, order, replay, lag."""

from __future__ import annotations

import threading
import time

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import (
    Connect,
    call,
    claim,
    commit,
    contents,
    enqueue,
    fetch,
    head,
    now,
    offsets,
    publish,
    read,
    refused,
    run_together,
    seal,
    settle,
    upkeep,
    value,
)


@pytest.fixture(autouse=True)
def topic(conn: Connection) -> None:
    call(conn, "create_topic", "t")


def test_each_group_has_a_separate_position(conn: Connection) -> None:
    publish(conn, "t", *range(1, 6))
    fetch(conn, "t", "idle")
    assert commit(conn, "t", fetch(conn, "t", "fast"), group="fast") == "done"
    batch = fetch(conn, "t", "slow", p_limit=2)
    assert contents(batch) == [1, 2]
    assert commit(conn, "t", batch, group="slow") == "done"
    places = {row.group_name: row.next_offset for row in call(conn, "group_stats", "t")}
    assert places == {"fast": 6, "slow": 3, "idle": 1}


def test_a_group_fetches_the_next_batch(conn: Connection) -> None:
    publish(conn, "t", *range(1, 8))
    seen = []
    while batch := fetch(conn, "t", p_limit=3):
        seen.append(contents(batch))
        assert commit(conn, "t", batch) == "done"
    assert seen == [[1, 2, 3], [4, 5, 6], [7]]
    assert fetch(conn, "t") == []


def test_only_a_commit_moves_a_group(conn: Connection) -> None:
    """A pull moves nothing; a commit finishes everything up to an offset, not one message."""
    publish(conn, "t", *range(1, 6))
    batch = fetch(conn, "t")
    again = fetch(conn, "t", p_generation=batch[0].generation)
    assert offsets(again) == offsets(batch) == [1, 2, 3, 4, 5]
    assert call(conn, "group_stats", "t", "g")[0].next_offset == 1
    assert commit(conn, "t", again, 3) == "done"
    assert contents(fetch(conn, "t", p_generation=batch[0].generation)) == [4, 5]


def test_commits_are_monotonic_and_idempotent(conn: Connection) -> None:
    publish(conn, "t", *range(1, 6))
    batch = fetch(conn, "t")
    for place, expected in ((4, 5), (4, 5), (2, 5), (1, 5), (5, 6), (5, 6)):
        assert commit(conn, "t", batch, place) == "done"
        assert call(conn, "group_stats", "t", "g")[0].next_offset == expected
    with refused("TL007", "the last fetched offset is"):
        commit(conn, "t", batch, 6)


def test_a_range_is_claimed_at_most_or_at_least_once(conn: Connection, connect: Connect, clock: Clock) -> None:
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


def test_members_get_disjoint_ranges(conn: Connection, connect: Connect, clock: Clock) -> None:
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


def test_groups_are_created_implicitly_and_explicitly(conn: Connection) -> None:
    publish(conn, "t", 1, 2)
    assert contents(fetch(conn, "t", "by-fetch")) == [1, 2]
    call(conn, "create_group", "t", "new", "latest")
    assert fetch(conn, "t", "new") == []
    with refused("TL020"):
        call(conn, "create_group", "t", "new")
    call(conn, "ensure_group", "t", "new")
    with refused("TL012", "create_group('t', 'nope')"):
        fetch(conn, "t", "nope", p_create=False)


def test_a_group_starts_and_seeks_at_any_position(conn: Connection, clock: Clock) -> None:
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


def test_all_readers_see_one_order(conn: Connection, connect: Connect) -> None:
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


def test_any_range_can_be_read_again(conn: Connection) -> None:
    publish(conn, "t", *range(1, 21))
    batch = fetch(conn, "t")
    commit(conn, "t", batch)
    assert contents(read(conn, "t", 5, 3)) == contents(read(conn, "t", 5, 3)) == [5, 6, 7]
    assert read(conn, "t", 1, 20) == read(conn, "t")
    assert read(conn, "t", 21) == []
    assert [bytes(row.payload) for row in call(conn, "get_messages", 19, 40, "t")] == [b"19", b"20"]


def test_messages_stay_until_retention_removes_them(conn: Connection, clock: Clock) -> None:
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


def test_a_key_stays_in_its_partition(conn: Connection) -> None:
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


def test_reads_of_existing_offsets_write_nothing(conn: Connection) -> None:
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


def test_lag_is_counted_in_messages_and_seconds(conn: Connection, clock: Clock) -> None:
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


def test_a_late_commit_is_not_skipped(conn: Connection, connect: Connect) -> None:
    """Two publishers, the first transaction commits last, a reader pulls and acks in between: no message skipped."""
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t")
    first, second = connect(), connect()
    first.execute("begin")
    publish(first, "t", "first")
    publish(second, "t", "second")
    batch = fetch(conn, "t")
    assert contents(batch) == ["second"]
    assert commit(conn, "t", batch) == "done"
    [delivery] = claim(conn, "q")
    settle(conn, "ack", delivery.receipt)
    first.execute("commit")
    assert contents(fetch(conn, "t")) == contents(claim(conn, "q")) == ["first"]


def test_members_of_a_group_get_disjoint_messages(conn: Connection, connect: Connect) -> None:
    """Two members of one group pull at once: disjoint messages."""
    call(conn, "alter_topic", "t", p_partitions=4)
    for n in range(200):
        publish(conn, "t", n, p_key=str(n))
    call(conn, "create_group", "t", "g")
    got: dict[str, list[int]] = {"a": [], "b": []}
    start = threading.Barrier(2)

    def pull(member: str, mine: Connection) -> None:
        start.wait()
        for _ in range(20):
            batch = fetch(mine, "t", member=member, p_limit=10)
            if batch:
                got[member] += contents(batch)
                commit(mine, "t", batch)

    run_together([threading.Thread(target=pull, args=(member, connect())) for member in got])
    while batch := fetch(conn, "t", member="a") or fetch(conn, "t", member="b"):
        got["a"] += contents(batch)
    assert not set(got["a"]) & set(got["b"])
    assert sorted(got["a"] + got["b"]) == list(range(200))


def test_a_dead_members_messages_are_redelivered(conn: Connection, connect: Connect, clock: Clock) -> None:
    """A member dies after pull or claim: its messages are redelivered to the group."""
    call(conn, "create_queue", "q")
    publish(conn, "t", 1, 2)
    enqueue(conn, "q", 1, 2)
    dying = connect()
    assert len(fetch(dying, "t", member="a")) == len(claim(dying, "q")) == 2
    dying.close()
    assert fetch(conn, "t", member="b") == claim(conn, "q") == []
    clock.advance(31)
    assert contents(fetch(conn, "t", member="b")) == contents(claim(conn, "q")) == [1, 2]


def test_a_group_replays_from_an_offset_or_a_time(conn: Connection, clock: Clock) -> None:
    """Replay a group to an offset or time."""
    publish(conn, "t", 1, 2)
    clock.advance(60)
    middle = now(conn)
    publish(conn, "t", 3, 4)
    batch = fetch(conn, "t")
    commit(conn, "t", batch)
    call(conn, "seek", "t", "g", "2")
    assert contents(fetch(conn, "t")) == [2, 3, 4]
    call(conn, "seek", "t", "g", middle)
    assert contents(fetch(conn, "t")) == [3, 4]
