"""The interface of a single-process contestant, and the measured actions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, Self

import msgspec
import psycopg

from bench.pgbench import text

Seen = Callable[[int], None]


class Contestant(Protocol):
    """A system with a queue of no-op messages. `unfinished` is a SQL statement that counts its unfinished messages."""

    unfinished: str

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def install(self) -> None:
        """Create the tables and an empty queue."""

    async def add(self, body: dict[str, str]) -> None: ...

    async def add_many(self, bodies: Sequence[dict[str, str]]) -> None: ...

    async def work(self, seen: Seen) -> None:
        """Handle messages until cancelled; report their number to `seen`."""


class Options(msgspec.Struct, frozen=True):
    """Parameters of an action."""

    payload: int = 300
    seconds: float = 1
    messages: int = 0
    tasks: int = 1
    batch: int = 1


def body(payload: int) -> dict[str, str]:
    """Return a JSON object whose encoding is `payload` bytes long."""
    return {"body": text(payload - len('{"body":""}'))}


async def install(contestant: Contestant, _: str, __: Options) -> dict[str, Any]:
    await contestant.install()
    return {}


async def load(contestant: Contestant, _: str, options: Options) -> dict[str, Any]:
    for start in range(0, options.messages, 5000):
        await contestant.add_many([body(options.payload)] * min(5000, options.messages - start))
    return {}


async def single(contestant: Contestant, _: str, options: Options) -> dict[str, Any]:
    content = body(options.payload)
    calls, seconds = await repeat(lambda: contestant.add(content), tasks=options.tasks, seconds=options.seconds)
    return {"messages": calls, "seconds": seconds}


async def batch(contestant: Contestant, _: str, options: Options) -> dict[str, Any]:
    bodies = [body(options.payload)] * options.batch
    calls, seconds = await repeat(lambda: contestant.add_many(bodies), tasks=options.tasks, seconds=options.seconds)
    return {"messages": calls * options.batch, "seconds": seconds}


async def consume(contestant: Contestant, url: str, options: Options) -> dict[str, Any]:
    """Measure from the first handled message until all are finished in the tables, or the time is up."""
    handled, start = 0, 0.0
    began, enough = asyncio.Event(), asyncio.Event()

    def seen(n: int) -> None:
        nonlocal handled, start
        if not handled:
            start = time.perf_counter()
            began.set()
        handled += n
        if handled >= options.messages:
            enough.set()

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:

        async def unfinished() -> int:
            row = await (await conn.execute(contestant.unfinished.encode())).fetchone()
            return int(row[0]) if row else 0

        await unfinished()
        worker = asyncio.create_task(contestant.work(seen))
        await _first(began.wait(), worker)
        await _first(enough.wait(), worker, start + options.seconds - time.perf_counter())
        end = time.perf_counter()
        left = await unfinished()
        # Handled messages may not be completed yet: measure until the tables have them as finished.
        while enough.is_set() and left and time.perf_counter() < start + options.seconds + 10:
            await asyncio.sleep(0.005)
            left, end = await unfinished(), time.perf_counter()
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    return {"messages": options.messages - left, "seconds": end - start}


async def _first(event: Awaitable[Any], worker: asyncio.Task[None], timeout: float = 30) -> None:
    """Wait for the event. Raises RuntimeError if the worker ends first."""
    waiting = asyncio.ensure_future(event)
    await asyncio.wait({waiting, worker}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if worker.done():
        worker.result()
        raise RuntimeError("the worker ended before it was stopped")


async def repeat(call: Callable[[], Awaitable[Any]], *, tasks: int, seconds: float) -> tuple[int, float]:
    """Repeat a call from several tasks, each awaiting its own calls. The first half second is not counted."""

    async def during(span: float) -> tuple[int, float]:
        start, calls = time.perf_counter(), 0

        async def task() -> None:
            nonlocal calls
            while time.perf_counter() < start + span:
                await call()
                calls += 1

        await asyncio.gather(*(task() for _ in range(tasks)))
        return calls, time.perf_counter() - start

    await during(0.5)
    return await during(seconds)


ACTIONS: dict[str, Callable[[Contestant, str, Options], Awaitable[dict[str, Any]]]] = {
    "install": install,
    "load": load,
    "single": single,
    "batch": batch,
    "consume": consume,
}
