"""Thread primitives of the sync client, with the same names and guarantees as `aio.py`."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from trunkline.errors import OutcomeUnknown

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")
log = logging.getLogger("trunkline")


class Signal:
    """An event to wait for, set by other threads."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        """Forget that it was set."""
        self._event.clear()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most `timeout` seconds. Returns whether it is."""
        return self._event.wait(timeout)


class BackgroundTask:
    """A background loop. It ends by itself soon after its owner sets its stop flag."""

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        """Wait until the loop has stopped."""
        if self._thread is not threading.current_thread():
            self._thread.join()


class Lock:
    """A mutual exclusion lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Entry(Generic[I, R]):
    __slots__ = ("done", "item", "result", "size", "turn")

    def __init__(self, item: I, size: int) -> None:
        self.item = item
        self.size = size
        self.result: R | BaseException | None = None
        self.done = False
        self.turn = threading.Event()


class Coalescer(Generic[I, R]):
    """Batches concurrent calls into runs of `flush`. The next run starts as soon as the previous one is done.

    One caller runs `flush` for all waiting callers, then hands over to the first caller of the next batch. No extra
    thread is involved, and no caller works for others once it has its own result.
    """

    def __init__(self, flush: Callable[[list[I]], list[R | BaseException]], *, max_items: int, max_size: int) -> None:
        self._flush = flush
        self._max_items = max_items
        self._max_size = max_size
        self._guard = threading.Lock()
        self._waiting: deque[_Entry[I, R]] = deque()
        self._busy = False

    @property
    def idle(self) -> bool:
        return not self._busy and not self._waiting

    def submit(self, item: I, size: int = 0) -> R:
        entry: _Entry[I, R] = _Entry(item, size)
        with self._guard:
            self._waiting.append(entry)
            mine = not self._busy
            self._busy = True
        try:
            if not mine:
                entry.turn.wait()
        except BaseException:
            self._withdraw(entry)
            raise
        if not entry.done:
            self._lead()
        if isinstance(entry.result, BaseException):
            raise entry.result
        return cast(R, entry.result)

    def drain(self) -> None:
        """Wait until every submitted item has its result."""
        while not self.idle:
            time.sleep(0.001)

    def _lead(self) -> None:
        """Flush one batch, which includes our own item, and hand over to the next caller."""
        with self._guard:
            batch = self._take()
        results: list[R | BaseException] = []
        try:
            results = self._flush([entry.item for entry in batch])
        except Exception as exc:
            results = [exc] * len(batch)
        except BaseException:
            results = [OutcomeUnknown("the thread that sent this item in its batch was interrupted")] * len(batch)
            raise
        finally:
            for entry, result in zip(batch, results, strict=True):
                entry.result = result
                entry.done = True
                entry.turn.set()
            self._pass_on()

    def _pass_on(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting[0].turn.set()
            else:
                self._busy = False

    def _withdraw(self, entry: _Entry[I, R]) -> None:
        """Remove the item of a caller that was interrupted while it waited."""
        with self._guard:
            if entry in self._waiting:
                self._waiting.remove(entry)
            leads = entry.turn.is_set() and not entry.done
        if leads:
            self._pass_on()

    def _take(self) -> list[_Entry[I, R]]:
        batch: list[_Entry[I, R]] = []
        size = 0
        while self._waiting and len(batch) < self._max_items:
            entry = self._waiting[0]
            if batch and size + entry.size > self._max_size:
                break
            batch.append(self._waiting.popleft())
            size += entry.size
        return batch


def sleep(seconds: float) -> None:
    time.sleep(seconds)
