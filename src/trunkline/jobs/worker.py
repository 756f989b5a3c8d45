"""The worker: runs the jobs of an app until it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, Self
from uuid import UUID

from trunkline import __version__
from trunkline.client import SyncClient
from trunkline.codec import duration
from trunkline.concurrency.aio import BackgroundTask, Signal, log
from trunkline.db.calls import jobs
from trunkline.db.sync import calls as sync_calls
from trunkline.db.sync.calls import jobs as sync_jobs
from trunkline.errors import InvalidValue, TrunklineError
from trunkline.jobs.app import App
from trunkline.jobs.arguments import Arguments
from trunkline.jobs.attempt import ACK, RELEASE, Attempt, Settlement, Stop, StopReason
from trunkline.jobs.context import Context, SyncContext
from trunkline.jobs.errors import UnknownKind
from trunkline.jobs.executor import LEAVE_SECONDS
from trunkline.jobs.heartbeat import Heartbeat
from trunkline.jobs.job import Definition, Job
from trunkline.jobs.limits import Limit, LimitShare
from trunkline.jobs.process_pool import ProcessPool
from trunkline.jobs.queue_worker import QueueWorker
from trunkline.jobs.settle import AttemptSettler
from trunkline.jobs.thread_pool import ThreadPool
from trunkline.runtime.names import consumer_name
from trunkline.runtime.session import Session
from trunkline.types import Duration, Result

Finished = Callable[[Attempt, Settlement | None], None]
_CONCURRENCY = 10
_SLOT_SPAN = timedelta(seconds=15)
_REGISTER_SECONDS = 10.0
_CANCEL_SECONDS = 1.0


class Worker:
    """Runs jobs: `async with Worker(app, queues={"mail": 10}):` until the block ends, or `await Worker(app).run()`.

    Runs only the kinds of jobs that its app has a function for. `queues` maps queue names to concurrency; the default
    is all queues of the app with a concurrency of 10. At most `prefetch` jobs are claimed ahead, and only fast ones: a
    slow job is claimed when it can start. `grace` is how long running handlers may continue after a stop. `stall` is
    how long a handler may block the event loop.
    """

    def __init__(
        self,
        app: App,
        *,
        queues: Mapping[str, int] | Sequence[str] | None = None,
        handlers: Mapping[Any, Callable[..., Any]] | None = None,
        prefetch: int | None = None,
        lease: Duration | None = None,
        grace: Duration = "30s",
        stall: Duration = "30s",
        on_finished: Finished | None = None,
    ) -> None:
        self.app = app.handlers(handlers) if handlers else app
        self.name = consumer_name()
        """Unique for each start: identity does not depend on host names, process ids or clocks."""
        self.lease = duration(lease)
        self.cancels: dict[UUID, str] = {}
        self.closed = False
        self.stopping = False
        self.alone: QueueWorker | None = None
        """The queue whose next job must run while no other job runs in this worker."""
        names = list(app.queues) if queues is None else queues
        self.queues = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names, _CONCURRENCY)
        for queue, count in self.queues.items():
            if count < 1:
                raise InvalidValue(f"the concurrency of queue {queue!r} must be at least 1, got {count}")
        if not self.queues:
            raise UnknownKind("the app has no queues", hint="Define a job, or pass queues to the worker.")
        self._prefetch = prefetch
        self._grace = (duration(grace) or timedelta(0)).total_seconds()
        self._stall = (duration(stall) or timedelta(0)).total_seconds()
        self._on_finished = on_finished
        self._shares: dict[str, LimitShare] = {}
        self._queue_workers: list[QueueWorker] = []
        self._pid = os.getpid()
        self._forced = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self._stored: set[asyncio.Task[None]] = set()
        self._cancels_at = 0.0
        self._registered = False
        self._limits_needed = Signal()
        self._loops: list[BackgroundTask] = []
        self.nobody: Job[..., Any] = Job(app, "", None, Arguments("", []), Definition(queue=""))
        """Placeholder for kinds that this worker has no function for."""

    # Lifetime

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Create or update queues, limits and schedules, then start to claim jobs."""
        self.loop = asyncio.get_running_loop()
        await self.app.setup()
        for queue in self.queues:
            if queue not in self.app.queues:
                await self.app.client.queues.get(queue)
        self.session: Session = self.app.client.session
        url = self.app.client.url
        self.sync_client = SyncClient(url, max_connections=max(4, *self.queues.values()))
        """For plain handlers. The heartbeat uses a separate client, so that it never waits for them."""
        self._beats = SyncClient(url, max_connections=1)
        self.threads = ThreadPool()
        self.processes = ProcessPool()
        self.settler = AttemptSettler(self.session, self._close)
        self.heartbeat = Heartbeat(
            self._beats,
            self.loop,
            on_lost=self._lost,
            on_stall=self._stalled,
        )
        self._queue_workers = [QueueWorker(self, queue, count, self._prefetch) for queue, count in self.queues.items()]
        try:
            await self.refresh_cancels(force=True)
            await self._register()
            self._loops = [BackgroundTask(self._tick_for_ever, "trunkline worker")]
            if self._shares:
                self._loops.append(BackgroundTask(self._limit_for_ever, "trunkline limits"))
            for queue_worker in self._queue_workers:
                await queue_worker.start()
        except BaseException:
            await self.stop()
            raise

    async def run(self, *, signals: bool = True) -> None:
        """Start and run until `request_stop`, SIGTERM or SIGINT. A second signal stops without waiting for handlers."""
        async with self:
            await self.work(signals=signals)

    async def work(self, *, signals: bool = True) -> None:
        """Run a started worker until it is stopped; see `run`."""
        numbers = (signal.SIGTERM, signal.SIGINT) if signals else ()
        for number in numbers:
            self.loop.add_signal_handler(number, self.request_stop)
        try:
            await self._stop_asked.wait()
            await self.stop()
        finally:
            for number in numbers:
                self.loop.remove_signal_handler(number)

    def request_stop(self) -> None:
        """Stop and drain the worker. A second call releases all jobs at once."""
        if self._stop_asked.is_set():
            self._forced.set()
        self._stop_asked.set()

    async def stop(self) -> None:
        """Stop claiming, release jobs that have not started, and give running handlers the grace period."""
        if self.stopping:
            return
        self.stopping = True
        for queue_worker in self._queue_workers:
            for attempt in queue_worker.stop():
                attempt.settled = RELEASE
                self.settler.settle(attempt, RELEASE)
        if not await self._quiet(self._grace):
            for queue_worker in self._queue_workers:
                for attempt in queue_worker.active():
                    self._interrupt(attempt, Stop(StopReason.SHUTDOWN, "the worker was stopped"))
            await self._quiet(LEAVE_SECONDS + 1, forced=False)
        await self.settler.drain(LEAVE_SECONDS)
        if self._stored:
            await asyncio.wait(self._stored, timeout=LEAVE_SECONDS)
        self.closed = True
        for loop in self._loops:
            await loop.end()
        for queue_worker in self._queue_workers:
            await queue_worker.end()
        await self.settler.end()
        self.heartbeat.stop()
        self.threads.end()
        self.processes.end()
        try:
            # best effort: an unavailable database must not delay the stop
            async with asyncio.timeout(LEAVE_SECONDS), self.session.connection(writing=True) as conn:
                await jobs.forget_worker(conn, self.name)
        except (TrunklineError, TimeoutError) as exc:
            log.warning(
                "could not deregister worker worker=%s error=%s", self.name, str(exc) or "the database did not respond"
            )
        await asyncio.to_thread(self._close_threads)

    def _close_threads(self) -> None:
        self.heartbeat.join()
        self._beats.close()
        self.sync_client.close()

    @property
    def busy(self) -> bool:
        """True if a handler runs or a job is still to be settled."""
        return self.settler.busy or any(queue_worker.running for queue_worker in self._queue_workers)

    @property
    def held(self) -> int:
        """Number of claimed jobs, running or not."""
        return sum(queue_worker.held for queue_worker in self._queue_workers)

    async def _quiet(self, seconds: float, *, forced: bool = True) -> bool:
        """Wait until no job runs, at most `seconds` or until a second signal. Returns whether none runs."""
        end = monotonic() + seconds
        while any(queue_worker.running or queue_worker.claiming for queue_worker in self._queue_workers):
            if monotonic() > end or (forced and self._forced.is_set()):
                return False
            await asyncio.sleep(0.02)
        return True

    def exit_if_forked(self) -> None:
        """Exit if this process is a child that a handler forked: it must not continue as a second worker."""
        if os.getpid() != self._pid:
            os._exit(0)

    # Running jobs

    def _lost(self, attempt: Attempt) -> None:
        attempt.lost = True
        log.warning("job lease lost job=%s id=%s", attempt.job.name, attempt.delivery.id)
        self._interrupt(attempt, Stop(StopReason.LEASE_LOST, "the lease ended"))

    def start_timeout(self, attempt: Attempt, seconds: float) -> None:
        """Restart the timeout of an attempt."""
        if attempt.timer is not None:
            attempt.timer.cancel()
        attempt.deadline = monotonic() + seconds
        stop = Stop(StopReason.TIMEOUT, f"TimeoutError: the handler took longer than {seconds:g} s")
        attempt.timer = self.loop.call_later(seconds, self._interrupt, attempt, stop)

    def _interrupt(self, attempt: Attempt, stop: Stop) -> None:
        """Cancel a handler. One that does not end in time is abandoned."""
        if attempt.task is None or attempt.stop is not None:
            return
        attempt.stop = stop
        attempt.task.cancel()
        grace = LEAVE_SECONDS + (1.0 if not attempt.job.is_async else 0.0)
        self.loop.call_later(grace, self._queue_worker_of(attempt).abandon, attempt)

    def _queue_worker_of(self, attempt: Attempt) -> QueueWorker:
        return next(queue_worker for queue_worker in self._queue_workers if queue_worker.runs(attempt))

    def context(self, attempt: Attempt) -> Context:
        return Context(self, attempt)

    def sync_context(self, attempt: Attempt) -> SyncContext:
        return SyncContext(self, attempt)

    async def ack_now(self, attempt: Attempt) -> Result:
        return await self.settler.ack_now(attempt)

    def _stalled(self, attempt: Attempt, seconds: float) -> bool:
        """Settle the job of a handler that blocks the event loop for too long. Returns whether it must be interrupted.

        Runs in the heartbeat thread, as the loop cannot.
        """
        timeout = attempt.job.definition.timeout
        if seconds < (self._stall if timeout is None else min(self._stall, timeout.total_seconds())) or attempt.settled:
            return False
        error = f"HandlerStalled: the handler blocked the event loop for {seconds:.1f} s; make it a plain function"
        log.error("handler stalled job=%s id=%s error=%s", attempt.job.name, attempt.delivery.id, error)
        settlement = attempt.settled = self._queue_worker_of(attempt).executor.settle_stall(attempt, error)
        try:
            with self._beats.session.connection(writing=True) as conn:
                if settlement.verb == "nack":
                    sync_calls.nack(conn, [attempt.receipt], delay=settlement.delay, error=error)
                else:
                    sync_jobs.settle_jobs(conn, settlement.verb, [attempt.ending()], error=error)
        except TrunklineError:
            # the loop retries it until the database is available again
            self.loop.call_soon_threadsafe(self.settler.settle, attempt, settlement)
        else:
            self.heartbeat.drop(attempt)
        return True

    def settled_by_handler(self, attempt: Attempt) -> None:
        attempt.settled = ACK
        self._close(attempt)

    def _close(self, attempt: Attempt) -> None:
        self.heartbeat.drop(attempt)
        attempt.on_close()

    def store_result(self, attempt: Attempt, result: bytes) -> None:
        """Store the result of a job that its handler has already settled."""

        async def store() -> None:
            async with self.session.connection(writing=True) as conn:
                await jobs.store_result(conn, attempt.delivery.id, result)

        task = asyncio.create_task(store())
        self._stored.add(task)
        task.add_done_callback(self._stored.discard)

    def finished(self, attempt: Attempt, settlement: Settlement | None) -> None:
        if self._on_finished is not None:
            self._on_finished(attempt, settlement)

    # Cancels

    @property
    def cancels_due(self) -> bool:
        return monotonic() - self._cancels_at >= _CANCEL_SECONDS

    async def refresh_cancels(self, *, force: bool = False) -> None:
        """Read new cancellations, at most once a second."""
        if not force and not self.cancels_due:
            return
        self._cancels_at = monotonic()
        async with self.session.connection() as conn:
            self.cancels = {id: reason for _, id, reason in await jobs.list_cancels(conn, 0)}
        if not self.cancels:
            return
        for attempt in self.heartbeat.attempts():
            reason = self.cancels.get(attempt.delivery.id)
            if reason is not None:
                self._interrupt(attempt, Stop(StopReason.CANCELLED, reason))

    async def cancel_reason(self, id: UUID) -> str | None:
        """Return why a job must not start, or None. Reads again first: the job may just have been retried."""
        if id in self.cancels:
            await self.refresh_cancels(force=True)
        return self.cancels.get(id)

    # Limits

    def share(self, limit: Limit) -> LimitShare:
        return self._shares.setdefault(limit.name, LimitShare(limit))

    def need_limits(self) -> None:
        self._limits_needed.set()

    async def _limit_for_ever(self) -> None:
        """Request capacity and tokens when jobs wait for them, and renew or release capacity once a second."""
        while True:
            pause = 1.0
            try:
                pause = await self._ask_limits()
            except TrunklineError as exc:
                log.warning("could not acquire limits; retrying in %s s error=%s", pause, exc)
            for queue_worker in self._queue_workers:
                queue_worker.unblock()
            self._limits_needed.clear()
            if pause > 0.02:
                await asyncio.sleep(0.02)
                pause -= 0.02
            await self._limits_needed.wait(pause) if pause >= 0.98 else await asyncio.sleep(pause)

    async def _ask_limits(self) -> float:
        pause = 1.0
        capacity = sum(self.queues.values())
        shares = [share for share in self._shares.values() if share.limit.running is not None]
        async with self.session.connection(writing=True) as conn:
            if shares:
                wants = [capacity if share.waiting or share.used else share.running for share in shares]
                grants = await jobs.acquire_limit(
                    conn, self.name, [share.limit.name for share in shares], wants, span=_SLOT_SPAN
                )
                for share, granted in zip(shares, grants, strict=True):
                    share.granted = granted
                    share.used = False
                    if share.waiting and granted <= share.running:
                        pause = min(pause, 0.1)
            for share in self._shares.values():
                if share.limit.rate is None or not share.waiting:
                    continue
                now = monotonic()
                fresh = now - share.tokens_at < share.TOKEN_SECONDS
                if fresh and share.tokens >= share.waiting:
                    continue
                unused = share.tokens if fresh else 0
                granted, seconds = await jobs.acquire_tokens(conn, share.limit.name, share.wanted() - unused)
                share.tokens = unused + granted
                share.tokens_at = now if granted or not fresh else share.tokens_at
                if share.tokens < share.waiting:
                    pause = min(pause, max(seconds, 0.005))
        return pause

    # The registry

    async def _tick_for_ever(self) -> None:
        registered = monotonic()
        while True:
            await asyncio.sleep(_CANCEL_SECONDS)
            try:
                if any(queue_worker.running for queue_worker in self._queue_workers):
                    await self.refresh_cancels()
                if monotonic() - registered > _REGISTER_SECONDS:
                    registered = monotonic()
                    await self._register()
            except TrunklineError as exc:
                log.warning("could not update worker status worker=%s error=%s", self.name, exc)

    async def _register(self) -> None:
        info = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "queues": self.queues,
            "version": __version__,
            "kinds": sorted(name for name, job in self.app.kinds.items() if job.function is not None),
            "limits": {
                name: sorted(limit.name for limit in job.definition.limits)
                for name, job in sorted(self.app.kinds.items())
                if job.definition.limits
            },
            "running": sum(queue_worker.running for queue_worker in self._queue_workers),
            "done": sum(queue_worker.done for queue_worker in self._queue_workers),
            "failed": sum(queue_worker.failed for queue_worker in self._queue_workers),
        }
        schemas = None if self._registered else self._schemas()
        # after a failure they are sent again: the row may be gone
        self._registered = False
        async with self.session.connection(writing=True) as conn:
            await jobs.register_worker(conn, self.name, info, schemas)
        self._registered = True

    def _schemas(self) -> dict[str, Any]:
        """The JSON schema of the arguments of each kind. It is sent once: the database keeps it."""
        kinds = {name: job.arguments.schema() for name, job in self.app.kinds.items() if job.function is not None}
        return {name: schema for name, schema in kinds.items() if schema is not None}
