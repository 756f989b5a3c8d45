"""Backoff: the delay before the next attempt."""

from __future__ import annotations

import random
from datetime import timedelta

from trunkline.codec import duration
from trunkline.errors import InvalidValue
from trunkline.types import Duration


class Backoff:
    """Exponential backoff: `base`, multiplied by `factor` per attempt, up to `cap`, with `jitter` (0.1 is ±10 %)."""

    def __init__(self, base: Duration = "1s", *, factor: float = 2.0, cap: Duration = "1h", jitter: float = 0.1) -> None:
        if factor < 1 or not 0 <= jitter <= 1:
            raise InvalidValue(f"factor must be at least 1 and jitter from 0 to 1, got factor={factor}, jitter={jitter}")
        self._base = duration(base) or timedelta(0)
        self._cap = duration(cap) or timedelta(0)
        self._factor = factor
        self._jitter = jitter

    def after(self, attempt: int) -> timedelta:
        """Return the delay after this attempt. Attempts count from 1."""
        seconds = self._base.total_seconds() * self._factor ** min(attempt - 1, 100)
        seconds = min(seconds, self._cap.total_seconds())
        # no cryptographic use: spreads retries over time
        return timedelta(seconds=seconds * (1 + self._jitter * random.uniform(-1, 1)))  # noqa: S311  # nosec B311
