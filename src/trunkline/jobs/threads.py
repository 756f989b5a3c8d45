"""Threads for plain handlers. One that cannot be ended is left behind and never waited for."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from trunkline.jobs.heartbeat import raise_in_thread
from trunkline.jobs.refusals import JobInterrupted


class _Work:
    def __init__(self, function: Callable[[], Any], answer: asyncio.Future[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.function = function
        self.answer = answer
        self.loop = loop
        self.ident: int | None = None
        self.lock = threading.Lock()

    def interrupt(self) -> None:
        """Raise in the handler's thread, if it is still at it."""
        with self.lock:
            if self.ident is not None:
                raise_in_thread(self.ident, JobInterrupted)


class Threads:
    """As many threads as there is work at once; they are daemons, so that nothing keeps the process from ending."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._idle = 0
        self._all = 0
        self._lock = threading.Lock()

    def start(self, function: Callable[[], Any]) -> tuple[asyncio.Future[Any], Callable[[], None]]:
        """Run it in a thread; answers a future and what interrupts it."""
        loop = asyncio.get_running_loop()
        work = _Work(function, loop.create_future(), loop)
        with self._lock:
            if self._idle == 0:
                self._all += 1
                threading.Thread(target=self._run, name=f"trunkline job {self._all}", daemon=True).start()
            else:
                self._idle -= 1
        self._todo.put(work)
        return work.answer, work.interrupt

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
            self._tell(work, value, error)

    def _next(self) -> _Work | None:
        while True:
            try:
                return self._todo.get()
            except JobInterrupted:
                continue  # it came when its job had ended already

    @staticmethod
    def _tell(work: _Work, value: Any, error: BaseException | None) -> None:
        def answer() -> None:
            if not work.answer.done():
                if error is None:
                    work.answer.set_result(value)
                else:
                    # StopIteration cannot be put into a future
                    work.answer.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)

        # the loop may have been closed meanwhile
        with contextlib.suppress(RuntimeError):
            work.loop.call_soon_threadsafe(answer)
