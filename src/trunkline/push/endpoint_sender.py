"""One endpoint in one dispatcher: claims from its queues, sends within its limits, settles by the responses."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from itertools import groupby
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgspec

from trunkline.concurrency.aio import log
from trunkline.db.calls import push
from trunkline.db.calls.push import AttemptRow, EndpointPlan
from trunkline.db.pool import Connection
from trunkline.errors import TrunklineError
from trunkline.push import outcomes, request
from trunkline.push.bound_queues import BoundQueue, BoundQueues
from trunkline.push.breaker import Breaker, Store
from trunkline.push.outcomes import Outcome, Reply
from trunkline.push.rate_limiter import RateLimiter
from trunkline.push.window import Window
from trunkline.types import Delivery

if TYPE_CHECKING:
    from trunkline.push.dispatcher import DispatchContext


_MOMENT_SECONDS = 5.0
_HELD_BYTES = 16 * 1024 * 1024
"""Payloads to hold per endpoint, by the size of the last ones."""
_FIRST_SIZE = 1024 * 1024
"""Assumed size of a payload before the first claim: the default limit of a queue."""
"""Pause after a denied address, until the database has set its length."""
_WELL = [outcomes.ACKED]
"""The outcome of most single deliveries."""


class QueueRun(NamedTuple):
    """Deliveries of one queue sent one after another, in as many requests as the mode needs."""

    source: BoundQueue
    deliveries: list[Delivery[Any]]


class EndpointSender:
    """Sends to one endpoint. Endpoints share only the database connections."""

    def __init__(self, context: DispatchContext, planned: EndpointPlan) -> None:
        self._context = context
        self._planned = planned
        self._window = Window(planned.share)
        self._rate_limiter = RateLimiter(self._acquire_permits)
        self._breaker = Breaker(Store(self._open_breaker, self._acquire_probe, self._close_breaker))
        self._queues = BoundQueues(context, self._free, self._accept)
        self._buffer: deque[QueueRun] = deque()
        self._under_way = 0
        self._held = 0
        self._size = float(_FIRST_SIZE)
        """Average payload of the last claim. Falls to a quarter per claim at most, in case the next ones are larger."""
        self._in_order: Counter[int] = Counter()
        """Deliveries held per ordered queue."""
        self._work: set[asyncio.Task[None]] = set()
        self._starts_at = 0.0
        self._held_until = 0.0
        self._refusal: str | None = None
        """The guard's reason for denying the last request, if it did. The next request is then sent alone."""
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._telling = 0
        self._told_at = 0.0
        self.update(planned, monotonic())

    # The plan

    def update(self, planned: EndpointPlan, asked_at: float) -> None:
        if self._telling or asked_at < self._told_at:
            # this plan may predate a change made here; wait for the next one
            return
        if planned.rate != self._planned.rate:
            self._rate_limiter.rate_changed()
        self._planned = planned
        now = monotonic()
        self._window.most = planned.share
        self._starts_at = now + planned.wait
        self._held_until = now + (planned.held_for or 0.0)
        self._breaker.update(planned.openings, planned.open_for)
        self._queues.update(
            map(BoundQueue, planned.queue_ids or (), planned.queues or (), planned.ordered or (), planned.leases or ())
        )
        bound = set(planned.queue_ids or ())
        self._give_back(None if not self._may_send() else {run.source.queue_id for run in self._buffer} - bound)
        self._go_on()

    async def stop(self, grace: float) -> None:
        """Stop claiming, release unsent deliveries, and give requests in flight the grace time."""
        self._stopped = True
        await self._queues.stop()
        self._give_back()
        if self._timer is not None:
            self._timer.cancel()
        await self._rate_limiter.close()
        if self._work:
            await asyncio.wait(self._work, timeout=grace)
        for task in (cut_off := tuple(self._work)):
            task.cancel()
        if cut_off:
            # cancelled tasks still settle their deliveries
            await asyncio.wait(cut_off, timeout=_MOMENT_SECONDS)

    def _may_send(self) -> bool:
        return (
            not self._stopped
            and self._planned.enabled
            and self._window.size > 0
            and monotonic() >= max(self._starts_at, self._held_until)
            and (self._breaker.closed or (self._breaker.half_open and not self._breaker.probing))
        )

    # Claiming

    def _limit(self) -> int:
        """Return the number of deliveries to hold: in flight, being settled, and enough more for claims of useful size."""
        size = self._planned.batch_size if self._planned.mode == "batch" else 1
        limit = 8 * self._window.size * size
        if self._planned.rate is not None:
            limit = min(limit, max(1, int(2 * self._planned.rate)) * size)
        return min(limit, max(1, int(_HELD_BYTES / self._size)))

    def _free(self) -> int:
        if not self._may_send():
            return 0
        if not self._breaker.closed or self._refusal is not None:
            return 1 if self._held == 0 else 0
        limit = self._limit()
        free = limit - self._held
        return free if free >= max(1, limit // 4) else 0

    async def _accept(self, source: BoundQueue, claimed: Sequence[Delivery[Any]]) -> None:
        self._held += len(claimed)
        average = sum(len(each.payload) for each in claimed) / max(1, len(claimed))
        self._size = max(average, self._size / 4, 1.0)
        self._in_order[source.queue_id] += len(claimed) if source.ordered else 0
        if not self._breaker.closed and not await self._acquire_probe_now():
            self._release(source, claimed)
            return
        if source.ordered:
            by_partition = sorted(claimed, key=lambda each: (each.topic or "", each.partition, each.offset))
            for _, group in groupby(by_partition, key=lambda each: (each.topic, each.partition)):
                self._buffer.append(QueueRun(source, list(group)))
        else:
            size = self._planned.batch_size if self._planned.mode == "batch" else 1
            for start in range(0, len(claimed), size):
                self._buffer.append(QueueRun(source, list(claimed[start : start + size])))
        self._pump()

    async def _acquire_probe_now(self) -> bool:
        try:
            return self._breaker.closed or await self._breaker.acquire_probe()
        except TrunklineError:
            return False

    def _go_on(self) -> None:
        """React to a change: send, claim more, and set a timer for the end of a pause."""
        self._pump()
        self._queues.check_capacity()
        self._watch_the_time()

    def _watch_the_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pause = max(self._starts_at, self._held_until) - monotonic()
        if pause > 0 and not self._stopped:
            self._timer = asyncio.get_running_loop().call_later(pause + 0.001, self._go_on)

    # Sending

    def _may_go_on(self, more: int = 0) -> bool:
        """Check whether `more` additional requests may be in flight."""
        size = self._window.size if self._breaker.closed and self._refusal is None else 1
        return self._under_way + more <= size and (self._may_send() or self._breaker.probing)

    def _pump(self) -> None:
        while self._buffer and self._may_go_on(1):
            self._under_way += 1
            # pop now: the task starts later
            task = asyncio.create_task(self._send_runs(self._buffer.popleft()))
            self._work.add(task)
            task.add_done_callback(self._work.discard)

    async def _send_runs(self, run: QueueRun) -> None:
        """Send this run, then others from the buffer. The next request does not wait for the last settlement."""
        try:
            while True:
                await self._send_parts(run)
                if not self._buffer or not self._may_go_on():
                    return
                run = self._buffer.popleft()
                # the window may have grown
                self._pump()
        finally:
            self._under_way -= 1
            self._go_on()

    async def _send_parts(self, run: QueueRun) -> None:
        start = 0
        while start < len(run.deliveries):
            permitted = self._planned.rate is None or await self._rate_limiter.permit()
            # check after the wait for a permit, and before each part of an ordered run
            if not (permitted and not self._stopped and (self._may_send() or self._breaker.probing)):
                self._release(run.source, run.deliveries[start:])
                return
            # the mode may have changed since these were claimed
            planned = self._planned
            part = run.deliveries[start : start + (planned.batch_size if planned.mode == "batch" else 1)]
            results = await self._send(planned, run.source, part)
            if run.source.ordered and any(result.outcome != "acked" for result in results):
                # settling the failed message returns the ones behind it to the queue
                behind = run.deliveries[start + len(results) :]
                self._context.held.drop([each.receipt for each in behind])
                self._drop(run.source, len(behind))
                return
            start += len(part)

    async def _send(self, planned: EndpointPlan, source: BoundQueue, part: list[Delivery[Any]]) -> list[Outcome]:
        """Send one request. Return the outcomes of its deliveries, for an ordered queue up to the first failure."""
        started = monotonic()
        try:
            response = await self._request(planned, source, part)
        except asyncio.CancelledError:
            # an unsettled delivery would stay leased, and be renewed, for the life of this process
            response = outcomes.no_response("no response before the dispatcher stopped", monotonic() - started)
        except Exception as exc:
            log.exception("request failed unexpectedly endpoint=%s", planned.name)
            response = outcomes.no_response(f"the request failed unexpectedly ({type(exc).__name__})", monotonic() - started)
        now = self._context.now()
        if planned.mode == "batch":
            results = outcomes.judge_batch(response, [each.id for each in part], now)
        else:
            result = outcomes.judge(response, now)
            results = _WELL if result is outcomes.ACKED else [result]
        if source.ordered:
            results = _upto_first_failure(results)
        items = [
            _settlement(planned, source, each, result, response, started)
            for each, result in zip(part, results, strict=False)
        ]
        self._settle(source, items)
        if results is _WELL and self._breaker.closed and self._refusal is None:
            # the common case: nothing else to update
            self._window.went_well()
            self._breaker.reset()
            return results
        if self._stopped and response.status is None:
            # probably cancelled by stop(), so not evidence against the endpoint
            return results
        try:
            await self._learn(response, now)
        except TrunklineError as exc:
            log.warning("could not store endpoint state endpoint=%s error=%s", planned.name, exc)
        return results

    async def _request(self, planned: EndpointPlan, source: BoundQueue, part: list[Delivery[Any]]) -> Reply:
        if planned.mode == "batch":
            prepared, limit = request.batch([(source.name, each) for each in part]), request.BATCH_READ_LIMIT
        else:
            prepared, limit = request.single(source.name, part[0]), request.READ_LIMIT
        return await self._context.request(planned, prepared, limit)

    async def _learn(self, response: Reply, now: float) -> None:
        """Update the endpoint's state from a response."""
        state = outcomes.health(response)
        if state == "unknown":
            await self._leave_to_others(response.error or "egress denied")
            return
        if self._refusal is not None:
            self._refusal = None
            async with self._tell() as conn:
                await push.allow_egress(conn, self._context.name, self._planned.endpoint_id)
        if state == "good":
            self._window.went_well()
            if not self._breaker.closed:
                log.info("endpoint recovered endpoint=%s", self._planned.name)
            await self._breaker.good()
            return
        self._window.went_badly(monotonic())
        if state == "gone":
            log.warning("endpoint disabled after 410 Gone endpoint=%s", self._planned.name)
            # locally first, then for all dispatchers
            self._planned = msgspec.structs.replace(self._planned, enabled=False)
            self._give_back()
            async with self._tell() as conn:
                await push.disable_endpoint(conn, self._planned.name, reason="the receiver replied 410 Gone")
        elif state == "busy":
            # the receiver is alive: a probe with this response closes the breaker
            await self._breaker.good()
            await self._hold(outcomes.pause_asked_for(response, now))
        elif await self._breaker.failed():
            log.warning("circuit breaker opened endpoint=%s", self._planned.name)
            self._give_back()

    async def _hold(self, pause: timedelta | None) -> None:
        if pause is None or monotonic() + pause.total_seconds() <= self._held_until + 1:
            return
        self._held_until = monotonic() + min(pause.total_seconds(), 3600)
        async with self._tell() as conn:
            await push.defer_endpoint(conn, self._planned.endpoint_id, pause)
        self._give_back()

    async def _leave_to_others(self, refusal: str) -> None:
        """Stop claiming for this endpoint for a while: only another dispatcher may be allowed to send to it."""
        if monotonic() < self._held_until:
            # one report is enough for several requests in flight
            return
        if refusal != self._refusal:
            log.warning("egress denied; leaving messages to other dispatchers endpoint=%s: %s", self._planned.name, refusal)
        self._refusal = refusal
        self._held_until = monotonic() + _MOMENT_SECONDS
        probing, self._breaker.probing = self._breaker.probing, False
        self._give_back()
        async with self._tell() as conn:
            pause = await push.deny_egress(conn, self._context.name, self._planned.endpoint_id, refusal, probing=probing)
        self._held_until = monotonic() + pause

    def _give_back(self, queue_ids: set[int] | None = None) -> None:
        """Release claimed, unsent deliveries without counting an attempt: all, or those of some queues."""
        if queue_ids is not None and not queue_ids:
            return
        runs, self._buffer = self._buffer, deque()
        for run in runs:
            if queue_ids is None or run.source.queue_id in queue_ids:
                self._release(run.source, run.deliveries)
            else:
                self._buffer.append(run)

    def _release(self, source: BoundQueue, deliveries: Sequence[Delivery[Any]]) -> None:
        result = Outcome("released")
        self._settle(source, [_settlement(self._planned, source, each, result, None, 0.0) for each in deliveries])

    def _settle(self, source: BoundQueue, items: list[AttemptRow]) -> None:
        self._context.attempt_log.add(items, partial(self._settled, source))

    def _settled(self, source: BoundQueue) -> None:
        self._drop(source, 1)
        self._queues.check_capacity()

    def _drop(self, source: BoundQueue, count: int) -> None:
        self._held -= count
        if source.ordered:
            self._in_order[source.queue_id] -= count
            if self._in_order[source.queue_id] <= 0:
                # messages behind these are claimable now
                self._queues.mark(source.queue_id)

    # The database

    @asynccontextmanager
    async def _tell(self) -> AsyncIterator[Connection]:
        """Yield a connection for changing endpoint state. Plans requested before the change are ignored."""
        self._telling += 1
        try:
            async with self._context.session.connection(writing=True) as conn:
                yield conn
        finally:
            self._telling -= 1
            self._told_at = monotonic()

    async def _acquire_permits(self, want: int) -> push.Permits:
        async with self._context.session.connection(writing=True) as conn:
            return await push.acquire_permits(conn, self._planned.endpoint_id, want)

    async def _open_breaker(self, openings: int) -> float:
        async with self._tell() as conn:
            return await push.open_breaker(conn, self._planned.endpoint_id, openings)

    async def _acquire_probe(self) -> bool:
        async with self._context.session.connection(writing=True) as conn:
            return await push.acquire_probe(conn, self._planned.endpoint_id)

    async def _close_breaker(self) -> None:
        async with self._tell() as conn:
            await push.close_breaker(conn, self._planned.endpoint_id)


def _upto_first_failure(results: list[Outcome]) -> list[Outcome]:
    """Cut off after the first failure: the database returns the messages behind it to the ordered queue."""
    for number, result in enumerate(results):
        if result.outcome != "acked":
            return results[: number + 1]
    return results


def _settlement(
    planned: EndpointPlan,
    source: BoundQueue,
    delivery: Delivery[Any],
    result: Outcome,
    response: Reply | None,
    started: float,
) -> AttemptRow:
    seconds, status, text = (
        (None, None, None) if response is None else (response.seconds, response.status, snippet(response))
    )
    # positional arguments take half the time of keywords
    return AttemptRow(
        planned.endpoint_id,
        source.queue_id,
        delivery.receipt,
        delivery.id,
        delivery.attempt,
        started,
        seconds,
        status,
        result.outcome,
        result.delay,
        result.error,
        text,
    )


def trial_settlement(planned: EndpointPlan, id: UUID, response: Reply, started: float) -> AttemptRow:
    return AttemptRow(
        endpoint_id=planned.endpoint_id,
        queue_id=None,
        receipt=None,
        id=id,
        attempt=1,
        started=started,
        seconds=response.seconds,
        status=response.status,
        outcome="tested",
        delay=None,
        error=response.error,
        snippet=snippet(response),
    )


def snippet(response: Reply) -> str | None:
    """The start of the response body as text that Postgres can store."""
    if not response.body:
        return None
    return response.body[: request.SNIPPET].decode("utf-8", "replace")
