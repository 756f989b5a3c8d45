"""The rate of an endpoint, shared by all dispatchers: permits to start a request, asked for in batches."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic

from trunkline.db.push import Permits
from trunkline.db.tasks import log
from trunkline.errors import TrunklineError

_RETRY_SECONDS = 0.5


class Pace:
    """Lets requests start when the endpoint's rate allows it. One question to the database at a time."""

    def __init__(self, take: Callable[[int], Awaitable[Permits]]) -> None:
        self._take = take
        self._waiting: deque[asyncio.Future[float]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._changed = asyncio.Event()

    async def permit(self) -> bool:
        """True at a moment at which a request may start, in this very turn of the event loop. False: it was closed."""
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
            # this loop was held up and the permit is void
            first = True
        return False

    def rate_changed(self) -> None:
        """Ask the database again at once: a wait at the old rate may be far too long."""
        self._changed.set()

    async def close(self) -> None:
        """Nobody gets a permit any more; who waits for one need not."""
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
                # the moment of the grant lies between the two: start no earlier than by the one, no later than by the other
                before = monotonic()
                self._changed.clear()
                try:
                    granted = await self._take(min(len(self._waiting), 1000))
                except TrunklineError as exc:
                    log.warning("no permits: %s; trying again", exc)
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
