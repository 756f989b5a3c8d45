# Written by tools/unasync.py from src/trunkline/client/claims.py; change that file, not this one.
"""Consumes a queue in a loop: claims messages ahead, and renews their leases until they are settled."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, Generic, Self, TypeVar

from trunkline.client.sync.deliveries import Deliveries, Delivery
from trunkline.concurrency.threads import Signal, log
from trunkline.db.sync import calls
from trunkline.db.sync.wakeup import Watch
from trunkline.errors import InvalidValue, PermissionDenied, Unavailable
from trunkline.runtime.leases import HeldLeases
from trunkline.runtime.names import consumer_name
from trunkline.runtime.sync.renewals import Renewal
from trunkline.runtime.sync.session import Session
from trunkline.runtime.sync.settler import Settler

T = TypeVar("T")
_RETRY_SECONDS = 0.5
_LEASE = timedelta(seconds=30)


def claim(
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
    rows = attempt()
    if fresh and not rows:
        session.wakeup.sequence("queue", queue)
        rows = attempt()
    return Deliveries.of(rows, settler)


class Claims(Generic[T]):
    """A consumer of a queue. `with` opens it; `for` yields deliveries one by one and waits for new ones.

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

    def __enter__(self) -> Self:
        sources: frozenset[str] | None = None
        try:
            with self._session.connection() as conn:
                self._span = self._lease or (calls.get_queue(conn, self.queue)).lease
                sources = frozenset(row.topic for row in calls.list_subscriptions(conn, self.queue, None))
        except PermissionDenied:
            # this role may only claim and cannot read the queue's own lease
            self._span = self._lease = self._lease or _LEASE
        self._watch = self._session.wakeup.watch("queue", self.queue)
        self._watch.sources = sources
        self._renewal = self._session.renewals.add(self._span.total_seconds() / 3, self._renew)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._renewal is not None:
            self._session.renewals.drop(self._renewal)
        if self._watch is not None:
            self._session.wakeup.unwatch(self._watch)
        unused = [delivery.receipt for delivery in self._ready]
        self._ready.clear()
        try:
            self._settler.drain()
            if unused:
                self._settler.release(unused)
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

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery[T]:
        if self._watch is None:
            raise RuntimeError("enter the claims with `with` before you iterate over them")
        while True:
            self._free.clear()
            self._watch.reset(self._labels)
            if self._stopped:
                raise StopIteration
            if self._ready:
                return self._ready.popleft()
            free = self._max_in_flight - len(self._held)
            if free <= 0:
                if not self._free.wait(self._span.total_seconds()):
                    log.warning(
                        "consumer stalled: all %s in-flight deliveries are unsettled queue=%s",
                        self._max_in_flight,
                        self.queue,
                    )
                continue
            claimed_at = monotonic()
            try:
                deliveries = claim(
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
                self._watch.wait(_RETRY_SECONDS)
                continue
            self._held.add(deliveries.receipts, span=self._span.total_seconds(), now=claimed_at)
            self._ready.extend(deliveries)
            if deliveries:
                self._watch.note_message()
            else:
                self._watch.wait()

    def _settled(self, receipts: Iterable[str]) -> None:
        self._held.drop(receipts)
        self._free.set()

    def _renew(self) -> None:
        now = monotonic()
        # a sixth: what is not due yet is next checked when at most half of its lease has passed
        for receipts, span in self._held.due(now, part=1 / 6):
            results = self._settler.extend(receipts, lease=self._span)
            # lost deliveries can no longer be settled and must not count as in flight
            if self._held.renewed(receipts, results, span=span, now=now):
                self._free.set()
