"""Long polling: idle waits cost little, and no message stays leased to a client that disconnected."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from trunkline import Client, telemetry
from trunkline.client.deliveries import Deliveries
from trunkline.db.wakeup import Watch
from trunkline.errors import Busy
from trunkline.server.claiming import CONSUMER, TOGETHER, Claimer, ClaimRequest, Key, own_copy
from trunkline.server.problems import Problem, busy
from trunkline.server.request import ClientGone, Request

T = TypeVar("T")
_TURN_SECONDS = 5.0
_LOOK_TURNS = 60
"""A line claims after this many turns regardless: the queue may have been deleted."""
_BRIEF_SECONDS = 0.5
"""Duration of a claim after which the client's connection is checked."""


class Waiter(ClaimRequest):
    """A client waiting for deliveries of a queue."""

    __slots__ = ("result",)

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.result: asyncio.Future[Deliveries[Any]] = asyncio.get_running_loop().create_future()

    def give(self, deliveries: Deliveries[Any]) -> None:
        if deliveries:
            super().give(deliveries)
            self.result.set_result(deliveries)
            self.gone = True


class QueueWaiters:
    """Clients waiting with the same parameters. One claim at a time serves all of them."""

    def __init__(self, mq: Client, claimer: Claimer, key: Key) -> None:
        self.queue = key.queue
        self.quiet = False
        """Set while the last claim was empty and no wake-up followed: a new client can wait without claiming first."""
        self._mq = mq
        self._claimer = claimer
        self._key = key
        self._waiters: dict[Waiter, None] = {}
        self._watch: Watch | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return self._task is None

    def add(self, waiter: Waiter) -> None:
        self._waiters[waiter] = None
        if self._task is None:
            self._start()

    def remove(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)

    def look(self) -> None:
        """Claim once more, because the queue has changed."""
        if self._watch is not None:
            self._watch.wake()

    def dismiss(self) -> None:
        """End the wait of all clients, as if it had timed out."""
        while self._waiters:
            waiter = self._waiters.popitem()[0]
            waiter.gone = True
            waiter.result.cancel()
        self.look()

    def _start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"trunkline line {self.queue}")

    async def _run(self) -> None:
        watch = self._watch = self._mq.session.wakeup.watch("queue", self.queue)
        try:
            while waiters := self._first():
                watch.reset(self._key.labels)
                more = await self._claimer.claim(self._key, waiters)
                for waiter in waiters:
                    if waiter.gone:
                        self.remove(waiter)
                if not more:
                    await self._wait(watch)
        except Exception as exc:
            while self._waiters:
                waiter = self._waiters.popitem()[0]
                if not waiter.result.done():
                    waiter.result.set_exception(own_copy(exc))
        finally:
            self._mq.session.wakeup.unwatch(watch)
            self._task = self._watch = None
            if self._waiters:
                self._start()

    def _first(self) -> list[Waiter]:
        """Return the first clients that one claim can serve."""
        first: list[Waiter] = []
        size = 0
        for waiter in self._waiters:
            if waiter.gone:
                continue
            size += waiter.limit
            if first and size > TOGETHER:
                break
            first.append(waiter)
        return first

    async def _wait(self, watch: Watch) -> None:
        """Wait for a wake-up, or until no client is left for one turn. Clients often reconnect at once."""
        self.quiet = True
        try:
            for _ in range(_LOOK_TURNS):
                if await watch.wait(_TURN_SECONDS) or not self._first():
                    return
        finally:
            self.quiet = False


