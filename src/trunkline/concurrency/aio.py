"""Event loop primitives of the async client. `threads.py` has the same names for the sync twin."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")
log = logging.getLogger("trunkline")


class Signal:
    """An event to wait for, set by other tasks."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        """Forget that it was set."""
        self._event.clear()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most `timeout` seconds. Returns whether it is."""
        if self._event.is_set():
            return True
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class BackgroundTask:
    """A background loop that runs until its owner ends it."""

    def __init__(self, run: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._task = asyncio.create_task(run(), name=name)

    @property
    def alive(self) -> bool:
        return not self._task.done()

    async def end(self) -> None:
        """Stop the loop and wait until it has ended."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._task


class Lock:
    """A mutual exclusion lock."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class _Entry(Generic[I, R]):
    __slots__ = ("future", "item", "size")

    def __init__(self, item: I, size: int, future: asyncio.Future[R]) -> None:
        self.item = item
        self.size = size
        self.future = future


class Coalescer(Generic[I, R]):
    """Batches concurrent calls into runs of `flush`. The next run starts as soon as the previous one is done.

    `flush` receives the items in call order and returns one value or exception per item. If a caller is cancelled
    before its item is in a batch, the item is dropped; after that it is still flushed.
    """

    def __init__(
        self, flush: Callable[[list[I]], Awaitable[list[R | BaseException]]], *, max_items: int, max_size: int
    ) -> None:
        self._flush = flush
        self._max_items = max_items
        self._max_size = max_size
        self._waiting: deque[_Entry[I, R]] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return self._task is None and not self._waiting

    async def submit(self, item: I, size: int = 0) -> R:
        return await self.offer(item, size)

    def offer(self, item: I, size: int = 0) -> asyncio.Future[R]:
        """Return the future result of an item, for callers that wait for other events too."""
        entry: _Entry[I, R] = _Entry(item, size, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="trunkline flush")
        return entry.future

    async def drain(self) -> None:
        """Wait until every submitted item has its result."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while batch := self._take():
                try:
                    results = await self._flush([entry.item for entry in batch])
                except BaseException as exc:
                    results = [exc if isinstance(exc, Exception) else asyncio.CancelledError()] * len(batch)
                    if not isinstance(exc, Exception):
                        raise
                finally:
                    for entry, result in zip(batch, results, strict=True):
                        _settle(entry.future, result)
        finally:
            self._task = None
            if self._waiting:
                self._task = asyncio.create_task(self._run(), name="trunkline flush")

    def _take(self) -> list[_Entry[I, R]]:
        batch: list[_Entry[I, R]] = []
        size = 0
        while self._waiting and len(batch) < self._max_items:
            entry = self._waiting[0]
            if batch and size + entry.size > self._max_size:
                break
            self._waiting.popleft()
            if not entry.future.cancelled():
                batch.append(entry)
                size += entry.size
        return batch


def _settle(future: asyncio.Future[R], value: R | BaseException) -> None:
    if future.done():
        return
    if isinstance(value, asyncio.CancelledError):
        future.cancel()
    elif isinstance(value, BaseException):
        future.set_exception(value)
    else:
        future.set_result(value)


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)
