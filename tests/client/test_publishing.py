"""Publishing: bodies, coalescing, batches; with both twins."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from trunkline import Client, NewMessage
from trunkline.errors import IdempotencyConflict, InvalidArgument, OutcomeUnknown, PayloadTooLarge, TopicNotFound


async def bodies(mq: Any, topic: str) -> list[Any]:
    return [message.body async for message in mq.topics.scan(topic)]


async def test_every_field_arrives(mq: Any) -> None:
    await mq.topics.create("t")
    id, at = uuid4(), datetime(2026, 5, 1, 12, tzinfo=UTC)
    sent = await mq.publish(
        "t",
        {"n": 1},
        key="k",
        routing_key="a.b",
        label="l",
        headers={"h": [1]},
        id=id,
        occurred_at=at,
        content_type="application/x+json",
    )
    assert (sent.id, sent.duplicate) == (id, False)
    [message] = await mq.topics.read("t")
    assert (message.id, message.key, message.routing_key, message.label) == (id, "k", "a.b", "l")
    assert (message.headers, message.occurred_at, message.content_type) == ({"h": [1]}, at, "application/x+json")
    assert (message.payload, message.body) == (b'{"n":1}', {"n": 1})


@pytest.mark.parametrize("count", [1, 3, 300], ids=["alone", "statement", "copy"])
async def test_a_given_id_is_published_once(mq: Any, count: int) -> None:
    await mq.topics.create("t")
    messages = [NewMessage(body=n, id=uuid4()) for n in range(count)]
    for expected in (False, True):
        sent = await mq.publish_many("t", messages)
        assert [row.id for row in sent] == [message.id for message in messages]
        assert {row.duplicate for row in sent} == {expected}
        assert (await mq.publish("t", 0, id=messages[0].id)).duplicate
    with pytest.raises(IdempotencyConflict):
        await mq.publish("t", "other", id=messages[0].id)
    assert await bodies(mq, "t") == list(range(count))


async def test_delay_idempotency_and_enqueue(mq: Any) -> None:
    await mq.queues.create("q")
    await mq.enqueue("q", "later", delay="1h")
    await mq.enqueue("q", "later still", deliver_at=datetime.now(UTC) + timedelta(hours=2))
    first = await mq.enqueue("q", "now", idempotency_key="k")
    assert await mq.enqueue("q", "now", idempotency_key="k") == type(first)(first.id, True)
    with pytest.raises(IdempotencyConflict):
        await mq.enqueue("q", "other", idempotency_key="k")
    stats = (await mq.queues.stats("q"))[0]
    assert (stats.ready, stats.delayed) == (1, 2)


async def test_concurrent_publishes_share_statements(mq: Any, conn: psycopg.Connection[Any]) -> None:
    """Concurrent publishes take far fewer transactions than messages, and each caller gets its own id."""
    await mq.topics.create("t")
    sent = await asyncio.gather(*(mq.publish("t", n) for n in range(200)))
    by_id = {message.id: message.body async for message in mq.topics.scan("t")}
    assert [by_id[one.id] for one in sent] == list(range(200))
    # rows that were inserted by the same transaction were sent together
    row = conn.execute("select count(distinct xmin::text) from trunkline.topic_1").fetchone()
    assert row is not None
    assert row[0] < 150


async def test_a_bad_message_fails_only_its_own_caller(mq: Any) -> None:
    await mq.topics.create("t", max_payload=100)
    results = await asyncio.gather(
        *(mq.publish("t", "x" * 200 if n % 10 == 3 else n, key="a\0b" if n == 25 else None) for n in range(50)),
        return_exceptions=True,
    )
    for n, result in enumerate(results):
        if n % 10 == 3:
            assert isinstance(result, PayloadTooLarge), (n, result)
        elif n == 25:
            assert isinstance(result, InvalidArgument), (n, result)
        else:
            assert not isinstance(result, BaseException), (n, result)
    assert sorted(await bodies(mq, "t")) == [n for n in range(50) if n % 10 != 3 and n != 25]


async def test_every_caller_hears_that_the_topic_is_not_there(mq: Any) -> None:
    results = await asyncio.gather(*(mq.publish("nowhere", n) for n in range(20)), return_exceptions=True)
    assert all(isinstance(result, TopicNotFound) for result in results)
    assert len({id(result) for result in results}) == 20


async def test_cancelled_publishes_leave_the_others_alone(db: str) -> None:
    async with Client(db) as mq:
        await mq.topics.create("t")
        tasks = [asyncio.create_task(mq.publish("t", n)) for n in range(100)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
        assert not any(isinstance(result, BaseException) for result in results[1::2])
        found = await bodies(mq, "t")
        assert set(range(1, 100, 2)) <= set(found)
        assert len(found) == len(set(found))
        assert (await mq.publish("t", "after")).duplicate is False


async def test_topics_do_not_wait_for_each_other(mq: Any, connect: Any) -> None:
    await mq.topics.create("slow")
    await mq.topics.create("fast")
    blocker = connect()
    blocker.execute("begin; lock table trunkline.topic_1 in access exclusive mode")
    waits = asyncio.create_task(mq.publish("slow", 1))
    for n in range(5):
        await mq.publish("fast", n)
    assert not waits.done()
    blocker.execute("rollback")
    await waits


async def test_publish_many_takes_any_iterable_of_any_length(mq: Any) -> None:
    await mq.topics.create("t")
    assert await mq.publish_many("t", []) == []
    sent = await mq.publish_many("t", ({"n": n} for n in range(2500)), key=lambda body: str(body["n"] % 3), label="l")
    assert len(sent) == 2500
    seen = [m async for m in mq.topics.scan("t")]
    assert [m.body["n"] for m in seen] == list(range(2500))
    assert [m.id for m in seen] == [one.id for one in sent]
    assert {(m.key, m.label) for m in seen} == {(str(n), "l") for n in range(3)}


async def test_publish_many_is_cut_by_bytes(mq: Any) -> None:
    await mq.topics.create("t")
    assert len(await mq.publish_many("t", [b"x" * 1_000_000] * 20)) == 20
    assert await mq.topics.head("t") == 20


async def test_publish_many_is_all_or_nothing(mq: Any) -> None:
    await mq.topics.create("t", max_payload=100)
    with pytest.raises(PayloadTooLarge):
        await mq.publish_many("t", ["y" * 200 if n == 2400 else n for n in range(2500)])
    with pytest.raises(ValueError, match="nan"):
        await mq.publish_many("t", (float("nan") if n == 2400 else n for n in range(2500)))

    def breaks() -> Any:
        yield from range(2500)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await mq.publish_many("t", breaks())
    assert await mq.topics.head("t") == 0


async def test_messages_of_all_kinds_in_one_batch(mq: Any) -> None:
    await mq.queues.create("q")
    await mq.enqueue_many(
        "q",
        [
            NewMessage(body=b"\0\1", label="raw"),
            NewMessage(body={"a": 1}, headers={"h": 1}),
            "text",
            NewMessage(body=None, delay="1h"),
        ],
    )
    found = await mq.claim("q", limit=10)
    assert [(d.body, d.content_type) for d in found] == [
        (b"\0\1", "application/octet-stream"),
        ({"a": 1}, "application/json"),
        ("text", "application/json"),
    ]


async def test_a_lost_connection_is_unknown_and_the_next_publish_works(mq: Any, connect: Any) -> None:
    await mq.topics.create("t")
    blocker, killer = connect(), connect()
    blocker.execute("begin; lock table trunkline.topic_1 in access exclusive mode")
    waits = asyncio.create_task(mq.publish("t", 1))
    while not killer.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where wait_event_type = 'Lock' and query like '%topic_1_publish%'"
    ).fetchall():
        await asyncio.sleep(0.01)
    with pytest.raises(OutcomeUnknown):
        await waits
    blocker.execute("rollback")
    await mq.publish("t", 2)
    assert await bodies(mq, "t") == [2]
