"""Settles deliveries and commits batches over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from trunkline.client.batches import Batch
from trunkline.client.deliveries import Deliveries, Delivery
from trunkline.codec import error_text
from trunkline.errors import LeaseLost, TransactionMisuse
from trunkline.http_client.groups import group_path
from trunkline.http_client.queues import queue_path
from trunkline.http_client.transport import Transport
from trunkline.types import Duration, Result
from trunkline.wire import DeliveryView, seconds


class HttpSettler:
    """Settles deliveries, by receipt alone or for a known queue."""

    def __init__(self, transport: Transport, path: str = "/v1/receipts") -> None:
        self._transport = transport
        self._path = path

    def of(self, queue: str) -> HttpSettler:
        """Return a settler for one queue, which works with a token for only that queue."""
        return HttpSettler(self._transport, queue_path(queue))

    async def ack_one(self, receipt: str) -> Result:
        return (await self.ack([receipt]))[0]

    async def ack(self, receipts: Sequence[str]) -> list[Result]:
        return await self._settle("ack", receipts)

    async def nack(
        self, receipts: Sequence[str], *, delay: Duration | None = None, error: str | None = None
    ) -> list[Result]:
        return await self._settle("nack", receipts, delay_seconds=seconds(delay), error=error_text(error))

    async def bury(self, receipts: Sequence[str], *, error: str | None = None) -> list[Result]:
        return await self._settle("bury", receipts, error=error_text(error))

    async def release(self, receipts: Sequence[str]) -> list[Result]:
        return await self._settle("release", receipts)

    async def extend(self, receipts: Sequence[str], *, lease: Duration) -> list[Result]:
        return await self._settle("extend", receipts, lease_seconds=seconds(lease))

    def transaction(self, *_: Any) -> NoReturn:
        raise _no_transactions()

    async def _settle(self, verb: str, receipts: Sequence[str], **more: Any) -> list[Result]:
        if not receipts:
            return []
        body = await self._transport.ask("POST", f"{self._path}/{verb}", {"receipts": list(receipts), **more})
        return [row["result"] for row in body["results"]]


class HttpCommits:
    """Commits batches."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def commit(self, batch: Batch[Any], offset: int) -> Result:
        body = {"partition": batch.partition, "generation": batch.generation, "offset": offset}
        try:
            await self._transport.ask("POST", f"{group_path(batch.topic, batch.group)}/commit", body)
        except LeaseLost:
            return "lost"
        return "done"

    def transaction(self, *_: Any) -> NoReturn:
        raise _no_transactions()


def _no_transactions() -> TransactionMisuse:
    return TransactionMisuse(
        "a transaction needs a connection to the database, but HttpClient has only one to the server",
        hint="Use Client, or make the work repeatable and settle after it.",
    )


def deliveries_of(rows: list[DeliveryView], settler: HttpSettler, kind: Any) -> Deliveries[Any]:
    """Return the deliveries of a claim."""
    return Deliveries.of(
        [
            Delivery(
                **row.fields(kind),
                receipt=row.receipt,
                attempt=row.attempt,
                deadline=row.deadline,
                topic=row.topic,
                _settler=settler,
            )
            for row in rows
        ],
        settler,
    )