class LongPoll:
    """All lines of a worker."""

    def __init__(self, mq: Client, claimer: Claimer) -> None:
        self._mq = mq
        self._claimer = claimer
        self._lines: dict[Key, QueueWaiters] = {}

    async def claim(
        self,
        request: Request,
        queue: str,
        *,
        limit: int,
        lease: timedelta | None = None,
        labels: Sequence[str] | None = None,
        consumer: str = CONSUMER,
        wait: float = 0.0,
    ) -> Deliveries[Any]:
        """Return deliveries after at most `wait` seconds. Raises ClientGone if the client disconnects."""
        tracer, began = telemetry.tracer(), time.time_ns()
        key = Key(queue, lease, None if labels is None else tuple(labels), consumer)
        line = self._lines.get(key)
        deliveries = Deliveries[Any]()
        if wait <= 0 or line is None or not line.quiet:
            deliveries = await self._claim(request, key, ClaimRequest(limit), max(wait, request.service.config.lock_seconds))
        if not deliveries and wait > 0:
            deliveries = await self._wait(request, key, Waiter(limit), wait)
        if tracer is not None and deliveries:
            telemetry.claimed(tracer, queue, deliveries, began)
        return deliveries

    async def _claim(self, request: Request, key: Key, part: ClaimRequest, seconds: float) -> Deliveries[Any]:
        """Claim now, batched with other requests. If the request ends first, its deliveries are released."""
        future = self._claimer.offer(key, part)
        used = False
        try:
            await asyncio.wait((future,), timeout=_BRIEF_SECONDS)
            if not future.done():
                await self._claim_slowly(request, key, future, seconds - _BRIEF_SECONDS)
            used = True
            return future.result()
        finally:
            if not used:
                self._claimer.withdraw(part, future)

    async def _claim_slowly(self, request: Request, key: Key, future: asyncio.Future[Any], seconds: float) -> None:
        """Wait for a slow claim, while watching for a disconnect, an ended token and a stopping server."""
        gone = asyncio.create_task(disconnected(request))
        stop = asyncio.create_task(request.service.stopping.wait())
        try:
            with request.service.auth.watch(request.scope) as ended:
                first = (future, gone, stop, ended)
                await asyncio.wait(first, timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED)
                _check_still_there(gone, ended)
            if future.done():
                return
            if stop.done():
                raise busy("the server is stopping", error="stopping")
            raise Busy(
                f"queue {key.queue} is busy: earlier claims are waiting for a lock",
                hint="Retry. Run `trunkline doctor` to find long transactions.",
            )
        finally:
            gone.cancel()
            stop.cancel()

    async def _wait(self, request: Request, key: Key, waiter: Waiter, seconds: float) -> Deliveries[Any]:
        line = self._lines.get(key)
        if line is None:
            self._lines = {known: other for known, other in self._lines.items() if not other.idle}
            line = self._lines[key] = QueueWaiters(self._mq, self._claimer, key)
        line.add(waiter)
        gone = asyncio.ensure_future(disconnected(request))
        used = False
        try:
            with request.service.auth.watch(request.scope) as ended:
                if not request.service.stopping.is_set():
                    first = (waiter.result, gone, ended)
                    await asyncio.wait(first, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                _check_still_there(gone, ended)
            used = True
            # cancelled: the server is stopping
            over = waiter.result.cancelled() or not waiter.result.done()
            return Deliveries[Any]() if over else waiter.result.result()
        finally:
            gone.cancel()
            line.remove(waiter)
            waiter.gone = True
            if not used:
                self._claimer.withdraw(waiter, waiter.result)

    def look(self, queue: str) -> None:
        """Wake the waiters of a queue that was changed or deleted."""
        for line in self._lines.values():
            if line.queue == queue:
                line.look()

    def dismiss(self) -> None:
        """Dismiss all waiters, because the server is stopping."""
        for line in self._lines.values():
            line.dismiss()


async def disconnected(request: Request) -> None:
    """Return when the client closes its connection. The body must have been read before."""
    while True:
        event = await request.receive()
        if event["type"] == "http.disconnect":
            return


def _check_still_there(gone: asyncio.Future[None], ended: asyncio.Future[Problem]) -> None:
    """Raise if the client has disconnected or its token has ended."""
    if gone.done():
        raise ClientGone
    if ended.done():
        raise ended.result()


async def until_gone(request: Request, work: Awaitable[T]) -> T:
    """Run `work` while the client is connected and its token valid. Else cancel it and raise `ClientGone` or 401."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(disconnected(request))
    stop = asyncio.create_task(request.service.stopping.wait())
    try:
        with request.service.auth.watch(request.scope) as ended:
            await asyncio.wait((task, gone, stop, ended), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if stop.done():
                raise busy("the server is stopping", error="stopping")
            _check_still_there(gone, ended)
        raise ClientGone
    finally:
        gone.cancel()
        stop.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def retry_until(
    mq: Client,
    kind: str,
    name: str,
    look: Callable[[], Awaitable[T | None]],
    *,
    wait: float,
    group: str = "",
    member: str = "",
) -> T | None:
    """Call `look` until it returns a result, after each wake-up, for at most `wait` seconds."""
    wakeup = mq.session.wakeup
    if wait <= 0:
        found = await look()
        if found is None:
            # committed messages may have no offset yet
            await wakeup.sequence("topic", name)
            found = await look()
        return found
    watch = wakeup.watch(kind, name, group=group, member=member)
    try:
        async with asyncio.timeout(wait):
            while True:
                watch.reset()
                found = await look()
                if found is not None:
                    return found
                await watch.wait()
    except TimeoutError:
        return None
    finally:
        wakeup.unwatch(watch)
