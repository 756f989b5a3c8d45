"""Waiting for messages on behalf of HTTP clients: cheap while nothing comes, and nothing stays leased when they go away."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from trunkline import Client
from trunkline.client.deliveries import Deliveries
from trunkline.db.wakeup import Watch
from trunkline.server.call import Call, ClientGone
from trunkline.server.problems import busy

T = TypeVar("T")


class Waiter:
    """A client that waits for deliveries of a queue."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.answer: asyncio.Future[Deliveries[Any]] = asyncio.get_running_loop().create_future()


class Line:
    """Those who wait for the same: one of them claims at a time, so a message costs one claim, however many wait for it."""

    def __init__(self, mq: Client, queue: str, lease: str | None, labels: tuple[str, ...] | None) -> None:
        self._mq = mq
        self._queue = queue
        self._lease = lease
        self._labels = labels
        self._waiters: deque[Waiter] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return self._task is None

    def add(self, waiter: Waiter) -> None:
        self._waiters.append(waiter)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"trunkline line {self._queue}")

    async def _run(self) -> None:
        watch = self._mq._runtime().wakeup.watch("queue", self._queue)
        try:
            while self._first() is not None:
                watch.hush()
                waiter = self._first()
                if waiter is None:
                    break
                taken = await self._mq.claim(
                    self._queue, max_messages=waiter.limit, lease=self._lease, labels=self._labels, consumer="http"
                )
                if taken:
                    await self._hand_out(taken)
                else:
                    await self._wait(watch)
        except Exception as exc:
            while self._waiters:
                waiter = self._waiters.popleft()
                if not waiter.answer.done():
                    waiter.answer.set_exception(exc)
        finally:
            self._mq._runtime().wakeup.unwatch(watch)
            self._task = None
            if self._waiters:
                self._task = asyncio.create_task(self._run(), name=f"trunkline line {self._queue}")

    def _first(self) -> Waiter | None:
        """Who is first among those still there."""
        while self._waiters and self._waiters[0].answer.done():
            self._waiters.popleft()
        return self._waiters[0] if self._waiters else None

    async def _wait(self, watch: Watch) -> None:
        # looks now and then whether anybody is left
        while self._first() is not None and not await watch.wait(1.0):
            continue

    async def _hand_out(self, taken: Deliveries[Any]) -> None:
        while (waiter := self._first()) is not None:
            if len(taken) <= waiter.limit:
                self._waiters.popleft()
                waiter.answer.set_result(taken)
                return
            # the first one left while we claimed and this one asked for fewer
            self._waiters.rotate(-1)
            if all(other.limit < len(taken) for other in self._waiters if not other.answer.done()):
                break
        await taken.release()


class Lines:
    """All lines of a worker."""

    def __init__(self, mq: Client) -> None:
        self._mq = mq
        self._lines: dict[tuple[str, str | None, tuple[str, ...] | None], Line] = {}

    async def claim(
        self, call: Call, queue: str, *, limit: int, lease: str | None, labels: Sequence[str] | None, wait: float
    ) -> Deliveries[Any]:
        """Deliveries, after at most `wait` seconds; none when the client is gone."""
        taken = await self._mq.claim(queue, max_messages=limit, lease=lease, labels=labels, consumer="http")
        if taken or wait <= 0:
            return taken
        key = (queue, lease, None if labels is None else tuple(labels))
        line = self._lines.get(key)
        if line is None:
            self._lines = {known: other for known, other in self._lines.items() if not other.idle}
            line = self._lines.setdefault(key, Line(self._mq, *key))
        waiter = Waiter(limit)
        line.add(waiter)
        gone = asyncio.create_task(disconnected(call))
        stop = asyncio.create_task(call.engine.stopping.wait())
        try:
            await asyncio.wait((waiter.answer, gone, stop), timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            stop.cancel()
            if not waiter.answer.done():
                waiter.answer.cancel()
        if waiter.answer.cancelled():
            if gone.done() and not gone.cancelled():
                raise ClientGone
            return taken
        found = waiter.answer.result()
        if found and gone.done() and not gone.cancelled():
            await found.release()
            raise ClientGone
        return found


async def disconnected(call: Call) -> None:
    """Until the client has closed its connection. The body must have been read before."""
    while True:
        event = await call.receive()
        if event["type"] == "http.disconnect":
            return


async def until_gone(call: Call, work: Awaitable[T]) -> T:
    """Run `work` while the client is there; else cancel it and raise `ClientGone`."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(disconnected(call))
    stop = asyncio.create_task(call.engine.stopping.wait())
    try:
        await asyncio.wait((task, gone, stop), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if stop.done():
            raise busy("the server is stopping", error="stopping")
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
    """What `look` finds, looking again whenever something may have come, for at most `wait` seconds."""
    found = await look()
    if found is not None or wait <= 0:
        return found
    wakeup = mq._runtime().wakeup
    watch = wakeup.watch(kind, name, group=group, member=member)
    try:
        async with asyncio.timeout(wait):
            while True:
                watch.hush()
                found = await look()
                if found is not None:
                    return found
                await watch.wait()
    except TimeoutError:
        return None
    finally:
        wakeup.unwatch(watch)
