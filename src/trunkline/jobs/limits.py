"""Limits over all processes: how many jobs run at once, and how many start in a time."""

from __future__ import annotations

from datetime import timedelta

from trunkline.db.codec import duration
from trunkline.types import Duration


class Limit:
    """`running` jobs at once, or `rate` starts per `per` with at most `burst` at once, over all workers together.

    Jobs of several kinds and queues may share one limit: it is known by its name.
    """

    def __init__(
        self,
        name: str,
        *,
        running: int | None = None,
        rate: float | None = None,
        per: Duration = "1s",
        burst: float | None = None,
    ) -> None:
        if running is None and rate is None:
            raise ValueError("a limit needs running or rate")
        if (running is not None and running < 1) or (rate is not None and rate <= 0):
            raise ValueError("running is at least 1, rate more than 0")
        self.name = name
        self.running = running
        self.burst = burst
        self.rate = None if rate is None else rate / (duration(per) or timedelta(seconds=1)).total_seconds()


class Holder:
    """A worker's share of one limit: capacity that it holds, and tokens that it took."""

    TOKEN_SECONDS = 1.0
    """Tokens that were not used by then are thrown away, so that none is used long after it was taken."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.running = 0
        self.granted = 0
        self.tokens = 0
        self.tokens_at = 0.0
        self.used = False
        """Whether a job ran since we asked last: then there are probably more."""
        self.waiting = 0
        """Jobs at hand that wait for this limit."""
        self._spent = 0

    def room(self, now: float) -> bool:
        if self.limit.running is not None and self.running >= self.granted:
            return False
        return self.limit.rate is None or (self.tokens > 0 and now - self.tokens_at < self.TOKEN_SECONDS)

    def wanted(self) -> int:
        """Tokens to ask for: for the jobs at hand, and twice as many as were used since the last time."""
        spent, self._spent = self._spent, 0
        return max(self.waiting, 2 * spent)

    def enter(self) -> None:
        self.running += 1
        self.used = True
        if self.limit.rate is not None:
            self.tokens -= 1
            self._spent += 1

    def leave(self) -> None:
        self.running -= 1
