"""One topic, three queues. No message is copied: each queue reads the topic's log through its own filter.

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
        await mq.topics.ensure("shop-events")
        for queue in ("shop-mail", "shop-audit", "shop-urgent"):
            await mq.queues.ensure(queue)
        if not [row for row in await mq.subscriptions.list() if row.topic == "shop-events"]:  # the first run
            await mq.subscriptions.add("shop-mail", "shop-events", pattern="order.created.*")
            await mq.subscriptions.add("shop-audit", "shop-events")
            await mq.subscriptions.add("shop-urgent", "shop-events", headers={"priority": "high"})

        for reader in await mq.subscriptions.test("shop-events", "order.paid.eu", {"priority": "high"}):
            print(f"{reader.name} would get it: {reader.matches}")

        for routing_key, headers in EVENTS:
            await mq.publish("shop-events", {"what": routing_key}, routing_key=routing_key, headers=headers)
        for queue in ("shop-mail", "shop-audit", "shop-urgent"):
            deliveries = await mq.claim(queue, limit=10)
            print(queue, [delivery.routing_key for delivery in deliveries])
            await deliveries.ack()


asyncio.run(main())
