"""Threads for plain handlers. A thread that cannot be interrupted is abandoned."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from trunkline.jobs.errors import JobInterrupted
from trunkline.jobs.heartbeat import raise_in_thread


class _Work:
    def __init__(self, function: Callable[[], Any], future: asyncio.Future[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.function = function
        self.future = future
        self.loop = loop
        self.ident: int | None = None
        self.lock = threading.Lock()

    def interrupt(self) -> None:
        """Raise JobInterrupted in the handler's thread if it still runs."""
        with self.lock:
            if self.ident is not None:
                raise_in_thread(self.ident, JobInterrupted)


class ThreadPool:
    """A pool of as many threads as there are concurrent handlers.

    They are daemons, so they never block process exit.
    """

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._idle = 0
        self._all = 0
        self._lock = threading.Lock()

    def start(self, function: Callable[[], Any]) -> tuple[asyncio.Future[Any], Callable[[], None]]:
        """Run a function in a thread. Returns a future and a function that interrupts it."""
        loop = asyncio.get_running_loop()
        work = _Work(function, loop.create_future(), loop)
        with self._lock:
            if self._idle == 0:
                self._all += 1
                threading.Thread(target=self._run, name=f"trunkline job {self._all}", daemon=True).start()
            else:
                self._idle -= 1
        self._todo.put(work)
        return work.future, work.interrupt

    def end(self) -> None:
        with self._lock:
            for _ in range(self._all):
                self._todo.put(None)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            value: Any = None
            error: BaseException | None = None
            try:
                with work.lock:
                    work.ident = threading.get_ident()
                try:
                    value = work.function()
                finally:
                    with work.lock:
                        work.ident = None
            except BaseException as exc:
                error = exc
            with self._lock:
                self._idle += 1
            self._report(work, value, error)

    def _next(self) -> _Work | None:
        while True:
            try:
                return self._todo.get()
            except JobInterrupted:
                continue  # it arrived after its job had ended

    @staticmethod
    def _report(work: _Work, value: Any, error: BaseException | None) -> None:
        def resolve() -> None:
            if not work.future.done():
                if error is None:
                    work.future.set_result(value)
                else:
                    # a future does not accept StopIteration
                    work.future.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)

        # the loop may already be closed
        with contextlib.suppress(RuntimeError):
            work.loop.call_soon_threadsafe(resolve)
