"""The nouns of the client, with both twins."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trunkline import Client, NewMessage, SyncClient
from trunkline.errors import (
    AlreadyExists,
    DeadLetterNotFound,
    InUse,
    InvalidArgument,
    InvalidDuration,
    QueueNotFound,
    TopicNotFound,
)
from trunkline.http_client import HttpClient


async def test_topics(mq: Any) -> None:
    made = await mq.topics.create("orders", partitions=2, retention="3d", max_payload=1000)
    assert (made.name, made.partitions, made.retention, made.max_payload) == ("orders", 2, timedelta(days=3), 1000)
    with pytest.raises(AlreadyExists):
        await mq.topics.create("orders")
    assert await mq.topics.ensure("orders", partitions=2) == made
    assert (await mq.topics.ensure("orders", retention_bytes=10**9)).retention_bytes == 10**9
    assert await mq.topics.ensure("orders", retention_bytes=0) == made
    with pytest.raises(AlreadyExists):
        await mq.topics.ensure("orders", partitions=3)
    changed = await mq.topics.alter("orders", retention="1d", partitions=3)
    assert (changed.retention, changed.partitions, changed.max_payload) == (timedelta(days=1), 3, 1000)
    assert await mq.topics.list() == await mq.topics.list(after="o", limit=1) == [changed]
    assert await mq.topics.list(after="orders") == []
    assert await mq.topics.get("orders") == changed
    assert [row.partition for row in await mq.topics.stats("orders")] == [0, 1, 2]
    await mq.groups.ensure("orders", "g")
    with pytest.raises(InUse):
        await mq.topics.delete("orders")
    await mq.topics.delete("orders", force=True)
    with pytest.raises(TopicNotFound):
        await mq.topics.get("orders")
    with pytest.raises(InvalidDuration):
        await mq.topics.create("other", retention="soon")


async def test_reading_a_topic(mq: Any) -> None:
    await mq.topics.create("t", partitions=2)
    await mq.publish_many("t", range(20), key=lambda n: str(n % 5))
    seen = [message async for message in mq.topics.scan("t")]
    assert sorted(message.body for message in seen) == list(range(20))
    for partition in range(2):
        offsets = [message.offset for message in seen if message.partition == partition]
        assert offsets == list(range(1, len(offsets) + 1))
        assert await mq.topics.head("t", partition) == len(offsets)
        assert await mq.topics.offset_at("t", partition, datetime(2020, 1, 1, tzinfo=UTC)) == 1
    assert [m async for m in mq.topics.scan("t", start="latest")] == []
    assert [m async for m in mq.topics.scan("t", start=datetime.now(UTC) + timedelta(hours=1))] == []
    assert [m.body for m in await mq.topics.read("t", 0, start=1, limit=1, type=int)] == [seen[0].body]


async def test_tail_gives_what_comes(mq: Any) -> None:
    await mq.topics.create("t")
    await mq.publish("t", "old")
    await mq.publish("t", "older")
    found = []
    async for message in mq.topics.tail("t", start=2):
        found.append(message.body)
        if len(found) == 3:
            break
        await mq.publish("t", f"new {len(found)}")
    assert found == ["older", "new 1", "new 2"]


async def test_queues(mq: Any) -> None:
    made = await mq.queues.create("mail", lease="45s", max_attempts=3, backoff_base="2s", ordered=True, partitions=4)
    assert (made.lease, made.max_attempts, made.ordered, made.partitions) == (timedelta(seconds=45), 3, True, 4)
    assert await mq.queues.ensure("mail", lease="45s", ordered=True) == made
    assert (await mq.queues.ensure("mail", lease="50s", ttl="2h")).ttl == timedelta(hours=2)
    assert (await mq.queues.alter("mail", ttl="0s")).ttl is None
    for fixed in ({"ordered": False}, {"partitions": 3}, {"priorities": 2}):
        with pytest.raises(AlreadyExists):
            await mq.queues.ensure("mail", **fixed)
    changed = await mq.queues.alter("mail", lease="1m", ttl="1h")
    assert (changed.lease, changed.ttl, changed.max_attempts) == (timedelta(minutes=1), timedelta(hours=1), 3)
    assert await mq.queues.list() == [await mq.queues.get("mail")]
    assert await mq.queues.list(after="mail", limit=5) == []
    await mq.queues.pause("mail")
    await mq.enqueue("mail", {"n": 1})
    assert len(await mq.claim("mail")) == 0
    assert (await mq.queues.get("mail")).paused
    await mq.queues.resume("mail")
    assert (await mq.queues.stats("mail"))[0].ready == 1
    assert await mq.queues.purge("mail") == 1
    assert await mq.queues.trim("mail") >= 0
    await mq.queues.delete("mail")
    with pytest.raises(QueueNotFound):
        await mq.queues.get("mail")


async def test_priorities(mq: Any) -> None:
    made = await mq.queues.create("q", priorities=3)
    assert made.priorities == 3
    await mq.enqueue("q", "low")
    await mq.enqueue("q", "high", priority=2)
    await mq.enqueue_many("q", [NewMessage(body="middle", priority=1)])
    assert sorted(d.body for d in await mq.claim("q", limit=10)) == ["high", "low", "middle"]
    with pytest.raises(InvalidArgument):
        await mq.enqueue("q", "too high", priority=3)
    await mq.topics.create("t")
    with pytest.raises(TypeError, match="priorit"):
        await mq.publish_many("t", [NewMessage(body=1, priority=1)])


async def test_peek_changes_nothing(mq: Any) -> None:
    await mq.queues.create("q")
    await mq.enqueue_many("q", ["a", "b", "c"])
    [first] = await mq.claim("q")
    await first.nack(delay="0s", error="later")
    for _ in range(2):
        seen = await mq.queues.peek("q")
        assert [(w.body, w.attempt, w.error) for w in seen] == [("a", 1, "later"), ("b", 0, None), ("c", 0, None)]
    assert (await mq.claim("q"))[0].attempt == 2


async def test_groups(mq: Any) -> None:
    await mq.topics.create("t")
    await mq.publish_many("t", range(5))
    made = await mq.groups.create("t", "g", start=3)
    assert (made.topic, made.name) == ("t", "g")
    with pytest.raises(AlreadyExists):
        await mq.groups.create("t", "g")
    assert (await mq.groups.ensure("t", "g", start="latest")).name == "g"
    assert await mq.groups.position("t", "g") == {0: 3}
    assert await mq.groups.seek("t", "g", to=2) == {0: 2}
    assert [row.lag for row in await mq.groups.stats("t", "g")] == [4]
    await mq.groups.ensure("t", "h")
    assert [group.name for group in await mq.groups.list("t")] == ["g", "h"]
    assert [group.name for group in await mq.groups.list("t", after="g")] == ["h"]
    assert [group.name for group in await mq.groups.list(after="t/g", limit=1)] == ["h"]
    with pytest.raises(InvalidArgument):
        await mq.groups.list(limit=-1)
    await mq.groups.delete("t", "h")
    assert [group.name for group in await mq.groups.list()] == ["g"]


async def test_a_group_with_a_pattern_and_headers_reads_what_matches(mq: Any) -> None:
    await mq.topics.create("t")
    made = await mq.groups.create("t", "g", pattern="a.#", headers={"land": ["de", "at"]})
    assert (made.pattern, made.headers) == ("a.#", {"land": ["de", "at"]})
    assert await mq.groups.list("t") == [made] == [await mq.groups.ensure("t", "g")]
    for number, (key, land) in enumerate([("b", "de"), ("a.1", "de"), ("a.2", "fr"), ("a", "at"), ("b", "at")]):
        await mq.publish("t", number, routing_key=key, headers={"land": land})
    async with mq.subscribe("t", int, group="g") as batches:
        async for batch in batches:
            assert [message.body for message in batch] == [1, 3]
            assert await batch.commit() == "done"
            break
    assert [row.lag for row in await mq.groups.stats("t", "g")] == [0]
    with pytest.raises(AlreadyExists):
        await mq.groups.ensure("t", "g", pattern="b.#")


async def test_numbers_too_large_for_the_database_are_refused(mq: Any) -> None:
    await mq.topics.create("t")
    for call in (mq.topics.read("t", 0, start=2**70), mq.topics.read("t", 2**40, start=1)):
        with pytest.raises(InvalidArgument):
            await call


async def test_subscriptions(mq: Any) -> None:
    await mq.topics.create("t")
    await mq.queues.create("q")
    await mq.queues.create("all")
    made = await mq.subscriptions.add("q", "t", pattern="order.*", headers={"country": ["de", "at"]})
    assert (made.queue, made.topic, made.name, made.pattern) == ("q", "t", "t", "order.*")
    await mq.subscriptions.add("all", "t", name="everything")
    await mq.groups.ensure("t", "g")
    readers = await mq.subscriptions.test("t", "order.created", {"country": "de"})
    assert {(r.kind, r.name): r.matches for r in readers} == {
        ("queue", "q"): True,
        ("queue", "all"): True,
        ("group", "g"): True,
    }
    readers = await mq.subscriptions.test("t", "order.created", {"country": "fr"})
    assert {r.name for r in readers if r.matches} == {"all", "g"}
    assert [row.name for row in await mq.subscriptions.list("all")] == ["everything"]
    assert len(await mq.subscriptions.list(topic="t")) == 2
    await mq.publish("t", 1, routing_key="order.created", headers={"country": "at"})
    assert [d.topic for d in await mq.claim("q")] == ["t"]
    await mq.subscriptions.remove("q", "t")
    assert await mq.subscriptions.list("q") == []


async def test_dead_letters(mq: Any) -> None:
    await mq.queues.create("q")
    await mq.queues.create("other")
    await mq.enqueue_many("q", range(5))
    await (await mq.claim("q", limit=5)).bury("broken")
    page = await mq.dead.list("q", limit=2)
    assert [letter.body for letter in page] == [0, 1]
    assert [letter.body for letter in await mq.dead.list("q", after=page[-1].dead_id)] == [2, 3, 4]
    letter = await mq.dead.get("q", page[0].id)
    assert (letter.error, letter.reason, letter.attempts) == ("broken", "buried", 1)
    steps: list[int] = []
    assert await mq.dead.redrive("q", ids=[page[0].id]) == 1
    assert await mq.dead.redrive("q", limit=1, to="other", on_progress=steps.append) == 1
    assert steps == [1]
    assert [d.body for d in await mq.claim("other")] == [1]
    assert await mq.dead.purge("q", limit=2) == 2
    assert await mq.dead.purge("q", on_progress=steps.append) == 1
    with pytest.raises(DeadLetterNotFound):
        await mq.dead.get("q", page[1].id)


async def test_schedules(mq: Any) -> None:
    await mq.queues.create("q")
    made = await mq.schedules.create("nightly", "0 3 * * *", queue="q", body={"n": 1}, timezone="Europe/Berlin")
    assert (made.name, made.cron, made.queue, made.timezone) == ("nightly", "0 3 * * *", "q", "Europe/Berlin")
    assert (await mq.schedules.ensure("nightly", "0 4 * * *", queue="q", body={"n": 2})).cron == "0 4 * * *"
    id = await mq.schedules.run("nightly")
    [delivery] = await mq.claim("q")
    assert (delivery.id, delivery.body) == (id, {"n": 2})
    await mq.schedules.pause("nightly")
    assert [(s.name, s.paused) for s in await mq.schedules.list()] == [("nightly", True)]
    await mq.schedules.resume("nightly")
    after = datetime(2026, 1, 1, tzinfo=UTC)
    assert await mq.schedules.next_runs("0 3 * * *", limit=2, after=after) == [
        datetime(2026, 1, 1, 3, tzinfo=UTC),
        datetime(2026, 1, 2, 3, tzinfo=UTC),
    ]
    await mq.schedules.delete("nightly")
    assert await mq.schedules.list() == []


async def test_stats_and_reasons(mq: Any) -> None:
    await mq.topics.create("t")
    await mq.queues.create("q")
    await mq.groups.ensure("t", "g")
    sent = await mq.publish("t", {"n": 1})
    stats = await mq.stats()
    assert ([row.topic for row in stats.topics], [row.queue for row in stats.queues]) == (["t"], ["q"])
    assert [row.group for row in stats.groups] == ["g"]
    why = await mq.explain(sent.id)
    assert (why.state, why["topic"]) == ("in_log", "t")
    assert [(reader["name"], reader["state"]) for reader in why.readers] == [("g", "ready")]
    assert (await mq.explain_offset("t", 0, offset=1))["id"] == str(sent.id)


def test_both_twins_have_the_same_names() -> None:
    def surface(cls: type) -> dict[str, list[str]]:
        public = {name: value for name, value in vars(cls).items() if not name.startswith("_") and callable(value)}
        return {name: list(inspect.signature(value).parameters) for name, value in public.items()}

    assert surface(Client) == surface(SyncClient)
    for noun in ("topics", "queues", "groups", "subscriptions", "dead", "schedules"):
        mine, twin = (type(getattr(cls("postgresql:///x"), noun)) for cls in (Client, SyncClient))
        assert mine is not twin
        assert surface(mine) == surface(twin)


@pytest.mark.parametrize("client", [Client, SyncClient, HttpClient])
@pytest.mark.parametrize("verb", ["claim", "fetch"])
def test_the_number_of_messages_to_return_is_called_limit(client: type, verb: str) -> None:
    assert "limit" in inspect.signature(getattr(client, verb)).parameters
