"""A worker with four concurrent deliveries, retries, dead letters, and a clean stop on Ctrl-C or SIGTERM.

TRUNKLINE_DATABASE_URL=postgresql:///app python examples/thumbnails.py
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass

from trunkline import Client
from trunkline.client.deliveries import Delivery


@dataclass
class Picture:
    name: str
    width: int


async def shrink(picture: Picture) -> None:
    """Simulate work."""
    await asyncio.sleep(0.01)
    if picture.width <= 0:
        raise ValueError(f"{picture.name} has no width")


async def handle(delivery: Delivery[Picture]) -> None:
    try:
        await shrink(delivery.body)
    except ValueError as exc:
        # Redelivered after the queue's backoff; a dead letter after the last attempt.
        await delivery.nack(error=str(exc))
    else:
        await delivery.ack()


async def work(mq: Client) -> None:
    async with mq.queue("thumbnails").claims(max_in_flight=4, type=Picture) as deliveries, asyncio.TaskGroup() as tasks:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, deliveries.stop)
        # The loop waits while four deliveries are unsettled.
        async for delivery in deliveries:
            tasks.create_task(handle(delivery))


async def main() -> None:
    async with Client() as mq:
        await mq.queues.ensure("thumbnails", max_attempts=2, backoff_base="0s")
        await mq.dead.purge("thumbnails")  # of earlier runs
        [before] = await mq.queues.stats("thumbnails")
        await mq.enqueue_many("thumbnails", [Picture(f"cat-{n}.png", 100) for n in range(20)] + [Picture("void.png", 0)])
        worker = asyncio.create_task(work(mq))
        while True:
            [stats] = await mq.queues.stats("thumbnails")
            if stats.acked - before.acked == 20 and stats.dead - before.dead == 1:
                break
            await asyncio.sleep(0.05)
        signal.raise_signal(signal.SIGTERM)
        await worker
        for letter in await mq.dead.list("thumbnails"):
            print(letter.body["name"], letter.attempts, letter.error)


asyncio.run(main())
