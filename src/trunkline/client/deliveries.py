"""Deliveries: messages claimed from a queue, each with the verbs that settle it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec

from trunkline.client import transactions
from trunkline.db import calls
from trunkline.db.pool import Connection
from trunkline.types import Delivery as DeliveryRecord
from trunkline.types import Duration, Result

if TYPE_CHECKING:
    from trunkline.client.settling import Settler

T = TypeVar("T")


class Delivery(DeliveryRecord[T], frozen=True, kw_only=True, eq=False):
    """A message claimed from a queue until `deadline` by the database's clock.

    Each verb answers `done`, or `lost` when the lease ended or was replaced, and then nothing changed. A repeat is harmless.
    """

    _settler: Settler
    _once: transactions.Once = msgspec.field(default_factory=transactions.Once)

    async def ack(self) -> Result:
        """It is done and never delivered again. Acks called at the same time share a statement."""
        return await self._settler.ack(self.receipt)

    async def nack(self, *, delay: Duration | None = None, error: str | None = None) -> Result:
        """Deliver it again after `delay` (by default the queue's backoff), or never when this was its last attempt."""
        return (await self._settler.nack([self.receipt], delay=delay, error=error))[0]

    async def bury(self, error: str | None = None) -> Result:
        """To the dead letters at once, with the reason."""
        return (await self._settler.bury([self.receipt], error=error))[0]

    async def release(self) -> Result:
        """Back to the queue at once, as if it had not been delivered: the attempt does not count."""
        return (await self._settler.release([self.receipt]))[0]

    async def extend(self, lease: Duration) -> Result:
        """Keep it for `lease` from now."""
        return (await self._settler.extend([self.receipt], lease=lease))[0]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """What you write on the connection and the ack happen together, exactly once; `LeaseLost` rolls both back.

        Not to be repeated after `OutcomeUnknown`: what was not committed comes again by itself.
        """
        async with transactions.settled(self._settler.runtime, self._ack_on, once=[self._once]) as conn:
            yield conn
        self._settler.forget([self.receipt])

    async def _ack_on(self, conn: Connection) -> tuple[Result, str]:
        result = (await calls.ack(conn, [self.receipt]))[0]
        return result, await calls.transaction_number(conn)


class Deliveries(tuple[Delivery[T], ...]):
    """What one claim took, with the verbs for all of it; each answers in the order of the deliveries."""

    _settler: Settler

    @classmethod
    def of(cls, deliveries: Iterable[Delivery[T]], settler: Settler) -> Self:
        made = cls(deliveries)
        made._settler = settler
        return made

    @property
    def receipts(self) -> Sequence[str]:
        return [delivery.receipt for delivery in self]

    async def ack(self) -> list[Result]:
        """All done, in one statement."""
        return await self._settler.ack_many(self.receipts)

    async def nack(self, *, delay: Duration | None = None, error: str | None = None) -> list[Result]:
        return await self._settler.nack(self.receipts, delay=delay, error=error)

    async def bury(self, error: str | None = None) -> list[Result]:
        return await self._settler.bury(self.receipts, error=error)

    async def release(self) -> list[Result]:
        return await self._settler.release(self.receipts)

    async def extend(self, lease: Duration) -> list[Result]:
        return await self._settler.extend(self.receipts, lease=lease)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """What you write on the connection and the acks of all happen together; `LeaseLost` if one of them is lost."""
        marks = [delivery._once for delivery in self]
        async with transactions.settled(self._settler.runtime, self._ack_on, once=marks) as conn:
            yield conn
        self._settler.forget(self.receipts)

    async def _ack_on(self, conn: Connection) -> tuple[Result, str]:
        results = await calls.ack(conn, self.receipts) if self else []
        worst: Result = next((result for result in results if result != "done"), "done")
        return worst, await calls.transaction_number(conn)
