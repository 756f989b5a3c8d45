"""Helpers for tests of programs with jobs: run them here, see what was enqueued, move the clock. On a real database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, ParamSpec
from uuid import UUID

import msgspec

from trunkline.client import SyncClient
from trunkline.db import calls as kernel
from trunkline.db import jobs as calls
from trunkline.db.codec import duration
from trunkline.db.pool import Connection
from trunkline.db.sync import jobs as sync_calls
from trunkline.errors import Timeout
from trunkline.jobs.app import App
from trunkline.jobs.arguments import from_json
from trunkline.jobs.handle import Handle
from trunkline.jobs.job import Call, Job
from trunkline.jobs.running import Item
from trunkline.jobs.settling import Verdict
from trunkline.jobs.worker import Worker
from trunkline.types import Duration

P = ParamSpec("P")
_OUTCOMES = {"ack": "done", "nack": "retry", "snooze": "snooze", "bury": "bury", "release": "release"}


class Ran(msgspec.Struct, frozen=True):
    """One attempt: its outcome is done, retry, snooze, bury, release or lost; `delay` and `error` as they were settled."""

    kind: str
    id: UUID
    attempt: int
    outcome: str
    error: str | None = None
    delay: float | None = None


class Added(msgspec.Struct, frozen=True):
    """A job that was enqueued, with its arguments as they are stored."""

    kind: str
    queue: str
    arguments: Any
    handle: Handle[Any]


class FakeClock:
    """The clock of the test's database, moved by hand. Nothing else tells the time."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._client: SyncClient | None = None

    def advance(self, by: Duration) -> None:
        """Let so much time pass for everybody who uses this database."""
        with self._open()._runtime().connection(writing=True) as conn:
            sync_calls.move_clock(conn, duration(by))  # type: ignore[arg-type]

    def _open(self) -> SyncClient:
        if self._client is None:
            self._client = SyncClient(self._app.client._url)
            with self._client._runtime().connection(writing=True) as conn:
                sync_calls.fake_clock(conn, fake=True)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            with self._client._runtime().connection(writing=True) as conn:
                sync_calls.fake_clock(conn, fake=False)
            self._client.close()


class Jobs:
    """The jobs of an app under test."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.clock = FakeClock(app)

    @contextmanager
    def captured(self) -> Iterator[list[Added]]:
        """What is enqueued through the app inside the block. It is enqueued all the same."""
        added: list[Added] = []

        def note(call: Call, handle: Handle[Any]) -> None:
            added.append(Added(call.job.name, call.queue, from_json(call.message.body), handle))

        self.app.observers.append(note)
        try:
            yield added
        finally:
            self.app.observers.remove(note)

    async def run(self, job: Job[P, Any], *args: P.args, **kwargs: P.kwargs) -> Ran:
        """Enqueue this job and run it here, once; answers what became of that attempt."""
        return await self.run_call(job.bind(*args, **kwargs))

    async def run_call(self, call: Call, *, timeout: Duration = "30s") -> Ran:
        """The same for `job.bind(...)`, with the time that it may take."""
        [handle] = await self.app.enqueue_many([call])
        return next(ran for ran in await self._work(until=handle.id, seconds=_seconds(timeout)) if ran.id == handle.id)

    async def drain(self, timeout: Duration = "30s", **settings: Any) -> list[Ran]:
        """Run all jobs that are due, and those that they enqueue, until nothing is left to run now. `settings` are the
        worker's."""
        return await self._work(seconds=_seconds(timeout), settings=settings)

    async def _work(self, *, seconds: float, until: UUID | None = None, settings: dict[str, Any] | None = None) -> list[Ran]:
        done: list[Ran] = []

        def note(item: Item, verdict: Verdict | None) -> None:
            verb = "ack" if verdict is None and item.settled else None if verdict is None else verdict.verb
            delay = None if verdict is None or verdict.delay is None else verdict.delay.total_seconds()
            error = None if verdict is None else verdict.error
            outcome = "lost" if verb is None else _OUTCOMES[verb]
            done.append(Ran(item.job.name, item.delivery.id, item.delivery.attempt, outcome, error, delay))

        end = monotonic() + seconds
        async with Worker(self.app, on_finished=note, **(settings or {})) as worker:
            try:
                while not any(ran.id == until for ran in done) if until is not None else await self._busy(worker, done):
                    if monotonic() > end:
                        raise _too_late(until, seconds)
                    await asyncio.sleep(0.01)
            except BaseException:
                # somebody waits no longer: handlers get no grace either
                worker.request_stop()
                worker.request_stop()
                raise
        return done

    async def _busy(self, worker: Worker, done: list[Ran]) -> bool:
        """Whether something runs, waits to be settled, or is free to start here. What the app has no function for stays for
        others, and a paused queue gives out nothing."""
        async with self.app.client._runtime().connection(writing=True) as conn:
            await calls.start_waiting(conn)
            # what was enqueued or is due a moment ago counts
            await kernel.sequence(conn, queues=list(worker.queues))
            ended, before = len(done), await self._counts(worker)
            if worker.busy or any(leased for _, leased in before.values()):
                return True
            for queue, (ready, _) in before.items():
                if ready and await self._has_work(conn, queue):
                    return True
        # nothing of ours: unless something moved while we looked
        return before != await self._counts(worker) or worker.busy or ended != len(done)

    async def _counts(self, worker: Worker) -> dict[str, tuple[int, int]]:
        """What is ready and what is leased in each queue that gives something out."""
        rows = (await self.app.client.stats()).queues
        return {row.queue: (0 if row.paused else row.ready, row.leased) for row in rows if row.queue in worker.queues}

    async def _has_work(self, conn: Connection, queue: str) -> bool:
        waiting = await calls.list_jobs(conn, queue, state="waiting", limit=10_000)
        runnable = {name for name, job in self.app.kinds.items() if job.function is not None}
        return any(row.kind in runnable for row in waiting)


def _too_late(until: UUID | None, seconds: float) -> Timeout:
    if until is None:
        return Timeout(f"jobs still run after {seconds:g} s", hint="give drain more time")
    return Timeout(
        f"job {until} has not ended here after {seconds:g} s", hint="give it more time; or has another worker taken it?"
    )


def _seconds(span: Duration) -> float:
    found = duration(span)
    assert found is not None  # noqa: S101
    return found.total_seconds()
