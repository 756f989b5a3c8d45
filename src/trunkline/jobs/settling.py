"""Settles jobs in batches: all jobs that end while one statement runs are settled by the next."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from trunkline.client.runtime import Runtime
from trunkline.concurrency.aio import Background, Bell, log
from trunkline.db import calls
from trunkline.db.calls import jobs
from trunkline.errors import OutcomeUnknown, TrunklineError, Unavailable
from trunkline.jobs.attempt import RELEASE, Attempt, Settlement
from trunkline.types import Result

_PAUSE = 0.2
_BATCH = 1000


class Settler:
    """Settles jobs in the background. While the database is unavailable, it keeps them and retries."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._acks: list[Attempt] = []
        self._others: list[tuple[Attempt, Settlement]] = []
        self._bell = Bell()
        self._idle = Bell()
        self._idle.ring()
        self._waiters: dict[int, asyncio.Future[Result]] = {}
        self._loop = Background(self._run, "trunkline settler")
        self.lost = 0

    def ack(self, attempt: Attempt) -> None:
        self._acks.append(attempt)
        self._wake()

    def settle(self, attempt: Attempt, settlement: Settlement) -> None:
        self._others.append((attempt, settlement))
        self._wake()

    async def ack_now(self, attempt: Attempt) -> Result:
        """Ack a job and wait for the result."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiters[id(attempt)] = future
        self.ack(attempt)
        return await future

    async def release_now(self, attempts: list[Attempt]) -> None:
        """Release jobs without counting an attempt, before this returns or once the database is available again."""
        for attempt in attempts:
            attempt.settled = RELEASE
        try:
            await self._release(attempts)
        except TrunklineError:
            for attempt in attempts:
                self.settle(attempt, RELEASE)

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
                    if returned := [attempt for attempt, settlement in others if settlement.verb == "release"]:
                        await self._release(returned)
                        others = [(attempt, settlement) for attempt, settlement in others if settlement.verb != "release"]
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
                    for attempt in [*acks, *(attempt for attempt, _ in others[:1])]:
                        self._close(attempt, "unknown")
                    self._others[:0] = others[1:]
            self._idle.ring()

    async def _flush_acks(self, attempts: list[Attempt]) -> None:
        """Ack with one statement per lease. Jobs with a result or unique key share a separate statement."""
        leases: dict[str, list[Attempt]] = {}
        rich: list[Attempt] = []
        for attempt in attempts:
            if attempt.plain:
                leases.setdefault(attempt.lease.text, []).append(attempt)
            else:
                rich.append(attempt)
        async with self._runtime.connection(writing=True) as conn:
            for text, group in leases.items():
                results = await jobs.ack_lease(conn, text, [attempt.position for attempt in group])
                for attempt, result in zip(group, results, strict=True):
                    self._close(attempt, result)
            if rich:
                results = await jobs.finish_jobs(conn, "ack", [attempt.ending() for attempt in rich])
                for attempt, result in zip(rich, results, strict=True):
                    self._close(attempt, result)
                # jobs that waited for these may be ready now
                self._runtime.wakeup.poke()

    async def _release(self, attempts: list[Attempt]) -> None:
        async with self._runtime.connection(writing=True) as conn:
            results = await calls.release(conn, [attempt.receipt for attempt in attempts])
        for attempt, result in zip(attempts, results, strict=True):
            self._close(attempt, result)

    async def _flush_other(self, attempt: Attempt, settlement: Settlement) -> None:
        receipts = [attempt.receipt]
        async with self._runtime.connection(writing=True) as conn:
            if settlement.verb == "snooze":
                results = await jobs.snooze(conn, receipts, delay=settlement.delay or timedelta(0))
            elif settlement.verb == "nack":
                results = await calls.nack(conn, receipts, delay=settlement.delay, error=settlement.error)
            else:
                results = await jobs.finish_jobs(conn, settlement.verb, [attempt.ending()], error=settlement.error)
        self._close(attempt, results[0])

    def _close(self, attempt: Attempt, result: Result) -> None:
        attempt.lease.close(attempt)
        if result != "done":
            self.lost += 1
            attempt.lost = True
            log.warning("lease ended before the job was settled job=%s id=%s", attempt.job.name, attempt.delivery.id)
        waiter = self._waiters.pop(id(attempt), None) if self._waiters else None
        if waiter is not None and not waiter.done():
            waiter.set_result(result)
