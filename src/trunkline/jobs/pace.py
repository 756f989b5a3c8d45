"""How many jobs to claim at a time: one where they are slow, many where they are quick."""

from __future__ import annotations

from time import monotonic

from trunkline.db.tasks import Bell

_FIRST = 1
_MOST = 1000
_ONE_SECONDS = 0.004
_FEW_SECONDS = 0.005
_MANY_SECONDS = 0.02
_MANY = 64
_AHEAD_FROM = 8
_QUICK_SECONDS = 0.002
_PATIENCE_SECONDS = 0.2


class Pace:
    """An attempt is counted when a job is claimed, so a job that kills its worker costs those an attempt that were claimed
    and had not begun. Hence slow jobs are claimed one by one, each when it can begin, and the one before has had a moment.
    Where that many jobs end in a few milliseconds, the next claim takes twice as many, and some ahead of free slots. Jobs
    that take less than two milliseconds by themselves are given longer to end: then it is the machine that is slow.
    """

    def __init__(self, ahead: int | None) -> None:
        self._most_ahead = _MOST if ahead is None else ahead
        self._batch = _FIRST
        self._left = 0
        self._mean: float | None = None
        self._bell = Bell()

    def want(self, held: int, concurrency: int) -> int:
        """How many to claim now; none while too little would fit."""
        ahead = min(self._batch, self._most_ahead) if self._batch >= _AHEAD_FROM else 0
        room = concurrency + ahead - held
        return min(self._batch, room) if room >= max(1, min(self._batch, ahead) // 2) else 0

    def ended(self, seconds: float) -> None:
        """A job ended that took so long. One that took much longer than others may only have waited for the processor."""
        if self._mean is None:
            self._mean = seconds
        else:
            self._mean += (min(seconds, 4 * self._mean + 0.0001) - self._mean) / 8
        self._left -= 1
        if self._left <= 0:
            self._bell.ring()

    async def one_ends(self, seconds: float) -> None:
        """Until a job ends, at most so long."""
        await self._wait(1, seconds)

    async def settle_in(self) -> None:
        """After a full claim: until half as many jobs have ended. Whether that was soon says how many to take next."""
        if await self._wait(max(1, self._batch // 2), self._soon() / 2):
            self._batch = min(_MOST, self._batch * 2)
        else:
            self._batch = max(1, self._batch // 2)

    def fell_short(self, taken: int) -> None:
        """There were no more to claim; what comes next may be slower."""
        self._batch = min(self._batch, max(2, 2 * taken))

    def wake(self) -> None:
        self._bell.ring()

    def _soon(self) -> float:
        if self._mean is not None and self._mean < _QUICK_SECONDS:
            return _PATIENCE_SECONDS
        if self._batch == 1:
            return _ONE_SECONDS
        return _FEW_SECONDS if self._batch < _MANY else _MANY_SECONDS

    async def _wait(self, jobs: int, seconds: float) -> bool:
        """Whether so many ended in time. By the clock: a process that gets no turn hears of both at once."""
        self._left = jobs
        self._bell.hush()
        end = monotonic() + seconds
        return await self._bell.wait(seconds) and monotonic() <= end
