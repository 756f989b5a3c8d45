"""The circuit breaker of an endpoint. Dispatchers share its state in the database; each keeps a local view."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import NamedTuple

THRESHOLD = 20
"""Consecutive failures that open the breaker."""
_PATIENCE_SECONDS = 1.0


class Store(NamedTuple):
    """Changes the shared state. Each call returns after the change is committed."""

    open: Callable[[int], Awaitable[float]]
    probe: Callable[[], Awaitable[bool]]
    close: Callable[[], Awaitable[None]]


class Breaker:
    """Closed: requests are sent. Open: none are. Half-open: one probe request across all dispatchers decides."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._openings = 0
        self._open_until = 0.0
        self._failures = 0
        self._busy = False
        self._refused_until = 0.0
        self.probing = False

    def update(self, openings: int, open_for: float | None) -> None:
        """Apply the state from a dispatch plan."""
        if self._busy:
            return
        if self._openings and not openings:
            # another dispatcher's probe succeeded
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

    async def acquire_probe(self) -> bool:
        """Try to acquire the probe. Call it with a message in hand, or the probe is wasted."""
        self.probing = await self._store.probe()
        if not self.probing:
            # another dispatcher is probing; the next plan has the outcome
            self._refused_until = monotonic() + _PATIENCE_SECONDS
        return self.probing

    def reset(self) -> None:
        """Record a success while the breaker is closed."""
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
        """Record a failure. Return whether the breaker is now open."""
        self._failures += 1
        if not self._busy and (self.probing or (self.closed and self._failures >= THRESHOLD)):
            self._busy = True
            seen = self._openings
            # open locally first: many more requests could start during the database call
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
