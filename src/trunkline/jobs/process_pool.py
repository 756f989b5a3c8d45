"""Processes for plain handlers with `process=True`: for CPU-bound work or code that may crash."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from trunkline.jobs.context import ProcessContext


class ProcessDied(RuntimeError):
    """The process of a handler ended without a result."""


def _serve(pipe: Connection) -> None:
    """Run jobs from the pipe and send back their results, in the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    home = os.getpid()
    while True:
        try:
            module, name, context, payload = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            job = getattr(importlib.import_module(module), name)
            args, kwargs = job.arguments.decode(payload)
            value = job.function(context, *args, **kwargs) if job.wants_context else job.function(*args, **kwargs)
            result = (True, value, "")
        except BaseException as exc:
            result = (False, f"{type(exc).__name__}: {exc}", traceback.format_exc())
        if os.getpid() != home:
            os._exit(0)  # a child that the handler forked
        try:
            pipe.send(result)
        except Exception as exc:
            pipe.send((False, f"the result cannot be sent back: {exc}", ""))


class _Process:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, work: Any) -> Any:
        self.pipe.send(work)
        return self.pipe.recv()

    def kill(self) -> None:
        self.process.kill()


class HandlerError(Exception):
    """An exception of a handler in another process, as text."""

    def __init__(self, error: str, trace: str) -> None:
        super().__init__(error)
        self.trace = trace


class ProcessPool:
    """A pool of processes. Idle processes are reused; an interrupted one is killed."""

    def __init__(self) -> None:
        self._idle: list[_Process] = []

    def start(
        self, module: str, name: str, context: ProcessContext, payload: bytes
    ) -> tuple[asyncio.Future[Any], Callable[[], None]]:
        process = self._idle.pop() if self._idle else _Process()
        done = asyncio.ensure_future(self._ask(process, (module, name, context, payload)))
        return done, process.kill

    async def _ask(self, process: _Process, work: Any) -> Any:
        try:
            good, value, trace = await asyncio.to_thread(process.ask, work)
        except (EOFError, OSError) as exc:
            process.process.join(1)
            process.pipe.close()
            raise ProcessDied(f"the handler's process ended with exit code {process.process.exitcode}") from exc
        self._idle.append(process)
        if not good:
            raise HandlerError(value, trace)
        return value

    def end(self) -> None:
        for process in self._idle:
            process.kill()
        self._idle.clear()
