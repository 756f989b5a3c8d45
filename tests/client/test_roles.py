"""A client whose role may publish and consume, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support import both_clients
from trunkline import SyncClient
from trunkline.errors import PermissionDenied


@pytest.fixture
async def limited(kind: str, db: str, conn: psycopg.Connection[Any]) -> AsyncIterator[Any]:
    with SyncClient(db) as owner:
        owner.topics.create("t", partitions=2)
        owner.queues.create("q")
        owner.subscriptions.add("q", "t")
    name = f"limited_{uuid4().hex[:12]}"
    conn.execute(f"create role {name} login password 'secret' in role trunkline_publisher, trunkline_consumer")
    async with both_clients.client(kind, make_conninfo(db, user=name, password="secret")) as mq:
        yield mq
    conn.execute(f"drop role {name}")


async def test_publishing_and_consuming(limited: Any) -> None:
    await limited.publish("t", 1, key="k")
    await limited.enqueue("q", 2, priority=None)
    await limited.publish_many("t", range(3, 2003))
    seen: set[int] = set()
    async with limited.queue("q").claims(max_in_flight=500, type=int) as claims:
        async for delivery in claims:
            seen.add(delivery.body)
            if delivery.body == 2002:
                await limited.publish("t", 2003)
            await delivery.ack()
            if len(seen) == 2003:
                break
    assert seen == set(range(1, 2004))
    count = 0
    async with limited.subscribe("t", int, group="g", batch=1000) as batches:
        async for batch in batches:
            async with batch.transaction():
                count += len(batch)
            if count == 2002:
                break


async def test_administration_is_refused(limited: Any) -> None:
    for refused in (limited.topics.create("x"), limited.queues.delete("q"), limited.dead.purge("q")):
        with pytest.raises(PermissionDenied):
            await refused


@pytest.fixture
async def reader(kind: str, db: str, conn: psycopg.Connection[Any]) -> AsyncIterator[Any]:
    with SyncClient(db) as owner:
        owner.topics.create("t")
        owner.queues.create("q")
        owner.subscriptions.add("q", "t", pattern="a.*")
        owner.groups.create("t", "g", pattern="a.*")
        owner.enqueue("q", 1)
        owner.publish("t", 2, routing_key="a.1")
        owner.schedules.create("s", "@daily", queue="q")
        [delivery] = owner.claim("q")
        owner.enqueue("q", 3)
        delivery.bury(error="no")
    name = f"reader_{uuid4().hex[:12]}"
    conn.execute(f"create role {name} login password 'secret' in role trunkline_reader")
    async with both_clients.client(kind, make_conninfo(db, user=name, password="secret")) as mq:
        yield mq
    conn.execute(f"drop role {name}")


async def test_a_reader_sees_everything_and_changes_nothing(reader: Any) -> None:
    """Every verb of the client that only looks."""
    assert (await reader.topics.get("t")).name == "t"
    assert [topic.name for topic in await reader.topics.list()] == ["t"]
    assert (await reader.queues.get("q")).partitions == 1
    assert [queue.name for queue in await reader.queues.list()] == ["q"]
    assert [group.name for group in await reader.groups.list("t")] == ["g"]
    assert [row.name for row in await reader.subscriptions.list("q")] == ["t"]
    tested = await reader.subscriptions.test("t", routing_key="b.1")
    assert [(row.kind, row.matches) for row in tested] == [("group", False), ("queue", False)]
    assert sorted(waiting.body for waiting in await reader.queues.peek("q")) in ([1, 3], [2, 3])
    assert [message.body async for message in reader.topics.scan("t", start="earliest")] == [2]
    assert [message.body async for message in reader.topics.scan("t", start="latest")] == []
    assert [letter.error for letter in await reader.dead.list("q")] == ["no"]
    assert [schedule.name for schedule in await reader.schedules.list()] == ["s"]
    assert await reader.groups.position("t", "g") == {0: 1}
    assert len(await reader.topics.stats()) == len(await reader.queues.stats()) == 1
    for refused in (reader.enqueue("q", 1), reader.claim("q"), reader.groups.seek("t", "g", 1), reader.queues.purge("q")):
        with pytest.raises(PermissionDenied):
            await refused
