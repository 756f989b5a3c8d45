"""Settles attempts of jobs: acks together, with one statement per lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from trunkline.concurrency.aio import log
from trunkline.db import calls
from trunkline.db.calls import jobs
from trunkline.errors import TrunklineError
from trunkline.jobs.attempt import ACK, RELEASE, Attempt, Settlement
from trunkline.runtime.session import Session
from trunkline.runtime.settle_buffer import SettleBuffer
from trunkline.types import Result

_Entry = tuple[Attempt, Settlement]
_BATCH = 1000


class AttemptSettler:
    """Settles attempts in the background. While the database is unavailable, it keeps them and retries."""

    def __init__(self, session: Session, on_close: Callable[[Attempt], None]) -> None:
        self._session = session
        self._on_close = on_close
        # acks, releases, and one by one what has its own delay or error
        self._buffer = SettleBuffer(self._flush, self._close, name="jobs", group=_group, limits=(_BATCH, _BATCH, 1))
        self._waiters: dict[int, asyncio.Future[Result]] = {}
        self.drain = self._buffer.drain
        self.end = self._buffer.end

    @property
    def busy(self) -> bool:
        return self._buffer.busy

    def settle(self, attempt: Attempt, settlement: Settlement) -> None:
        self._buffer.add((attempt, settlement))

    async def ack_now(self, attempt: Attempt) -> Result:
        """Ack a job and wait for the result."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiters[id(attempt)] = future
        self.settle(attempt, ACK)
        return await future

    async def release_now(self, attempts: list[Attempt]) -> None:
        """Release jobs without counting an attempt, before this returns or once the database is available again."""
        for attempt in attempts:
            attempt.settled = RELEASE
        try:
            results = await self._release(attempts)
        except TrunklineError:
            for attempt in attempts:
                self.settle(attempt, RELEASE)
            return
        for attempt, result in zip(attempts, results, strict=True):
            self._close((attempt, RELEASE), result)

    async def _flush(self, entries: list[_Entry]) -> Sequence[Result]:
        attempts = [attempt for attempt, _ in entries]
        match entries[0][1].verb:
            case "ack":
                return await self._ack(attempts)
            case "release":
                return await self._release(attempts)
            case _:
                return await self._settle_one(*entries[0])

    async def _ack(self, attempts: list[Attempt]) -> Sequence[Result]:
        """Ack with one statement per lease. Jobs with a result or unique key share a separate statement."""
        leases: dict[str, list[Attempt]] = {}
        positions: dict[str, list[int]] = {}
        rich: list[Attempt] = []
        for attempt in attempts:
            if attempt.plain:
                position, lease = attempt.receipt_parts
                leases.setdefault(lease, []).append(attempt)
                positions.setdefault(lease, []).append(position)
            else:
                rich.append(attempt)
        results: dict[str, Result] = {}
        async with self._session.connection(writing=True) as conn:
            for text, group in leases.items():
                acked = await jobs.ack_lease(conn, text, positions[text])
                results.update(zip((attempt.receipt for attempt in group), acked, strict=True))
            if rich:
                acked = await jobs.settle_jobs(conn, "ack", [attempt.ending() for attempt in rich])
                results.update(zip((attempt.receipt for attempt in rich), acked, strict=True))
                # jobs that waited for these may be ready now
                self._session.wakeup.poll_now()
        return [results[attempt.receipt] for attempt in attempts]

    async def _release(self, attempts: list[Attempt]) -> Sequence[Result]:
        async with self._session.connection(writing=True) as conn:
            return await calls.release(conn, [attempt.receipt for attempt in attempts])

    async def _settle_one(self, attempt: Attempt, settlement: Settlement) -> Sequence[Result]:
        receipts = [attempt.receipt]
        async with self._session.connection(writing=True) as conn:
            match settlement.verb:
                case "snooze":
                    return await jobs.snooze(conn, receipts, delay=settlement.delay or timedelta(0))
                case "nack":
                    return await calls.nack(conn, receipts, delay=settlement.delay, error=settlement.error)
                case verb:
                    return await jobs.settle_jobs(conn, verb, [attempt.ending()], error=settlement.error)

    def _close(self, entry: _Entry, result: Result) -> None:
        attempt, _ = entry
        self._on_close(attempt)
        if result != "done":
            attempt.lost = True
            log.warning("lease ended before the job was settled job=%s id=%s", attempt.job.name, attempt.delivery.id)
        waiter = self._waiters.pop(id(attempt), None) if self._waiters else None
        if waiter is not None and not waiter.done():
            waiter.set_result(result)


def _group(entry: _Entry) -> int:
    return {"ack": 0, "release": 1}.get(entry[1].verb, 2)
