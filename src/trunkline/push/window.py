"""Adaptive limit of concurrent requests to one endpoint: grows on success, halves on failure (AIMD)."""

from __future__ import annotations

_FIRST = 8.0
_CALM_SECONDS = 1.0


class Window:
    """Starts small, grows by one per full window of successes, halves at most once a second."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._size = _FIRST
        self._halved = float("-inf")

    @property
    def size(self) -> int:
        return max(0, min(int(self._size), self.most))

    def went_well(self) -> None:
        self._size = min(self._size + 1 / self._size, max(1.0, float(self.most)))

    def went_badly(self, now: float) -> None:
        """Record a failure. Concurrent requests fail together, so they count as one signal."""
        if now - self._halved >= _CALM_SECONDS:
            self._halved = now
            self._size = max(1.0, self._size / 2)
