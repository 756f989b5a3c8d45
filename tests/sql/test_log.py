"""The log: dense offsets, reading again, finding places, segments and retention."""

from __future__ import annotations

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import (
    Connect,
    assert_conserved,
    call,
    claim,
    commit,
    contents,
    fetch,
    head,
    now,
    offsets,
    passes,
    publish,
    queue_stats,
    read,
    refused,
    rows,
    run_upkeep,
    seal,
    settle,
    settle_all,
    value,
)


def test_offsets_are_dense_over_rollbacks(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    for n in range(20):
        conn.execute("begin")
        publish(conn, "t", n)
        conn.execute("rollback" if n % 3 == 0 else "commit")
        if n % 5 == 0:
            head(conn, "t")
    messages = read(conn, "t")
    assert offsets(messages) == list(range(1, 14))
    assert contents(messages) == [n for n in range(20) if n % 3]


def test_a_whole_segment_of_ids_may_be_rolled_back(conn: Connection) -> None:
    """The segment goes with its transaction: no reader needs it, not even where ticks of both sides are merged."""
    call(conn, "create_topic", "t", p_segment_rows=16)
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t")
    publish(conn, "t", *range(10))
    assert head(conn, "t") == 10
    conn.execute("begin")
    conn.execute("select trunkline.publish_many('t', array_fill('1'::bytea, array[60]))")
    conn.execute("rollback")
    publish(conn, "t", *range(10, 15))
    assert head(conn, "t") == 15
    publish(conn, "t", 15)
    assert head(conn, "t") == 16
    assert value(conn, "select to_regclass('trunkline.topic_1_0_2') is null")
    run_upkeep(conn, "rotate", 3)
    assert contents(read(conn, "t")) == list(range(16))
    assert contents(claim(conn, "q", 100)) == list(range(16))
    assert contents(fetch(conn, "t")) == list(range(16))


def test_late_commit_gets_later_offsets_and_no_offset_changes(conn: Connection, connect: Connect) -> None:
    call(conn, "create_topic", "t")
    slow = connect()
    slow.execute("begin")
    publish(slow, "t", "slow")
    publish(conn, "t", "a", "b")
    before = read(conn, "t")
    assert contents(before) == ["a", "b"]
    slow.execute("commit")
    after = read(conn, "t")
    assert contents(after) == ["a", "b", "slow"]
    assert after[:2] == before
    assert offsets(after) == [1, 2, 3]


def test_a_gap_waits_for_its_owner_however_long(conn: Connection, connect: Connect, clock: Clock) -> None:
    call(conn, "create_topic", "t")
    slow = connect()
    slow.execute("begin")
    publish(slow, "t", "slow")
    for n in range(5):
        publish(conn, "t", n)
        conn.execute("begin")
        publish(conn, "t", "rolled back")
        conn.execute("rollback")
        head(conn, "t")
        clock.advance(60)
    slow.execute("commit")
    publish(conn, "t", "last")
    assert sorted(map(str, contents(read(conn, "t")))) == ["0", "1", "2", "3", "4", "last", "slow"]


def test_gaps_are_forgotten_while_an_unrelated_writer_stays_open(conn: Connection, connect: Connect, clock: Clock) -> None:
    call(conn, "create_topic", "t")
    conn.execute("create table public.business (n int)")
    writer = connect()
    writer.execute("begin")
    writer.execute("insert into public.business values (1)")
    for n in range(30):
        conn.execute("begin")
        publish(conn, "t", n)
        conn.execute("rollback" if n % 2 else "commit")
        head(conn, "t")
        clock.advance(2)
    assert value(conn, "select whole from trunkline.ticks order by first_offset desc limit 1")
    writer.execute("commit")
    assert contents(read(conn, "t")) == list(range(0, 30, 2))


def test_read_is_bounded_and_empty_at_the_head(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    assert read(conn, "t") == []
    publish(conn, "t", *range(10))
    assert offsets(read(conn, "t", 4, 3)) == [4, 5, 6]
    assert offsets(read(conn, "t", 9, 100)) == [9, 10]
    assert read(conn, "t", 11) == read(conn, "t", 10**18) == []


def test_head_counts_everything_committed_before_the_call(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    for batch in range(60):
        call(conn, "publish_many", "t", [b"1"] * 1000)
        if batch % 20 == 19:
            assert head(conn, "t") == (batch + 1) * 1000


def test_offset_at_finds_the_first_message_at_or_after_a_time(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t")
    times = []
    for n in range(12):
        clock.advance(10)
        times.append(value(conn, "select trunkline.clock()"))
        publish(conn, "t", n)
        if n % 3 == 0:
            head(conn, "t")
    for n, at in enumerate(times):
        assert value(conn, "select trunkline.offset_at('t', 0, %s)", at) == n + 1
    assert value(conn, "select trunkline.offset_at('t', 0, '-infinity')") == 1
    assert value(conn, "select trunkline.offset_at('t', 0, trunkline.clock())") == 13


def test_seek_by_earliest_latest_offset_and_time(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t")
    publish(conn, "t", 1, 2)
    clock.advance(60)
    middle = now(conn)
    publish(conn, "t", 3, 4)
    call(conn, "create_group", "t", "g", "latest")
    for place, expected in (("earliest", 1), ("4", 4), (middle, 3), ("latest", 5), ("5", 5), ("1", 1)):
        assert call(conn, "seek", "t", "g", place) == [(0, expected)]
        assert contents(fetch(conn, "t")) == [1, 2, 3, 4][expected - 1 :]


def test_rotation_merges_ticks_and_keeps_every_offset(conn: Connection, connect: Connect) -> None:
    call(conn, "create_topic", "t", p_segment_rows=16)
    slow = connect()
    slow.execute("begin")
    publish(slow, "t", "slow")
    for n in range(60):
        conn.execute("begin")
        publish(conn, "t", n)
        conn.execute("rollback" if n % 7 == 3 else "commit")
        if n % 4 == 0:
            head(conn, "t")
    slow.execute("commit")
    before = read(conn, "t")
    assert len(before) == 52
    for _ in range(4):
        assert run_upkeep(conn, "rotate") == [1]
        assert read(conn, "t") == before
    assert value(conn, "select count(*) from trunkline.ticks") < 15
    publish(conn, "t", "new")
    after = read(conn, "t")
    assert after[:-1] == before
    assert after[-1].log_offset == 53
    assert offsets(read(conn, "t", 20, 11)) == list(range(20, 31))


def test_old_messages_start_a_segment_of_their_own(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t", p_retention="8 hours", p_segment_rows=64)
    publish(conn, "t", 1, 2, 3)
    run_upkeep(conn, "segments")
    publish(conn, "t", 4)
    clock.advance(2 * 3600)
    # the next segment is created, then publishers learn of it, then this one ends
    for _ in range(3):
        run_upkeep(conn, "segments")
    publish(conn, "t", 5)
    assert value(conn, "select count(*) from trunkline.topic_1_0_1") == 1
    assert contents(read(conn, "t")) == [1, 2, 3, 4, 5]


def test_a_segment_is_not_sealed_while_a_publisher_in_it_is_open(conn: Connection, connect: Connect) -> None:
    call(conn, "create_topic", "t", p_segment_rows=16)
    slow = connect()
    slow.execute("begin")
    publish(slow, "t", "slow")
    publish(conn, "t", *range(40))
    seal(conn, 3)
    assert value(conn, "select count(*) from trunkline.segments where sealed_at is not null") == 0
    slow.execute("commit")
    seal(conn, 3)
    assert value(conn, "select count(*) from trunkline.segments where sealed_at is not null") == 2
    assert len(read(conn, "t")) == 41


def test_retention_by_time_removes_whole_segments_and_only_a_prefix(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t", p_segment_rows=16, p_retention="1 hour")
    publish(conn, "t", *range(1, 101))
    seal(conn, 6)
    assert run_upkeep(conn, "retention") == [0]
    clock.advance(7200)
    assert run_upkeep(conn, "retention") == [6]
    with refused("TL006", "96"):
        read(conn, "t", 95)
    with refused("TL006", "96"):
        read(conn, "t", 1)
    assert contents(read(conn, "t", 96)) == list(range(96, 101))
    call(conn, "create_group", "t", "g")
    assert contents(fetch(conn, "t")) == list(range(96, 101))
    with refused("TL006", "96"):
        call(conn, "seek", "t", "g", "50")
    assert value(conn, "select trunkline.offset_at('t', 0, '-infinity')") == 96
    publish(conn, "t", 101)
    assert head(conn, "t") == 101


def test_retention_waits_for_the_slowest_reader(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t", p_segment_rows=16, p_retention="1 hour")
    call(conn, "create_group", "t", "g")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t")
    publish(conn, "t", *range(1, 101))
    first = claim(conn, "q", 1)
    settle_all(conn, "ack", claim(conn, "q", 99))
    batch = fetch(conn, "t", p_limit=40)
    assert commit(conn, "t", batch) == "done"
    seal(conn, 6)
    clock.advance(7200)
    assert run_upkeep(conn, "retention") == [0]
    assert contents(claim(conn, "q", 1)) == contents(first) == [1]
    clock.advance(31)
    settle_all(conn, "ack", claim(conn, "q", 1))
    passes(conn, 2)
    assert run_upkeep(conn, "retention") == [2]
    assert contents(fetch(conn, "t")) == list(range(41, 101))
    assert offsets(read(conn, "t", 32, 1)) == [32]
    with refused("TL006", "32"):
        read(conn, "t", 31)


def test_retention_by_bytes(conn: Connection) -> None:
    call(conn, "create_topic", "t", p_segment_rows=16, p_retention_bytes=200_000)
    for _ in range(10):
        call(conn, "publish_many", "t", [b"x" * 1900] * 16)
    seal(conn, 10)
    full = value(conn, "select bytes from trunkline.topic_stats('t')")
    assert full > 400_000
    assert run_upkeep(conn, "retention")[0] > 0  # type: ignore[operator]
    [stats] = call(conn, "topic_stats", "t")
    assert stats.bytes <= 200_000
    assert 1 < stats.earliest_offset < stats.head == 160
    assert len(read(conn, "t", stats.earliest_offset)) == 161 - stats.earliest_offset


def test_hard_retention_overtakes_a_queue_loudly(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t", p_segment_rows=16, p_retention="1 hour", p_hard_retention="2 hours")
    call(conn, "create_queue", "q", p_lease="12 hours")
    call(conn, "subscribe", "q", "t")
    publish(conn, "t", *range(1, 41))
    kept, returned = claim(conn, "q", 2)
    assert settle(conn, "nack", returned.receipt, p_delay="1 day") == ["done"]
    seal(conn, 2)
    clock.advance(5400)
    assert run_upkeep(conn, "retention") == [0]
    clock.advance(5400)
    assert run_upkeep(conn, "retention") == [2]
    [notice] = rows(conn, "select kind, detail from trunkline.alerts limit 1")
    assert (notice.kind, notice.detail["topic"]) == ("retention_overtook_reader", "t")
    assert contents(claim(conn, "q", 100)) == list(range(32, 41))
    assert settle(conn, "ack", kept.receipt) == ["done"]
    stats = queue_stats(conn, "q")
    assert (stats.expired, stats.delayed, stats.acked, stats.leased) == (29, 1, 1, 9)
    assert_conserved(conn, "q")
    clock.advance(86400)
    claim(conn, "q", 100)
    assert queue_stats(conn, "q").expired == 30, "when it is due, it is gone"
    assert_conserved(conn, "q")


@pytest.mark.parametrize("verb", ["nack", "release", "bury", "expire"])
def test_a_delivery_that_hard_retention_removed_can_only_be_lost(conn: Connection, clock: Clock, verb: str) -> None:
    call(conn, "create_topic", "t", p_segment_rows=16, p_retention="1 hour", p_hard_retention="2 hours")
    call(conn, "create_queue", "q", p_lease="4 hours")
    call(conn, "subscribe", "q", "t")
    publish(conn, "t", *range(1, 41))
    [taken] = claim(conn, "q", 1)
    seal(conn, 2)
    clock.advance(3 * 3600)
    assert run_upkeep(conn, "retention") == [2]
    if verb == "expire":
        clock.advance(2 * 3600)
        passes(conn, 2)
    else:
        assert settle(conn, verb, taken.receipt) != ["unknown"]
    assert contents(claim(conn, "q", 100)) == list(range(32, 41))
    assert assert_conserved(conn, "q").expired == 31


def test_hard_retention_overtakes_a_group_and_fetch_says_so(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t", p_segment_rows=16, p_retention="1 hour", p_hard_retention="2 hours")
    call(conn, "create_group", "t", "g")
    publish(conn, "t", *range(1, 41))
    seal(conn, 2)
    clock.advance(3 * 3600)
    assert run_upkeep(conn, "retention") == [2]
    with refused("TL006", "32"):
        fetch(conn, "t")
    assert call(conn, "group_stats", "t", "g")[0].lag == 40
    call(conn, "seek", "t", "g", "earliest")
    assert contents(fetch(conn, "t")) == list(range(32, 41))
