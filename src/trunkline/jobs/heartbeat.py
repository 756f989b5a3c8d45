"""Extends leases from a separate thread, even if a handler blocks the event loop, and detects blocked loops."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from types import FrameType

from trunkline.client import SyncClient
from trunkline.concurrency.aio import log
from trunkline.errors import TrunklineError
from trunkline.jobs.running import Item, Lease

_LOOK = 0.25


def raise_in_thread(ident: int, exception: type[BaseException]) -> None:
    """Raise an exception in another thread, at its next bytecode instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(exception))


class Heartbeat:
    """Extends the leases of unsettled jobs when a third of the lease has passed.

    `on_lost` is called on the event loop for jobs whose lease has ended, or could not be extended in time. `on_stall`
    is called in this thread for a job whose handler blocks the event loop.
    """

    def __init__(
        self,
        client: SyncClient,
        call_on_loop: Callable[..., object],
        *,
        on_lost: Callable[[Item], None],
        on_stall: Callable[[Item, float], None],
        loop_thread: int,
    ) -> None:
        self._client = client
        self._call_on_loop = call_on_loop
        self._on_lost = on_lost
        self._on_stall = on_stall
        self._loop_thread = loop_thread
        self._leases: dict[str, Lease] = {}
        self._stopped = threading.Event()
        self._asked_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="trunkline heartbeat", daemon=True)
        self._thread.start()

    def add(self, lease: Lease) -> None:
        self._leases[lease.text] = lease

    def leases(self) -> list[Lease]:
        return list(self._leases.values())

    def stop(self) -> None:
        self._stopped.set()

    def join(self) -> None:
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK):
            try:
                self._watch_loop()
                for lease in list(self._leases.values()):
                    self._extend(lease)
            except Exception:
                log.exception("unexpected error in heartbeat; continuing")

    def _extend(self, lease: Lease) -> None:
        if not lease.open:
            self._leases.pop(lease.text, None)
            return
        now = monotonic()
        if now < lease.until - lease.span * 2 / 3:
            return
        positions = list(lease.open)
        receipts = [f"{position}.{lease.text}" for position in positions]
        try:
            results = self._client.extend(receipts, lease=timedelta(seconds=lease.span))
        except TrunklineError as exc:
            log.warning("could not extend lease error=%s", exc)
            if monotonic() > lease.until:
                self._leases.pop(lease.text, None)
                self._lose(lease, positions)
            return
        lost = [position for position, result in zip(positions, results, strict=True) if result != "done"]
        # counted from before the call: the response may have been slow
        lease.until = now + lease.span
        self._lose(lease, lost)

    def _lose(self, lease: Lease, positions: list[int]) -> None:
        for position in positions:
            item = lease.open.get(position)
            if item is not None:
                self._call_on_loop(self._on_lost, item)

    # The loop

    def _watch_loop(self) -> None:
        now = monotonic()
        if self._asked_at is None:
            self._asked_at = now
            self._call_on_loop(self._turned)
            return
        item = self._blocking()
        if item is not None:
            self._on_stall(item, now - self._asked_at)

    def _turned(self) -> None:
        self._asked_at = None

    def _blocking(self) -> Item | None:
        """Return the job whose handler currently runs on the event loop."""
        frame: FrameType | None = sys._current_frames().get(self._loop_thread)
        while frame is not None:
            if frame.f_code.co_name == "_call_async" and frame.f_globals.get("__name__") == "trunkline.jobs.running_calls":
                item = frame.f_locals.get("item")
                return item if isinstance(item, Item) else None
            frame = frame.f_back
        return None
