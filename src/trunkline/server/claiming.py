"""Batches concurrent claims and acks into shared statements."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from trunkline import Client
from trunkline.client.deliveries import Deliveries, Delivery
from trunkline.concurrency.aio import Coalescer
from trunkline.db import calls
from trunkline.db.pool import Connection
from trunkline.errors import NotFound, OutcomeUnknown, PermissionDenied, TrunklineError, Unavailable
from trunkline.receipt import Receipt
from trunkline.server.budget import fitting
from trunkline.server.limits import Limits, limited
from trunkline.types import Result

log = logging.getLogger("trunkline.server")
TOGETHER = 200
"""Maximum messages of a shared claim. A request for more has its own claim."""
_MAX_RECEIPTS = 10_000
_IDLE_COALESCERS = 1000
CONSUMER = "http"
"""The consumer of claims that name none."""


class Key(NamedTuple):
    """Parameters that claims must have in common to share a statement."""

    queue: str
    lease: timedelta | None
    labels: tuple[str, ...] | None
    consumer: str


class ClaimRequest:
    """One request's share of a claim."""

    __slots__ = ("deliveries", "gone", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.gone = False
        """Set when the request has ended. It must not receive deliveries after that."""
        self.deliveries: Deliveries[Any] | None = None

    def give(self, deliveries: Deliveries[Any]) -> None:
        self.deliveries = deliveries


class _Order(NamedTuple):
    """A queue's ordering, cached until a deadline, and the cursors seen since."""

    ordered: bool
    until: float
    cursors: set[int]


class Claimer:
    """Claims messages for the requests of this process."""

    def __init__(self, mq: Client, spawn: Callable[[Coroutine[Any, Any, Any]], None], max_bytes: int) -> None:
        self._mq = mq
        self._spawn = spawn
        self._max_bytes = max_bytes
        self._most: dict[str, int] = {}
        """For queues with large messages: how many fit into two responses, from the last claim."""
        self._coalescers: dict[Key, Coalescer[ClaimRequest, Deliveries[Any]]] = {}
        self._ordered: dict[str, _Order] = {}

    def offer(self, key: Key, part: ClaimRequest) -> asyncio.Future[Deliveries[Any]]:
        """Claim for this request, batched with equal ones. Call `withdraw` if it ends before using the result."""
        coalescer = self._coalescers.get(key)
        if coalescer is None:
            _drop_idle(self._coalescers)
            coalescer = self._coalescers[key] = Coalescer(partial(self._flush, key), max_items=TOGETHER, max_size=TOGETHER)
        return coalescer.offer(part, part.limit)

    def withdraw(self, part: ClaimRequest, future: asyncio.Future[Deliveries[Any]]) -> None:
        """Release the deliveries of a request that ended without using them."""
        part.gone = True
        future.cancel()
        if part.deliveries:
            self._spawn(_release(part.deliveries))

    async def _flush(self, key: Key, parts: list[ClaimRequest]) -> list[Deliveries[Any] | BaseException]:
        error: Exception | None = None
        try:
            await self.claim(key, parts)
        except Exception as exc:
            error = exc
        return [_outcome(part, error) for part in parts]

    async def claim(self, key: Key, parts: Sequence[ClaimRequest]) -> bool:
        """Claim once and distribute the messages in request order. Return whether more may be available."""
        runtime = self._mq.session
        with limited(Limits(resource=("claim", key.queue), reads=True)):
            async with runtime.connection() as conn:
                return await self._claim(conn, key, parts)

    async def _claim(self, conn: Connection, key: Key, parts: Sequence[ClaimRequest]) -> bool:
        open = [part for part in parts if not part.gone and part.deliveries is None]
        if len(open) > 1 and await self._is_ordered(conn, key.queue):
            # messages of one lease are handled in order, so each request needs its own lease
            more = True
            for part in open:
                more = more and await self._share(conn, key, [part])
            return more
        return await self._share(conn, key, open)

    async def _share(self, conn: Connection, key: Key, parts: Sequence[ClaimRequest]) -> bool:
        settler = self._mq.session.settler
        total = min(sum(part.limit for part in parts), self._most.get(key.queue, _MAX_RECEIPTS))
        if not total:
            return False
        take = partial(
            calls.claim,
            conn,
            partial(Delivery, _settler=settler),
            key.queue,
            lease=key.lease,
            labels=key.labels,
            consumer=key.consumer,
        )
        rows = await take(limit=total)
        if len(rows) < total:
            # committed or returned messages may not be claimable yet
            await self._mq.session.wakeup.sequence("queue", key.queue)
            rows = _oldest_first(rows, await take(limit=total - len(rows)))
        # the queue may have been recreated as ordered; then one lease must go to one request
        first_only = len(parts) > 1 and bool(rows) and await self._is_ordered(conn, key.queue, cursor_of(rows[0].receipt))
        self._note_size(key.queue, rows)
        start = 0
        for part in parts:
            # requests may have ended during the claim
            if not part.gone and not (first_only and start):
                count = fitting(rows[start : start + part.limit], self._max_bytes)
                part.give(Deliveries.of(rows[start : start + count], settler))
                start += count
        if rows[start:]:
            await calls.release(conn, [row.receipt for row in rows[start:]])
        return len(rows) >= total or start < len(rows)

    def _note_size(self, queue: str, rows: Sequence[Delivery[Any]]) -> None:
        """Adjust the next claim's size to the message size: what does not fit is released, but used memory."""
        if not rows:
            return
        most = max(1, 2 * self._max_bytes * len(rows) // max(1, sum(len(row.payload) for row in rows)))
        if most < TOGETHER and len(self._most) < _IDLE_COALESCERS:
            self._most[queue] = most
        else:
            self._most.pop(queue, None)

    async def _is_ordered(self, conn: Connection, queue: str, cursor: int | None = None) -> bool:
        """Return whether the queue is ordered. Cached for a second, and looked up again for an unseen cursor."""
        known = self._ordered.get(queue)
        if known is None or monotonic() > known.until or cursor not in (None, *known.cursors):
            try:
                ordered = (await calls.get_queue(conn, queue)).ordered
            except PermissionDenied:
                return True
            known = self._ordered[queue] = _Order(ordered, monotonic() + 1.0, set())
        if cursor is not None:
            known.cursors.add(cursor)
        return known.ordered


def _oldest_first(rows: list[Delivery[Any]], more: list[Delivery[Any]]) -> list[Delivery[Any]]:
    """Merge two claims, by offset if both are from one partition."""
    both = [*rows, *more]
    if rows and more and len({(row.topic, row.partition) for row in both}) == 1:
        both.sort(key=lambda row: row.offset)
    return both


class Acker:
    """Acks for the requests of this process, one statement at a time per queue."""

    def __init__(self, mq: Client) -> None:
        self._mq = mq
        self._coalescers: dict[str, Coalescer[Sequence[str], list[Result]]] = {}

    async def ack(self, queue: str, receipts: Sequence[str]) -> list[Result]:
        """Ack receipts of a queue. Receipts of other queues get `unknown`. Raises QueueNotFound."""
        coalescer = self._coalescers.get(queue)
        if coalescer is None:
            _drop_idle(self._coalescers)
            flush = partial(self._flush, queue)
            coalescer = self._coalescers[queue] = Coalescer(flush, max_items=_MAX_RECEIPTS, max_size=_MAX_RECEIPTS)
        return await coalescer.submit(receipts, len(receipts))

    async def _flush(self, queue: str, batch: list[Sequence[str]]) -> list[list[Result] | BaseException]:
        """Ack everything in one statement. If it fails, bisect to isolate the failing request."""
        try:
            results = iter(await self._ack(queue, [receipt for receipts in batch for receipt in receipts]))
        except (NotFound, Unavailable, OutcomeUnknown, PermissionDenied) as exc:
            return [own_copy(exc) for _ in batch]
        except Exception as exc:
            if len(batch) == 1:
                return [exc]
            middle = len(batch) // 2
            return await self._flush(queue, batch[:middle]) + await self._flush(queue, batch[middle:])
        return [[next(results) for _ in receipts] for receipts in batch]

    async def _ack(self, queue: str, receipts: list[str]) -> list[Result]:
        with limited(Limits(resource=("ack", queue))):
            async with self._mq.session.connection(writing=True) as conn:
                return await settle(conn, queue, receipts, partial(calls.ack, conn))


async def settle(
    conn: Connection, queue: str, receipts: Sequence[str], verb: Callable[[list[str]], Awaitable[list[Result]]]
) -> list[Result]:
    """Settle the receipts that belong to this queue; the others get `unknown`."""
    numbers = [cursor_of(receipt) for receipt in receipts]
    owners = await calls.queues_of_cursors(conn, sorted({number for number in numbers if number is not None}))
    ours = [number is not None and owners.get(number) == queue for number in numbers]
    if not any(ours):
        await calls.get_queue(conn, queue)
        return ["unknown"] * len(receipts)
    results = iter(await verb([receipt for receipt, own in zip(receipts, ours, strict=True) if own]))
    return [next(results) if own else "unknown" for own in ours]


def cursor_of(receipt: str) -> int | None:
    """Return the cursor number in a receipt, or None if the text is not a receipt."""
    parts = Receipt.parse(receipt)
    return None if parts is None else parts.cursor


async def _release(deliveries: Deliveries[Any]) -> None:
    try:
        await deliveries.release()
    except TrunklineError as exc:
        log.warning("could not release deliveries of an ended request; their lease will expire: %s", exc)


def _outcome(part: ClaimRequest, error: Exception | None) -> Deliveries[Any] | BaseException:
    if part.deliveries is not None:
        return part.deliveries
    return Deliveries[Any]() if error is None else own_copy(error)


def own_copy(exc: Exception) -> Exception:
    """Copy an exception for each caller: a shared one would accumulate their tracebacks."""
    twin = copy.copy(exc)
    twin.__cause__ = exc.__cause__
    return twin


def _drop_idle(coalescers: dict[Any, Coalescer[Any, Any]]) -> None:
    """Drop idle entries: queue names come from clients, so the map must stay bounded."""
    if len(coalescers) >= _IDLE_COALESCERS:
        for key in [key for key, coalescer in coalescers.items() if coalescer.idle]:
            del coalescers[key]
