"""The breaker of an endpoint. Its state is in the database, so that all dispatchers agree; here is what one sees of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import NamedTuple

THRESHOLD = 20
"""So many failures in a row open it."""
_PATIENCE_SECONDS = 1.0


class Store(NamedTuple):
    """How the state is changed for all: each call answers when it is written."""

    open: Callable[[int], Awaitable[float]]
    probe: Callable[[], Awaitable[bool]]
    close: Callable[[], Awaitable[None]]


class Breaker:
    """Closed: all goes. Open: nothing. Half-open: one request over all dispatchers, which decides."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._openings = 0
        self._open_until = 0.0
        self._failures = 0
        self._busy = False
        self._refused_until = 0.0
        self.probing = False

    def update(self, openings: int, open_for: float | None) -> None:
        """What the plan says."""
        if self._busy:
            return
        if self._openings and not openings:
            # another dispatcher found the receiver well
            self._failures = 0
        self._openings = openings
        self._open_until = monotonic() + open_for if openings and open_for is not None else 0.0
        if not openings:
            self.probing = False

    @property
    def closed(self) -> bool:
        return self._openings == 0

    @property
    def half_open(self) -> bool:
        return self._openings > 0 and monotonic() >= max(self._open_until, self._refused_until)

    async def take_probe(self) -> bool:
        """Whether this dispatcher may try one request. Asked with a message in hand, so that a probe is not wasted."""
        self.probing = await self._store.probe()
        if not self.probing:
            # another dispatcher tries; the plan will say what came of it
            self._refused_until = monotonic() + _PATIENCE_SECONDS
        return self.probing

    def reset(self) -> None:
        """A good answer while it is closed."""
        self._failures = 0

    async def good(self) -> None:
        self._failures = 0
        if self._openings and not self._busy:
            self._busy = True
            try:
                await self._store.close()
                self._openings = 0
            finally:
                self._busy = False
                self.probing = False

    async def failed(self) -> bool:
        """Answers whether it is open now."""
        self._failures += 1
        if not self._busy and (self.probing or (self.closed and self._failures >= THRESHOLD)):
            self._busy = True
            seen = self._openings
            # here at once: while the database hears of it, many more requests could start
            self._openings += 1
            self._open_until = float("inf")
            pause = _PATIENCE_SECONDS
            try:
                pause = await self._store.open(seen)
            finally:
                self._open_until = monotonic() + pause
                self._busy = False
                self.probing = False
        return not self.closed
