# Written by tools/unasync.py from src/trunkline/runtime/renewals.py; change that file, not this one.
"""Renews leases while their messages are being processed: one loop for all consumers of a client."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from trunkline.concurrency.threads import BackgroundTask, Signal, log


class Renewal:
    """A callback that runs every `every` seconds until it is dropped."""

    def __init__(self, every: float, renew: Callable[[], None]) -> None:
        self.every = every
        self.renew = renew
        self.due = monotonic() + every


class Renewals:
    """Runs renewals when they are due. A failed one is retried after 1 s; the lease is long enough for two failures."""

    def __init__(self) -> None:
        self._all: set[Renewal] = set()
        self._changed = Signal()
        self._loop: BackgroundTask | None = None
        self._closed = False

    def add(self, every: float, renew: Callable[[], None]) -> Renewal:
        renewal = Renewal(every, renew)
        self._all.add(renewal)
        if self._loop is None or not self._loop.alive:
            self._loop = BackgroundTask(self._run, "trunkline renewals")
        self._changed.set()
        return renewal

    def drop(self, renewal: Renewal) -> None:
        self._all.discard(renewal)

    def close(self) -> None:
        self._closed = True
        self._changed.set()
        if self._loop is not None:
            self._loop.end()

    def _run(self) -> None:
        while not self._closed:
            self._changed.clear()
            first = min((renewal.due for renewal in tuple(self._all)), default=None)
            self._changed.wait(None if first is None else max(0.0, first - monotonic()))
            for renewal in tuple(self._all):
                if renewal.due > monotonic() or renewal not in self._all or self._closed:
                    continue
                try:
                    renewal.renew()
                    renewal.due = monotonic() + renewal.every
                except Exception as exc:
                    pause = min(1.0, renewal.every)
                    log.warning("lease renewal failed; retrying in %.1f s error=%s", pause, exc)
                    renewal.due = monotonic() + pause
