"""Publishing: payloads, attributes, ids, delays, transactions."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.conftest import Clock, Connection
from tests.sql.calls import (
    Connect,
    call,
    claim,
    claim_all,
    contents,
    enqueue,
    fetch,
    head,
    offsets,
    publish,
    queue_stats,
    read,
    refused,
    rows,
    run_upkeep,
    settle,
    upkeep,
    value,
)


@pytest.fixture(autouse=True)
def places(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")


def test_a_publish_is_on_disk_when_it_returns(conn: Connection) -> None:
    """The commit is on disk before it returns, even where the session asks for less."""
    conn.execute("set synchronous_commit = off")
    conn.execute("begin")
    publish(conn, "t", 1)
    assert value(conn, "show synchronous_commit") == "on"
    conn.execute("commit")
    assert value(conn, "show synchronous_commit") == "off"
    unlogged = "select relname from pg_class where relnamespace = 'trunkline'::regnamespace and relpersistence <> 'p'"
    # counters of passes, which start again after a crash; no message depends on them
    counters = {
        "pass_epoch",
        "pass_ended",
        "pass_visited",
        "logs_visited",
    }
    assert {row.relname for row in rows(conn, unlogged)} == counters
    assert contents(read(conn, "t")) == contents(read(conn, "t")) == [1]


def test_a_batch_is_published_as_a_whole(conn: Connection) -> None:
    """With all fields of a single message; results in input order; one bad message refuses all."""
    answers = call(
        conn,
        "publish_many",
        "t",
        [b"1", b"2", b"3"],
        p_keys=["a", None, "b"],
        p_labels=[None, "l", None],
        p_headers=[None, None, Jsonb({"h": 1})],
        p_delays=[None, None, timedelta(hours=1)],
        p_idempotency_keys=["k", None, None],
    )
    assert [(row.ord, row.duplicate) for row in answers] == [(1, False), (2, False), (3, False)]
    found = read(conn, "t")
    assert [(m.id, m.key, m.label) for m in found] == [(answers[0].id, "a", None), (answers[1].id, None, "l")]
    with refused("TL001", "message 1"):
        call(conn, "publish_many", "t", [b"4", None, b"6"])
    assert head(conn, "t") == 2
    assert len(call(conn, "enqueue_many", "q", [b"1"] * 1000)) == 1000
    assert len(claim(conn, "q", 1000)) == 1000


def test_a_message_is_enqueued_without_a_topic(conn: Connection) -> None:
    [id_] = enqueue(conn, "q", {"to": "me"})
    [delivery] = claim(conn, "q")
    assert (delivery.id, delivery.topic, contents([delivery])) == (id_, None, [{"to": "me"}])
    assert value(conn, "select trunkline.enqueue_job('q', 'job')") == claim(conn, "q")[0].id
    with refused("TL011"):
        enqueue(conn, "nope", 1)


def test_a_rollback_takes_a_message_from_all_queues(conn: Connection) -> None:
    """One row is written, whatever the number of queues; a rollback takes it from all of them."""
    queues = [f"fan{n}" for n in range(10)]
    for queue in queues:
        call(conn, "create_queue", queue)
        call(conn, "subscribe", queue, "t")
    publish(conn, "t", "kept")
    conn.execute("begin")
    publish(conn, "t", "taken back")
    conn.execute("rollback")
    assert [contents(claim_all(conn, queue)) for queue in queues] == [["kept"]] * 10
    assert value(conn, "select count(*) from trunkline.topic_1") == 1


@pytest.mark.parametrize("payload", [{"a": [1]}, [1, "x", None], "text", "", 0, 1.5, True, False, None, [], {}])
def test_a_payload_is_any_json_value(conn: Connection, payload: Any) -> None:
    """Any JSON value, arrays and strings and null too."""
    publish(conn, "t", payload)
    enqueue(conn, "q", payload)
    [message], [delivery] = read(conn, "t"), claim(conn, "q")
    assert contents([message, delivery]) == [payload, payload]
    assert message.content_type == delivery.content_type == "application/json"


def test_bytes_are_delivered_unchanged(conn: Connection) -> None:
    """Byte for byte, with a content type: also what is no text, and JSON with its spaces and double keys."""
    for payload in (bytes(range(256)), b"", b'{"b": 1,  "a": 2, "a": 3}', b"\0"):
        call(conn, "publish_bytes", "t", payload, "application/x-thing")
        call(conn, "enqueue_bytes", "q", payload)
        assert (read(conn, "t")[-1].payload, claim(conn, "q")[0].payload) == (payload, payload)
    assert {message.content_type for message in read(conn, "t")} == {"application/x-thing"}


def test_a_payload_may_be_a_string(conn: Connection) -> None:
    text = "plain, not JSON: ü 📬 \u2028\n"
    call(conn, "publish_bytes", "t", text.encode(), "text/plain; charset=utf-8")
    [message] = read(conn, "t")
    assert (message.payload.decode(), message.content_type) == (text, "text/plain; charset=utf-8")


def test_attributes_reach_every_kind_of_reader(conn: Connection) -> None:
    """To every kind of reader: the log, a group, a queue, and a dead letter."""
    call(conn, "subscribe", "q", "t")
    headers = {"trace": "1-2", "n": 1, "nested": {"a": [None]}, "ü": ""}
    publish(conn, "t", 1, p_headers=Jsonb(headers))
    [delivery] = claim(conn, "q")
    assert read(conn, "t")[0].headers == fetch(conn, "t")[0].headers == delivery.headers == headers
    settle(conn, "bury", delivery.receipt)
    assert call(conn, "list_dead_letters", "q")[0].headers == headers


def test_a_label_is_delivered(conn: Connection) -> None:
    enqueue(conn, "q", 1, p_label="invoice")
    enqueue(conn, "q", 2)
    assert [delivery.label for delivery in claim(conn, "q")] == ["invoice", None]


def test_a_worker_claims_the_labels_it_can_handle(conn: Connection) -> None:
    """A job is a message whose label names its handler: a worker claims the types it can do, the others wait."""
    for number, kind in enumerate(("mail", "pdf", "mail", "sms")):
        enqueue(conn, "q", number, p_label=kind)
    assert contents(claim(conn, "q", p_labels=["pdf", "sms"])) == [1, 3]
    waiting = claim(conn, "q", p_labels=["mail"])
    assert contents(waiting) == [0, 2]
    assert [delivery.attempt for delivery in waiting] == [1, 1], "passing over is no attempt"


def test_a_routing_key_selects_queues(conn: Connection) -> None:
    for name, pattern in (("one", "order.*"), ("any", "order.#"), ("exact", "order.new")):
        call(conn, "create_queue", name)
        call(conn, "subscribe", name, "t", pattern)
    for key in ("order", "order.new", "order.new.fast", "user.new"):
        publish(conn, "t", key, p_routing_key=key)
    assert contents(claim_all(conn, "one")) == ["order.new"]
    assert contents(claim_all(conn, "any")) == ["order", "order.new", "order.new.fast"]
    [delivery] = claim_all(conn, "exact")
    assert delivery.routing_key == "order.new"


def test_a_publish_returns_the_generated_id(conn: Connection) -> None:
    """Always: from each verb, for a duplicate, for a delayed message; in the order of time."""
    ids = publish(conn, "t", 1)
    ids += [row.id for row in call(conn, "publish_many", "t", [b"2", b"3"])]
    ids += [call(conn, "publish_bytes", "t", b"4")[0].id]
    ids += [value(conn, "select trunkline.publish_messages('t', %s)", [b"5"])]
    assert [message.id for message in read(conn, "t")] == ids
    assert {id_.version for id_ in ids} == {7}
    later = publish(conn, "t", 6, p_delay="1 hour")
    assert value(conn, "select id from trunkline.delayed") == later[0]


def test_a_repeated_id_is_one_message(conn: Connection) -> None:
    """The id is kept as given; a repeat under it is one message, another message under it is refused."""
    mine = uuid4()
    named = {"p_id": mine, "p_idempotency_key": str(mine)}
    assert publish(conn, "t", 1, **named) == [mine]
    [again] = call(conn, "publish", "t", "1", **named)
    assert (again.id, again.duplicate) == (mine, True)
    with refused("TL022", str(mine)):
        publish(conn, "t", 2, **named)
    assert [message.id for message in read(conn, "t")] == [mine]
    assert enqueue(conn, "q", 1, p_id=mine) == [mine]
    assert claim(conn, "q")[0].id == mine


def test_an_idempotency_key_detects_duplicates(conn: Connection, clock: Clock) -> None:
    """The first id is returned with a flag; keys are per topic, and expire."""
    call(conn, "create_topic", "other")
    [first] = call(conn, "publish", "t", "1", p_idempotency_key="k")
    [again] = call(conn, "publish", "t", "1", p_idempotency_key="k")
    assert (first.duplicate, again.id, again.duplicate) == (False, first.id, True)
    [elsewhere] = call(conn, "publish", "other", "1", p_idempotency_key="k")
    assert (elsewhere.duplicate, elsewhere.id == first.id) == (False, False)
    clock.advance(timedelta(hours=23, minutes=59))
    run_upkeep(conn, "windows", 2)
    assert call(conn, "publish", "t", "1", p_idempotency_key="k")[0].duplicate
    clock.advance(timedelta(days=3))
    run_upkeep(conn, "windows", 2)
    assert not call(conn, "publish", "t", "1", p_idempotency_key="k")[0].duplicate
    assert head(conn, "t") == 2


def test_a_message_is_delayed(conn: Connection, clock: Clock) -> None:
    enqueue(conn, "q", "later", p_delay="30 seconds")
    enqueue(conn, "q", "now")
    clock.advance(29)
    upkeep(conn)
    assert contents(claim(conn, "q")) == ["now"]
    assert queue_stats(conn, "q").delayed == 1
    clock.advance(2)
    assert contents(claim(conn, "q")) == ["later"]


def test_a_message_is_delivered_at_a_time(conn: Connection, clock: Clock) -> None:
    now: datetime = value(conn, "select trunkline.clock()")
    for hours in (3, 1, 2, -1):
        publish(conn, "t", hours, p_deliver_at=now + timedelta(hours=hours))
    seen = []
    for _ in range(4):
        seen.append(contents(read(conn, "t")))
        clock.advance(timedelta(hours=1, seconds=1))
        run_upkeep(conn, "pass", 2)
    assert seen == [[-1], [-1, 1], [-1, 1, 2], [-1, 1, 2, 3]]


def test_a_queue_delays_its_messages(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "slow", p_delivery_delay="1 minute")
    enqueue(conn, "slow", 1)
    clock.advance(30)
    enqueue(conn, "slow", 2)
    assert claim(conn, "slow") == []
    clock.advance(31)
    assert contents(claim(conn, "slow")) == [1]
    clock.advance(31)
    assert contents(claim(conn, "slow")) == [2]


def test_a_message_carries_its_limit_of_attempts(conn: Connection) -> None:
    """A message can carry its own limit in a header: the consumer sees the attempt and buries it."""
    call(conn, "alter_queue", "q", p_max_attempts=5)
    enqueue(conn, "q", "twice", p_headers=Jsonb({"max_attempts": 2}))
    enqueue(conn, "q", "as the queue")
    for _ in range(5):
        for delivery in claim(conn, "q"):
            limit = (delivery.headers or {}).get("max_attempts", 99)
            if delivery.attempt >= limit:
                settle(conn, "bury", delivery.receipt, p_error="its own limit")
            else:
                settle(conn, "nack", delivery.receipt, p_delay="0")
    dead = {json.loads(letter.payload): letter.attempts for letter in call(conn, "list_dead_letters", "q")}
    assert dead == {"twice": 2, "as the queue": 5}


def test_a_queue_limits_attempts(conn: Connection) -> None:
    for queue, limit in (("q", 20), ("three", 3), ("one", 1)):
        if queue != "q":
            call(conn, "create_queue", queue, p_max_attempts=limit)
        enqueue(conn, queue, 1)
        tries = []
        while batch := claim(conn, queue):
            tries.append(batch[0].attempt)
            settle(conn, "nack", batch[0].receipt, p_delay="0")
        assert tries == list(range(1, limit + 1))
        assert call(conn, "list_dead_letters", queue)[0].attempts == limit


def test_a_publish_commits_with_the_callers_rows(conn: Connection, connect: Connect) -> None:
    """With its own rows or not at all; other publishers do not wait for it. By a call, or by a trigger."""
    conn.execute("create table public.orders (id int primary key, customer text)")
    conn.execute(
        "create trigger outbox after insert on public.orders for each row"
        " execute function trunkline.publish_row('t', 'orders.new', 'customer')"
    )
    slow, other = connect(), connect()
    other.execute("set statement_timeout = '10s'")
    slow.execute("begin")
    slow.execute("insert into public.orders values (1, 'c1')")
    publish(slow, "t", "with it")
    publish(other, "t", *range(100))
    assert head(other, "t") == 100
    slow.execute("commit")
    slow.execute("begin")
    slow.execute("insert into public.orders values (2, 'c2')")
    slow.execute("rollback")
    row, direct = read(conn, "t", 101)
    assert (contents([row, direct]), row.key) == ([{"id": 1, "customer": "c1"}, "with it"], "c1")


def test_offsets_follow_commits_without_gaps(conn: Connection, connect: Connect) -> None:
    """A transaction that began first and committed last comes last; a rollback leaves no hole and no lock is held."""
    first, second = connect(), connect()
    for session in (first, second):
        session.execute("set statement_timeout = '10s'")
        session.execute("begin")
    publish(first, "t", "began first")
    publish(second, "t", "rolled back")
    publish(second, "t", "rolled back")
    publish(conn, "t", "between")
    before = read(conn, "t")
    second.execute("rollback")
    first.execute("commit")
    publish(conn, "t", "last")
    after = read(conn, "t")
    assert contents(before) == ["between"]
    assert after[:1] == before
    assert offsets(after) == [1, 2, 3]
    assert sorted(contents(after[1:])) == ["began first", "last"]


def test_a_message_has_the_times_of_its_event_and_its_publish(conn: Connection, clock: Clock) -> None:
    clock.advance(timedelta(days=1))
    happened = value(conn, "select timestamptz '2020-02-29 12:00+00'")
    publish(conn, "t", 1, p_occurred_at=happened)
    enqueue(conn, "q", 1, p_occurred_at=happened, p_delay="1 minute")
    clock.advance(61)
    [message], [delivery] = read(conn, "t"), claim(conn, "q")
    assert message.occurred_at == delivery.occurred_at == happened
    assert message.created_at < delivery.created_at < message.created_at + timedelta(seconds=60), (
        "when it was published, not due"
    )


def test_a_missing_payload_is_refused(conn: Connection) -> None:
    """A missing body is refused and named; an empty one is a body."""
    for verb, place in (("publish", "t"), ("publish_bytes", "t"), ("enqueue", "q"), ("enqueue_bytes", "q")):
        with refused("TL001", "payload must not be null"):
            call(conn, verb, place, None)
    for batch in ([], [None]):
        with refused("TL001"):
            call(conn, "publish_many", "t", batch)
    with refused("TL003", "must have at most"):
        call(conn, "publish_bytes", "t", b"x" * (1024 * 1024 + 1))
    assert head(conn, "t") == 0
    assert isinstance(call(conn, "publish_bytes", "t", b"")[0].id, UUID)


def test_publish_to_an_unknown_topic_is_an_error(conn: Connection) -> None:
    """Publish to an unknown topic: error, not silence."""
    with refused("TL010", "Create it with trunkline.create_topic('nope')"):
        publish(conn, "nope", 1)
    with refused("TL011", "Create it with trunkline.create_queue('nope')"):
        enqueue(conn, "nope", 1)


def test_publish_returns_the_id(conn: Connection) -> None:
    """Publish returns the id."""
    [id_] = publish(conn, "t", 1)
    many = [row.id for row in call(conn, "publish_many", "t", [b"2", b"3"])]
    assert [message.id for message in read(conn, "t")] == [id_, *many]


@pytest.mark.parametrize("payload", [[1, [2]], "text", "", 12.5, 0, -1, None, True, {}, [], {"a": None}, "ü\u2028📬"])
def test_any_json_value_is_a_payload(conn: Connection, payload: Any) -> None:
    """Top-level JSON array, string, number, null as payload."""
    publish(conn, "t", payload)
    enqueue(conn, "q", payload)
    call(conn, "publish_many", "t", [json.dumps(payload).encode()])
    assert contents(read(conn, "t")) == [payload, payload]
    assert contents(claim(conn, "q")) == [payload]


def test_a_retried_publish_is_one_message_with_one_id(conn: Connection) -> None:
    """Retried publish with the same key: one message, same id returned."""
    answers = [call(conn, "publish", "t", "1", p_idempotency_key="k")[0] for _ in range(3)]
    assert len({answer.id for answer in answers}) == 1
    assert [answer.duplicate for answer in answers] == [False, True, True]
    assert [message.id for message in read(conn, "t")] == [answers[0].id]
