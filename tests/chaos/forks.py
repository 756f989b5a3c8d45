"""Processes forked from one that has imported everything: to start Python for each actor was half of the CPU of a run.

`python -m tests.chaos.forks` is the process they are forked from. It holds no connection and no thread, so that a fork is
as good as a fresh start.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil


class Order(msgspec.Struct, frozen=True):
    """An actor to start: its arguments, and the file that takes what it prints."""

    arguments: tuple[str, ...]
    output: str


class Forked:
    """An actor's process, with the methods of `subprocess.Popen` that a run needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._process: psutil.Process | None = psutil.Process(pid)
        except psutil.NoSuchProcess:
            self._process = None

    def poll(self) -> int | None:
        """None while it runs; how it ended is not known."""
        return None if self._process is not None and self._process.is_running() else 0

    def wait(self, timeout: float) -> None:
        if self._process is not None:
            try:
                self._process.wait(timeout)
            except psutil.TimeoutExpired as error:
                raise subprocess.TimeoutExpired(f"actor {self.pid}", timeout) from error

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        try:
            if self._process is not None:
                self._process.send_signal(number)
        except psutil.NoSuchProcess:
            pass


class Forks:
    """Starts actors; the process they are forked from starts with the first of them."""

    def __init__(self) -> None:
        self._parent: subprocess.Popen[bytes] | None = None

    def start(self, arguments: Sequence[str], output: Path) -> Forked:
        if self._parent is None:
            self._parent = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.forks"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=Path(__file__).parents[2],
            )
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.write(msgspec.json.encode(Order(tuple(arguments), str(output))) + b"\n")
        self._parent.stdin.flush()
        return Forked(int(self._parent.stdout.readline()))

    def close(self) -> None:
        if self._parent is not None:
            self._parent.communicate(timeout=30)


def main() -> None:
    from tests.chaos.actors import act

    # a process that has ended is gone at once, as the nemesis expects
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Order)
        pid = os.fork()
        if pid == 0:
            _become(order)
            code = 1
            try:
                act(*order.arguments)
                code = 0
            except BaseException:  # what ends a program with a traceback ends this one so
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(pid, flush=True)


def _become(order: Order) -> None:
    """Let go of what belongs to the parent, before anything is done."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output = os.open(order.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(output)
    os.close(nothing)


if __name__ == "__main__":
    main()
