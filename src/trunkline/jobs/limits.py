"""Limits on jobs: global limits that all workers share, and those of one kind of job in a worker."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from trunkline.codec import duration
from trunkline.errors import InvalidValue
from trunkline.types import Duration

if TYPE_CHECKING:
    from trunkline.jobs.attempt import Attempt
    from trunkline.jobs.job import Job
    from trunkline.jobs.worker import Worker


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


class LimitShare:
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


class KindLimits:
    """Decides whether another job of one kind may start in this worker."""

    def __init__(self, worker: Worker, job: Job[..., Any], queue_limits: Any) -> None:
        self._most = job.definition.concurrency
        self._running = 0
        self._worker = worker
        self.shares: list[LimitShare] = [worker.share(limit) for limit in (*queue_limits, *job.definition.limits)]

    @property
    def open(self) -> bool:
        """True if one more job may start."""
        return self.local_room() and (not self.shares or self.room())

    def local_room(self) -> bool:
        return self._most is None or self._running < self._most

    def room(self) -> bool:
        now = monotonic()
        return all(share.room(now) for share in self.shares)

    def full(self, blocked: deque[Attempt] | None) -> bool:
        """Return whether more jobs of this kind would only wait in this worker."""
        if not blocked:
            return False
        return not self.local_room() or len(blocked) >= 2 * max(1, self._running) or not self.room()

    def enter(self) -> None:
        self._running += 1
        for share in self.shares:
            share.enter()

    def leave(self) -> None:
        self._running -= 1
        for share in self.shares:
            share.leave()

    def wait(self) -> None:
        for share in self.shares:
            share.waiting += 1
        self._worker.need_limits()

    def unwait(self) -> None:
        for share in self.shares:
            share.waiting = max(0, share.waiting - 1)
