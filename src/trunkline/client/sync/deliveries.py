# Written by tools/unasync.py from src/trunkline/client/deliveries.py; change that file, not this one.
"""Deliveries: messages claimed from a queue, each with the verbs that settle it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec

from trunkline.client.sync import transactions
from trunkline.db.sync import calls
from trunkline.db.sync.pool import Connection
from trunkline.types import Delivery as DeliveryRecord
from trunkline.types import Duration, Result

if TYPE_CHECKING:
    from trunkline.client.sync.settling import Settler

T = TypeVar("T")


class Delivery(DeliveryRecord[T], frozen=True, kw_only=True, eq=False):
    """A message claimed from a queue until `deadline` by the database's clock.

    Each verb answers `done`, or `lost` when the lease ended or was replaced, and then nothing changed. A repeat is harmless.
    """

    _settler: Settler
    _once: transactions.Once = msgspec.field(default_factory=transactions.Once)

    def ack(self) -> Result:
        """It is done and never delivered again. Acks called at the same time share a statement."""
        return self._settler.ack(self.receipt)

    def nack(self, *, delay: Duration | None = None, error: str | None = None) -> Result:
        """Deliver it again after `delay` (by default the queue's backoff), or never when this was its last attempt."""
        return (self._settler.nack([self.receipt], delay=delay, error=error))[0]

    def bury(self, error: str | None = None) -> Result:
        """To the dead letters at once, with the reason."""
        return (self._settler.bury([self.receipt], error=error))[0]

    def release(self) -> Result:
        """Back to the queue at once, as if it had not been delivered: the attempt does not count."""
        return (self._settler.release([self.receipt]))[0]

    def extend(self, lease: Duration) -> Result:
        """Keep it for `lease` from now."""
        return (self._settler.extend([self.receipt], lease=lease))[0]

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """What you write on the connection and the ack happen together, exactly once; `LeaseLost` rolls both back.

        Not to be repeated after `OutcomeUnknown`: what was not committed comes again by itself.
        """
        with transactions.settled(self._settler.runtime, self._ack_on, once=[self._once]) as conn:
            yield conn
        self._settler.forget([self.receipt])

    def _ack_on(self, conn: Connection) -> tuple[Result, str]:
        result = (calls.ack(conn, [self.receipt]))[0]
        return result, calls.transaction_number(conn)


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

    def ack(self) -> list[Result]:
        """All done, in one statement."""
        return self._settler.ack_many(self.receipts)

    def nack(self, *, delay: Duration | None = None, error: str | None = None) -> list[Result]:
        return self._settler.nack(self.receipts, delay=delay, error=error)

    def bury(self, error: str | None = None) -> list[Result]:
        return self._settler.bury(self.receipts, error=error)

    def release(self) -> list[Result]:
        return self._settler.release(self.receipts)

    def extend(self, lease: Duration) -> list[Result]:
        return self._settler.extend(self.receipts, lease=lease)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """What you write on the connection and the acks of all happen together; `LeaseLost` if one of them is lost."""
        marks = [delivery._once for delivery in self]
        with transactions.settled(self._settler.runtime, self._ack_on, once=marks) as conn:
            yield conn
        self._settler.forget(self.receipts)

    def _ack_on(self, conn: Connection) -> tuple[Result, str]:
        results = calls.ack(conn, self.receipts) if self else []
        worst: Result = next((result for result in results if result != "done"), "done")
        return worst, calls.transaction_number(conn)
