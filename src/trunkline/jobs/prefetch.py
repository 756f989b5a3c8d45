"""Adapts the claim size to job duration: slow jobs are claimed one at a time, fast jobs in large batches."""

from __future__ import annotations

from time import monotonic

from trunkline.concurrency.aio import Signal

_FIRST = 1
_MOST = 1000
_ONE_SECONDS = 0.004
_FEW_SECONDS = 0.005
_MANY_SECONDS = 0.02
_MANY = 64
_AHEAD_FROM = 8
_QUICK_SECONDS = 0.002
_PATIENCE_SECONDS = 0.2


class Prefetch:
    """Decides how many jobs to claim, and when.

    A claim counts an attempt. So a job that kills its worker costs an attempt of every job that was claimed but had not
    started. Slow jobs are therefore claimed one by one, when they can start and the previous one has run for a moment.
    If a batch ends within a few milliseconds, the next claim takes twice as many and prefetches some. Jobs with a mean
    below 2 ms get more time, because then the machine is slow, not the jobs.
    """

    def __init__(self, ahead: int | None) -> None:
        self._most_ahead = _MOST if ahead is None else ahead
        self._batch = _FIRST
        self._left = 0
        self._mean: float | None = None
        self._signal = Signal()

    def want(self, held: int, concurrency: int) -> int:
        """Return how many jobs to claim now, or 0 while there is too little room."""
        ahead = min(self._batch, self._most_ahead) if self._batch >= _AHEAD_FROM else 0
        room = concurrency + ahead - held
        return min(self._batch, room) if room >= max(1, min(self._batch, ahead) // 2) else 0

    def ended(self, seconds: float) -> None:
        """Record the duration of a job. Outliers are capped: such a job may only have waited for the CPU."""
        if self._mean is None:
            self._mean = seconds
        else:
            self._mean += (min(seconds, 4 * self._mean + 0.0001) - self._mean) / 8
        self._left -= 1
        if self._left <= 0:
            self._signal.set()

    async def one_ends(self, seconds: float) -> None:
        """Wait until a job ends, at most `seconds`."""
        await self._wait(1, seconds)

    async def settle_in(self) -> None:
        """After a full claim, wait until half as many jobs have ended, and adapt the next claim to the time that took."""
        if await self._wait(max(1, self._batch // 2), self._soon() / 2):
            self._batch = min(_MOST, self._batch * 2)
        else:
            self._batch = max(1, self._batch // 2)

    def fell_short(self, claimed: int) -> None:
        """Reduce the next claim after one that emptied the queue: the next jobs may be slower."""
        self._batch = min(self._batch, max(2, 2 * claimed))

    def wake(self) -> None:
        self._signal.set()

    def _soon(self) -> float:
        if self._mean is not None and self._mean < _QUICK_SECONDS:
            return _PATIENCE_SECONDS
        if self._batch == 1:
            return _ONE_SECONDS
        return _FEW_SECONDS if self._batch < _MANY else _MANY_SECONDS

    async def _wait(self, jobs: int, seconds: float) -> bool:
        """Return whether `jobs` jobs ended in time.

        Checks the clock, because a starved process sees both events at once.
        """
        self._left = jobs
        self._signal.clear()
        end = monotonic() + seconds
        return await self._signal.wait(seconds) and monotonic() <= end
