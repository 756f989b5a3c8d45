"""Subscriptions over HTTP."""

from __future__ import annotations

import builtins

import msgspec

from trunkline.codec import position_text, to_json
from trunkline.http_client.resource import HttpResource
from trunkline.http_client.topics import topic_path
from trunkline.http_client.transport import quoted
from trunkline.types import (
    Headers,
    Position,
    Reader,
    Subscription,
)


class _Readers(msgspec.Struct):
    data: list[Reader]


class HttpSubscriptions(HttpResource):
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
        request = {
            "name": name,
            "topic": topic,
            "queue": queue,
            "pattern": pattern,
            "headers": headers,
            "start": position_text(start),
        }
        return await self._transport.record("POST", "/v1/subscriptions", Subscription, request)

    async def list(self, queue: str | None = None, topic: str | None = None) -> builtins.list[Subscription]:
        """List all subscriptions, or those of a queue, of a topic, or of both."""
        return await self._transport.records("/v1/subscriptions", Subscription, queue=queue, topic=topic)

    async def remove(self, queue: str, name: str) -> None:
        """Remove a subscription. Its unsettled messages are dropped from the queue."""
        await self._transport.ask("DELETE", f"/v1/subscriptions/{quoted(name)}", query={"queue": queue})

    async def test(
        self, topic: str, routing_key: str | None = None, headers: Headers | None = None
    ) -> builtins.list[Reader]:
        """List all readers of the topic, each with whether it would receive such a message. Publishes nothing."""
        path = f"{topic_path(topic)}/readers"
        query = {"routing_key": routing_key, "headers": None if headers is None else to_json(headers).decode()}
        return (await self._transport.ask("GET", path, query=query, kind=_Readers)).data
