"""Programs of the Python client, each in a process of its own."""

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
    """The other process ended with an error."""


def alone(main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine in a new process and answer what it returned."""

    async def program(send: Send) -> None:
        send(await main())

    with _process(program) as pipe:
        answer: T = _receive(pipe, 600)
        return answer


class Reports:
    """What a running process tells, in order."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def next(self, timeout: float) -> Any:
        return _receive(self._pipe, timeout)

    def take(self, n: int, timeout: float) -> list[Any]:
        """The next `n` reports; a TimeoutError names how many came."""
        reports: list[Any] = []
        end = time.monotonic() + timeout
        while len(reports) < n:
            try:
                reports.append(self.next(max(0.0, end - time.monotonic())))
            except TimeoutError as exc:
                raise TimeoutError(f"{len(reports)} of {n} came within {timeout:.0f} s") from exc
        return reports


@contextmanager
def beside(program: Callable[[Send], Awaitable[None]]) -> Iterator[Reports]:
    """A process that runs beside this one until the block ends. The block begins when it has sent "ready"."""
    with _process(program) as pipe:
        if _receive(pipe, 60) != _READY:
            raise Failed("the other process said something before it was ready")
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
        raise TimeoutError(f"nothing came within {timeout:.0f} s")
    try:
        answer = pipe.recv()
    except EOFError as exc:
        raise Failed("the other process ended") from exc
    if isinstance(answer, Failed):
        raise answer
    return answer
