"""Uses that a strict type checker must accept, with the types it must see. Never run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

import msgspec
import psycopg
from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from trunkline import Client, NewMessage, SyncClient
from trunkline.client.batches import Batch
from trunkline.client.connection_client import ConnectionClient
from trunkline.client.deliveries import Deliveries, Delivery
from trunkline.client.sync.connection_client import ConnectionClient as SyncConnectionClient
from trunkline.client.sync.deliveries import Delivery as SyncDelivery
from trunkline.http_client import HttpClient
from trunkline.messaging import Messaging
from trunkline.types import (
    DeadLetter,
    Explanation,
    Message,
    Published,
    Queue,
    Range,
    ReadyMessage,
    Result,
    Schedule,
    Stats,
    Topic,
)


class Order(msgspec.Struct):
    id: int


async def publishing(mq: Client) -> None:
    assert_type(await mq.publish("t", {"id": 1}, key="k", delay="5s", headers={"a": 1}), Published)
    assert_type(await mq.publish("t", Order(1), delay=timedelta(seconds=5), deliver_at=None), Published)
    assert_type(await mq.enqueue("q", b"raw", priority=3, content_type="image/png"), Published)
    bodies = ({"id": n} for n in range(3))
    assert_type(await mq.publish_many("t", bodies, key=lambda body: str(body["id"])), list[Published])
    assert_type(await mq.publish_many("t", [NewMessage(body=1, label="l"), 2], key="all"), list[Published])


async def queues(mq: Client) -> None:
    assert_type(await mq.claim("q"), Deliveries[Any])
    taken = await mq.claim("q", limit=5, lease="30s", labels=["a"], type=Order)
    assert_type(taken, Deliveries[Order])
    assert_type(taken[0], Delivery[Order])
    assert_type(taken[0].body, Order)
    assert_type(await taken[0].ack(), Result)
    assert_type(await taken.ack(), list[Result])
    assert_type(await mq.nack([taken[0].receipt], delay="1m", error="x"), list[Result])
    async with mq.queue("q").claims(max_in_flight=8, lease="60s", type=Order) as claims:
        async for delivery in claims:
            assert_type(delivery, Delivery[Order])
            async with delivery.transaction() as conn:
                assert_type(conn, psycopg.AsyncConnection[tuple[Any, ...]])
    assert_type(await mq.queues.ensure("q", lease="30s", ordered=True), Queue)
    assert_type(await mq.queues.peek("q", type=Order), list[ReadyMessage[Order]])
    assert_type(await mq.dead.list("q", type=Order), list[DeadLetter[Order]])
    assert_type(await mq.dead.redrive("q", ids=[UUID(int=1)], on_progress=print), int)


async def groups(mq: Client) -> None:
    async with mq.subscribe("t", Order, group="g", start="earliest", batch=500) as orders:
        async for batch in orders:
            assert_type(batch, Batch[Order])
            assert_type([message.body for message in batch], list[Order])
            assert_type(batch.lag, timedelta)
            async with batch.transaction() as conn:
                await conn.execute("select 1")
            assert_type(await batch.commit(5), Result)
    async with mq.subscribe("t", group="g", start=datetime.now(UTC)) as untyped:
        async for batch_of_any in untyped:
            assert_type(batch_of_any, Batch[Any])
    assert_type(await mq.fetch("t", "g", member="me"), Batch[Any] | None)
    assert_type(await mq.claim_range("t", "g"), Range | None)
    assert_type(await mq.groups.seek("t", "g", "earliest", partition=0), dict[int, int])


async def topics(mq: Client) -> None:
    assert_type(await mq.topics.create("t", partitions=4, retention="7d"), Topic)
    assert_type(await mq.topics.list(), list[Topic])
    assert_type(await mq.topics.read("t", 0, start=1, type=Order), list[Message[Order]])
    async for message in mq.topics.scan("t", type=Order):
        assert_type(message, Message[Order])
    async for any_message in mq.topics.tail("t"):
        assert_type(any_message, Message[Any])
    assert_type(await mq.schedules.create("s", "* * * * *", queue="q", catch_up="all"), Schedule)
    assert_type(await mq.explain(UUID(int=1)), Explanation)
    assert_type(await mq.stats(), Stats)


async def your_transaction(
    mq: Client, driver: psycopg.AsyncConnection[Any], session: AsyncSession, connection: AsyncConnection, plain: Session
) -> None:
    assert_type(mq.on(driver), ConnectionClient)
    assert_type(mq.on(session), ConnectionClient)
    assert_type(mq.on(connection), ConnectionClient)
    assert_type(await mq.on(driver).publish("t", 1), Published)
    assert_type(mq.on(plain), SyncConnectionClient)


def sync(mq: SyncClient, driver: psycopg.Connection[Any], session: Session, connection: Connection) -> None:
    assert_type(mq.publish("t", 1), Published)
    with mq.queue("q").claims(type=Order) as claims:
        for delivery in claims:
            assert_type(delivery, SyncDelivery[Order])
            assert_type(delivery.ack(), Result)
    with mq.subscribe("t", int, group="g") as batches:
        for batch in batches:
            assert_type([message.body for message in batch], list[int])
    assert_type(mq.on(driver).publish("t", 1), Published)
    assert_type(mq.on(session), SyncConnectionClient)
    assert_type(mq.on(connection), SyncConnectionClient)
    with create_engine("postgresql+psycopg://").begin() as begun:
        mq.on(begun).enqueue_many("q", [1, 2])


async def both_clients(database: Client, http: HttpClient) -> None:
    for mq in (database, http):
        await anywhere(mq)


async def anywhere(mq: Messaging) -> None:
    """Work that does not care which client it is given."""
    assert_type(await mq.queues.ensure("q", lease="1500ms", ordered=True), Queue)
    assert_type(await mq.publish("t", Order(1), key="k", delay="5s"), Published)
    assert_type(await mq.publish_many("t", [1, 2], key=str), list[Published])
    claimed = await mq.claim("q", limit=2, lease=timedelta(seconds=2), labels=["a"], consumer="me", type=Order)
    assert_type([await delivery.ack() for delivery in claimed], list[Result])
    assert_type(await claimed.release(), list[Result])
    assert_type(await mq.extend(claimed.receipts, lease="1m"), list[Result])
    batch = await mq.fetch("t", "g", member="m")
    if batch is not None:
        assert_type([message.body for message in batch], list[Any])
        assert_type(await batch.commit(batch.last_offset), Result)
    assert_type(await mq.stats(), Stats)
