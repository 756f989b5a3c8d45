"""Global limits, shared by all workers: concurrent jobs and start rates."""

from __future__ import annotations

from datetime import timedelta

from trunkline.codec import duration
from trunkline.errors import InvalidValue
from trunkline.types import Duration


class Limit:
    """A limit across all workers: at most `running` concurrent jobs, or `rate` starts per `per` in bursts of at most
    `burst`.

    Jobs of several kinds and queues can share a limit. It is identified by its name.
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
            raise InvalidValue("a limit requires running or rate")
        if (running is not None and running < 1) or (rate is not None and rate <= 0):
            raise InvalidValue(f"running must be at least 1 and rate more than 0, got running={running}, rate={rate}")
        self.name = name
        self.running = running
        self.burst = burst
        self.rate = None if rate is None else rate / (duration(per) or timedelta(seconds=1)).total_seconds()


class Holder:
    """A worker's share of one limit: granted capacity and acquired tokens."""

    TOKEN_SECONDS = 1.0
    """Lifetime of unused tokens, so that none is used long after it was acquired."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.running = 0
        self.granted = 0
        self.tokens = 0
        self.tokens_at = 0.0
        self.used = False
        """True if a job ran since the last request; then more are likely."""
        self.waiting = 0
        """Claimed jobs that wait for this limit."""
        self._spent = 0

    def room(self, now: float) -> bool:
        if self.limit.running is not None and self.running >= self.granted:
            return False
        return self.limit.rate is None or (self.tokens > 0 and now - self.tokens_at < self.TOKEN_SECONDS)

    def wanted(self) -> int:
        """Return the number of tokens to request: enough for waiting jobs, and twice the number used since the last
        request.
        """
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
