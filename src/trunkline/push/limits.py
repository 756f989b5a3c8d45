"""How many requests to one endpoint are under way at once: more while it goes well, half when it does not (AIMD)."""

from __future__ import annotations

_FIRST = 8.0
_CALM_SECONDS = 1.0


class Window:
    """Starts small, grows by one for each full window that went well, and is halved at most once a second."""

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
        """What is under way together fails together: that is one sign, not many."""
        if now - self._halved >= _CALM_SECONDS:
            self._halved = now
            self._size = max(1.0, self._size / 2)
