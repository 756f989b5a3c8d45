"""Every verb in transactions of other kinds: other isolation, read-only, failed, prepared, savepoints, time-outs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import (
    Connect,
    call,
    claim,
    claim_all,
    contents,
    digest,
    enqueue,
    fetch,
    head,
    publish,
    read,
    refused,
    settle,
    value,
)


class Yard:
    """A topic with a group and a queue, each with one message out."""

    def __init__(self, conn: Connection) -> None:
        call(conn, "create_topic", "t")
        call(conn, "create_queue", "q")
        call(conn, "create_queue", "dead")
        publish(conn, "t", 1, 2, 3)
        enqueue(conn, "q", 1, 2, 3)
        self.receipt = claim(conn, "q", 1)[0].receipt
        self.generation = fetch(conn, "t", p_limit=1)[0].generation
        enqueue(conn, "dead", 1)
        settle(conn, "bury", claim(conn, "dead")[0].receipt)


@pytest.fixture
def yard(conn: Connection) -> Yard:
    return Yard(conn)


Work = Callable[[Connection, Yard], Any]
READING_BACK: dict[str, Work] = {
    "claim": lambda conn, yard: claim(conn, "q"),
    "fetch": lambda conn, yard: fetch(conn, "t"),
    "commit": lambda conn, yard: call(conn, "commit", "t", "g", 0, yard.generation, 1),
    "claim_range": lambda conn, yard: call(conn, "claim_range", "t", "other"),
    "seek": lambda conn, yard: call(conn, "seek", "t", "g", "earliest"),
    "leave": lambda conn, yard: call(conn, "leave", "t", "g", "m"),
    "heartbeat": lambda conn, yard: call(conn, "heartbeat", "t", "g", "m"),
    "create_group": lambda conn, yard: call(conn, "create_group", "t", "new"),
    "subscribe": lambda conn, yard: call(conn, "subscribe", "q", "t"),
    "purge_queue": lambda conn, yard: call(conn, "purge_queue", "q"),
    "trim_queue": lambda conn, yard: call(conn, "trim_queue", "q"),
    "run_upkeep": lambda conn, yard: call(conn, "run_upkeep", "pass"),
    **{
        verb: lambda conn, yard, verb=verb: settle(conn, verb, yard.receipt)
        for verb in ("ack", "nack", "bury", "release", "extend")
    },
}
READING: dict[str, Work] = {
    "head": lambda conn, yard: head(conn, "t"),
    "read": lambda conn, yard: read(conn, "t"),
    "offset_at": lambda conn, yard: call(conn, "offset_at", "t", 0, "2020-01-01"),
    "queue_stats": lambda conn, yard: call(conn, "queue_stats", "q"),
    "group_stats": lambda conn, yard: call(conn, "group_stats", "t"),
    "topic_stats": lambda conn, yard: call(conn, "topic_stats", "t"),
    "peek_queue": lambda conn, yard: call(conn, "peek_queue", "q"),
}
WRITING: dict[str, Work] = {
    "publish": lambda conn, yard: publish(conn, "t", 4),
    "publish_many": lambda conn, yard: call(conn, "publish_many", "t", [b"4"]),
    "publish_later": lambda conn, yard: publish(conn, "t", 4, p_delay="1 hour"),
    "publish_with_key": lambda conn, yard: publish(conn, "t", 4, p_idempotency_key="k"),
    "enqueue": lambda conn, yard: enqueue(conn, "q", 4),
    "redrive": lambda conn, yard: call(conn, "redrive", "dead"),
    "purge_dead_letters": lambda conn, yard: call(conn, "purge_dead_letters", "dead"),
    "create_topic": lambda conn, yard: call(conn, "create_topic", "new"),
    "create_queue": lambda conn, yard: call(conn, "create_queue", "new"),
    "alter_queue": lambda conn, yard: call(conn, "alter_queue", "q", p_lease="5 s"),
    "pause_queue": lambda conn, yard: call(conn, "pause_queue", "q"),
    "delete_topic": lambda conn, yard: call(conn, "delete_topic", "t", True),
}
LEVELS = ["repeatable read", "serializable"]


@pytest.mark.parametrize("level", LEVELS)
def test_verbs_that_need_a_new_snapshot_refuse_other_levels(conn: Connection, yard: Yard, level: str) -> None:
    before = digest(conn)
    for verb, work in READING_BACK.items():
        conn.execute(f"begin isolation level {level}")
        with refused("TL008", level):
            work(conn, yard)
        conn.execute("rollback")
        assert digest(conn) == before, verb


@pytest.mark.parametrize("level", LEVELS)
def test_reading_works_at_every_level_and_writes_nothing(conn: Connection, yard: Yard, level: str) -> None:
    before = digest(conn)
    for verb, work in READING.items():
        conn.execute(f"begin isolation level {level} read only")
        work(conn, yard)
        conn.execute("commit")
        assert digest(conn) == before, verb


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("verb", WRITING)
def test_publishing_and_administration_work_at_every_level(conn: Connection, yard: Yard, verb: str, level: str) -> None:
    before = digest(conn)
    conn.execute(f"begin isolation level {level}")
    conn.execute("select 1")
    WRITING[verb](conn, yard)
    conn.execute("commit")
    assert digest(conn) != before


@pytest.mark.parametrize("level", LEVELS)
def test_publishers_at_other_levels_do_not_disturb_each_other(
    conn: Connection, connect: Connect, yard: Yard, level: str
) -> None:
    sessions = [connect() for _ in range(3)]
    for session in sessions:
        session.execute(f"begin isolation level {level}")
        session.execute("select 1")
    for session in sessions:
        publish(session, "t", 4)
    for session in sessions:
        session.execute("commit")
    assert head(conn, "t") == 6


def test_in_a_read_only_transaction_nothing_is_written(conn: Connection, yard: Yard) -> None:
    before = digest(conn)
    quiet = ("run_upkeep", "trim_queue")
    for verb, work in {**READING_BACK, **WRITING}.items():
        conn.execute("begin read only")
        if verb in quiet:
            conn.execute("rollback")
            continue
        with refused("25006"):
            work(conn, yard)
        conn.execute("rollback")
        assert digest(conn) == before, verb


def test_in_a_failed_transaction_every_verb_is_refused(conn: Connection, yard: Yard) -> None:
    before = digest(conn)
    conn.execute("begin")
    with refused("TL010", '"nope"'):
        publish(conn, "nope", 1)
    for work in (*WRITING.values(), *READING_BACK.values()):
        with refused("25P02"):
            work(conn, yard)
    conn.execute("rollback")
    assert digest(conn) == before


def test_a_savepoint_rolled_back_takes_its_part_with_it(conn: Connection, yard: Yard) -> None:
    conn.execute("begin")
    publish(conn, "t", "before")
    conn.execute("savepoint s")
    publish(conn, "t", "inside")
    assert settle(conn, "ack", yard.receipt) == ["done"]
    assert call(conn, "commit", "t", "g", 0, yard.generation, 1)[0][0] == "done"
    conn.execute("rollback to s")
    publish(conn, "t", "after")
    conn.execute("commit")
    assert contents(read(conn, "t")) == [1, 2, 3, "before", "after"]
    assert call(conn, "queue_stats", "q")[0].leased == 1
    assert call(conn, "group_stats", "t", "g")[0].next_offset == 1


def test_a_thousand_savepoints(conn: Connection, yard: Yard) -> None:
    conn.execute("begin")
    for n in range(1000):
        conn.execute("savepoint s")
        publish(conn, "t", n)
        conn.execute("rollback to s" if n % 10 == 0 else "release s")
    conn.execute("commit")
    assert head(conn, "t") == 903
    assert contents(read(conn, "t"))[3:] == [n for n in range(1000) if n % 10]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_prepared_publish_blocks_nobody_and_appears_if_committed(
    conn: Connection, connect: Connect, clock: Clock, yard: Yard, end: str
) -> None:
    name = conn.info.dbname
    other = connect()
    other.execute("begin")
    publish(other, "t", "prepared")
    enqueue(other, "q", "prepared")
    other.execute(f"prepare transaction '{name}'")
    other.close()
    conn.execute("set statement_timeout = '5s'")
    for n in range(5):
        publish(conn, "t", n)
        assert head(conn, "t") == 4 + n
        clock.advance(60)
    assert "prepared" not in contents(claim_all(conn, "q"))
    conn.execute(f"{end} prepared '{name}'")
    publish(conn, "t", "last")
    expected = 10 if end == "commit" else 9
    assert head(conn, "t") == expected
    assert ("prepared" in contents(read(conn, "t"))) is (end == "commit")
    assert ("prepared" in contents(claim_all(conn, "q"))) is (end == "commit")


def test_a_prepared_ack_is_an_ack_when_it_is_committed(conn: Connection, clock: Clock, yard: Yard) -> None:
    name = conn.info.dbname
    conn.execute("begin")
    assert settle(conn, "ack", yard.receipt) == ["done"]
    conn.execute(f"prepare transaction '{name}'")
    clock.advance(31)
    assert 1 not in contents(claim_all(conn, "q"))
    conn.execute(f"commit prepared '{name}'")
    clock.advance(31)
    assert 1 not in contents(claim_all(conn, "q"))


def test_a_statement_timeout_leaves_nothing_half_done(conn: Connection, connect: Connect, yard: Yard) -> None:
    before = digest(conn)
    conn.execute("set statement_timeout = '1ms'")
    with refused("57014"):
        call(conn, "publish_many", "t", [b"x" * 8000] * 1000)
    with refused("57014"):
        call(conn, "create_topic", "wide", 64)
    conn.execute("reset statement_timeout")
    assert digest(conn) == before
    holder = connect()
    holder.execute("begin")
    holder.execute("select pg_advisory_xact_lock(778005, cursor_id) from trunkline.cursors")
    holder.execute("select from trunkline.leases for update")
    for verb in ("claim", "ack", "nack", "commit", "seek", "purge_queue"):
        conn.execute("set statement_timeout = '50ms'")
        with refused("57014"):
            READING_BACK[verb](conn, yard)
        conn.execute("reset statement_timeout")
        assert digest(conn) == before, verb


def test_the_callers_lock_timeout_holds_and_leaves_nothing_half_done(conn: Connection, connect: Connect, yard: Yard) -> None:
    before = digest(conn)
    holder = connect()
    holder.execute("begin")
    holder.execute("select pg_advisory_xact_lock(778005, cursor_id) from trunkline.cursors")
    holder.execute("select from trunkline.leases for update")
    conn.execute("set lock_timeout = '1ms'")
    conn.execute("set statement_timeout = '3s'")
    for verb in ("commit", "claim", "ack", "seek", "leave"):
        with refused("55P03"):
            READING_BACK[verb](conn, yard)
        assert value(conn, "show lock_timeout") == "1ms"
        assert digest(conn) == before, verb


def test_verbs_leave_the_callers_settings_alone(conn: Connection, yard: Yard) -> None:
    names = ["lock_timeout", "statement_timeout", "search_path", "client_min_messages", "check_function_bodies"]
    settings = "select name, setting from pg_settings where name = any(%s) order by name"
    conn.execute("set lock_timeout = '7s'")
    for verb, work in {**READING_BACK, **WRITING}.items():
        conn.execute("begin")
        before = conn.execute(settings, (names,)).fetchall()
        work(conn, yard)
        assert conn.execute(settings, (names,)).fetchall() == before, verb
        conn.execute("rollback")


def test_a_long_publishing_transaction_blocks_no_publisher(conn: Connection, connect: Connect) -> None:
    """Open a long transaction that published: other publishers on the topic still proceed."""
    call(conn, "create_topic", "t")
    slow = connect()
    slow.execute("begin")
    publish(slow, "t", "slow")
    publish(slow, "t", "slow too", p_idempotency_key="k")
    other = connect()
    other.execute("set statement_timeout = '5s'")
    publish(other, "t", *range(20))
    call(other, "publish_many", "t", [b"20"] * 100)
    publish(other, "t", 21, p_idempotency_key="l")
    assert head(other, "t") == 121
    slow.execute("commit")
    assert head(other, "t") == 123
