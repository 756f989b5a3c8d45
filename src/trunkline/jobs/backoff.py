"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from datetime import timedelta

from trunkline.db.codec import duration
from trunkline.types import Duration


class Backoff:
    """`base`, then each time `factor` times as long, at most `cap`, give or take `jitter` (0.1 is ten per cent)."""

    def __init__(self, base: Duration = "1s", *, factor: float = 2.0, cap: Duration = "1h", jitter: float = 0.1) -> None:
        if factor < 1 or not 0 <= jitter <= 1:
            raise ValueError("factor is at least 1, jitter from 0 to 1")
        self._base = duration(base) or timedelta(0)
        self._cap = duration(cap) or timedelta(0)
        self._factor = factor
        self._jitter = jitter

    def after(self, attempt: int) -> timedelta:
        """The pause behind this attempt, counted from 1."""
        seconds = self._base.total_seconds() * self._factor ** min(attempt - 1, 100)
        seconds = min(seconds, self._cap.total_seconds())
        # not for secrets: only so that retries do not come all at once
        return timedelta(seconds=seconds * (1 + self._jitter * random.uniform(-1, 1)))  # noqa: S311  # nosec B311
