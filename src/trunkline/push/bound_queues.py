"""Claims from the queues of one endpoint as capacity allows, from many queues in one statement."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from trunkline import telemetry
from trunkline.concurrency.aio import Signal, log
from trunkline.db.calls import push
from trunkline.db.wakeup import Watch
from trunkline.errors import OutcomeUnknown, TrunklineError, Unavailable
from trunkline.runtime.claim_loop import ClaimLoop
from trunkline.types import Delivery

if TYPE_CHECKING:
    from trunkline.push.dispatcher import DispatchContext

_RETRY_SECONDS = 0.5
_PATIENCE_SECONDS = 5.0
_FEW = 4
"""Up to this many queues are claimed one by one: this finds messages that a claim from many leaves to the poll."""
_TOGETHER = 250
_MOST = 1000

Claimed = dict[int, list[Delivery[Any]]]


class BoundQueue(NamedTuple):
    """A bound queue."""

    queue_id: int
    name: str
    ordered: bool
    lease: float


class BoundQueues:
    """Claims in turn from queues that may have messages. `room` returns how many more deliveries fit."""

    def __init__(
        self,
        context: DispatchContext,
        room: Callable[[], int],
        accept: Callable[[BoundQueue, Sequence[Delivery[Any]]], Awaitable[None]],
    ) -> None:
        self._context = context
        self._room = room
        self._accept = accept
        self._sources: dict[int, BoundQueue] = {}
        self._watches: dict[int, Watch] = {}
        self._ready: dict[int, None] = {}
        """Queues that may have messages, least recently checked first."""
        self._signal = Signal()
        self._claims = ClaimLoop(self._turn, self._signal.set, name="an endpoint", retry_seconds=_RETRY_SECONDS)

    def update(self, wanted: Iterable[BoundQueue]) -> None:
        """Replace the set of queues."""
        found = {source.queue_id: source for source in wanted}
        for queue_id in self._sources.keys() - found.keys():
            self._drop(queue_id)
        for queue_id in found.keys() - self._watches.keys():
            mark = partial(self.mark, queue_id)
            self._watches[queue_id] = self._context.session.wakeup.watch("queue", found[queue_id].name, on_ring=mark)
            self._ready[queue_id] = None
        self._sources = found
        self._signal.set()

    def mark(self, queue_id: int) -> None:
        """Mark a queue as possibly having messages."""
        if queue_id in self._watches:
            self._ready[queue_id] = None
            self._signal.set()

    def check_capacity(self) -> None:
        """Check for capacity again."""
        if self._ready:
            self._signal.set()

    async def stop(self) -> None:
        """Stop claiming. Wait for a claim in flight, so that its deliveries can be released."""
        await self._claims.end(_PATIENCE_SECONDS)
        for queue_id in tuple(self._watches):
            self._drop(queue_id)

    def _drop(self, queue_id: int) -> None:
        self._ready.pop(queue_id, None)
        watch = self._watches.pop(queue_id, None)
        if watch is not None:
            self._context.session.wakeup.unwatch(watch)

    async def _turn(self) -> None:
        self._signal.clear()
        want = min(self._room(), _MOST) if self._ready else 0
        if want <= 0:
            await self._signal.wait()
            return
        checked = list(islice(self._ready, _TOGETHER if len(self._ready) > _FEW else 1))
        for queue_id in checked:
            del self._ready[queue_id]
            self._watches[queue_id].reset()
        try:
            await self._claim_from(checked, want)
        except Exception as exc:
            if not isinstance(exc, TrunklineError) or isinstance(exc, Unavailable | OutcomeUnknown):
                self._check_again(checked)
                raise
            # a queue was deleted; the next plan omits it
            log.warning("claim failed; skipping these queues until the next plan: %s", exc)
            for queue_id in checked:
                self._drop(queue_id)

    async def _claim_from(self, queue_ids: list[int], want: int) -> None:
        if len(queue_ids) == 1:
            # leave capacity for the other queues
            only = self._sources[queue_ids[0]]
            claimed, empty = await self._claim(only, max(1, want // (1 + min(len(self._ready), _FEW))))
        else:
            tracer, began = telemetry.tracer(), time.time_ns()
            async with self._context.session.connection() as conn:
                claimed, empty = await push.claim_many(conn, queue_ids, limit=want, consumer=self._context.name)
            for queue_id, deliveries in claimed.items():
                if tracer is not None and queue_id in self._sources:
                    telemetry.claimed(tracer, self._sources[queue_id].name, deliveries, began)
        for queue_id in queue_ids:
            if queue_id in empty and queue_id in self._watches:
                self._watches[queue_id].arm()
        self._check_again(queue_id for queue_id in queue_ids if queue_id not in empty)
        for queue_id, deliveries in claimed.items():
            source = self._sources.get(queue_id)
            if source is None:
                # unbound during the claim: let the lease expire
                continue
            self._context.held.add([each.receipt for each in deliveries], source.lease)
            await self._accept(source, deliveries)

    async def _claim(self, source: BoundQueue, want: int) -> tuple[Claimed, set[int]]:
        lease = timedelta(seconds=source.lease)
        claimed: list[Delivery[Any]] = await self._context.session.claim(
            Delivery, source.name, limit=want, lease=lease, consumer=self._context.name
        )
        return ({source.queue_id: claimed}, set()) if claimed else ({}, {source.queue_id})

    def _check_again(self, queue_ids: Iterable[int]) -> None:
        self._ready.update((queue_id, None) for queue_id in queue_ids if queue_id in self._watches)
