"""Defects that queues and logs on Postgres are known for: each was seen in another system, and must not be here."""

from __future__ import annotations

import json
import threading
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.conftest import Clock, Connection, Servers
from tests.servers import missing
from tests.sql.verbs import (
    Connect,
    call,
    claim,
    claim_all,
    commit,
    contents,
    enqueue,
    fetch,
    head,
    now,
    publish,
    queue_stats,
    read,
    refused,
    rows,
    run_together,
    run_upkeep,
    settle,
    settle_all,
    upkeep,
    value,
)
from trunkline.sql.migrate import migrate


def test_t01_commit_order_loses_nothing(conn: Connection, connect: Connect) -> None:
    """Two publishers, the first transaction commits last, a reader pulls and acks in between: no message skipped."""
    call(conn, "create_topic", "t")
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


def test_t02_members_of_a_group_get_disjoint_messages(conn: Connection, connect: Connect) -> None:
    """Two members of one group pull at once: disjoint messages."""
    call(conn, "create_topic", "t", 4)
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


def test_t03_a_dead_members_messages_come_back(conn: Connection, connect: Connect, clock: Clock) -> None:
    """A member dies after pull or claim: its messages are redelivered to the group."""
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    publish(conn, "t", 1, 2)
    enqueue(conn, "q", 1, 2)
    dying = connect()
    assert len(fetch(dying, "t", member="a")) == len(claim(dying, "q")) == 2
    dying.close()
    assert fetch(conn, "t", member="b") == claim(conn, "q") == []
    clock.advance(31)
    assert contents(fetch(conn, "t", member="b")) == contents(claim(conn, "q")) == [1, 2]


def test_t04_publish_to_an_unknown_topic_is_an_error(conn: Connection) -> None:
    """Publish to an unknown topic: error, not silence."""
    with refused("TL010", "Create it with trunkline.create_topic('nope')"):
        publish(conn, "nope", 1)
    with refused("TL011", "Create it with trunkline.create_queue('nope')"):
        enqueue(conn, "nope", 1)


def test_t05_a_long_publishing_transaction_stops_nobody(conn: Connection, connect: Connect) -> None:
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


def test_t06_nack_keeps_a_message_away_for_its_delay(conn: Connection, clock: Clock) -> None:
    """nack with 30 s: invisible for 30 s."""
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1)
    settle(conn, "nack", claim(conn, "q")[0].receipt, p_delay="30 seconds")
    clock.advance(28)
    upkeep(conn)
    assert claim(conn, "q") == []
    clock.advance(3)
    assert contents(claim(conn, "q")) == [1]


def test_t07_an_acked_message_never_returns(conn: Connection, connect: Connect, clock: Clock) -> None:
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


def test_t08_a_late_ack_is_refused(conn: Connection, clock: Clock) -> None:
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


def test_t09_publish_returns_the_id(conn: Connection) -> None:
    """Publish returns the id."""
    call(conn, "create_topic", "t")
    [id_] = publish(conn, "t", 1)
    many = [row.id for row in call(conn, "publish_many", "t", [b"2", b"3"])]
    assert [message.id for message in read(conn, "t")] == [id_, *many]


def test_t10_a_retried_publish_is_one_message_with_one_id(conn: Connection) -> None:
    """Retried publish with the same key: one message, same id returned."""
    call(conn, "create_topic", "t")
    answers = [call(conn, "publish", "t", "1", p_idempotency_key="k")[0] for _ in range(3)]
    assert len({answer.id for answer in answers}) == 1
    assert [answer.duplicate for answer in answers] == [False, True, True]
    assert [message.id for message in read(conn, "t")] == [answers[0].id]


def test_t11_a_delayed_message_is_not_early(conn: Connection, clock: Clock) -> None:
    """A message delayed 5 s is not delivered before 5 s."""
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1, p_delay="5 minutes")
    clock.advance(295)
    upkeep(conn)
    assert claim(conn, "q") == []
    clock.advance(6)
    [delivery] = claim(conn, "q")
    assert delivery.created_at <= value(conn, "select trunkline.clock()")


@pytest.mark.parametrize("name", ["order", "My-Queue", "q" * 64, "q" * 200])
def test_t17_odd_names_work(conn: Connection, name: str) -> None:
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


def test_t18_an_underscore_is_literal(conn: Connection) -> None:
    """Binding `user_created` does not match `userXcreated`."""
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t", "user_created")
    for key in ("userXcreated", "user_created", "user.created"):
        publish(conn, "t", key, p_routing_key=key)
    assert contents(claim_all(conn, "q")) == ["user_created"]


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


def test_t25_finished_messages_do_not_slow_a_claim(conn: Connection) -> None:
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


