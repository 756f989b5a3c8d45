"""The client: every noun and verb that the server has."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Self
from uuid import UUID

import msgspec

from trunkline.client.publishing import PerBody, new_messages
from trunkline.errors import InvalidArgument, SettingsError
from trunkline.http_client.consuming import FetchedRow, HttpBatch, HttpDeliveries, HttpDelivery, Settler
from trunkline.http_client.nouns import HttpGroups, HttpSchedules, HttpSubscriptions, HttpTopics
from trunkline.http_client.publishing import batches, envelope
from trunkline.http_client.queues import HttpDeadLetters, HttpQueues
from trunkline.http_client.rows import DeliveryRow, seconds
from trunkline.http_client.transport import Transport, quoted
from trunkline.types import (
    Duration,
    Explanation,
    GroupStats,
    Headers,
    NewMessage,
    Published,
    QueueStats,
    Result,
    Stats,
    TopicStats,
)

_PATIENCE = "20s"


class _Published(msgspec.Struct):
    messages: list[Published]


class _Claimed(msgspec.Struct):
    deliveries: list[DeliveryRow]


class _Numbers(msgspec.Struct):
    topics: list[TopicStats]
    groups: list[GroupStats]
    queues: list[QueueStats]


class HttpClient:
    """`async with HttpClient(url, token) as mq:`; without arguments TRUNKLINE_URL and TRUNKLINE_TOKEN."""

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout: float = 60.0) -> None:
        url = url or os.environ.get("TRUNKLINE_URL")
        if not url:
            raise SettingsError("there is no URL of a server", hint="pass it to the client, or set TRUNKLINE_URL")
        self._transport = Transport(url, token or os.environ.get("TRUNKLINE_TOKEN"), timeout)
        self._settler = Settler(self._transport)
        self.topics = HttpTopics(self._transport)
        self.queues = HttpQueues(self._transport)
        self.groups = HttpGroups(self._transport)
        self.subscriptions = HttpSubscriptions(self._transport)
        self.dead = HttpDeadLetters(self._transport)
        self.schedules = HttpSchedules(self._transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    # Publishing

    async def publish(self, topic: str, body: Any, **fields: Any) -> Published:
        """The message is on disk when this returns; the fields are those of `NewMessage`."""
        return await self._publish(f"/v1/topics/{quoted(topic)}/messages", NewMessage(body=body, **fields))

    async def enqueue(self, queue: str, body: Any, **fields: Any) -> Published:
        """`publish`, straight into a queue."""
        return await self._publish(f"/v1/queues/{quoted(queue)}/messages", NewMessage(body=body, **fields))

    async def publish_many(
        self,
        topic: str,
        bodies: Iterable[Any],
        *,
        key: PerBody = None,
        routing_key: PerBody = None,
        label: PerBody = None,
        headers: Headers | None = None,
        content_type: str | None = None,
    ) -> list[Published]:
        """Bodies or `NewMessage`s, in batches of at most 1,000; each batch is stored as a whole or not at all."""
        messages = new_messages(
            bodies, key=key, routing_key=routing_key, label=label, headers=headers, content_type=content_type
        )
        return await self._publish_many(f"/v1/topics/{quoted(topic)}/messages", messages)

    async def enqueue_many(
        self,
        queue: str,
        bodies: Iterable[Any],
        *,
        key: PerBody = None,
        routing_key: PerBody = None,
        label: PerBody = None,
        headers: Headers | None = None,
        content_type: str | None = None,
    ) -> list[Published]:
        """`publish_many`, straight into a queue."""
        messages = new_messages(
            bodies, key=key, routing_key=routing_key, label=label, headers=headers, content_type=content_type
        )
        return await self._publish_many(f"/v1/queues/{quoted(queue)}/messages", messages)

    async def _publish(self, path: str, message: NewMessage) -> Published:
        answer = await self._transport.send("POST", path, envelope(message))
        return msgspec.json.decode(answer.content, type=Published)

    async def _publish_many(self, path: str, messages: Iterable[NewMessage]) -> list[Published]:
        answers: list[Published] = []
        for batch in batches(messages):
            answer = await self._transport.send("POST", path, batch)
            answers += msgspec.json.decode(answer.content, type=_Published).messages
        return answers

    # Queues

    async def claim(
        self,
        queue: str,
        *,
        limit: int = 1,
        lease: Duration | None = None,
        labels: Sequence[str] | None = None,
        wait: Duration | None = None,
        consumer: str | None = None,
        type: Any = None,
    ) -> HttpDeliveries:
        """Up to `limit` for the time of the lease; none, at once or after `wait`, when there are none."""
        if consumer is not None:
            raise InvalidArgument("over HTTP a consumer cannot be named", hint="in the history it is called http")
        asked = {
            "limit": limit,
            "lease_seconds": seconds(lease),
            "labels": None if labels is None else list(labels),
            "wait": seconds(wait),
        }
        body = await self._transport.ask("POST", f"/v1/queues/{quoted(queue)}/claims", asked, kind=_Claimed)
        return HttpDeliveries.of(body.deliveries, self._settler.of(queue), type)

    async def ack(self, receipts: Sequence[str]) -> list[Result]:
        """These are done and never delivered again; `lost` for those whose lease ended or was replaced."""
        return await self._settler.settle("ack", receipts)

    async def nack(
        self, receipts: Sequence[str], *, delay: Duration | None = None, error: str | None = None
    ) -> list[Result]:
        """Deliver these again after `delay` (by default the queue's backoff)."""
        return await self._settler.nack(receipts, delay, error)

    async def bury(self, receipts: Sequence[str], *, error: str | None = None) -> list[Result]:
        """These go to the dead letters at once."""
        return await self._settler.settle("bury", receipts, error=error)

    async def release(self, receipts: Sequence[str]) -> list[Result]:
        """These go back at once, as if they had not been delivered."""
        return await self._settler.settle("release", receipts)

    async def extend(self, receipts: Sequence[str], *, lease: Duration) -> list[Result]:
        """Keep these for `lease` from now."""
        return await self._settler.extend(receipts, lease)

    async def deliveries(self, queue: str, **claim: Any) -> AsyncIterator[HttpDelivery]:
        """Deliveries as they come, without an end; settle each."""
        while True:
            for delivery in await self.claim(queue, wait=_PATIENCE, **claim):
                yield delivery

    # Groups

    async def fetch(
        self,
        topic: str,
        group: str,
        *,
        member: str | None = None,
        limit: int = 100,
        lease: Duration = "30s",
        wait: Duration | None = None,
        type: Any = None,
    ) -> HttpBatch | None:
        """The next messages of a partition that is leased to this member, or None."""
        asked = {"member": member, "limit": limit, "lease_seconds": seconds(lease), "wait": seconds(wait)}
        row = await self._transport.ask("POST", f"{_group(topic, group)}/fetch", asked, kind=FetchedRow)
        return HttpBatch(self._transport, topic, group, row, type) if row.messages else None

    async def commit(self, topic: str, group: str, batch: HttpBatch, *, offset: int | None = None) -> Result:
        """Everything of the batch (or up to `offset`) is done: `batch.commit()`."""
        if (batch.topic, batch.group) != (topic, group):
            raise ValueError(f"the batch was fetched from {batch.topic} for {batch.group}, not from {topic} for {group}")
        return await batch.commit(offset)

    async def heartbeat(self, topic: str, group: str, *, member: str, lease: Duration = "30s") -> int:
        """Keep the member's partitions for `lease` from now; answers how many it still has."""
        asked = {"member": member, "lease_seconds": seconds(lease)}
        kept: int = (await self._transport.ask("POST", f"{_group(topic, group)}/heartbeat", asked))["partitions"]
        return kept

    async def leave(self, topic: str, group: str, *, member: str) -> int:
        """The member gives its partitions back."""
        given: int = (await self._transport.ask("POST", f"{_group(topic, group)}/leave", {"member": member}))["partitions"]
        return given

    # Reasons and numbers

    async def explain(self, id: UUID) -> Explanation:
        """Where the message is, who holds it, and why it is not delivered now."""
        return Explanation(await self._transport.ask("GET", f"/v1/messages/{id}/explanation"))

    async def explain_offset(self, topic: str, partition: int, *, offset: int) -> Explanation:
        """The same for an offset of a topic."""
        path = f"/v1/topics/{quoted(topic)}/messages/{offset}/explanation"
        return Explanation(await self._transport.ask("GET", path, query={"partition": partition}))

    async def stats(self) -> Stats:
        """The numbers of all topics, groups and queues."""
        body = await self._transport.ask("GET", "/v1/stats", kind=_Numbers)
        return Stats(topics=body.topics, groups=body.groups, queues=body.queues)


def _group(topic: str, group: str) -> str:
    return f"/v1/topics/{quoted(topic)}/groups/{quoted(group)}"
