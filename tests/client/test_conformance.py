"""What `Messaging` promises, with both clients: one over database connections, one over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest

from tests.http import conftest as http_fixtures
from tests.http.servers import HttpServer
from trunkline import Client, errors
from trunkline.http_client import HttpClient
from trunkline.messaging import ClaimedMessages, Messaging
from trunkline.types import NewMessage

module_db, server, name = http_fixtures.module_db, http_fixtures.server, http_fixtures.name


@pytest.fixture(params=["database", "http"])
async def mq(request: pytest.FixtureRequest, module_db: str, server: HttpServer) -> AsyncIterator[Messaging]:
    if request.param == "database":
        async with Client(module_db) as database:
            yield database
    else:
        async with HttpClient(server.url) as http:
            yield http


class Order(msgspec.Struct):
    n: int


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


async def stats_of(mq: Messaging, queue: str) -> dict[str, Any]:
    (row,) = await mq.queues.stats(queue)
    return msgspec.structs.asdict(row)


async def delivered(mq: Messaging, queue: str, **options: Any) -> ClaimedMessages:
    """Claim until there is something: messages of a topic get their offsets after they are committed."""
    async with asyncio.timeout(10):
        while True:
            claimed = await mq.claim(queue, **options)
            if len(claimed):
                return claimed
            await asyncio.sleep(0.02)


# Topics


async def test_topic_settings(mq: Messaging, name: str) -> None:
    made = await mq.topics.create(name, partitions=2, retention="90m", retention_bytes=10**10, max_payload=1000)
    assert (made.name, made.partitions, made.retention, made.retention_bytes) == (name, 2, timedelta(minutes=90), 10**10)
    assert made.hard_retention is None
    with pytest.raises(errors.AlreadyExists):
        await mq.topics.create(name)
    assert await mq.topics.get(name) == made
    altered = await mq.topics.alter(name, max_payload=2000, retention_bytes=0, hard_retention="2d")
    assert (altered.max_payload, altered.retention_bytes, altered.hard_retention) == (2000, None, timedelta(days=2))
    assert altered.retention == made.retention
    await mq.topics.delete(name)
    with pytest.raises(errors.TopicNotFound):
        await mq.topics.get(name)


async def test_ensure_updates_a_topic(mq: Messaging, name: str) -> None:
    first = await mq.topics.ensure(name, retention="1d")
    second = await mq.topics.ensure(name, retention="2d", max_payload=5000)
    assert (first.retention, second.retention, second.max_payload) == (timedelta(days=1), timedelta(days=2), 5000)
    # what is not given stays
    assert (await mq.topics.ensure(name)) == second == await mq.topics.get(name)
    with pytest.raises(errors.AlreadyExists):
        await mq.topics.ensure(name, partitions=3)


async def test_lists_are_paged_by_name(mq: Messaging, name: str) -> None:
    names = [f"{name}-{number}" for number in range(5)]
    for each in names:
        await mq.topics.create(each)
        await mq.queues.create(each)
    for noun in (mq.topics, mq.queues):
        assert [row.name for row in await noun.list(after=names[0], limit=3)] == names[1:4]
        everything = [row.name for row in await noun.list()]
        assert everything == sorted(everything) and set(names) <= set(everything)
        assert [row.name for row in await noun.list(limit=2)] == everything[:2]


async def test_publish_and_read(mq: Messaging, name: str) -> None:
    await mq.topics.create(name)
    id, at = uuid4(), datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
    published = await mq.publish(
        name, {"n": 1}, key="k", routing_key="a.b", label="l", headers={"h": [1, None]}, id=id, occurred_at=at
    )
    assert (published.id, published.duplicate) == (id, False)
    many = await mq.publish_many(name, [2, NewMessage(body=b"\x00\xff", content_type="image/png"), None, "text"], key=str)
    assert await mq.topics.head(name) == 5
    messages = await mq.topics.read(name)
    assert [message.body for message in messages] == [{"n": 1}, 2, b"\x00\xff", None, "text"]
    assert [message.id for message in messages] == [id, *(row.id for row in many)]
    assert [message.offset for message in messages] == [1, 2, 3, 4, 5]
    one = messages[0]
    assert (one.key, one.routing_key, one.label, one.headers, one.occurred_at) == ("k", "a.b", "l", {"h": [1, None]}, at)
    assert [message.key for message in messages[1:]] == ["2", None, "None", "text"]
    assert [message.body for message in await mq.topics.read(name, start=2, limit=2)] == [2, b"\x00\xff"]
    assert (await mq.topics.read(name, limit=1, type=Order))[0].body == Order(1)
    assert await mq.topics.read(name, start=6) == []
    assert await mq.topics.offset_at(name, 0, one.created_at) == 1
    assert await mq.topics.offset_at(name, 0, datetime.now(UTC) + timedelta(days=1)) == 6
    (row,) = await mq.topics.stats(name)
    assert (row.head, row.earliest_offset) == (5, 1)


async def test_a_repeated_publish(mq: Messaging, name: str) -> None:
    await mq.topics.create(name)
    first = await mq.publish(name, 1, idempotency_key="k")
    again = await mq.publish(name, 1, idempotency_key="k")
    assert (again.id, first.duplicate, again.duplicate) == (first.id, False, True)
    with pytest.raises(errors.IdempotencyConflict):
        await mq.publish(name, 2, idempotency_key="k")


@pytest.mark.parametrize("number", [0, 3, 2500])
async def test_many_messages_are_one_transaction(mq: Messaging, name: str, number: int) -> None:
    await mq.queues.create(name)
    published = await mq.enqueue_many(name, range(number), label=lambda body: f"l{body % 2}")
    assert len({row.id for row in published}) == number
    ready = (await stats_of(mq, name))["ready"]
    assert ready == number

    def broken() -> Any:
        yield from range(1500)
        yield object()

    with pytest.raises(TypeError):
        await mq.enqueue_many(name, broken())
    with pytest.raises(errors.InvalidArgument):
        await mq.enqueue_many(name, [*range(1500), NewMessage(body=1, label="l" * 5000)])
    await asyncio.sleep(0.2)  # a server would have stored the first batch by now
    assert (await stats_of(mq, name))["ready"] == number


async def test_tail(mq: Messaging, name: str) -> None:
    await mq.topics.create(name, partitions=2)
    await mq.publish_many(name, range(4), key=str)
    seen = []
    async with asyncio.timeout(20):
        tail = mq.topics.tail(name, start="earliest", type=int)
        async for message in tail:
            seen.append(message.body)
            if len(seen) == 4:
                await mq.publish(name, 4)
            if len(seen) == 5:
                break
    assert sorted(seen) == [0, 1, 2, 3, 4] and seen[-1] == 4


# Queues


async def test_queue_settings(mq: Messaging, name: str) -> None:
    made = await mq.queues.create(
        name, lease="1500ms", ttl=seconds(90.5), delivery_delay="250ms", max_attempts=3, backoff_base="100ms", priorities=2,
        history="0s",
    )  # fmt: skip
    assert (made.lease, made.ttl, made.delivery_delay) == (seconds(1.5), seconds(90.5), seconds(0.25))
    assert (made.max_attempts, made.backoff_base, made.priorities, made.history) == (3, seconds(0.1), 2, None)
    assert await mq.queues.get(name) == made
    assert (made.ordered, made.paused, made.created_at) == (False, False, made.updated_at)
    with pytest.raises(errors.AlreadyExists):
        await mq.queues.create(name)
    altered = await mq.queues.alter(name, lease="1m", ttl="0s", history="1d")
    assert (altered.lease, altered.ttl, altered.history) == (seconds(60), None, timedelta(days=1))
    assert (altered.max_attempts, altered.delivery_delay) == (3, seconds(0.25))


async def test_defaults_of_a_queue(mq: Messaging, name: str) -> None:
    made = await mq.queues.create(name)
    assert (made.lease, made.max_attempts, made.ttl, made.delivery_delay) == (seconds(30), 20, None, seconds(0))
    assert made.history == timedelta(days=3)


async def test_a_queue_with_its_own_tables(mq: Messaging, name: str) -> None:
    assert (await mq.queues.create(name, segment_rows=1000)).segment_rows == 1000
    assert (await mq.queues.create(f"{name}-shared")).segment_rows is None
    assert (await mq.queues.ensure(name, segment_rows=1000)).segment_rows == 1000
    assert (await mq.queues.ensure(f"{name}-ensured", segment_rows=16)).segment_rows == 16
    await mq.enqueue_many(name, range(40))
    assert [delivery.body for delivery in await mq.claim(name, limit=40)] == [*range(40)]
    for queue, rows in ((name, 999), (f"{name}-shared", 1000)):
        with pytest.raises(errors.AlreadyExists, match="segment_rows"):
            await mq.queues.ensure(queue, segment_rows=rows)
    with pytest.raises(errors.InvalidArgument, match="segment_rows"):
        await mq.queues.create(f"{name}-small", segment_rows=15)


async def test_ensure_updates_a_queue(mq: Messaging, name: str) -> None:
    await mq.queues.ensure(name, lease="10s", max_attempts=3)
    changed = await mq.queues.ensure(name, lease="2500ms")
    assert (changed.lease, changed.max_attempts) == (seconds(2.5), 3)
    assert (await mq.queues.ensure(name)) == changed == await mq.queues.get(name)
    for fixed in ({"ordered": True}, {"partitions": 2}, {"priorities": 3}):
        with pytest.raises(errors.AlreadyExists):
            await mq.queues.ensure(name, **fixed)  # type: ignore[arg-type]


async def test_claim_and_settle(mq: Messaging, name: str) -> None:
    await mq.queues.create(name, backoff_base="0s")
    assert len(await mq.claim(name)) == 0
    first = await mq.enqueue(name, {"n": 0}, key="k", label="l", headers={"a": "b"})
    await mq.enqueue_many(name, [{"n": n} for n in range(1, 6)])
    peeked = await mq.queues.peek(name, limit=2, type=Order)
    assert [(row.body, row.attempt, row.topic, row.error) for row in peeked] == [
        (Order(0), 0, None, None),
        (Order(1), 0, None, None),
    ]
    before = datetime.now(UTC)
    claimed = await mq.claim(name, limit=6, lease="40s", type=Order)
    assert [row.body.n for row in claimed] == list(range(6)) and len(claimed.receipts) == 6
    one = claimed[0]
    assert (one.id, one.key, one.label, one.headers, one.attempt, one.topic) == (first.id, "k", "l", {"a": "b"}, 1, None)
    assert seconds(35) < one.deadline - before < seconds(45)
    assert await one.ack() == await one.ack() == "done"
    assert await claimed[1].nack(error="later") == "done"
    assert await claimed[2].nack(delay="1h") == "done"
    assert await claimed[3].bury("bad") == "done"
    assert await claimed[4].release() == "done"
    assert await claimed[5].extend("5m") == "done"
    assert await claimed[1].ack() == "lost"
    counted = await stats_of(mq, name)
    shown = {state: counted[state] for state in ("ready", "delayed", "leased", "dead", "acked")}
    assert shown == {"ready": 2, "delayed": 1, "leased": 1, "dead": 1, "acked": 1}
    again = sorted([(row.body["n"], row.attempt) for row in await mq.claim(name, limit=9)])
    assert again == [(1, 2), (4, 1)]
    with pytest.raises(errors.InUse):
        await mq.queues.delete(name)
    await mq.queues.delete(name, force=True)


async def test_settle_by_receipt(mq: Messaging, name: str) -> None:
    await mq.queues.create(name, backoff_base="0s")
    await mq.enqueue_many(name, range(5))
    a, b, c, d, e = (await mq.claim(name, limit=5)).receipts
    assert await mq.ack([]) == []
    assert await mq.ack([a, "nonsense", "1.1.1.1.x"]) == ["done", "unknown", "unknown"]
    assert await mq.nack([b], delay="1500ms", error="no \x00 and \ud800") == ["done"]
    assert await mq.bury([c], error="x" * 20_000) == ["done"]
    assert await mq.release([d]) == ["done"]
    assert await mq.extend([e, d], lease="1200ms") == ["done", "lost"]
    (letter,) = await mq.dead.list(name)
    assert (letter.body, letter.error, letter.reason, letter.topic) == (2, "x" * 10_000, "buried", "")


async def test_labels_priorities_and_consumers(mq: Messaging, name: str) -> None:
    await mq.queues.create(name, priorities=3)
    for priority, label in ((0, "a"), (2, "b"), (1, "a")):
        await mq.enqueue(name, priority, priority=priority, label=label)
    # some claims begin at a lower level, so that none starves: claim the label of the highest
    high = (await delivered(mq, name, labels=["b"], consumer="me"))[0]
    assert high.body == 2
    explained = await mq.explain(high.id)
    assert [(reader["state"], reader["consumer"]) for reader in explained.readers] == [("leased", "me")]
    rest = await mq.claim(name, limit=9, labels=["a"])
    assert sorted(row.body for row in rest) == [0, 1]
    assert await rest.ack() == ["done", "done"]


@pytest.mark.parametrize("lease", ["1s", "1500ms", seconds(2.25)])
async def test_a_lease_ends_after_fractions_of_a_second(mq: Messaging, name: str, lease: Any) -> None:
    await mq.queues.create(name)
    await mq.enqueue(name, 1)
    (first,) = await mq.claim(name, lease=lease)
    (second,) = await delivered(mq, name)
    span = {"1s": 1.0, "1500ms": 1.5}.get(lease, 2.25) if isinstance(lease, str) else lease.total_seconds()
    assert second.attempt == 2
    assert abs((first.deadline - second.deadline).total_seconds() + 30) < 2
    claimed_at = second.deadline - seconds(30)
    assert seconds(-0.01) <= claimed_at - first.deadline <= seconds(2)
    assert span <= (claimed_at - first.created_at).total_seconds() <= span + 3
    assert await first.ack() == "lost"


@pytest.mark.parametrize("lease", ["500ms", "13h", "0s"])
async def test_leases_have_limits(mq: Messaging, name: str, lease: str) -> None:
    await mq.queues.create(name)
    await mq.enqueue(name, 1)
    for call in (
        lambda: mq.claim(name, lease=lease),
        lambda: mq.queues.create(f"{name}-new", lease=lease),
        lambda: mq.queues.alter(name, lease=lease),
        lambda: mq.extend(["1.1.1.1.x"], lease=lease),
    ):
        with pytest.raises(errors.InvalidDuration, match="must be between"):
            await call()
    assert (await stats_of(mq, name))["ready"] == 1


async def test_delays(mq: Messaging, name: str) -> None:
    await mq.queues.create(name)
    await mq.enqueue(name, "later", delay="700ms")
    await mq.enqueue(name, "much later", deliver_at=datetime.now(UTC) + timedelta(hours=1))
    assert len(await mq.claim(name)) == 0
    assert (await stats_of(mq, name))["delayed"] == 2
    (row,) = await delivered(mq, name, limit=9)
    assert row.body == "later"


async def test_pause_purge_and_cleanup(mq: Messaging, name: str) -> None:
    await mq.queues.create(name)
    await mq.enqueue_many(name, range(5))
    (leased,) = await mq.claim(name)
    await mq.queues.pause(name)
    assert len(await mq.claim(name)) == 0 and (await mq.queues.get(name)).paused
    await mq.queues.resume(name)
    progress: list[int] = []
    assert await mq.queues.purge(name, on_progress=progress.append) == 4
    assert progress == [4]
    # a leased message is kept
    assert await leased.ack() == "done"
    counted = await stats_of(mq, name)
    assert (counted["ready"], counted["leased"], counted["acked"], counted["purged"]) == (0, 0, 1, 4)
    assert await mq.queues.trim(name) >= 0


async def test_dead_letters(mq: Messaging, name: str) -> None:
    await mq.queues.create(name)
    await mq.queues.create(f"{name}-other")
    await mq.enqueue_many(name, [{"n": n} for n in range(6)])
    await (await mq.claim(name, limit=6)).bury("no")
    letters = await mq.dead.list(name, type=Order)
    assert [(row.body.n, row.error, row.attempts) for row in letters] == [(n, "no", 1) for n in range(6)]
    page = await mq.dead.list(name, after=letters[1].dead_id, limit=2)
    assert [row.body["n"] for row in page] == [2, 3]
    assert (await mq.dead.get(name, letters[0].id)).body == {"n": 0}
    progress: list[int] = []
    assert await mq.dead.redrive(name, ids=[letters[0].id, uuid4()], on_progress=progress.append) == 1
    assert await mq.dead.redrive(name, to=f"{name}-other", limit=2) == 2
    assert progress == [1]
    assert await mq.dead.purge(name, ids=[]) == 0
    assert await mq.dead.purge(name, limit=1) == 1
    assert await mq.dead.purge(name) == 2
    assert await mq.dead.redrive(name) == 0
    assert [row.body for row in await mq.claim(name, limit=9)] == [{"n": 0}]
    assert len(await mq.claim(f"{name}-other", limit=9)) == 2
    with pytest.raises(errors.DeadLetterNotFound):
        await mq.dead.get(name, letters[0].id)


async def test_an_edited_redrive(mq: Messaging, name: str) -> None:
    await mq.queues.create(name)
    await mq.enqueue(name, {"n": 7}, key="k")
    for delivery in await mq.claim(name):
        await delivery.bury("typo")
    (letter,) = await mq.dead.list(name)
    await mq.dead.redrive_edited(name, letter.id, {"n": 0}, headers={"edited": True})
    with pytest.raises(errors.DeadLetterNotFound):
        await mq.dead.redrive_edited(name, letter.id, {"n": 0})
    (edited,) = await mq.claim(name)
    assert (edited.body, edited.headers, edited.key, edited.attempt) == ({"n": 0}, {"edited": True}, "k", 1)


async def test_groups_and_runs(mq: Messaging, name: str, module_db: str) -> None:
    await mq.queues.create(name)
    await mq.enqueue_many(name, [{"n": n} for n in range(5)])
    for delivery in await mq.claim(name, limit=5):
        await delivery.bury(f"timeout after {delivery.body['n']} s" if delivery.body["n"] < 3 else "no such user")
    timeouts, users = await mq.dead.groups(name, since="1h", limit=5)
    assert (timeouts.error, timeouts.messages, timeouts.queue, timeouts.rest) == ("timeout after <n> s", 3, name, None)
    assert (users.error, users.messages) == ("no such user", 2)
    assert timeouts.fingerprint is not None
    shares = await mq.dead.spread(name, timeouts.fingerprint, limit=1)
    assert [(row.value, row.messages) for row in shares if row.dimension == "attempts"] == [("1", 3)]
    selector = {"queue": name, "fingerprint": timeouts.fingerprint}
    found = await mq.runs.preview("redrive", selector)
    assert (found.messages, found.complete, len(found.samples)) == (3, True, 3)
    with pytest.raises(errors.PreviewOutdated, match="3 messages match now"):
        await mq.runs.start("redrive", selector, expected=9)
    with pytest.raises(errors.InvalidArgument, match="nothing but a queue"):
        await mq.runs.preview("redrive", {"queue": name})
    run = await mq.runs.start("redrive", selector, expected=3, options={"rate": 1000, "grace": 1000})
    assert (run.state, run.total, run.selector, run.log[0].event) == ("waiting", 3, selector, "started")
    await mq.runs.pause(run.run_id, reason="not yet")
    assert [(row.state, row.reason) for row in await mq.runs.list(["paused"], limit=1)] == [("paused", "not yet")]
    await mq.runs.resume(run.run_id)
    await mq.runs.abort(run.run_id)
    assert await mq.runs.list(["waiting", "running"], before=run.run_id) == []
    with pytest.raises(errors.InUse):
        await mq.runs.resume(run.run_id)
    again = await mq.runs.start("redrive", selector, expected=3)
    with psycopg.connect(module_db, autocommit=True) as conn:
        for _ in range(2):
            conn.execute("select trunkline.run_upkeep('runs')")
    done = await mq.runs.get(again.run_id)
    assert (done.state, done.done, done.failed, done.failures) == ("done", 3, 0, [])
    assert sorted(row.body["n"] for row in await mq.claim(name, limit=9)) == [0, 1, 2]
    with pytest.raises(errors.RunNotFound):
        await mq.runs.get(10**9)


# Subscriptions


async def test_a_subscription_is_named_after_its_topic(mq: Messaging, name: str) -> None:
    await mq.topics.create(name)
    await mq.queues.create(name)
    await mq.queues.create(f"{name}-2")
    made = await mq.subscriptions.add(name, name)
    assert (made.name, made.queue, made.topic, made.pattern, made.headers) == (name, name, name, "#", None)
    with pytest.raises(errors.AlreadyExists):
        await mq.subscriptions.add(name, name)
    # under other names, and for other queues
    second = await mq.subscriptions.add(name, name, name="second", pattern="a.*", headers={"x": "1", "y": [1, "z"]})
    assert (second.pattern, second.headers) == ("a.*", {"x": "1", "y": [1, "z"]})
    await mq.subscriptions.add(f"{name}-2", name)
    assert {row.name for row in await mq.subscriptions.list(name)} == {name, "second"}
    assert {row.queue for row in await mq.subscriptions.list(topic=name)} == {name, f"{name}-2"}
    assert [row.name for row in await mq.subscriptions.list(f"{name}-2", name)] == [name]
    await mq.subscriptions.remove(name, name)
    assert [row.name for row in await mq.subscriptions.list(name)] == ["second"]
    with pytest.raises(errors.SubscriptionNotFound):
        await mq.subscriptions.remove(name, name)


async def test_what_a_subscription_delivers(mq: Messaging, name: str) -> None:
    await mq.topics.create(name)
    await mq.queues.create(name)
    await mq.publish(name, "early", routing_key="a.b", headers={"x": "1"})
    await mq.topics.head(name)
    await mq.subscriptions.add(name, name, pattern="a.*", headers={"x": ["1", "2"]}, start="earliest")
    tested = await mq.subscriptions.test(name, "a.c", {"x": "2"})
    assert [(row.kind, row.name, row.matches) for row in tested] == [("queue", name, True)]
    assert [row.matches for row in await mq.subscriptions.test(name, "a.c")] == [False]
    await mq.publish(name, "other", routing_key="b", headers={"x": "1"})
    await mq.publish(name, "late", routing_key="a.z", headers={"x": "2"})
    await mq.topics.head(name)
    claimed = await delivered(mq, name, limit=9)
    assert [(row.body, row.topic) for row in claimed] == [("early", name), ("late", name)]
    with pytest.raises(errors.InUse):
        await mq.topics.delete(name)
    await mq.topics.delete(name, force=True)
    assert await mq.subscriptions.list(name) == []


async def test_a_topic_with_a_drained_subscriber_is_in_use(mq: Messaging, name: str) -> None:
    await mq.topics.create(name)
    await mq.queues.create(name)
    await mq.subscriptions.add(name, name)
    with pytest.raises(errors.InUse):
        await mq.topics.delete(name)


# Groups


async def test_groups(mq: Messaging, name: str) -> None:
    await mq.topics.create(name)
    await mq.publish_many(name, range(6))
    made = await mq.groups.create(name, "g", start=3)
    assert (made.topic, made.name, made.pattern, made.headers) == (name, "g", None, None)
    with pytest.raises(errors.AlreadyExists):
        await mq.groups.create(name, "g")
    assert await mq.groups.ensure(name, "g", start="latest") == made
    assert await mq.groups.position(name, "g") == {0: 3}
    batch = await mq.fetch(name, "g", member="m", limit=2, lease="1500ms", type=int)
    assert batch is not None
    assert ([message.body for message in batch], batch.first_offset, batch.last_offset) == ([2, 3], 3, 4)
    assert (batch.topic, batch.group, batch.partition, len(batch)) == (name, "g", 0, 2)
    assert await mq.fetch(name, "g", member="other") is None
    assert await mq.heartbeat(name, "g", member="m", lease="20s") == 1
    with pytest.raises(errors.OffsetAhead):
        await batch.commit(9)
    assert await batch.commit(3) == "done"
    assert await batch.commit() == "done"
    (row,) = await mq.groups.stats(name, "g")
    assert (row.next_offset, row.lag) == (5, 2)
    assert await mq.groups.seek(name, "g", "earliest") == {0: 1}
    assert await batch.commit() == "lost"
    assert await mq.leave(name, "g", member="m") == 0
    other = await mq.fetch(name, "g", member="other")
    assert other is not None and len(other) == 6
    assert await mq.leave(name, "g", member="other") == 1
    await mq.groups.delete(name, "g")
    with pytest.raises(errors.GroupNotFound):
        await mq.groups.delete(name, "g")


async def test_groups_that_read_what_matches(mq: Messaging, name: str) -> None:
    topics = [f"{name}-{letter}" for letter in "ab"]
    for topic in topics:
        await mq.topics.create(topic)
        await mq.groups.ensure(topic, "all")
    made = await mq.groups.ensure(topics[0], "some", pattern="a.*", headers={"x": "1"})
    assert (made.pattern, made.headers) == ("a.*", {"x": "1"})
    with pytest.raises(errors.AlreadyExists):
        await mq.groups.ensure(topics[0], "some", pattern="b")
    await mq.publish(topics[0], 1, routing_key="a.b", headers={"x": "1"})
    await mq.publish(topics[0], 2, routing_key="b")
    batch = await mq.fetch(topics[0], "some", member="m")
    assert batch is not None and [message.body for message in batch] == [1]
    assert [row.name for row in await mq.groups.list(topics[0])] == ["all", "some"]
    assert [(row.topic, row.name) for row in await mq.groups.list(after=f"{topics[0]}/all", limit=2)] == [
        (topics[0], "some"), (topics[1], "all")
    ]  # fmt: skip
    assert {row.group for row in await mq.groups.stats(topics[0])} == {"all", "some"}


# Schedules


async def test_schedules(mq: Messaging, name: str) -> None:
    await mq.queues.create(name)
    made = await mq.schedules.create(name, "0 3 * * *", queue=name, body={"a": 1}, label="l", timezone="Europe/Berlin")
    assert (made.name, made.cron, made.queue, made.topic, made.timezone) == (name, "0 3 * * *", name, None, "Europe/Berlin")
    assert (msgspec.json.decode(made.payload), made.paused, made.catch_up) == ({"a": 1}, False, "one")
    with pytest.raises(errors.AlreadyExists):
        await mq.schedules.create(name, "0 3 * * *", queue=name)
    changed = await mq.schedules.ensure(name, "0 4 * * *", queue=name, body=[2])
    assert (changed.cron, msgspec.json.decode(changed.payload)) == ("0 4 * * *", [2])
    await mq.schedules.pause(name)
    (listed,) = [row for row in await mq.schedules.list() if row.name == name]
    assert listed.paused
    await mq.schedules.resume(name)
    fired = await mq.schedules.run(name)
    (row,) = await delivered(mq, name)
    assert (row.id, row.body) == (fired, [2])
    await mq.schedules.delete(name)
    with pytest.raises(errors.ScheduleNotFound):
        await mq.schedules.delete(name)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    runs = await mq.schedules.next_runs("0 3 * * *", timezone="UTC", limit=2, after=start)
    assert runs == [start + timedelta(hours=3), start + timedelta(hours=27)]


# Inspecting


async def test_explain_and_stats(mq: Messaging, name: str) -> None:
    await mq.topics.create(name)
    await mq.queues.create(name)
    await mq.groups.ensure(name, "g")
    published = await mq.publish(name, 1)
    assert await mq.topics.head(name) == 1
    explained = await mq.explain(published.id)
    by_offset = await mq.explain_offset(name, 0, offset=1)
    assert explained.state == by_offset.state == "in_log" and explained["id"] == by_offset["id"]
    stats = await mq.stats()
    assert name in {row.topic for row in stats.topics} & {row.queue for row in stats.queues} & {
        row.topic for row in stats.groups
    }


async def test_an_unknown_message(mq: Messaging) -> None:
    explained = await mq.explain(UUID(int=1))
    assert (explained.state, "id" in explained) == ("unknown", True)
    assert explained.reason is not None and "not among the newest" in explained.reason


# Mistakes

Wrong = Callable[[Messaging, str], Awaitable[Any]]
NOBODY = "nobody-has-this-name"
MISTAKES: dict[str, tuple[Wrong, type[errors.TrunklineError]]] = {
    "publish to no topic": (lambda mq, name: mq.publish(NOBODY, 1), errors.TopicNotFound),
    "many to no topic": (lambda mq, name: mq.publish_many(NOBODY, [1, 2]), errors.TopicNotFound),
    "thousands to no topic": (lambda mq, name: mq.publish_many(NOBODY, range(3000)), errors.TopicNotFound),
    "enqueue to no queue": (lambda mq, name: mq.enqueue(NOBODY, 1), errors.QueueNotFound),
    "claim from no queue": (lambda mq, name: mq.claim(NOBODY), errors.QueueNotFound),
    "alter no queue": (lambda mq, name: mq.queues.alter(NOBODY, lease="5s"), errors.QueueNotFound),
    "purge no queue": (lambda mq, name: mq.queues.purge(NOBODY), errors.QueueNotFound),
    "clean up no queue": (lambda mq, name: mq.queues.trim(NOBODY), errors.QueueNotFound),
    "peek into no queue": (lambda mq, name: mq.queues.peek(NOBODY), errors.QueueNotFound),
    "statistics of no queue": (lambda mq, name: mq.queues.stats(NOBODY), errors.QueueNotFound),
    "statistics of no topic": (lambda mq, name: mq.topics.stats(NOBODY), errors.TopicNotFound),
    "dead letters of no queue": (lambda mq, name: mq.dead.list(NOBODY), errors.QueueNotFound),
    "redrive of no queue": (lambda mq, name: mq.dead.redrive(NOBODY), errors.QueueNotFound),
    "fetch from no topic": (lambda mq, name: mq.fetch(NOBODY, "g", member="m"), errors.TopicNotFound),
    "seek of no group": (lambda mq, name: mq.groups.seek(name, NOBODY, "latest"), errors.GroupNotFound),
    "subscribe no queue": (lambda mq, name: mq.subscriptions.add(NOBODY, name), errors.QueueNotFound),
    "subscribe to no topic": (lambda mq, name: mq.subscriptions.add(name, NOBODY), errors.TopicNotFound),
    "pause no schedule": (lambda mq, name: mq.schedules.pause(NOBODY), errors.ScheduleNotFound),
    "schedule to nothing": (lambda mq, name: mq.schedules.create("s", "@daily", topic=NOBODY), errors.TopicNotFound),
    "wrong cron": (lambda mq, name: mq.schedules.next_runs("nonsense"), errors.InvalidArgument),
    "wrong name of a topic": (lambda mq, name: mq.topics.create("a b"), errors.InvalidName),
    "wrong name of a queue": (lambda mq, name: mq.queues.create("a/b"), errors.InvalidName),
    "wrong name of a group": (lambda mq, name: mq.groups.create(name, "a b"), errors.InvalidName),
    "wrong name of a subscription": (lambda mq, name: mq.subscriptions.add(name, name, name="a b"), errors.InvalidName),
    "no partitions": (lambda mq, name: mq.topics.create(f"{name}-0", partitions=0), errors.InvalidArgument),
    "too many attempts": (lambda mq, name: mq.queues.create(f"{name}-0", max_attempts=5000), errors.InvalidArgument),
    "wrong pattern": (lambda mq, name: mq.subscriptions.add(name, name, pattern="#.a." * 30), errors.InvalidArgument),
    "below retention": (lambda mq, name: mq.topics.read(name, start=0), errors.InvalidArgument),
    "no such partition": (lambda mq, name: mq.topics.read(name, 7), errors.InvalidArgument),
    "priority of a queue without": (lambda mq, name: mq.enqueue(name, 1, priority=3), errors.InvalidArgument),
    "delay and time": (
        lambda mq, name: mq.enqueue(name, 1, delay="1s", deliver_at=datetime.now(UTC)), errors.InvalidArgument
    ),
    "too large": (lambda mq, name: mq.publish(f"{name}-small", "x" * 2000), errors.PayloadTooLarge),
    "too long a label": (lambda mq, name: mq.enqueue(name, 1, label="l" * 5000), errors.InvalidArgument),
    "claim of none": (lambda mq, name: mq.claim(name, limit=0), errors.InvalidArgument),
    "claim of too many": (lambda mq, name: mq.claim(name, limit=5000), errors.InvalidArgument),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_mistakes(mq: Messaging, name: str, mistake: str) -> None:
    await mq.topics.create(name)
    await mq.topics.create(f"{name}-small", max_payload=1000)
    await mq.queues.create(name)
    call, error = MISTAKES[mistake]
    with pytest.raises(error) as caught:
        await call(mq, name)
    assert type(caught.value) is error
