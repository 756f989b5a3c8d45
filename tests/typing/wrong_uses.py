"""Uses that a strict type checker must refuse. Each wrong line names the kind of its error. Never run."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg

from trunkline import Client, SyncClient


class Order(msgspec.Struct):
    id: int


async def wrong(mq: Client, driver: psycopg.AsyncConnection[Any], plain: psycopg.Connection[Any]) -> None:
    await mq.publish("t")  # error: call-arg
    await mq.publish("t", 1, "key")  # error: call-arg
    await mq.publish("t", 1, key=5)  # error: arg-type
    await mq.publish("t", 1, priority=2)  # error: call-arg
    await mq.publish("t", 1, delay=30)  # error: arg-type
    await mq.publish("t", 1, headers=["a"])  # error: arg-type
    await mq.publish_many("t", 5)  # error: arg-type
    await mq.claim("q", 5)  # error: call-overload
    await mq.ack(5)  # error: arg-type
    await mq.queues.create("q", lease=30)  # error: arg-type
    await mq.queues.create("q", leese="30s")  # error: call-arg
    await mq.queues.alter("q", ordered=True)  # error: call-arg
    await mq.schedules.create("s", "* * * * *", catch_up="some")  # error: arg-type
    mq.subscribe("t", Order)  # error: call-overload
    taken = await mq.claim("q", type=Order)
    print(taken[0].body.total)  # error: attr-defined
    taken[0].attempt = 5  # error: misc
    answer: int = await taken[0].ack()  # error: assignment
    if await taken[0].ack() == "gone":  # error: comparison-overlap
        pass
    async with mq.subscribe("t", Order, group="g") as orders:
        for _ in orders:  # error: attr-defined
            pass
        async for batch in orders:
            print(batch.messages[0].body.name)  # error: attr-defined
    with mq.queue("q").claims():  # error: attr-defined
        pass
    mq.on("postgresql:///x")  # error: call-overload
    await mq.on(plain).publish("t", 1)  # error: misc
    print(mq.on(driver).publish("t", 1).id)  # error: attr-defined
    print(answer)


def wrong_sync(mq: SyncClient) -> None:
    text: str = mq.publish("t", 1)  # error: assignment
    mq.topics.create("t", partitions="4")  # error: arg-type
    [delivery] = mq.claim("q", type=Order)
    print(delivery.body.total)  # error: attr-defined
    delivery.nack("1s")  # error: call-arg
    print(text)
