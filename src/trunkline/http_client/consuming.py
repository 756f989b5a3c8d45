"""What a claim or a fetch gave, with the verbs that settle it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from trunkline.client.refusals import LeaseLost
from trunkline.db.codec import error_text
from trunkline.http_client.rows import DeliveryRow, MessageRow, seconds
from trunkline.http_client.transport import Transport, quoted
from trunkline.types import Delivery, Duration, Message, Result


class Settler:
    """The verbs that settle, by receipts alone or for a queue that is known."""

    def __init__(self, transport: Transport, path: str = "/v1/receipts") -> None:
        self._transport = transport
        self._path = path

    def of(self, queue: str) -> Settler:
        """For one queue: a token for that queue is enough."""
        return Settler(self._transport, f"/v1/queues/{quoted(queue)}")

    async def settle(self, verb: str, receipts: Sequence[str], **more: Any) -> list[Result]:
        if not receipts:
            return []
        if "error" in more:
            more["error"] = error_text(more["error"])
        body = await self._transport.ask("POST", f"{self._path}/{verb}", {"receipts": list(receipts), **more})
        return [row["result"] for row in body["results"]]

    async def nack(self, receipts: Sequence[str], delay: Duration | None, error: str | None) -> list[Result]:
        return await self.settle("nack", receipts, delay_seconds=seconds(delay), error=error)

    async def extend(self, receipts: Sequence[str], lease: Duration) -> list[Result]:
        return await self.settle("extend", receipts, lease_seconds=seconds(lease))


class HttpDelivery(Delivery[Any], frozen=True, kw_only=True, eq=False):
    """A message claimed from a queue until `deadline`."""

    _settler: Settler

    async def ack(self) -> Result:
        """It is done and never delivered again."""
        return (await self._settler.settle("ack", [self.receipt]))[0]

    async def nack(self, *, delay: Duration | None = None, error: str | None = None) -> Result:
        """Deliver it again after `delay`, or never when this was its last attempt."""
        return (await self._settler.nack([self.receipt], delay, error))[0]

    async def bury(self, error: str | None = None) -> Result:
        """To the dead letters at once."""
        return (await self._settler.settle("bury", [self.receipt], error=error))[0]

    async def release(self) -> Result:
        """Back to the queue at once; the attempt does not count."""
        return (await self._settler.settle("release", [self.receipt]))[0]

    async def extend(self, lease: Duration) -> Result:
        """Keep it for `lease` from now."""
        return (await self._settler.extend([self.receipt], lease))[0]


class HttpDeliveries(tuple[HttpDelivery, ...]):
    """What one claim took, with the verbs for all of it; each answers in the order of the deliveries."""

    _settler: Settler

    @classmethod
    def of(cls, rows: list[DeliveryRow], settler: Settler, kind: Any) -> HttpDeliveries:
        made = cls(
            HttpDelivery(
                **row.fields(kind),
                receipt=row.receipt,
                attempt=row.attempt,
                deadline=row.deadline,
                topic=row.topic_id,
                _settler=settler,
            )
            for row in rows
        )
        made._settler = settler
        return made

    @property
    def receipts(self) -> Sequence[str]:
        return [delivery.receipt for delivery in self]

    async def ack(self) -> list[Result]:
        """All done, in one statement."""
        return await self._settler.settle("ack", self.receipts)

    async def nack(self, *, delay: Duration | None = None, error: str | None = None) -> list[Result]:
        return await self._settler.nack(self.receipts, delay, error)

    async def bury(self, error: str | None = None) -> list[Result]:
        return await self._settler.settle("bury", self.receipts, error=error)

    async def release(self) -> list[Result]:
        return await self._settler.settle("release", self.receipts)

    async def extend(self, lease: Duration) -> list[Result]:
        return await self._settler.extend(self.receipts, lease)


class FetchedRow(msgspec.Struct):
    member: str
    partition: int | None
    generation: UUID | None
    deadline: datetime | None
    messages: list[MessageRow]


class HttpBatch:
    """Messages of one partition, fetched for a group; commit it when they are handled."""

    def __init__(self, transport: Transport, topic: str, group: str, row: FetchedRow, kind: Any) -> None:
        self.topic = topic
        self.group = group
        self.member = row.member
        self.partition = row.partition
        self.generation = row.generation
        self.deadline = row.deadline
        self.messages: list[Message[Any]] = [each.message(kind) for each in row.messages]
        self._transport = transport

    @property
    def first_offset(self) -> int:
        return self.messages[0].offset

    @property
    def last_offset(self) -> int:
        return self.messages[-1].offset

    def __iter__(self) -> Iterator[Message[Any]]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    async def commit(self, offset: int | None = None) -> Result:
        """Everything up to `offset` (by default all of it) is done; `lost` when another member has the partition."""
        body = {
            "partition": self.partition,
            "generation": self.generation,
            "offset": self.last_offset if offset is None else offset,
        }
        path = f"/v1/topics/{quoted(self.topic)}/groups/{quoted(self.group)}/commit"
        try:
            await self._transport.ask("POST", path, body)
        except LeaseLost:
            return "lost"
        return "done"
