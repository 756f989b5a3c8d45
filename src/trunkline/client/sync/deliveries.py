# Written by tools/unasync.py from src/trunkline/client/deliveries.py; change that file, not this one.
"""Deliveries: messages claimed from a queue, with methods to settle them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, Self, TypeVar

import msgspec

from trunkline.db.sync.pool import Connection
from trunkline.runtime.sync.transactions import CommitMark
from trunkline.types import Delivery as DeliveryRecord
from trunkline.types import Duration, Result

T = TypeVar("T")


class SettlesDeliveries(Protocol):
    """Settles the deliveries of either client: over a database connection, or over HTTP."""

    def ack_one(self, receipt: str) -> Result: ...
    def ack(self, receipts: Sequence[str]) -> list[Result]: ...
    def nack(self, receipts: Sequence[str], *, delay: Duration | None = None, error: str | None = None) -> list[Result]: ...
    def bury(self, receipts: Sequence[str], *, error: str | None = None) -> list[Result]: ...
    def release(self, receipts: Sequence[str]) -> list[Result]: ...
    def extend(self, receipts: Sequence[str], *, lease: Duration) -> list[Result]: ...
    def transaction(self, receipts: Sequence[str], marks: Sequence[CommitMark]) -> AbstractContextManager[Connection]: ...


class Delivery(DeliveryRecord[T], frozen=True, kw_only=True, eq=False):
    """A message claimed from a queue, leased until `deadline` by the database's clock.

    Each method returns `done`, or `lost` if the lease has ended or was replaced; then nothing changed. Repeating a call
    is safe.
    """

    _settler: SettlesDeliveries
    _once: CommitMark = msgspec.field(default_factory=CommitMark)

    def ack(self) -> Result:
        """Acknowledge the message, which is then never redelivered. Concurrent acks share a statement."""
        return self._settler.ack_one(self.receipt)

    def nack(self, *, delay: Duration | None = None, error: str | None = None) -> Result:
        """Return the message to the queue for redelivery after `delay` (default: the queue's backoff).

        After its last attempt the message becomes a dead letter.
        """
        return (self._settler.nack([self.receipt], delay=delay, error=error))[0]

    def bury(self, error: str | None = None) -> Result:
        """Move the message to the dead letters now, with an error text."""
        return (self._settler.bury([self.receipt], error=error))[0]

    def release(self) -> Result:
        """Return the message to the queue now, without counting an attempt."""
        return (self._settler.release([self.receipt]))[0]

    def extend(self, lease: Duration) -> Result:
        """Extend the lease to `lease` from now."""
        return (self._settler.extend([self.receipt], lease=lease))[0]

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Ack the message in a transaction with your own writes on the connection, for exactly-once processing.

        Raises `LeaseLost` if the lease has ended; everything is then rolled back. Do not repeat the block after
        `OutcomeUnknown`: if it was not committed, the message is redelivered.
        """
        with self._settler.transaction([self.receipt], [self._once]) as conn:
            yield conn


class Deliveries(tuple[Delivery[T], ...]):
    """The deliveries of one claim, with methods that settle all of them. Results are in the order of the deliveries."""

    _settler: SettlesDeliveries

    @classmethod
    def of(cls, deliveries: Iterable[Delivery[T]], settler: SettlesDeliveries) -> Self:
        batch = cls(deliveries)
        batch._settler = settler
        return batch

    @property
    def receipts(self) -> Sequence[str]:
        return [delivery.receipt for delivery in self]

    def ack(self) -> list[Result]:
        """Acknowledge all messages in one statement."""
        return self._settler.ack(self.receipts)

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
        """Ack all messages in a transaction with your own writes. Raises `LeaseLost` if any lease has ended."""
        with self._settler.transaction(self.receipts, [delivery._once for delivery in self]) as conn:
            yield conn
