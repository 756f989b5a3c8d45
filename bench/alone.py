"""Run programs that use the Python client in separate processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, TypeVar

T = TypeVar("T")
Send = Callable[[Any], None]

_fork = multiprocessing.get_context("fork")
_READY = "ready"


class Failed(RuntimeError):
    """The other process failed."""


def alone(main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine in a new process and return its result."""

    async def program(send: Send) -> None:
        send(await main())

    with _process(program) as pipe:
        result: T = _receive(pipe, 600)
        return result


class Reports:
    """The reports of a running process, in order."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def next(self, timeout: float) -> Any:
        return _receive(self._pipe, timeout)

    def take(self, n: int, timeout: float) -> list[Any]:
        """Return the next `n` reports. Raises TimeoutError with the number received."""
        reports: list[Any] = []
        end = time.monotonic() + timeout
        while len(reports) < n:
            try:
                reports.append(self.next(max(0.0, end - time.monotonic())))
            except TimeoutError as exc:
                raise TimeoutError(f"{len(reports)} of {n} reports arrived within {timeout:.0f} s") from exc
        return reports


@contextmanager
def beside(program: Callable[[Send], Awaitable[None]]) -> Iterator[Reports]:
    """Run a program in another process during the block. The block starts once the program has sent "ready"."""
    with _process(program) as pipe:
        if _receive(pipe, 60) != _READY:
            raise Failed("the other process sent a report before it was ready")
        yield Reports(pipe)


@contextmanager
def _process(program: Callable[[Send], Awaitable[None]]) -> Iterator[Connection]:
    ours, theirs = _fork.Pipe(duplex=False)
    process = _fork.Process(target=_run, args=(program, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.terminate()
        process.join()
        ours.close()


def _run(program: Callable[[Send], Awaitable[None]], pipe: Connection) -> None:
    async def main() -> None:
        await program(pipe.send)

    with suppress(BrokenPipeError):
        try:
            asyncio.run(main())
        except Exception:
            pipe.send(Failed(traceback.format_exc()))


def _receive(pipe: Connection, timeout: float) -> Any:
    if not pipe.poll(timeout):
        raise TimeoutError(f"no report arrived within {timeout:.0f} s")
    try:
        report = pipe.recv()
    except EOFError as exc:
        raise Failed("the other process ended") from exc
    if isinstance(report, Failed):
        raise report
    return report
