"""Subscriptions: which topics feed which queues."""

from __future__ import annotations

import builtins

from trunkline.client.noun import Noun
from trunkline.db import calls
from trunkline.db.codec import place
from trunkline.types import Headers, Place, Reader, Subscription


class Subscriptions(Noun):
    """`client.subscriptions`"""

    async def add(
        self,
        queue: str,
        topic: str,
        *,
        pattern: str = "#",
        headers: Headers | None = None,
        start: Place = "latest",
        name: str | None = None,
    ) -> Subscription:
        """Feed the queue from the topic too: what matches the pattern on the routing key and the filter on headers.

        `name` is the topic's name unless given; a queue may have several subscriptions to one topic.
        """
        await self._runtime().sequence_before(topic, start)
        async with self._writing() as conn:
            await calls.subscribe(conn, queue, topic, pattern=pattern, headers=headers, start=place(start), name=name)
            rows = await calls.list_subscriptions(conn, queue, topic)
        return next(row for row in rows if row.name == (name or topic))

    async def list(self, queue: str | None = None, topic: str | None = None) -> builtins.list[Subscription]:
        """All subscriptions, or those of a queue, of a topic, or of both."""
        async with self._reading() as conn:
            return await calls.list_subscriptions(conn, queue, topic)

    async def remove(self, queue: str, name: str) -> None:
        """Stop feeding; `name` is the topic's unless another was given. What is not settled of it is forgotten."""
        async with self._writing() as conn:
            await calls.unsubscribe(conn, queue, name)

    async def test(
        self, topic: str, routing_key: str | None = None, headers: Headers | None = None
    ) -> builtins.list[Reader]:
        """All readers of the topic, and for each whether such a message would be for it. Publishes nothing."""
        async with self._reading() as conn:
            return await calls.readers(conn, topic, routing_key=routing_key, headers=headers)
