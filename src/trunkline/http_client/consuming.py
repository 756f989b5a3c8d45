"""Claimed deliveries and fetched batches, with methods to settle them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from trunkline.codec import error_text
from trunkline.errors import LeaseLost, OffsetAhead
from trunkline.http_client.rows import DeliveryRow, MessageRow, seconds
from trunkline.http_client.transport import Transport, quoted
from trunkline.types import Delivery, Duration, Message, Result


class Settler:
    """Settles deliveries, by receipt alone or for a known queue."""

    def __init__(self, transport: Transport, path: str = "/v1/receipts") -> None:
        self._transport = transport
        self._path = path

    def of(self, queue: str) -> Settler:
        """Return a settler for one queue, which works with a token for only that queue."""
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
    """A message claimed from a queue, leased until `deadline`."""

    _settler: Settler

    async def ack(self) -> Result:
        """Acknowledge the message, which is then never redelivered."""
        return (await self._settler.settle("ack", [self.receipt]))[0]

    async def nack(self, *, delay: Duration | None = None, error: str | None = None) -> Result:
        """Return the message to the queue for redelivery after `delay`.

        After its last attempt it becomes a dead letter.
        """
        return (await self._settler.nack([self.receipt], delay, error))[0]

    async def bury(self, error: str | None = None) -> Result:
        """Move the message to the dead letters now."""
        return (await self._settler.settle("bury", [self.receipt], error=error))[0]

    async def release(self) -> Result:
        """Return the message to the queue now, without counting an attempt."""
        return (await self._settler.settle("release", [self.receipt]))[0]

    async def extend(self, lease: Duration) -> Result:
        """Extend the lease to `lease` from now."""
        return (await self._settler.extend([self.receipt], lease))[0]


class HttpDeliveries(tuple[HttpDelivery, ...]):
    """The deliveries of one claim, with methods that settle all of them. Results are in the order of the deliveries."""

    _settler: Settler

    @classmethod
    def of(cls, rows: list[DeliveryRow], settler: Settler, kind: Any) -> HttpDeliveries:
        batch = cls(
            HttpDelivery(
                **row.fields(kind),
                receipt=row.receipt,
                attempt=row.attempt,
                deadline=row.deadline,
                topic=row.topic,
                _settler=settler,
            )
            for row in rows
        )
        batch._settler = settler
        return batch

    @property
    def receipts(self) -> Sequence[str]:
        return [delivery.receipt for delivery in self]

    async def ack(self) -> list[Result]:
        """Acknowledge all messages in one statement."""
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
    """Messages of one partition, fetched for a group. Commit the batch after you have processed them."""

    def __init__(self, transport: Transport, topic: str, group: str, row: FetchedRow, kind: Any) -> None:
        assert row.generation is not None and row.deadline is not None  # noqa: S101  there are messages
        self.topic = topic
        self.group = group
        self.member = row.member
        self.generation = row.generation
        self.deadline = row.deadline
        self.messages: list[Message[Any]] = [each.message(kind) for each in row.messages]
        self._transport = transport

    @property
    def partition(self) -> int:
        return self.messages[0].partition

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
        """Commit the group's position after `offset` (default: the whole batch).

        Returns `lost` if another member has the partition.
        """
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
        except OffsetAhead:
            if offset is not None and offset > self.last_offset:
                raise
            # the database crashed before it saved this fetch: the messages will be fetched again
            return "lost"
        return "done"
