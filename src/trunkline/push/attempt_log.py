"""Settles deliveries in batches. Settling and recording the attempt are one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import NamedTuple

from trunkline.concurrency.aio import log
from trunkline.db.calls import push
from trunkline.db.calls.push import AttemptRow
from trunkline.runtime.leases import HeldLeases
from trunkline.runtime.session import Session
from trunkline.runtime.settle_buffer import SettleBuffer
from trunkline.runtime.settler import Settler
from trunkline.types import Result

_RETRY_SECONDS = 0.5
_GIVE_UP_SECONDS = 60.0
_MOST = 1000


class RenewedLeases:
    """The receipts of this dispatcher. Renews their leases until they are settled."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._settler = Settler(session)
        self._leases = HeldLeases()
        self._spans: set[float] = set()
        self.drop = self._leases.drop

    def add(self, receipts: Sequence[str], lease: float) -> None:
        if lease not in self._spans:
            self._spans.add(lease)
            self._session.renewals.add(lease / 3, self._renew)
        self._leases.add(receipts, span=lease, now=monotonic())

    async def _renew(self) -> None:
        now = monotonic()
        # a sixth: what is not due yet is next checked when at most half of its lease has passed
        for receipts, span in self._leases.due(now, part=1 / 6):
            results = await self._settler.extend(receipts, lease=timedelta(seconds=span))
            self._leases.renewed(receipts, results, span=span, now=now)


class AttemptLog:
    """Settles in the background. Callers do not wait, except in `drain`."""

    def __init__(self, session: Session, dispatcher: str, held: RenewedLeases) -> None:
        self._session = session
        self._dispatcher = dispatcher
        self._held = held
        self._buffer = SettleBuffer(
            self._flush,
            self._done,
            name="deliveries",
            limits=(_MOST,),
            retry_seconds=_RETRY_SECONDS,
            give_up_seconds=_GIVE_UP_SECONDS,
        )
        self.drain = self._buffer.drain

    def add(self, items: Sequence[AttemptRow], settled: Callable[[], None] | None = None) -> None:
        """Queue settlements. `settled` is called for each that is settled or abandoned."""
        for item in items:
            self._buffer.add(_Entry(item, settled))

    async def _flush(self, entries: list[_Entry]) -> Sequence[Result]:
        items = [entry.item for entry in entries]
        async with self._session.connection(writing=True) as conn:
            results = await push.settle_attempts(conn, self._dispatcher, items, now=monotonic())
        lost = len(results) - results.count("done")
        if lost:
            log.warning("lease expired before settling; they will be redelivered deliveries=%s", lost)
        return results

    def _done(self, entry: _Entry, result: Result) -> None:
        if entry.item.receipt is not None:
            self._held.drop([entry.item.receipt])
        if entry.settled is not None:
            entry.settled()


class _Entry(NamedTuple):
    item: AttemptRow
    settled: Callable[[], None] | None
