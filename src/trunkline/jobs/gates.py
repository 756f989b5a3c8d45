"""Limits on one kind of job in a worker: its concurrency, and the worker's shares of global limits."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

from trunkline.jobs.attempt import Attempt
from trunkline.jobs.job import Job
from trunkline.jobs.limits import Holder

if TYPE_CHECKING:
    from trunkline.jobs.worker import Worker


class Gate:
    """Decides whether another job of one kind may start in this worker."""

    def __init__(self, worker: Worker, job: Job[..., Any], queue_limits: Any) -> None:
        self._most = job.definition.concurrency
        self._running = 0
        self._worker = worker
        self.holders: list[Holder] = [worker.holder(limit) for limit in (*queue_limits, *job.definition.limits)]

    @property
    def open(self) -> bool:
        """True if one more job may start."""
        return self.local_room() and (not self.holders or self.room())

    def local_room(self) -> bool:
        return self._most is None or self._running < self._most

    def room(self) -> bool:
        now = monotonic()
        return all(holder.room(now) for holder in self.holders)

    def full(self, blocked: deque[Attempt] | None) -> bool:
        """Return whether more jobs of this kind would only wait in this worker."""
        if not blocked:
            return False
        return not self.local_room() or len(blocked) >= 2 * max(1, self._running) or not self.room()

    def enter(self) -> None:
        self._running += 1
        for holder in self.holders:
            holder.enter()

    def leave(self) -> None:
        self._running -= 1
        for holder in self.holders:
            holder.leave()

    def wait(self) -> None:
        for holder in self.holders:
            holder.waiting += 1
        self._worker.need_limits()

    def unwait(self) -> None:
        for holder in self.holders:
            holder.waiting = max(0, holder.waiting - 1)
