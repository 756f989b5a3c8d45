"""One time limit for many short waits. A shared timer is cheaper than one per wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")
_PARTS = 10


class TimeoutGroup:
    """Limits waits to this many seconds, with a tolerance of a tenth."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # in order of start, hence of expiry
        self._waits: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, call: Callable[[], Awaitable[T]]) -> T:
        """Await `call` or raise TimeoutError. A task can have one wait at a time."""
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
            # cancelled by us: hide it from the task
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
