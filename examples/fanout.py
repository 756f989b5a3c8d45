"""One topic, three queues. Nothing is copied: each queue reads the log of the topic through its own filter.

TRUNKLINE_DATABASE_URL=postgresql:///app python examples/fanout.py
"""

from __future__ import annotations

import asyncio

from trunkline import Client

EVENTS = [
    ("order.created.eu", {"priority": "high"}),
    ("order.created.us", {"priority": "low"}),
    ("order.paid.eu", {"priority": "high"}),
]


async def main() -> None:
    async with Client() as mq:
        await mq.topics.ensure("shop")
        for queue in ("mail", "audit", "urgent"):
            await mq.queues.ensure(queue)
        await mq.subscriptions.add("mail", "shop", pattern="order.created.*")
        await mq.subscriptions.add("audit", "shop")
        await mq.subscriptions.add("urgent", "shop", headers={"priority": "high"})

        for reader in await mq.subscriptions.test("shop", "order.paid.eu", {"priority": "high"}):
            print(f"{reader.name} would get it: {reader.matches}")

        for routing_key, headers in EVENTS:
            await mq.publish("shop", {"what": routing_key}, routing_key=routing_key, headers=headers)
        for queue in ("mail", "audit", "urgent"):
            deliveries = await mq.claim(queue, max_messages=10)
            print(queue, [delivery.routing_key for delivery in deliveries])
            await deliveries.ack()


asyncio.run(main())
