"""Consumes a queue in a loop: claims messages ahead, and renews their leases until they are settled."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, Generic, Self, TypeVar

from trunkline.client.deliveries import Deliveries, Delivery
from trunkline.concurrency.aio import Signal, log
from trunkline.db import calls
from trunkline.db.wakeup import Watch
from trunkline.errors import InvalidValue, PermissionDenied, Unavailable
from trunkline.runtime.leases import HeldLeases
from trunkline.runtime.names import consumer_name
from trunkline.runtime.renewals import Renewal
from trunkline.runtime.session import Session
from trunkline.runtime.settler import Settler

T = TypeVar("T")
_RETRY_SECONDS = 0.5
_LEASE = timedelta(seconds=30)


async def claim(
    session: Session,
    settler: Settler,
    queue: str,
    *,
    limit: int,
    lease: timedelta | None,
    labels: Sequence[str] | None,
    consumer: str | None,
    type: Any,
    fresh: bool = True,
) -> Deliveries[Any]:
    """Claim up to `limit` messages of a queue.

    If the queue is empty and `fresh` is set, sequence committed messages and try once more: for callers that do not
    wait.
    """
    attempt = partial(
        session.claim,
        partial(Delivery, _settler=settler),
        queue,
        limit=limit,
        lease=lease,
        labels=labels,
        consumer=consumer,
        type=type,
    )
    rows = await attempt()
    if fresh and not rows:
        await session.wakeup.sequence("queue", queue)
        rows = await attempt()
    return Deliveries.of(rows, settler)


class Claims(Generic[T]):
    """A consumer of a queue. `async with` opens it; `async for` yields deliveries one by one and waits for new ones.

    At most `max_in_flight` messages are held at once: delivered but not settled, or prefetched. Their leases are renewed
    until they are settled. On exit, prefetched messages return to the queue at once without counting an attempt;
    deliveries that were not settled are redelivered when their leases end.
    """

    def __init__(
        self,
        session: Session,
        queue: str,
        *,
        max_in_flight: int,
        lease: timedelta | None,
        labels: Sequence[str] | None,
        consumer: str | None,
        type: Any,
    ) -> None:
        if max_in_flight < 1:
            raise InvalidValue(f"max_in_flight must be at least 1, got {max_in_flight}")
        self.queue = queue
        self.consumer = consumer or consumer_name()
        self._session = session
        self._max_in_flight = max_in_flight
        self._lease = lease
        self._labels = labels
        self._type = type
        self._settler = Settler(session, self._settled)
        self._ready: deque[Delivery[T]] = deque()
        self._held = HeldLeases()
        self._free = Signal()
        self._watch: Watch | None = None
        self._renewal: Renewal | None = None
        self._span = timedelta(0)
        self._stopped = False

    async def __aenter__(self) -> Self:
        sources: frozenset[str] | None = None
        try:
            async with self._session.connection() as conn:
                self._span = self._lease or (await calls.get_queue(conn, self.queue)).lease
                sources = frozenset(row.topic for row in await calls.list_subscriptions(conn, self.queue, None))
        except PermissionDenied:
            # this role may only claim and cannot read the queue's own lease
            self._span = self._lease = self._lease or _LEASE
        self._watch = self._session.wakeup.watch("queue", self.queue)
        self._watch.sources = sources
        self._renewal = self._session.renewals.add(self._span.total_seconds() / 3, self._renew)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._renewal is not None:
            self._session.renewals.drop(self._renewal)
        if self._watch is not None:
            self._session.wakeup.unwatch(self._watch)
        unused = [delivery.receipt for delivery in self._ready]
        self._ready.clear()
        try:
            await self._settler.drain()
            if unused:
                await self._settler.release(unused)
        except Unavailable as exc:
            log.warning(
                "could not release prefetched messages queue=%s consumer=%s error=%s", self.queue, self.consumer, exc
            )

    def stop(self) -> None:
        """End the loop before its next delivery, also while it waits.

        Callable from any task or thread of the process.
        """
        self._stopped = True
        self._free.set()
        if self._watch is not None:
            self._watch.wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery[T]:
        if self._watch is None:
            raise RuntimeError("enter the claims with `async with` before you iterate over them")
        while True:
            self._free.clear()
            self._watch.reset(self._labels)
            if self._stopped:
                raise StopAsyncIteration
            if self._ready:
                return self._ready.popleft()
            free = self._max_in_flight - len(self._held)
            if free <= 0:
                if not await self._free.wait(self._span.total_seconds()):
                    log.warning(
                        "consumer stalled: all %s in-flight deliveries are unsettled queue=%s",
                        self._max_in_flight,
                        self.queue,
                    )
                continue
            claimed_at = monotonic()
            try:
                deliveries = await claim(
                    self._session,
                    self._settler,
                    self.queue,
                    limit=min(free, 1000),
                    lease=self._lease,
                    labels=self._labels,
                    consumer=self.consumer,
                    type=self._type,
                    fresh=False,
                )
            except Unavailable as exc:
                log.warning("claim failed; retrying in %s s queue=%s error=%s", _RETRY_SECONDS, self.queue, exc)
                await self._watch.wait(_RETRY_SECONDS)
                continue
            self._held.add(deliveries.receipts, span=self._span.total_seconds(), now=claimed_at)
            self._ready.extend(deliveries)
            if deliveries:
                self._watch.note_message()
            else:
                await self._watch.wait()

    def _settled(self, receipts: Iterable[str]) -> None:
        self._held.drop(receipts)
        self._free.set()

    async def _renew(self) -> None:
        now = monotonic()
        # a sixth: what is not due yet is next checked when at most half of its lease has passed
        for receipts, span in self._held.due(now, part=1 / 6):
            results = await self._settler.extend(receipts, lease=self._span)
            # lost deliveries can no longer be settled and must not count as in flight
            if self._held.renewed(receipts, results, span=span, now=now):
                self._free.set()
