"""Settles jobs in batches: all jobs that end while one statement runs are settled by the next."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import NamedTuple

from trunkline.client.runtime import Runtime
from trunkline.concurrency.aio import Background, Bell, log
from trunkline.db import calls
from trunkline.db.calls import jobs
from trunkline.errors import OutcomeUnknown, TrunklineError, Unavailable
from trunkline.jobs.running import Item
from trunkline.types import Result

_PAUSE = 0.2
_BATCH = 1000


class Verdict(NamedTuple):
    """The settlement of a job: ack, nack, bury, snooze or release."""

    verb: str
    delay: timedelta | None = None
    error: str | None = None


class Settler:
    """Settles jobs in the background. While the database is unavailable, it keeps them and retries."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._acks: list[Item] = []
        self._others: list[tuple[Item, Verdict]] = []
        self._bell = Bell()
        self._idle = Bell()
        self._idle.ring()
        self._waiters: dict[int, asyncio.Future[Result]] = {}
        self._loop = Background(self._run, "trunkline settler")
        self.lost = 0

    def ack(self, item: Item) -> None:
        self._acks.append(item)
        self._wake()

    def settle(self, item: Item, verdict: Verdict) -> None:
        self._others.append((item, verdict))
        self._wake()

    async def ack_now(self, item: Item) -> Result:
        """Ack a job and wait for the result."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiters[id(item)] = future
        self.ack(item)
        return await future

    async def release_now(self, items: list[Item]) -> None:
        """Release jobs without counting an attempt, before this returns or once the database is available again."""
        for item in items:
            item.settled = True
        try:
            await self._release(items)
        except TrunklineError:
            for item in items:
                self.settle(item, Verdict("release"))

    async def drain(self, timeout: float) -> bool:
        """Wait until all jobs are settled, at most `timeout` seconds. Returns whether they are."""
        return await self._idle.wait(timeout)

    async def end(self) -> None:
        await self._loop.end()

    @property
    def busy(self) -> bool:
        return not self._idle.rung

    def _wake(self) -> None:
        self._idle.hush()
        self._bell.ring()

    async def _run(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.hush()
            while self._acks or self._others:
                acks, self._acks = self._acks[:_BATCH], self._acks[_BATCH:]
                others, self._others = self._others, []
                try:
                    if acks:
                        await self._flush_acks(acks)
                        acks = []
                    if returned := [item for item, verdict in others if verdict.verb == "release"]:
                        await self._release(returned)
                        others = [(item, verdict) for item, verdict in others if verdict.verb != "release"]
                    while others:
                        await self._flush_other(*others[0])
                        others.pop(0)
                except (Unavailable, OutcomeUnknown) as exc:
                    # safe to repeat: settling by the same lease returns the same result
                    log.warning("could not settle jobs; retrying in %s s error=%s", _PAUSE, exc)
                    self._acks[:0] = acks
                    self._others[:0] = others
                    await asyncio.sleep(_PAUSE)
                except Exception as exc:
                    # a retry would fail too: the jobs are redelivered when their lease ends
                    log.error(
                        "could not settle jobs; they are redelivered when their leases end error=%s: %s",
                        type(exc).__name__,
                        exc,
                    )
                    for item in [*acks, *(item for item, _ in others[:1])]:
                        self._close(item, "unknown")
                    self._others[:0] = others[1:]
            self._idle.ring()

    async def _flush_acks(self, items: list[Item]) -> None:
        """Ack with one statement per lease. Jobs with a result or unique key share a separate statement."""
        leases: dict[str, list[Item]] = {}
        rich: list[Item] = []
        for item in items:
            if item.plain:
                leases.setdefault(item.lease.text, []).append(item)
            else:
                rich.append(item)
        async with self._runtime.connection(writing=True) as conn:
            for text, group in leases.items():
                results = await jobs.ack_lease(conn, text, [item.position for item in group])
                for item, result in zip(group, results, strict=True):
                    self._close(item, result)
            if rich:
                results = await jobs.finish_jobs(conn, "ack", [item.ending() for item in rich])
                for item, result in zip(rich, results, strict=True):
                    self._close(item, result)
                # jobs that waited for these may be ready now
                self._runtime.wakeup.poke()

    async def _release(self, items: list[Item]) -> None:
        async with self._runtime.connection(writing=True) as conn:
            results = await calls.release(conn, [item.receipt for item in items])
        for item, result in zip(items, results, strict=True):
            self._close(item, result)

    async def _flush_other(self, item: Item, verdict: Verdict) -> None:
        receipts = [item.receipt]
        async with self._runtime.connection(writing=True) as conn:
            if verdict.verb == "snooze":
                results = await jobs.snooze(conn, receipts, delay=verdict.delay or timedelta(0))
            elif verdict.verb == "nack":
                results = await calls.nack(conn, receipts, delay=verdict.delay, error=verdict.error)
            else:
                results = await jobs.finish_jobs(conn, verdict.verb, [item.ending()], error=verdict.error)
        self._close(item, results[0])

    def _close(self, item: Item, result: Result) -> None:
        item.lease.close(item)
        if result != "done":
            self.lost += 1
            item.lost = True
            log.warning("lease ended before the job was settled job=%s id=%s", item.job.name, item.delivery.id)
        waiter = self._waiters.pop(id(item), None) if self._waiters else None
        if waiter is not None and not waiter.done():
            waiter.set_result(result)
