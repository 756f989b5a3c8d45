"""Subscriptions: topics that feed queues."""

from __future__ import annotations

import builtins

from trunkline.client.resource import Resource
from trunkline.codec import position_text
from trunkline.db import calls
from trunkline.types import Headers, Position, Reader, Subscription


class Subscriptions(Resource):
    """`client.subscriptions`"""

    async def add(
        self,
        queue: str,
        topic: str,
        *,
        pattern: str = "#",
        headers: Headers | None = None,
        start: Position = "latest",
        name: str | None = None,
    ) -> Subscription:
        """Subscribe the queue to a topic, for messages that match `pattern` (on the routing key) and `headers`.

        `name` defaults to the topic's name. A queue may have several subscriptions to one topic under different names.
        """
        await self._session().sequence_before(topic, start)
        async with self._writing() as conn:
            await calls.subscribe(
                conn, queue, topic, pattern=pattern, headers=headers, start=position_text(start), name=name
            )
            rows = await calls.list_subscriptions(conn, queue, topic)
        return next(row for row in rows if row.name == (name or topic))

    async def list(self, queue: str | None = None, topic: str | None = None) -> builtins.list[Subscription]:
        """List all subscriptions, or those of a queue, of a topic, or of both."""
        async with self._reading() as conn:
            return await calls.list_subscriptions(conn, queue, topic)

    async def remove(self, queue: str, name: str) -> None:
        """Remove a subscription. Its unsettled messages are dropped from the queue."""
        async with self._writing() as conn:
            await calls.unsubscribe(conn, queue, name)

    async def test(
        self, topic: str, routing_key: str | None = None, headers: Headers | None = None
    ) -> builtins.list[Reader]:
        """List all readers of the topic, each with whether it would receive such a message. Publishes nothing."""
        async with self._reading() as conn:
            return await calls.readers(conn, topic, routing_key=routing_key, headers=headers)
