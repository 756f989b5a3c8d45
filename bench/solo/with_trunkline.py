"""Trunkline through its Python client: coalesced publishes, batches, and a consumer loop with one ack per message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from bench.solo.contract import Seen
from trunkline import Client
from trunkline.client.deliveries import Delivery

QUEUE = "peers"
_MAX_IN_FLIGHT = 2000


def make(url: str) -> Trunkline:
    return Trunkline(url)


class Trunkline:
    unfinished = f"select ready + delayed + leased + dead from trunkline.queue_stats('{QUEUE}')"

    def __init__(self, url: str) -> None:
        self._mq = Client(url, max_connections=10)

    async def __aenter__(self) -> Self:
        await self._mq.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._mq.__aexit__(None, None, None)

    async def install(self) -> None:
        await self._mq.queues.ensure(QUEUE)

    async def add(self, body: dict[str, str]) -> None:
        await self._mq.enqueue(QUEUE, body)

    async def add_many(self, bodies: Sequence[dict[str, str]]) -> None:
        await self._mq.enqueue_many(QUEUE, bodies)

    async def work(self, seen: Seen) -> None:
        """Start a task per message, as the other libraries do. Each task awaits its own ack."""
        running: set[asyncio.Task[None]] = set()

        async def handle(delivery: Delivery[Any]) -> None:
            seen(1)
            await delivery.ack()

        async with self._mq.queue(QUEUE).claims(max_in_flight=_MAX_IN_FLIGHT, lease="5m") as deliveries:
            async for delivery in deliveries:
                task = asyncio.create_task(handle(delivery))
                running.add(task)
                task.add_done_callback(running.discard)
