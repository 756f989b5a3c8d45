"""One time limit for many short waits. They are checked together: a timer for each costs more than most of the waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")
_PARTS = 10


class Patience:
    """Waits that may take so many seconds, and up to a tenth more."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # all have the same length, so the first that began is the first that ends
        self._waits: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, call: Callable[[], Awaitable[T]]) -> T:
        """What `call` answers; TimeoutError when that takes too long. One wait at a time in a task."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._waits[task] = time.monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds / _PARTS, self._check)
        try:
            return await call()
        except asyncio.CancelledError:
            if task not in self._late:
                raise
            # it was us: nobody else may see it as cancelled
            if task.uncancel() > 0:
                raise
            raise TimeoutError from None
        finally:
            self._waits.pop(task, None)
            self._late.discard(task)

    def _check(self) -> None:
        self._timer = None
        oldest = time.monotonic() - self._seconds
        for task, began in list(self._waits.items()):
            if began > oldest:
                break
            del self._waits[task]
            self._late.add(task)
            task.cancel()
        if self._waits:
            self._timer = asyncio.get_running_loop().call_later(self._seconds / _PARTS, self._check)