def test_t26_retention_runs_by_itself_in_bounded_steps(conn: Connection, clock: Clock) -> None:
    """Retention and cleanup run by themselves, in bounded batches."""
    call(conn, "create_topic", "t", p_segment_rows=64, p_retention="1 hour")
    call(conn, "create_queue", "q", p_segment_rows=64, p_retention="1 hour")
    for _ in range(5):
        call(conn, "publish_many", "t", [b"1"] * 100)
        call(conn, "enqueue_many", "q", [b"1"] * 100)
    settle_all(conn, "ack", claim(conn, "q", 1000))
    upkeep(conn, 10)
    clock.advance(2 * 3600)
    upkeep(conn, 10)
    clock.advance(2 * 3600)
    upkeep(conn, 3)
    assert value(conn, "select count(*) from trunkline.topic_1") == 0
    assert value(conn, "select count(*) from trunkline.topic_2") == 0
    assert value(conn, "select count(*) from trunkline.segments where log = 64") <= 4
    publish(conn, "t", "new")
    assert head(conn, "t") == 501
    assert contents(read(conn, "t", 501)) == ["new"]


def test_t27_stats_show_every_state(conn: Connection) -> None:
    """Stats show visible, leased, delayed, dead."""
    call(conn, "create_queue", "q")
    enqueue(conn, "q", *range(8))
    enqueue(conn, "q", "later", p_delay="1 hour")
    a, b, _ = claim(conn, "q", 3)
    settle(conn, "bury", a.receipt)
    settle(conn, "nack", b.receipt, p_delay="1 hour")
    stats = queue_stats(conn, "q")
    assert (stats.ready, stats.leased, stats.delayed, stats.dead) == (5, 1, 2, 1)


def test_t28_a_group_replays_from_an_offset_or_a_time(conn: Connection, clock: Clock) -> None:
    """Replay a group to an offset or time."""
    call(conn, "create_topic", "t")
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


def test_t29_dead_letters_are_listed_and_redriven(conn: Connection) -> None:
    """DLQ list and redrive."""
    call(conn, "create_queue", "q", p_max_attempts=1)
    ids = enqueue(conn, "q", 1, 2)
    settle_all(conn, "nack", claim(conn, "q"), p_error="no")
    dead = call(conn, "list_dead_letters", "q")
    assert [(letter.id, letter.error) for letter in dead] == [(ids[0], "no"), (ids[1], "no")]
    assert value(conn, "select trunkline.redrive('q', %s)", [ids[1]]) == 1
    assert [delivery.id for delivery in claim(conn, "q")] == [ids[1]]
    assert value(conn, "select trunkline.redrive('q')") == 1
    assert [delivery.id for delivery in claim(conn, "q")] == [ids[0]]


def test_t31_install_needs_no_superuser_and_no_extension(servers: Servers, pg_version: int) -> None:
    """Install on current Postgres without superuser or extensions."""
    if reason := missing(pg_version):
        pytest.skip(reason)
    url = servers.url(pg_version)
    role = "plain_owner"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"create role {role} login password 'secret' nosuperuser nocreatedb nocreaterole")
        admin.execute(f"create database {role} owner {role}")
        try:
            theirs = make_conninfo(url, user=role, password="secret", dbname=role)
            migrate(theirs)
            assert migrate(theirs).applied == []
            with psycopg.connect(theirs, autocommit=True) as conn:
                assert value(conn, "select rolsuper from pg_roles where rolname = current_user") is False
                assert rows(conn, "select extname from pg_extension") == [("plpgsql",)]
                smoke(conn)
        finally:
            admin.execute(f"drop database {role} with (force)")
            admin.execute(f"drop role {role}")


def smoke(conn: Connection) -> None:
    """Every family of verbs once."""
    call(conn, "create_topic", "t", 2)
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t")
    publish(conn, "t", 1, p_key="k", p_idempotency_key="i")
    enqueue(conn, "q", 2, p_delay="1 hour")
    batch = fetch(conn, "t")
    assert commit(conn, "t", batch) == "done"
    assert len(call(conn, "seek", "t", "g", "earliest")) == 2
    [delivery] = claim(conn, "q")
    assert settle(conn, "bury", delivery.receipt) == ["done"]
    assert value(conn, "select trunkline.redrive('q')") == 1
    [delivery] = claim(conn, "q")
    assert settle(conn, "extend", delivery.receipt) == ["done"]
    assert settle(conn, "nack", delivery.receipt, p_delay="0") == ["done"]
    [delivery] = claim(conn, "q")
    assert settle(conn, "ack", delivery.receipt) == ["done"]
    upkeep(conn, 2)
    run_upkeep(conn, "rotate", 2)
    assert (queue_stats(conn, "q").acked, queue_stats(conn, "q").delayed) == (1, 1)
    call(conn, "alter_topic", "t", p_partitions=3)
    call(conn, "purge_queue", "q")
    call(conn, "cleanup_queue", "q")
    call(conn, "delete_queue", "q")
    call(conn, "delete_topic", "t", True)


@pytest.mark.parametrize("payload", [[1, [2]], "text", "", 12.5, 0, -1, None, True, {}, [], {"a": None}, "ü\u2028📬"])
def test_t32_any_json_value_is_a_payload(conn: Connection, payload: Any) -> None:
    """Top-level JSON array, string, number, null as payload."""
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    publish(conn, "t", payload)
    enqueue(conn, "q", payload)
    call(conn, "publish_many", "t", [json.dumps(payload).encode()])
    assert contents(read(conn, "t")) == [payload, payload]
    assert contents(claim(conn, "q")) == [payload]
