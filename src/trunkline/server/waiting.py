"""Waiting for messages on behalf of HTTP clients: cheap while nothing comes, and nothing stays leased when they go away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from trunkline import Client
from trunkline.client.deliveries import Deliveries
from trunkline.db.wakeup import Watch
from trunkline.server.call import Call, ClientGone
from trunkline.server.problems import busy

T = TypeVar("T")
_TURN_SECONDS = 5.0
_LOOK_TURNS = 60
"""A line claims after so many turns anyway: somebody may have deleted the queue."""


class Waiter:
    """A client that waits for deliveries of a queue."""

    __slots__ = ("answer", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.answer: asyncio.Future[Deliveries[Any]] = asyncio.get_running_loop().create_future()


class Line:
    """Those who wait for the same: one of them claims at a time, so a message costs one claim, however many wait for it."""

    def __init__(self, mq: Client, queue: str, lease: str | None, labels: tuple[str, ...] | None) -> None:
        self.queue = queue
        self.quiet = False
        """Whether the last claim found nothing, and nothing may have come since: who comes now need not look for itself."""
        self._mq = mq
        self._lease = lease
        self._labels = labels
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
        """Claim once more: something about the queue has changed."""
        if self._watch is not None:
            self._watch.ring()

    def dismiss(self) -> None:
        """Nobody waits any longer; all get what they would get when their time is over."""
        while self._waiters:
            waiter = self._waiters.popitem()[0]
            if not waiter.answer.done():
                waiter.answer.cancel()
        self.look()

    def _start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"trunkline line {self.queue}")

    async def _run(self) -> None:
        watch = self._watch = self._mq._runtime().wakeup.watch("queue", self.queue)
        try:
            while (waiter := self._first()) is not None:
                watch.hush()
                taken = await self._mq.claim(
                    self.queue, max_messages=waiter.limit, lease=self._lease, labels=self._labels, consumer="http"
                )
                if taken:
                    await self._hand_out(taken)
                else:
                    await self._wait(watch)
        except Exception as exc:
            while self._waiters:
                waiter = self._waiters.popitem()[0]
                if not waiter.answer.done():
                    waiter.answer.set_exception(exc)
        finally:
            self._mq._runtime().wakeup.unwatch(watch)
            self._task = self._watch = None
            if self._waiters:
                self._start()

    def _first(self) -> Waiter | None:
        """Who is first among those still there."""
        return next((waiter for waiter in self._waiters if not waiter.answer.done()), None)

    async def _wait(self, watch: Watch) -> None:
        """Until something may have come, or nobody is left for a while: most who leave come back at once."""
        self.quiet = True
        try:
            for _ in range(_LOOK_TURNS):
                if await watch.wait(_TURN_SECONDS) or self._first() is None:
                    return
        finally:
            self.quiet = False

    async def _hand_out(self, taken: Deliveries[Any]) -> None:
        for waiter in self._waiters:
            # the first one may have left while we claimed, and the next one may have asked for fewer
            if not waiter.answer.done() and len(taken) <= waiter.limit:
                self.remove(waiter)
                waiter.answer.set_result(taken)
                return
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
        key = (queue, lease, None if labels is None else tuple(labels))
        line = self._lines.get(key)
        if wait <= 0 or line is None or not line.quiet:
            taken = await self._mq.claim(queue, max_messages=limit, lease=lease, labels=labels, consumer="http")
            if taken or wait <= 0:
                return taken
            line = self._lines.get(key)
        if line is None:
            self._lines = {known: other for known, other in self._lines.items() if not other.idle}
            line = self._lines[key] = Line(self._mq, *key)
        waiter = Waiter(limit)
        line.add(waiter)
        gone = asyncio.ensure_future(disconnected(call))
        try:
            if not call.engine.stopping.is_set():
                await asyncio.wait((waiter.answer, gone), timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            line.remove(waiter)
            if not waiter.answer.done():
                waiter.answer.cancel()
        left = gone.done() and not gone.cancelled()
        found = Deliveries[Any]() if waiter.answer.cancelled() else waiter.answer.result()
        if left:
            if found:
                await found.release()
            raise ClientGone
        return found

    def look(self, queue: str) -> None:
        """The queue was changed or deleted: those who wait for it look again."""
        for line in self._lines.values():
            if line.queue == queue:
                line.look()

    def dismiss(self) -> None:
        """The server stops."""
        for line in self._lines.values():
            line.dismiss()


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
