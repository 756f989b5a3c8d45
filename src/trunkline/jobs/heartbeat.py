"""Extends leases from a separate thread, even if a handler blocks the event loop, and detects blocked loops."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any

from trunkline.client import SyncClient
from trunkline.concurrency.aio import log
from trunkline.errors import TrunklineError
from trunkline.jobs.attempt import Attempt
from trunkline.jobs.errors import HandlerStalled
from trunkline.runtime.leases import HeldLeases

_LOOK = 0.25


def raise_in_thread(ident: int, exception: type[BaseException]) -> None:
    """Raise an exception in another thread, at its next bytecode instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(exception))


class Heartbeat:
    """Extends the leases of unsettled jobs when a third of the lease has passed.

    `on_lost` is called on the event loop for jobs whose lease has ended, or could not be extended in time. `on_stall`
    is called in this thread for a job whose handler blocks the event loop. If it returns true, the handler is
    interrupted with `HandlerStalled`.
    """

    def __init__(
        self,
        client: SyncClient,
        loop: asyncio.AbstractEventLoop,
        *,
        on_lost: Callable[[Attempt], None],
        on_stall: Callable[[Attempt, float], bool],
    ) -> None:
        self._client = client
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._on_lost = on_lost
        self._on_stall = on_stall
        self._held = HeldLeases()
        self._attempts: dict[str, Attempt] = {}
        self._stopped = threading.Event()
        self._asked_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="trunkline heartbeat", daemon=True)
        self._thread.start()

    def add(self, attempts: Sequence[Attempt], *, span: float, now: float) -> None:
        """Renew the leases of these attempts, which were claimed at `now` for `span` seconds, until they are dropped."""
        # the attempts first: the thread may find a receipt lost at once
        self._attempts.update((attempt.receipt, attempt) for attempt in attempts)
        self._held.add((attempt.receipt for attempt in attempts), span=span, now=now)

    def drop(self, attempt: Attempt) -> None:
        self._held.drop((attempt.receipt,))
        self._attempts.pop(attempt.receipt, None)

    def end(self, attempt: Attempt) -> float:
        """Return when the lease of an attempt ends."""
        return self._held.end(attempt.receipt)

    def attempts(self) -> list[Attempt]:
        """Return the attempts that are not settled."""
        return list(self._attempts.values())

    def stop(self) -> None:
        self._stopped.set()

    def join(self) -> None:
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK):
            try:
                self._watch_loop()
                self._renew()
            except Exception:
                log.exception("unexpected error in heartbeat; continuing")

    def _renew(self) -> None:
        for receipts, span in self._held.due(monotonic(), part=1 / 3):
            now = monotonic()
            try:
                results = self._client.extend(receipts, lease=timedelta(seconds=span))
            except TrunklineError as exc:
                log.warning("could not extend leases count=%s error=%s", len(receipts), exc)
                self._lose(self._held.expired(monotonic()))
            else:
                self._lose(self._held.renewed(receipts, results, span=span, now=now))

    def _lose(self, receipts: list[str]) -> None:
        for receipt in receipts:
            attempt = self._attempts.pop(receipt, None)
            if attempt is not None:
                self._call_on_loop(self._on_lost, attempt)

    # The loop

    def _call_on_loop(self, function: Callable[..., object], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            log.debug("the event loop is closed")

    def _watch_loop(self) -> None:
        now = monotonic()
        if self._asked_at is None:
            self._asked_at = now
            self._call_on_loop(self._turned)
            return
        attempt = self._blocking()
        if attempt is not None and self._on_stall(attempt, now - self._asked_at) and self._blocks(attempt):
            raise_in_thread(self._loop_thread, HandlerStalled)

    def _turned(self) -> None:
        self._asked_at = None

    def _blocking(self) -> Attempt | None:
        """Return the job whose handler currently runs on the event loop."""
        return next((attempt for attempt in self.attempts() if self._blocks(attempt)), None)

    def _blocks(self, attempt: Attempt) -> bool:
        return attempt.calling and attempt.task is asyncio.current_task(self._loop)
