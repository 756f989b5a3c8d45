"""Client lifetime: compatible old calls, errors as classes, and recovery after a server restart."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support import both_clients
from trunkline import Client, NewMessage
from trunkline.embedded.server import EmbeddedServer
from trunkline.errors import DatabaseUnavailable, IdempotencyConflict, OutcomeUnknown, QueueNotFound, TopicNotFound
from trunkline.sql.migrate import migrate


async def test_topic_and_group(db: str) -> None:
    async with Client(db) as client:
        await client.topics.ensure("orders")
        sent = await client.publish("orders", b"one", key="k", headers={"a": 1}, routing_key="order.created")
        many = await client.publish_many("orders", [b"two", NewMessage(body=b"three", label="x")])
        batch = await client.fetch("orders", "billing", member="me")
        assert batch is not None
        assert [message.payload for message in batch.messages] == [b"one", b"two", b"three"]
        assert [message.id for message in batch.messages] == [sent.id, many[0].id, many[1].id]
        assert batch.messages[0].headers == {"a": 1}
        assert await client.commit("orders", "billing", batch) == "done"
        assert await client.fetch("orders", "billing", member="me") is None
        assert (await client.groups.stats("orders", "billing"))[0].lag == 0
        assert await client.groups.seek("orders", "billing", "earliest") == {0: 1}
        assert await client.commit("orders", "billing", batch) == "lost"
        taken = await client.claim_range("orders", "audit")
        assert taken is not None
        assert (taken.first, taken.last) == (1, 3)
        assert await client.topics.head("orders") == 3
        assert [message.offset for message in await client.topics.read("orders", 0, start=2)] == [2, 3]


async def test_queue(db: str) -> None:
    async with Client(db) as client:
        await client.queues.ensure("mail")
        await client.enqueue("mail", b"1", idempotency_key="once")
        assert (await client.enqueue("mail", b"1", idempotency_key="once")).duplicate
        with pytest.raises(IdempotencyConflict):
            await client.enqueue("mail", b"2", idempotency_key="once")
        [first] = await client.claim("mail", limit=10)
        assert await client.extend([first.receipt], lease=timedelta(minutes=1)) == ["done"]
        assert await client.nack([first.receipt], delay=timedelta(0), error="later") == ["done"]
        [again] = await client.claim("mail", labels=None)
        assert again.attempt == 2
        assert await client.bury([again.receipt], error="broken") == ["done"]
        assert [dead.error for dead in await client.dead.list("mail")] == ["broken"]
        assert await client.dead.redrive("mail") == 1
        [back] = await client.claim("mail")
        assert (back.id, back.attempt) == (first.id, 1)
        assert await client.release([back.receipt]) == ["done"]
        [last] = await client.claim("mail")
        assert await client.ack([last.receipt, first.receipt]) == ["done", "lost"]
        stats = (await client.queues.stats("mail"))[0]
        assert (stats.ready, stats.leased, stats.dead) == (0, 0, 0)


async def test_errors_are_classes(db: str) -> None:
    async with Client(db) as client:
        with pytest.raises(TopicNotFound) as caught:
            await client.publish("nowhere", b"")
        assert caught.value.code == "topic_not_found"
        assert caught.value.hint
        with pytest.raises(QueueNotFound):
            await client.claim("nowhere")


async def test_a_topic_made_again_under_its_name_is_found(db: str) -> None:
    async with Client(db) as client:
        await client.topics.ensure("t")
        await client.publish("t", b"old")
        await client.topics.delete("t")
        await client.topics.ensure("t")
        await client.publish("t", b"new")
        assert [message.payload for message in await client.topics.read("t", 0, start=1)] == [b"new"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path / "data") as server:
        migrate(server.url)
        yield server


async def test_client_goes_on_after_the_server_was_killed_and_started(server: EmbeddedServer) -> None:
    async with Client(server.url) as client:
        await client.queues.ensure("mail")
        await client.enqueue("mail", b"before")
        os.kill(server.postmaster_pid, signal.SIGKILL)
        server.start()
        deadline = time.monotonic() + 60
        while True:
            try:
                deliveries = await client.claim("mail", limit=10)
                break
            except (DatabaseUnavailable, OutcomeUnknown):
                assert time.monotonic() < deadline
        assert b"before" in [delivery.payload for delivery in deliveries]
        assert await deliveries.ack() == ["done"] * len(deliveries)


async def test_a_server_that_has_gone_is_named_as_the_cause(
    server: EmbeddedServer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with both_clients.client(kind, server.url) as mq:
        await mq.topics.ensure("orders")
        server.stop()
        with pytest.raises(DatabaseUnavailable, match="No such file") as caught:
            await mq.publish("orders", b"lost")
        assert "became free" not in str(caught.value)
        server.start()
        await mq.publish("orders", b"after")
    assert [record for record in caplog.records if record.name.startswith("psycopg")] == []


async def test_a_clean_restart_fails_no_write(server: EmbeddedServer) -> None:
    """The server's shutdown message is in the socket buffer of every idle connection, before the end of the stream."""
    async with Client(server.url) as client:
        await client.topics.ensure("orders")
        server.stop()
        server.start()
        assert (await client.publish("orders", b"after")).id
