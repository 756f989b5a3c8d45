"""Dispatchers for the tests: as a task of the test, or as a process that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from trunkline.push.dispatcher import Dispatcher

LOCAL = ("127.0.0.0/8",)


@contextlib.asynccontextmanager
async def dispatching(url: str, **options: object) -> AsyncIterator[Dispatcher]:
    """A dispatcher beside the test."""
    stop = asyncio.Event()
    dispatcher = Dispatcher(url, **{"allow": LOCAL, "grace": 5.0, **options})  # type: ignore[arg-type]
    task = asyncio.create_task(dispatcher.run(stop))
    try:
        yield dispatcher
    finally:
        stop.set()
        await task


class Process:
    """A dispatcher in a separate process; each request start is written to a file that survives its death."""

    def __init__(self, url: str, starts: Path) -> None:
        self._command = [sys.executable, "-m", "tests.push.dispatch", url, str(starts)]
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()


def recorder(path: str) -> object:
    """Writes `endpoint nanoseconds` for each start; the monotonic clock is one for all processes of the machine."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return lambda name: os.write(file, f"{name} {time.monotonic_ns()}\n".encode())


async def _main(url: str, starts: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await Dispatcher(url, allow=LOCAL, on_start=recorder(starts)).run(stop)  # type: ignore[arg-type]


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
