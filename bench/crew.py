"""Generate load from several processes with several connections each, all started at the same moment."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier, Event
from typing import Any, Protocol

import msgspec

from bench.session import Session

_fork = multiprocessing.get_context("fork")


class Step(Protocol):
    """One unit of work on one connection. Returns the number of messages moved.

    `latencies` collects the durations, in seconds, of the calls that the step times.
    """

    latencies: list[float]

    def __call__(self) -> int: ...


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Connections that repeat a step. `empty` is the pause in seconds after a step that moved nothing; None: stop.

    `every` paces the calls of each connection; a late connection catches up without dropping calls. `warm_up` calls run
    before the start, so that one-time compilation and planning is not measured.
    """

    name: str
    make: Callable[[Session, int], Step]
    connections: int
    processes: int = 1
    empty: float | None = None
    every: float | None = None
    warm_up: int = 3


class Tally(msgspec.Struct, kw_only=True):
    """Totals of one job. `elapsed` ends when the last connection finished its last message."""

    messages: int = 0
    calls: int = 0
    elapsed: float = 0.0
    latencies: list[float] = []

    @property
    def rate(self) -> float:
        return self.messages / self.elapsed if self.elapsed else 0.0


def run(url: str, jobs: Sequence[Job], seconds: float) -> dict[str, Tally]:
    """Run all jobs together for `seconds`. If none has an `empty` pause, stop once all have drained their sources."""
    connections = sum(job.connections for job in jobs)
    barrier, stop = _fork.Barrier(connections + 1), _fork.Event()
    # Frozen, so that collections in the children do not copy the parent's pages.
    gc.freeze()
    workers: list[tuple[str, Connection, Any]] = []
    for job in jobs:
        first = 0
        for number in range(job.processes):
            share = job.connections // job.processes + (number < job.connections % job.processes)
            ours, theirs = _fork.Pipe(duplex=False)
            process = _fork.Process(target=_work, args=(url, job, first, share, barrier, stop, theirs), daemon=True)
            process.start()
            theirs.close()
            workers.append((job.name, ours, process))
            first += share
    tallies = {job.name: Tally() for job in jobs}
    try:
        barrier.wait(60)
        start = time.monotonic()
        bounded = [pipe for name, pipe, _ in workers if next(job for job in jobs if job.name == name).empty is None]
        _wait(bounded if len(bounded) == len(workers) else [], start + seconds)
    except threading.BrokenBarrierError:
        start = time.monotonic()
    finally:
        stop.set()
    failures = []
    for name, pipe, process in workers:
        failures += _collect(tallies[name], pipe, start)
        process.join()
    if failures:
        raise RuntimeError("the load generator failed:\n" + failures[0])
    return tallies


def _wait(pipes: list[Connection], deadline: float) -> None:
    """Wait until the deadline, or until all pipes have data."""
    waiting = list(pipes)
    while (left := deadline - time.monotonic()) > 0:
        if not pipes:
            time.sleep(left)
        elif not waiting:
            return
        else:
            for ready in multiprocessing.connection.wait(waiting, left):
                waiting.remove(ready)  # type: ignore[arg-type]


def _collect(tally: Tally, pipe: Connection, start: float) -> list[str]:
    try:
        results: list[tuple[int, int, float, list[float]] | str] = pipe.recv()
    except EOFError:
        return ["a worker process died"]
    failures = [result for result in results if isinstance(result, str)]
    for result in results:
        if not isinstance(result, str):
            messages, calls, end, latencies = result
            tally.messages += messages
            tally.calls += calls
            tally.elapsed = max(tally.elapsed, end - start)
            tally.latencies.extend(latencies)
    return failures


def _work(url: str, job: Job, first: int, share: int, barrier: Barrier, stop: Event, pipe: Connection) -> None:
    results: list[Any] = [None] * share
    threads = [
        threading.Thread(target=_repeat, args=(url, job, first + number, barrier, stop, results, number))
        for number in range(share)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(results)
    pipe.close()


def _repeat(url: str, job: Job, index: int, barrier: Barrier, stop: Event, results: list[Any], number: int) -> None:
    try:
        session = Session(url)
        step = job.make(session, index)
        for _ in range(job.warm_up):
            step()
        step.latencies.clear()
        barrier.wait(60)
        results[number] = _loop(job, step, stop)
        session.close()
    except threading.BrokenBarrierError:
        results[number] = "another connection failed before the start"
    except Exception:
        results[number] = traceback.format_exc()
        barrier.abort()
        stop.set()


def _loop(job: Job, step: Step, stop: Event) -> tuple[int, int, float, list[float]]:
    messages = calls = 0
    end = due = time.monotonic()
    while not stop.is_set():
        if job.every is not None:
            due += job.every
            if (ahead := due - time.monotonic()) > 0 and stop.wait(ahead):
                break
        moved = step()
        calls += 1
        if moved:
            messages += moved
            end = time.monotonic()
        elif job.empty is None:
            break
        elif job.empty:
            stop.wait(job.empty)
    return messages, calls, end, step.latencies
