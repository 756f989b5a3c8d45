"""Test helpers for jobs on a real database: run jobs, capture enqueued jobs, move the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, ParamSpec
from uuid import UUID

import msgspec

from trunkline.client import SyncClient
from trunkline.codec import duration
from trunkline.db import calls as kernel
from trunkline.db.calls import jobs as calls
from trunkline.db.pool import Connection
from trunkline.db.sync.calls import jobs as sync_calls
from trunkline.errors import Timeout
from trunkline.jobs.app import App
from trunkline.jobs.arguments import from_json
from trunkline.jobs.attempt import Attempt, Settlement
from trunkline.jobs.handle import Handle
from trunkline.jobs.job import Call, Job
from trunkline.jobs.worker import Worker
from trunkline.types import Duration

P = ParamSpec("P")
_OUTCOMES = {"ack": "done", "nack": "retry", "snooze": "snooze", "bury": "bury", "release": "release"}


class Ran(msgspec.Struct, frozen=True):
    """One attempt. `outcome` is done, retry, snooze, bury, release or lost; `delay` and `error` are as settled."""

    kind: str
    id: UUID
    attempt: int
    outcome: str
    error: str | None = None
    delay: float | None = None


class Added(msgspec.Struct, frozen=True):
    """An enqueued job with its stored arguments."""

    kind: str
    queue: str
    arguments: Any
    handle: Handle[Any]


class FakeClock:
    """The clock of the test database, which the test can move."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._client: SyncClient | None = None

    def advance(self, by: Duration) -> None:
        """Move the clock of the database forward, for all its clients."""
        with self._open().session.connection(writing=True) as conn:
            sync_calls.move_clock(conn, duration(by))  # type: ignore[arg-type]

    def _open(self) -> SyncClient:
        if self._client is None:
            self._client = SyncClient(self._app.client.url)
            with self._client.session.connection(writing=True) as conn:
                sync_calls.fake_clock(conn, fake=True)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            with self._client.session.connection(writing=True) as conn:
                sync_calls.fake_clock(conn, fake=False)
            self._client.close()


class Jobs:
    """The jobs of an app under test."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.clock = FakeClock(app)

    @contextmanager
    def captured(self) -> Iterator[list[Added]]:
        """Collect the jobs that the app enqueues inside the block. They are still enqueued."""
        added: list[Added] = []

        def note(call: Call, handle: Handle[Any]) -> None:
            added.append(Added(call.job.name, call.queue, from_json(call.message.body), handle))

        self.app.observers.append(note)
        try:
            yield added
        finally:
            self.app.observers.remove(note)

    async def run(self, job: Job[P, Any], *args: P.args, **kwargs: P.kwargs) -> Ran:
        """Enqueue a job, run one attempt of it, and return the outcome."""
        return await self.run_call(job.bind(*args, **kwargs))

    async def run_call(self, call: Call, *, timeout: Duration = "30s") -> Ran:
        """Run one attempt of `job.bind(...)`, within `timeout`. See `run`."""
        [handle] = await self.app.enqueue_many([call])
        return next(ran for ran in await self._work(until=handle.id, seconds=_seconds(timeout)) if ran.id == handle.id)

    async def drain(self, timeout: Duration = "30s", **settings: Any) -> list[Ran]:
        """Run all jobs that are due, and the jobs they enqueue, until none is left.

        `settings` are passed to the worker.
        """
        return await self._work(seconds=_seconds(timeout), settings=settings)

    async def _work(self, *, seconds: float, until: UUID | None = None, settings: dict[str, Any] | None = None) -> list[Ran]:
        done: list[Ran] = []

        def note(attempt: Attempt, settlement: Settlement | None) -> None:
            delay = None if settlement is None or settlement.delay is None else settlement.delay.total_seconds()
            error = None if settlement is None else settlement.error
            outcome = "lost" if settlement is None else _OUTCOMES[settlement.verb]
            done.append(Ran(attempt.job.name, attempt.delivery.id, attempt.delivery.attempt, outcome, error, delay))

        end = monotonic() + seconds
        async with Worker(self.app, on_finished=note, **(settings or {})) as worker:
            try:
                while not any(ran.id == until for ran in done) if until is not None else await self._busy(worker, done):
                    if monotonic() > end:
                        raise _too_late(until, seconds)
                    await asyncio.sleep(0.01)
            except BaseException:
                # the test gave up: stop without grace for handlers
                worker.request_stop()
                worker.request_stop()
                raise
        return done

    async def _busy(self, worker: Worker, done: list[Ran]) -> bool:
        """Return whether a job runs, waits to be settled, or can start here.

        Jobs without a function in this app and jobs of paused queues do not count.
        """
        async with self.app.client.session.connection(writing=True) as conn:
            await calls.start_waiting(conn)
            # include jobs that were enqueued or became due just now
            await kernel.sequence(conn, queues=list(worker.queues))
            ended, before = len(done), await self._counts(worker)
            if worker.busy or any(leased for _, leased in before.values()):
                return True
            for queue, (ready, _) in before.items():
                if ready and await self._has_work(conn, queue):
                    return True
        # no work, unless something changed during the check
        return before != await self._counts(worker) or worker.busy or ended != len(done)

    async def _counts(self, worker: Worker) -> dict[str, tuple[int, int]]:
        """Return the ready and leased counts of each queue. Paused queues have nothing ready."""
        rows = (await self.app.client.stats()).queues
        return {row.queue: (0 if row.paused else row.ready, row.leased) for row in rows if row.queue in worker.queues}

    async def _has_work(self, conn: Connection, queue: str) -> bool:
        rows = await calls.list_jobs(conn, queue, state="ready", limit=10_000)
        runnable = {name for name, job in self.app.kinds.items() if job.function is not None}
        return any(row.kind in runnable for row in rows)


def _too_late(until: UUID | None, seconds: float) -> Timeout:
    if until is None:
        return Timeout(f"jobs are still running after {seconds:g} s", hint="Increase the timeout of drain.")
    return Timeout(
        f"job {until} has not ended here after {seconds:g} s",
        hint="Increase the timeout, and check that no other worker runs it.",
    )


def _seconds(span: Duration) -> float:
    value = duration(span)
    assert value is not None  # noqa: S101
    return value.total_seconds()
