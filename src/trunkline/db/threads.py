"""What the sync client needs of threads: the names of `tasks.py`, with the same promises."""

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


class Bell:
    """Something to wait for, rung by others."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        self._event.set()

    def hush(self) -> None:
        """Forget earlier rings."""
        self._event.clear()

    @property
    def rung(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Until it rings, or for so many seconds at most; answers whether it rang."""
        return self._event.wait(timeout)


class Background:
    """A loop that runs beside its owner. It ends by itself soon after its owner's stop mark is set."""

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        """Wait until it has stopped."""
        if self._thread is not threading.current_thread():
            self._thread.join()


class Mutex:
    """One at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Entry(Generic[I, R]):
    __slots__ = ("answer", "done", "item", "size", "turn")

    def __init__(self, item: I, size: int) -> None:
        self.item = item
        self.size = size
        self.answer: R | BaseException | None = None
        self.done = False
        self.turn = threading.Event()


class Coalescer(Generic[I, R]):
    """Calls made at the same time share one run of `flush`: the next run starts as soon as the last one is done.

    One of the callers runs it for all that wait, then hands the turn to the first of the next ones; so there is no thread
    in between, and nobody works for others once its own answer is there.
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
        if isinstance(entry.answer, BaseException):
            raise entry.answer
        return cast(R, entry.answer)

    def drain(self) -> None:
        """Until everything that was submitted has its answer."""
        while not self.idle:
            time.sleep(0.001)

    def _lead(self) -> None:
        """Run one batch, which has our own item in it, and give the turn away."""
        with self._guard:
            batch = self._take()
        answers: list[R | BaseException] = []
        try:
            answers = self._flush([entry.item for entry in batch])
        except Exception as exc:
            answers = [exc] * len(batch)
        except BaseException:
            answers = [OutcomeUnknown("the thread that was sending this together with its own was interrupted")] * len(batch)
            raise
        finally:
            for entry, answer in zip(batch, answers, strict=True):
                entry.answer = answer
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
        """The caller was interrupted while it waited."""
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
