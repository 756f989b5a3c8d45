"""What the async client needs of its event loop. `threads.py` has the same names for the sync twin, made of threads."""

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


class Bell:
    """Something to wait for, rung by others."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()

    def hush(self) -> None:
        """Forget earlier rings."""
        self._event.clear()

    @property
    def rung(self) -> bool:
        return self._event.is_set()

    async def wait(self, timeout: float | None = None) -> bool:
        """Until it rings, or for so many seconds at most; answers whether it rang."""
        if self._event.is_set():
            return True
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class Background:
    """A loop that runs beside its owner until it is told to stop."""

    def __init__(self, run: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._task = asyncio.create_task(run(), name=name)

    @property
    def alive(self) -> bool:
        return not self._task.done()

    async def end(self) -> None:
        """Stop it and wait until it has."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._task


class Mutex:
    """One at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class _Entry(Generic[I, R]):
    __slots__ = ("answer", "item", "size")

    def __init__(self, item: I, size: int, answer: asyncio.Future[R]) -> None:
        self.item = item
        self.size = size
        self.answer = answer


class Coalescer(Generic[I, R]):
    """Calls made at the same time share one run of `flush`: the next run starts as soon as the last one is done.

    `flush` gets the items in the order of the calls and answers one value or exception per item. A caller that gives up
    before its item was taken has not been there; after that its item goes through without it.
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
        return entry.answer

    async def drain(self) -> None:
        """Until everything that was submitted has its answer."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while batch := self._take():
                try:
                    answers = await self._flush([entry.item for entry in batch])
                except BaseException as exc:
                    answers = [exc if isinstance(exc, Exception) else asyncio.CancelledError()] * len(batch)
                    if not isinstance(exc, Exception):
                        raise
                finally:
                    for entry, answer in zip(batch, answers, strict=True):
                        _settle(entry.answer, answer)
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
            if not entry.answer.cancelled():
                batch.append(entry)
                size += entry.size
        return batch


def _settle(answer: asyncio.Future[R], value: R | BaseException) -> None:
    if answer.done():
        return
    if isinstance(value, asyncio.CancelledError):
        answer.cancel()
    elif isinstance(value, BaseException):
        answer.set_exception(value)
    else:
        answer.set_result(value)


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)
