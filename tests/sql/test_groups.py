"""Groups: one owner per partition, in order, committed cumulatively and fenced by generation."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import (
    Connect,
    call,
    contents,
    fetch,
    head,
    publish,
    refused,
    rows,
    run_upkeep,
    seal,
    value,
)


@pytest.fixture(autouse=True)
def topic(conn: Connection) -> None:
    call(conn, "create_topic", "t")


def commit(conn: Connection, batch: list[Any], upto: int | None = None, group: str = "g") -> str:
    """Commit a fetched batch, or it up to an offset."""
    last = batch[-1]
    place = last.log_offset if upto is None else upto
    args = ("t", group, last.partition, last.generation, place)
    return str(value(conn, "select trunkline.commit(%s, %s, %s, %s, %s)", *args))


def position(conn: Connection) -> int:
    return int(call(conn, "group_stats", "t", "g")[0].next_offset)


def test_a_member_reads_on_and_commits_cumulatively(conn: Connection) -> None:
    publish(conn, "t", *range(1, 11))
    first = fetch(conn, "t", p_limit=4)
    assert commit(conn, first, 2) == "done"
    assert position(conn) == 3
    assert commit(conn, first) == "done"
    second = fetch(conn, "t", p_limit=4)
    assert contents(first) + contents(second) == list(range(1, 9))
    assert first[0].generation == second[0].generation
    assert commit(conn, second) == "done"
    assert position(conn) == 9
    assert commit(conn, first) == commit(conn, second) == "done"
    assert position(conn) == 9
    assert contents(fetch(conn, "t")) == [9, 10]
    assert fetch(conn, "t") == []


def test_an_open_batch_is_given_again_only_to_who_shows_its_generation(conn: Connection, clock: Clock) -> None:
    publish(conn, "t", 1, 2, 3)
    batch = fetch(conn, "t")
    commit(conn, batch, 1)
    assert fetch(conn, "t") == []
    again = fetch(conn, "t", p_generation=batch[0].generation)
    assert contents(again) == [2, 3]
    assert again[0].generation == batch[0].generation
    clock.advance(31)
    later = fetch(conn, "t")
    assert contents(later) == [2, 3]
    assert later[0].generation != batch[0].generation
    assert commit(conn, again) == "lost"


def test_a_commit_beyond_what_was_fetched_is_refused(conn: Connection) -> None:
    publish(conn, "t", *range(1, 11))
    batch = fetch(conn, "t", p_limit=3)
    for place in (4, 10, 11, 10**18):
        with refused("TL007", "3"):
            commit(conn, batch, place)
    assert position(conn) == 1


def test_a_partition_has_one_owner(conn: Connection) -> None:
    publish(conn, "t", *range(1, 11))
    assert len(fetch(conn, "t", member="a", p_limit=3)) == 3
    assert fetch(conn, "t", member="b") == []
    assert call(conn, "group_stats", "t", "g")[0].member == "a"


def test_after_a_lease_the_next_owner_starts_behind_the_commit_and_the_former_is_refused(
    conn: Connection, clock: Clock
) -> None:
    publish(conn, "t", *range(1, 11))
    old = fetch(conn, "t", member="a", p_limit=6)
    assert commit(conn, old, 2) == "done"
    clock.advance(31)
    assert commit(conn, old, 3) == "lost"
    new = fetch(conn, "t", member="b", p_limit=4)
    assert contents(new) == [3, 4, 5, 6]
    assert commit(conn, old, 3) == commit(conn, old, 6) == "lost"
    assert position(conn) == 3
    assert fetch(conn, "t", member="a") == []
    assert commit(conn, new) == "done"
    assert position(conn) == 7


def test_an_owner_that_comes_back_after_its_lease_is_a_new_generation(conn: Connection, clock: Clock) -> None:
    publish(conn, "t", 1, 2)
    old = fetch(conn, "t")
    clock.advance(31)
    new = fetch(conn, "t")
    assert contents(new) == contents(old) == [1, 2]
    assert new[0].generation != old[0].generation
    assert commit(conn, old) == "lost"
    assert commit(conn, new) == "done"


def test_foreign_generations_are_lost(conn: Connection) -> None:
    publish(conn, "t", 1)
    fetch(conn, "t")
    for generation in (uuid4(), None):
        assert value(conn, "select trunkline.commit('t', 'g', 0, %s, 1)", generation) == "lost"
    assert position(conn) == 1


def test_leave_gives_partitions_back_at_once(conn: Connection) -> None:
    publish(conn, "t", *range(1, 5))
    batch = fetch(conn, "t", member="a")
    commit(conn, batch, 1)
    assert value(conn, "select trunkline.leave('t', 'g', 'a')") == 1
    assert value(conn, "select trunkline.leave('t', 'g', 'a')") == 0
    assert commit(conn, batch) == "lost"
    assert contents(fetch(conn, "t", member="b")) == [2, 3, 4]


def test_heartbeat_keeps_a_partition(conn: Connection, clock: Clock) -> None:
    publish(conn, "t", 1)
    batch = fetch(conn, "t", member="a")
    for _ in range(3):
        clock.advance(25)
        assert value(conn, "select trunkline.heartbeat('t', 'g', 'a')") == 1
    assert fetch(conn, "t", member="b") == []
    assert value(conn, "select trunkline.heartbeat('t', 'g', 'b')") == 0
    assert commit(conn, batch) == "done"
    clock.advance(31)
    assert value(conn, "select trunkline.heartbeat('t', 'g', 'a')") == 0


def test_an_idle_owner_keeps_its_partition_by_fetching(conn: Connection, clock: Clock) -> None:
    publish(conn, "t", 1)
    commit(conn, fetch(conn, "t", member="a"))
    for _ in range(4):
        clock.advance(20)
        assert fetch(conn, "t", member="a") == []
        assert fetch(conn, "t", member="b") == []
    publish(conn, "t", 2)
    assert fetch(conn, "t", member="b") == []
    assert contents(fetch(conn, "t", member="a")) == [2]


def owners(conn: Connection, topic: str) -> list[str]:
    return sorted(str(row.member) for row in call(conn, "group_stats", topic))


def test_partitions_are_shared_evenly_between_members(conn: Connection) -> None:
    call(conn, "create_topic", "wide", 4)
    for n in range(80):
        publish(conn, "wide", n, p_key=str(n))
    got: list[Any] = []
    for _ in range(6):
        got += fetch(conn, "wide", member="a", p_limit=5)
    assert owners(conn, "wide") == ["a"] * 4
    assert fetch(conn, "wide", member="b") == []
    fetch(conn, "wide", member="a", p_limit=1)
    taken: list[Any] = []
    for _ in range(6):
        taken += fetch(conn, "wide", member="b", p_limit=5)
        fetch(conn, "wide", member="a", p_limit=1)
    assert owners(conn, "wide") == ["a", "a", "b", "b"]
    assert len({message.partition for message in taken}) == 2
    call(conn, "leave", "wide", "g", "b")
    for _ in range(6):
        fetch(conn, "wide", member="a")
    assert owners(conn, "wide") == ["a"] * 4


def test_two_members_at_once_get_disjoint_partitions(conn: Connection, connect: Connect) -> None:
    call(conn, "create_topic", "wide", 2)
    for n in range(40):
        publish(conn, "wide", n, p_key=str(n))
    one, other = connect(), connect()
    call(conn, "create_group", "wide", "g")
    one.execute("begin")
    first = fetch(one, "wide", member="a")
    second = fetch(other, "wide", member="b")
    one.execute("commit")
    assert {m.partition for m in first} | {m.partition for m in second} == {0, 1}
    assert sorted(contents(first) + contents(second)) == list(range(40))


def test_commit_in_the_callers_transaction_moves_only_with_it(conn: Connection, connect: Connect) -> None:
    conn.execute("create table public.effects (n int)")
    publish(conn, "t", *range(1, 4))
    batch = fetch(conn, "t")
    worker = connect()
    for end, expected in (("rollback", (1, 0)), ("commit", (4, 3))):
        worker.execute("begin")
        worker.execute("insert into public.effects select generate_series(1, 3)")
        assert commit(worker, batch) == "done"
        worker.execute(end)
        assert (position(conn), value(conn, "select count(*) from public.effects")) == expected


def test_fetch_rolled_back_did_not_happen(conn: Connection) -> None:
    publish(conn, "t", 1, 2)
    call(conn, "create_group", "t", "g")
    conn.execute("begin")
    batch = fetch(conn, "t", member="a")
    conn.execute("rollback")
    assert value(conn, "select trunkline.commit('t', 'g', 0, %s, 1)", batch[0].generation) == "lost"
    assert contents(fetch(conn, "t", member="b")) == [1, 2]


def test_claim_range_gives_every_offset_once(conn: Connection) -> None:
    publish(conn, "t", *range(25))
    ranges = [call(conn, "claim_range", "t", "g", 10) for _ in range(4)]
    assert ranges == [[(0, 1, 10)], [(0, 11, 20)], [(0, 21, 25)], []]
    assert position(conn) == 26
    publish(conn, "t", 25)
    assert call(conn, "claim_range", "t", "g", 10) == [(0, 26, 26)]


def test_claim_range_leaves_a_members_partition_alone(conn: Connection, clock: Clock) -> None:
    publish(conn, "t", 1, 2, 3)
    batch = fetch(conn, "t", p_limit=1)
    assert call(conn, "claim_range", "t", "g") == []
    commit(conn, batch)
    clock.advance(31)
    assert call(conn, "claim_range", "t", "g") == [(0, 2, 3)]


def test_groups_are_made_by_fetch_or_explicitly(conn: Connection) -> None:
    publish(conn, "t", 1, 2)
    head(conn, "t")
    with refused("TL012", '"g"'):
        fetch(conn, "t", p_create=False)
    assert contents(fetch(conn, "t")) == [1, 2]
    call(conn, "create_group", "t", "late", "latest")
    call(conn, "create_group", "t", "second", "2")
    with refused("TL020", '"late"'):
        call(conn, "create_group", "t", "late")
    assert call(conn, "ensure_group", "t", "late", "earliest")[0].name == "late"
    publish(conn, "t", 3)
    assert contents(fetch(conn, "t", "late")) == [3]
    assert contents(fetch(conn, "t", "second")) == [2, 3]
    call(conn, "delete_group", "t", "late")
    with refused("TL012", '"late"'):
        call(conn, "delete_group", "t", "late")


def test_each_group_gets_everything(conn: Connection) -> None:
    publish(conn, "t", *range(5))
    for group in ("a", "b", "c"):
        assert contents(fetch(conn, "t", group)) == list(range(5))


def test_lag_in_messages_and_seconds(conn: Connection, clock: Clock) -> None:
    call(conn, "create_group", "t", "g")
    [stats] = call(conn, "group_stats", "t", "g")
    assert (stats.lag, stats.lag_seconds, stats.head, stats.next_offset) == (0, 0, 0, 1)
    publish(conn, "t", 1)
    clock.advance(100)
    publish(conn, "t", 2)
    clock.advance(10)
    [stats] = call(conn, "group_stats", "t", "g")
    assert (stats.lag, stats.head) == (2, 2)
    assert 110 <= stats.lag_seconds < 140
    commit(conn, fetch(conn, "t", p_limit=1))
    [stats] = call(conn, "group_stats", "t", "g")
    assert (stats.lag, stats.fetched, stats.member) == (1, 1, "m")
    assert 10 <= stats.lag_seconds < 40
    commit(conn, fetch(conn, "t"))
    assert call(conn, "group_stats", "t", "g")[0].lag_seconds == 0


def test_seek_takes_the_partition_from_its_owner(conn: Connection) -> None:
    call(conn, "create_topic", "wide", 2)
    for n in range(20):
        publish(conn, "wide", n, p_key=str(n))
    batches = [fetch(conn, "wide") for _ in range(2)]
    assert len(call(conn, "seek", "wide", "g", "latest", 1)) == 1
    for batch in batches:
        result = value(conn, "select trunkline.commit('wide', 'g', %s, %s, 1)", batch[0].partition, batch[0].generation)
        assert result == ("lost" if batch[0].partition == 1 else "done")
    call(conn, "seek", "wide", "g", "earliest")
    again = [message for _ in range(3) for message in fetch(conn, "wide")]
    assert sorted(contents(again)) == list(range(20))


def test_members_that_left_without_a_word_are_forgotten(conn: Connection, clock: Clock) -> None:
    publish(conn, "t", 1)
    fetch(conn, "t", member="gone")
    clock.advance(2 * 3600)
    value(conn, "select trunkline.run_upkeep('windows')")
    assert rows(conn, "select * from trunkline.members") == []


def test_the_lag_in_seconds_of_a_group_below_retention_is_that_of_the_lowest_message_left(
    conn: Connection, clock: Clock
) -> None:
    call(conn, "create_topic", "short", p_segment_rows=16, p_retention="1 hour", p_hard_retention="2 hours")
    call(conn, "create_group", "short", "g")
    publish(conn, "short", *range(40))
    head(conn, "short")
    seal(conn, 3)
    clock.advance(3 * 3600)
    run_upkeep(conn, "retention", 3)
    assert call(conn, "topic_stats", "short")[0].earliest_offset > 1
    [stats] = call(conn, "group_stats", "short", "g")
    assert (stats.next_offset, stats.lag) == (1, 40)
    assert stats.lag_seconds >= 3 * 3600


@pytest.mark.parametrize("pattern", [None, "a.#"])
def test_a_batch_is_limited_by_the_size_of_its_payloads(conn: Connection, pattern: str | None) -> None:
    call(conn, "create_group", "t", "g", p_pattern=pattern)
    for size, key in ((50, "a.b"), (60, "a.b"), (10, "b"), (500, "a.c"), (10, "a.b")):
        call(conn, "publish", "t", '"' + "x" * (size - 2) + '"', p_routing_key=key)
    sent: list[list[int]] = []
    while batch := fetch(conn, "t", p_max_bytes=110):
        sent.append([len(message.payload) for message in batch])
        assert commit(conn, batch) == "done"
    assert sent == ([[50, 60], [500], [10]] if pattern else [[50, 60], [10], [500], [10]])
    assert value(conn, "select lag from trunkline.group_stats('t', 'g')") == 0
