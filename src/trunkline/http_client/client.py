"""The HTTP client: publishing, consuming and managing resources through a server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Self, Unpack
from uuid import UUID

import msgspec

from trunkline.client.batches import Batch
from trunkline.client.deliveries import Deliveries, Delivery
from trunkline.codec import duration
from trunkline.errors import InvalidValue, NotFound, SettingsError
from trunkline.http_client.dead_letters import HttpDeadLetters
from trunkline.http_client.groups import HttpGroups, group_path
from trunkline.http_client.messages import NDJSON, array, batches, envelope, lines
from trunkline.http_client.operations import HttpJobs, HttpPipelines, HttpSystem
from trunkline.http_client.queues import HttpQueues
from trunkline.http_client.runs import HttpRuns
from trunkline.http_client.schedules import HttpSchedules
from trunkline.http_client.searching import HttpInspection
from trunkline.http_client.settler import HttpCommits, HttpSettler, deliveries_of
from trunkline.http_client.subscriptions import HttpSubscriptions
from trunkline.http_client.topics import HttpTopics
from trunkline.http_client.transport import Transport, decoded, quoted
from trunkline.messaging import ManyOptions, MessageOptions, QueueMessageOptions
from trunkline.runtime.publisher import new_messages
from trunkline.types import (
    Duration,
    Explanation,
    GroupStats,
    NewMessage,
    Published,
    QueueStats,
    Result,
    Stats,
    TopicStats,
)
from trunkline.wire import DeliveryView, MessageView, seconds

_LEASE = timedelta(seconds=30)
_WAIT = "20s"


class _Published(msgspec.Struct):
    messages: list[Published]


class _Claimed(msgspec.Struct):
    deliveries: list[DeliveryView]


class _Fetched(msgspec.Struct):
    member: str
    partition: int | None
    generation: UUID | None
    deadline: datetime | None
    messages: list[MessageView]


class _Numbers(msgspec.Struct):
    topics: list[TopicStats]
    groups: list[GroupStats]
    queues: list[QueueStats]


class HttpClient:
    """A client of one server: `async with HttpClient(url, token) as mq:`.

    The arguments default to TRUNKLINE_URL and TRUNKLINE_TOKEN.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout: float = 60.0) -> None:
        url = url or os.environ.get("TRUNKLINE_URL")
        if not url:
            raise SettingsError("no server URL is set", hint="Pass a URL to the client, or set TRUNKLINE_URL.")
        self._transport = Transport(url, token or os.environ.get("TRUNKLINE_TOKEN"), timeout)
        self._settler = HttpSettler(self._transport)
        self._commits = HttpCommits(self._transport)
        self.topics = HttpTopics(self._transport)
        self.queues = HttpQueues(self._transport)
        self.groups = HttpGroups(self._transport)
        self.subscriptions = HttpSubscriptions(self._transport)
        self.dead = HttpDeadLetters(self._transport)
        self.runs = HttpRuns(self._transport)
        self.schedules = HttpSchedules(self._transport)
        self.inspect = HttpInspection(self._transport)
        self.jobs = HttpJobs(self._transport)
        self.pipelines = HttpPipelines(self._transport)
        self.system = HttpSystem(self._transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    # Publishing

    async def publish(self, topic: str, body: Any, **options: Unpack[MessageOptions]) -> Published:
        """Publish a message to a topic. It is on disk when this returns."""
        return await self._publish(f"/v1/topics/{quoted(topic)}/messages", NewMessage(body=body, **options))

    async def enqueue(self, queue: str, body: Any, **options: Unpack[QueueMessageOptions]) -> Published:
        """Publish a message directly to a queue. See `publish`."""
        return await self._publish(f"/v1/queues/{quoted(queue)}/messages", NewMessage(body=body, **options))

    async def publish_many(self, topic: str, bodies: Iterable[Any], **options: Unpack[ManyOptions]) -> list[Published]:
        """Publish many messages in one transaction. Either all are on disk when this returns, or none is stored.

        Takes an iterable of at most 100,000 bodies or `NewMessage`s. `key`, `routing_key` and `label` are one value for
        all messages or a function of the body; a `NewMessage` keeps its own values. Results are in input order.
        """
        return await self._publish_many(f"/v1/topics/{quoted(topic)}/messages", new_messages(bodies, **options))

    async def enqueue_many(self, queue: str, bodies: Iterable[Any], **options: Unpack[ManyOptions]) -> list[Published]:
        """Publish many messages directly to a queue. See `publish_many`."""
        return await self._publish_many(f"/v1/queues/{quoted(queue)}/messages", new_messages(bodies, **options))

    async def _publish(self, path: str, message: NewMessage) -> Published:
        response = await self._transport.send("POST", path, envelope(message))
        return decoded(response.content, Published)

    async def _publish_many(self, path: str, messages: Iterable[NewMessage]) -> list[Published]:
        parts = batches(messages)
        first, second = next(parts, None), next(parts, None)
        if first is None:
            return []
        if second is None:
            response = await self._transport.send("POST", path, array(first))
        else:
            # a stream is one transaction; its lines are encoded while they are sent
            response = await self._transport.send("POST", path, lines(chain((first, second), parts)), media=NDJSON)
        return decoded(response.content, _Published).messages

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
    ) -> Deliveries[Any]:
        """Claim up to `limit` and lease them. Waits up to `wait` for messages; without it, returns at once."""
        request = {
            "limit": limit,
            "lease_seconds": seconds(lease),
            "labels": None if labels is None else list(labels),
            "consumer": consumer,
            "wait": seconds(wait),
        }
        body = await self._transport.ask("POST", f"/v1/queues/{quoted(queue)}/claims", request, kind=_Claimed)
        return deliveries_of(body.deliveries, self._settler.of(queue), type)

    async def ack(self, receipts: Sequence[str]) -> list[Result]:
        """Acknowledge deliveries, which are then never redelivered. The result is `lost` where the lease has ended."""
        return await self._settler.ack(receipts)

    async def nack(
        self, receipts: Sequence[str], *, delay: Duration | None = None, error: str | None = None
    ) -> list[Result]:
        """Return failed deliveries to the queue for redelivery after `delay` (default: the queue's backoff)."""
        return await self._settler.nack(receipts, delay=delay, error=error)

    async def bury(self, receipts: Sequence[str], *, error: str | None = None) -> list[Result]:
        """Move deliveries to the dead letters now, whatever attempts remain."""
        return await self._settler.bury(receipts, error=error)

    async def release(self, receipts: Sequence[str]) -> list[Result]:
        """Return deliveries to the queue now, without counting an attempt."""
        return await self._settler.release(receipts)

    async def extend(self, receipts: Sequence[str], *, lease: Duration) -> list[Result]:
        """Extend the leases of deliveries to `lease` from now."""
        return await self._settler.extend(receipts, lease=lease)

    async def deliveries(self, queue: str, **claim: Any) -> AsyncIterator[Delivery[Any]]:
        """Iterate over deliveries, waiting for new ones without end. Settle each one."""
        while True:
            for delivery in await self.claim(queue, wait=_WAIT, **claim):
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
    ) -> Batch[Any] | None:
        """Fetch the next messages of one partition and lease it to this member.

        Returns None if there is nothing to read.
        """
        request = {"member": member, "limit": limit, "lease_seconds": seconds(lease), "wait": seconds(wait)}
        row = await self._transport.ask("POST", f"{group_path(topic, group)}/fetch", request, kind=_Fetched)
        if row.generation is None or row.deadline is None:
            return None
        return Batch(
            self._commits,
            topic,
            group,
            member=row.member,
            generation=row.generation,
            deadline=row.deadline,
            messages=[each.message(type) for each in row.messages],
            lease=duration(lease) or _LEASE,
        )

    async def commit(self, topic: str, group: str, batch: Batch[Any], *, offset: int | None = None) -> Result:
        """Commit the group's position after the batch, or after `offset`. Same as `batch.commit()`."""
        if (batch.topic, batch.group) != (topic, group):
            raise InvalidValue(f"the batch was fetched from {batch.topic} for {batch.group}, not from {topic} for {group}")
        return await batch.commit(offset)

    async def heartbeat(self, topic: str, group: str, *, member: str, lease: Duration = "30s") -> int:
        """Extend the member's partition leases to `lease` from now. Returns the number of partitions it still holds."""
        request = {"member": member, "lease_seconds": seconds(lease)}
        count: int = (await self._transport.ask("POST", f"{group_path(topic, group)}/heartbeat", request))["partitions"]
        return count

    async def leave(self, topic: str, group: str, *, member: str) -> int:
        """Release the member's partitions. Returns their number."""
        count: int = (await self._transport.ask("POST", f"{group_path(topic, group)}/leave", {"member": member}))[
            "partitions"
        ]
        return count

    # Inspecting

    async def explain(self, id: UUID) -> Explanation:
        """Explain a message: where it is, which consumer holds it, and why it is not being delivered."""
        try:
            return Explanation(await self._transport.ask("GET", f"/v1/messages/{id}/explanation"))
        except NotFound as exc:
            return Explanation(id=str(id), state="unknown", readers=[], reason=exc.message)

    async def explain_offset(self, topic: str, partition: int, *, offset: int) -> Explanation:
        """Explain the message at an offset of a topic."""
        path = f"/v1/topics/{quoted(topic)}/messages/{offset}/explanation"
        return Explanation(await self._transport.ask("GET", path, query={"partition": partition}))

    async def stats(self) -> Stats:
        """Return the statistics of all topics, groups and queues."""
        body = await self._transport.ask("GET", "/v1/stats", kind=_Numbers)
        return Stats(topics=body.topics, groups=body.groups, queues=body.queues)
