"""The endpoint's rate limit, shared by all dispatchers: permits to start a request, acquired in batches."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic

from trunkline.concurrency.aio import log
from trunkline.db.calls.push import Permits
from trunkline.errors import TrunklineError

_RETRY_SECONDS = 0.5


class RateLimiter:
    """Delays requests to fit the endpoint's rate. At most one database call is in flight."""

    def __init__(self, take: Callable[[int], Awaitable[Permits]]) -> None:
        self._take = take
        self._waiting: deque[asyncio.Future[float]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._changed = asyncio.Event()

    async def permit(self) -> bool:
        """Wait for a permit. True: start the request before the event loop yields. False: the limiter was closed."""
        first = False
        while not self._closed:
            place: asyncio.Future[float] = asyncio.get_running_loop().create_future()
            (self._waiting.appendleft if first else self._waiting.append)(place)
            if self._task is None:
                self._task = asyncio.create_task(self._run(), name="trunkline permits")
            try:
                until = await place
            finally:
                if not place.done():
                    place.cancel()
            if monotonic() <= until and not self._closed:
                return True
            # the event loop was blocked and the permit expired
            first = True
        return False

    def rate_changed(self) -> None:
        """Acquire again now: the current wait was computed from the old rate."""
        self._changed.set()

    async def close(self) -> None:
        """Refuse further permits and release all waiters."""
        self._closed = True
        for place in self._waiting:
            if not place.done():
                place.set_result(0.0)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._skip_gone():
                # the grant happened between `before` and `after`: count delays from the later, expiry from the earlier
                before = monotonic()
                self._changed.clear()
                try:
                    granted = await self._take(min(len(self._waiting), 1000))
                except TrunklineError as exc:
                    log.warning("could not acquire permits; retrying in %s s: %s", _RETRY_SECONDS, exc)
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                after = monotonic()
                for delay in granted.delays:
                    await self._hand_out(after + delay, before + delay + granted.valid)
                if not granted.delays:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), granted.wait + 0.001)
        finally:
            self._task = None

    async def _hand_out(self, start: float, until: float) -> None:
        pause = start - monotonic()
        if pause > 0:
            await asyncio.sleep(pause)
        if monotonic() <= until and self._skip_gone():
            self._waiting.popleft().set_result(until)

    def _skip_gone(self) -> bool:
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        return bool(self._waiting)
