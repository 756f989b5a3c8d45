"""One queue of a worker: claims jobs, runs them concurrently, and releases jobs that it did not start."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from trunkline.concurrency.aio import log
from trunkline.db import calls
from trunkline.db.calls import jobs
from trunkline.db.wakeup import Watch
from trunkline.errors import PermissionDenied, TrunklineError
from trunkline.jobs.attempt import RELEASE, Attempt, Settlement
from trunkline.jobs.errors import HandlerStalled
from trunkline.jobs.executor import Executor
from trunkline.jobs.job import MAX_ATTEMPTS
from trunkline.jobs.limits import KindLimits
from trunkline.jobs.prefetch import Prefetch
from trunkline.runtime.claim_loop import ClaimLoop
from trunkline.types import Delivery

if TYPE_CHECKING:
    from trunkline.jobs.worker import Worker

_TURN = 32
_BY_LABEL_SECONDS = 300.0
_KEEP_SECONDS = 1.0
_POLL_SECONDS = 0.02
_ALONE_SECONDS = 10.0
"""Seconds that a job that must run alone waits for running jobs before it starts beside them."""
_TRUSTED_ATTEMPTS = 2
_NEVER_STARTED = 1_000_000_000


class QueueWorker:
    """Claims and runs the jobs of one queue in a worker."""

    def __init__(self, worker: Worker, queue: str, concurrency: int, prefetch: int | None) -> None:
        self.queue = queue
        self.concurrency = concurrency
        self.running = 0
        self.done = 0
        self.failed = 0
        self.claiming = False
        self._worker = worker
        self._kinds = {name: job for name, job in worker.app.kinds.items() if job.function is not None}
        self._kind_limits = {
            name: KindLimits(worker, job, worker.app.queue_limits.get(queue, ())) for name, job in self._kinds.items()
        }
        self._ready: deque[Attempt] = deque()
        self._blocked: dict[str, deque[Attempt]] = {}
        self._partitions: dict[int, deque[Attempt]] = {}
        self._idle: deque[asyncio.Future[None]] = deque()
        self._prefetch = Prefetch(prefetch)
        self._watch: Watch | None = None
        self._claims: ClaimLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._lease = timedelta(seconds=30)
        self._max_attempts = _NEVER_STARTED
        self._ordered = False
        self._by_label_until = 0.0
        self._stopping = False
        self._restless = False

    async def start(self) -> None:
        session = self._worker.session
        try:
            async with session.connection() as conn:
                settings = await calls.get_queue(conn, self.queue)
            self._lease, self._max_attempts, self._ordered = settings.lease, settings.max_attempts, settings.ordered
        except PermissionDenied:
            log.warning("no permission to read queue settings; using a lease of 30 s queue=%s", self.queue)
        if self._worker.lease is not None:
            self._lease = self._worker.lease
        self.executor = Executor(
            self._worker,
            queue=self.queue,
            middlewares=self._worker.app.middlewares,
            backoff=self._worker.app.backoff,
            queue_max_attempts=self._max_attempts,
            ordered=self._ordered,
        )
        self._watch = session.wakeup.watch("queue", self.queue)
        for _ in range(self.concurrency):
            self._add_task()
        self._claims = ClaimLoop(self._claim_turn, self._wake_claims, name=self.queue)

    # Claiming

    def _wake_claims(self) -> None:
        self._prefetch.wake()
        if self._watch is not None:
            self._watch.wake()

    async def _claim_turn(self) -> None:
        assert self._watch is not None  # noqa: S101
        if await self._stand_aside():
            return
        labels = self._labels()
        self._watch.reset(labels)
        # Then more jobs may become claimable whenever one ends, even during the claim.
        self._restless = self._ordered or (labels is not None and len(labels) < len(self._kinds))
        want = 0 if labels == [] else self._prefetch.want(self.held, self.concurrency)
        if not want:
            await self._prefetch.one_ends(1.0)
            self._release_idle()
            return
        claimed = await self._claim(want, labels)
        if self._worker.alone is self:
            return
        if len(claimed) < want:
            self._prefetch.fell_short(len(claimed))
            await self._watch.wait()
        else:
            await self._prefetch.settle_in()

    @property
    def held(self) -> int:
        """Number of claimed jobs, running or not."""
        return self.running + len(self._ready) + sum(map(len, self._blocked.values()))

    def _closed(self) -> None:
        if self._restless and self._watch is not None:
            self._watch.wake()

    def _release_idle(self) -> None:
        """Release prefetched jobs that wait for slow ones, so that other workers can run them.

        No attempt is counted.
        """
        if self._ordered or not self._ready or monotonic() - self._ready[0].claimed_at < _KEEP_SECONDS:
            return
        for attempt in self._ready:
            self._release(attempt)
        self._ready.clear()

    def _release(self, attempt: Attempt) -> None:
        attempt.settled = RELEASE
        self._worker.settler.settle(attempt, RELEASE)

    async def _stand_aside(self) -> bool:
        """Run a job alone in this worker if one must, see `_set_apart`. Returns whether the claim turn is used up."""
        if self._worker.alone is None:
            return False
        if self._worker.alone is not self:
            await asyncio.sleep(_POLL_SECONDS)
            return True
        end = monotonic() + _ALONE_SECONDS
        while self._worker.held and monotonic() < end and not self._stopping:
            await asyncio.sleep(_POLL_SECONDS)
        claimed = [] if self._stopping else await self._claim(1, self._labels() or None, alone=True)
        if not claimed and not self._stopping:
            # Released jobs are claimable after the next sequencer pass. Run one here, or workers would pass the job
            # around forever.
            async with self._worker.session.connection(writing=True) as conn:
                await calls.sequence(conn, queues=[self.queue])
            claimed = await self._claim(1, self._labels() or None, alone=True)
        if not any(self._may_kill(delivery.attempt, self._limit(delivery)) for delivery in claimed):
            self._worker.alone = None
        else:
            while self.held and not self._stopping:
                await self._prefetch.one_ends(1.0)
        return True

    def _labels(self) -> list[str] | None:
        """Return the kinds to claim.

        None, the fast path, claims any kind: while all are known and none is at a limit.
        """
        if self._ordered:
            return None
        full = {name for name, limits in self._kind_limits.items() if limits.full(self._blocked.get(name))}
        if not full and monotonic() > self._by_label_until:
            return None
        return [name for name in self._kinds if name not in full]

    async def _claim(self, want: int, labels: list[str] | None, *, alone: bool = False) -> list[Delivery[Any]]:
        began = monotonic()
        self.claiming = True
        try:
            claimed = await self._fetch(want, labels)
            if claimed:
                if self._watch is not None:
                    self._watch.note_message()
                await self._receive(claimed, began, alone=alone)
        finally:
            self.claiming = False
        return claimed

    async def _fetch(self, want: int, labels: list[str] | None) -> list[Delivery[Any]]:
        # concurrently, so that an idle worker picks up a job in one round trip
        cancels = asyncio.create_task(self._read_cancels()) if self._worker.cancels_due else None
        deliveries: list[Delivery[Any]] = await self._worker.session.claim(
            Delivery, self.queue, limit=want, lease=self._lease, labels=labels, consumer=self._worker.name
        )
        if cancels is not None:
            await cancels
        return deliveries

    async def _read_cancels(self) -> None:
        try:
            await self._worker.refresh_cancels()
        except TrunklineError as exc:
            log.warning("could not read cancellations error=%s", exc)

    async def _receive(self, deliveries: list[Delivery[Any]], began: float, *, alone: bool) -> None:
        on_close = self._closed
        attempts = [
            Attempt(
                delivery,
                self._kinds.get(delivery.label or "") or self._worker.nobody,
                claimed_at=began,
                max_attempts=self._limit(delivery),
                on_close=on_close,
            )
            for delivery in deliveries
        ]
        self._worker.heartbeat.add(attempts, span=self._lease.total_seconds(), now=began)
        if not alone:
            attempts = await self._set_apart(attempts)
        foreign: list[Attempt] = []
        for attempt in attempts:
            if self._stopping:
                # the worker was stopped during the claim
                self._release(attempt)
            elif attempt.job is self._worker.nobody:
                foreign.append(attempt)
            else:
                self._queue_up(attempt)
        if foreign:
            self._return_foreign(foreign)
        self._wake(len(attempts))

    async def _set_apart(self, attempts: list[Attempt]) -> list[Attempt]:
        """Return the attempts to run now, and release those that must run alone.

        A job must run alone if it lost its worker twice, or lost one and has only its last attempt left. It is released
        without counting an attempt and claimed again when no other job runs here. So if it kills the worker, no other
        job loses an attempt; and if another job killed the worker, this one is not affected again.
        """
        doubtful = [attempt for attempt in attempts if self._may_kill(attempt.delivery.attempt, attempt.max_attempts)]
        if not doubtful:
            return attempts
        try:
            async with self._worker.session.connection() as conn:
                lost = await jobs.lost_before(conn, [attempt.receipt for attempt in doubtful])
        except TrunklineError as exc:
            log.warning("could not check whether jobs lost their worker queue=%s error=%s", self.queue, exc)
            return attempts
        apart = [attempt for attempt, was_lost in zip(doubtful, lost, strict=True) if was_lost]
        if not apart:
            return attempts
        await self._worker.settler.release_now(apart)
        if self._worker.alone is None:
            self._worker.alone = self
        return [attempt for attempt in attempts if not attempt.settled]

    def _may_kill(self, attempt: int, most: int) -> bool:
        return 1 < attempt <= most and (attempt > _TRUSTED_ATTEMPTS or attempt == most) and not self._ordered

    def _return_foreign(self, foreign: list[Attempt]) -> None:
        """Release jobs of unknown kinds for other workers, without counting an attempt, and claim by kind from now on."""
        self._by_label_until = monotonic() + _BY_LABEL_SECONDS
        for attempt in foreign:
            if self._ordered:
                # later jobs of its partition may not run before it, so it must not be released forever
                error = f"this worker has no job named {attempt.delivery.label!r}"
                self._worker.settler.settle(attempt, Settlement("nack", None, error))
            else:
                self._release(attempt)

    def _limit(self, delivery: Delivery[Any]) -> int:
        """Return the maximum attempts of a job: from its headers, its kind or the app, limited by the queue."""
        own = None if delivery.headers is None else delivery.headers.get(MAX_ATTEMPTS)
        if isinstance(own, int) and own > 0:
            return min(own, self._max_attempts)
        job = self._kinds.get(delivery.label or "")
        kind = None if job is None else job.definition.max_attempts
        return min(kind or self._worker.app.max_attempts, self._max_attempts)

    def _queue_up(self, attempt: Attempt) -> None:
        if not self._ordered:
            self._ready.append(attempt)
            return
        # one at a time per partition: the next job starts when this one has ended
        partition = self._partitions.setdefault(attempt.delivery.partition, deque())
        partition.append(attempt)
        if len(partition) == 1:
            self._ready.append(attempt)

    # Running

    def _add_task(self) -> None:
        task = asyncio.create_task(self._run_task(), name=f"trunkline worker task of {self.queue}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wake(self, count: int) -> None:
        while count > 0 and self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                count -= 1

    async def _run_task(self) -> None:
        me = asyncio.current_task()
        assert me is not None  # noqa: S101
        turn = 0
        while True:
            try:
                attempt = self._next()
                if attempt is None:
                    if self._stopping:
                        return
                    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._idle.append(waiting)
                    await waiting
                    continue
                await self._run(attempt, me)
                if attempt.abandoned:
                    return
                turn += 1
                if turn % _TURN == 0:
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                # the cancellation was for a job that ended at the same moment
                if self._worker.closed:
                    raise
                me.uncancel()
            except (Exception, HandlerStalled):
                # a handler that blocked the loop may have returned before it was interrupted
                log.exception("unexpected error in worker task; continuing queue=%s", self.queue)

    def _next(self) -> Attempt | None:
        """Return the next job that may start now. Jobs at a limit are set aside."""
        while self._ready:
            attempt = self._ready.popleft()
            if self._worker.heartbeat.end(attempt) < monotonic():
                # the process was suspended longer than the lease: another worker may own the job
                attempt.lost = True
            if attempt.lost:
                self._forget(attempt)
                continue
            limits = self._kind_limits[attempt.job.name]
            if limits.open:
                limits.enter()
                return attempt
            if limits.shares:
                limits.wait()
            self._blocked.setdefault(attempt.job.name, deque()).append(attempt)
        return None

    def unblock(self) -> None:
        """Reconsider the jobs that were set aside: their limits may have room now."""
        for name, attempts in list(self._blocked.items()):
            if not attempts:
                del self._blocked[name]
                continue
            self._ready.extendleft(reversed(attempts))
            for _ in attempts:
                self._kind_limits[name].unwait()
            attempts.clear()
        self._wake(len(self._ready))

    async def _run(self, attempt: Attempt, me: asyncio.Task[None]) -> None:
        self.running += 1
        attempt.task = me
        attempt.started_at = monotonic()
        try:
            settlement = await self.executor.execute(attempt)
        finally:
            attempt.task = None
            if attempt.timer is not None:
                attempt.timer.cancel()
            if attempt.stop is not None:
                while me.cancelling():
                    me.uncancel()
        if not attempt.abandoned:
            self._finish(attempt, settlement)

    def _finish(self, attempt: Attempt, settlement: Settlement | None) -> None:
        self.running -= 1
        limits = self._kind_limits[attempt.job.name]
        limits.leave()
        if settlement is not None and attempt.settled is None:
            attempt.settled = settlement
            self._worker.settler.settle(attempt, settlement)
        if attempt.settled is not None:
            self.done += attempt.settled.verb == "ack"
            self.failed += attempt.settled.verb in ("nack", "bury")
        self._forget(attempt, returned=attempt.settled is not None and attempt.settled.redelivers)
        blocked = self._blocked.get(attempt.job.name)
        if blocked:
            limits.unwait()
            self._ready.appendleft(blocked.popleft())
            self._wake(1)
        self._prefetch.ended(monotonic() - attempt.started_at)
        self._worker.finished(attempt, settlement or attempt.settled)

    def _forget(self, attempt: Attempt, *, returned: bool = False) -> None:
        if attempt.lost:
            self._worker.heartbeat.drop(attempt)
        if not self._ordered:
            return
        partition = self._partitions.get(attempt.delivery.partition)
        if not partition or attempt not in partition:
            return
        partition.popleft()
        if returned or attempt.lost:
            # the database returned all later jobs of the partition too
            for behind in partition:
                self._worker.heartbeat.drop(behind)
            partition.clear()
        if partition:
            self._ready.append(partition[0])
            self._wake(1)

    # Ending

    def stop(self) -> list[Attempt]:
        """Stop claiming. Returns the claimed jobs that have not started."""
        self._stopping = True
        if self._claims is not None:
            self._claims.stop()
        unused = [*self._ready, *(attempt for attempts in self._blocked.values() for attempt in attempts)]
        for partition in self._partitions.values():
            unused += [attempt for attempt in partition if attempt not in unused and attempt.task is None]
        self._ready.clear()
        self._blocked.clear()
        self._wake(self.concurrency)
        return unused

    def active(self) -> list[Attempt]:
        return [attempt for attempt in self._worker.heartbeat.attempts() if self.runs(attempt)]

    def runs(self, attempt: Attempt) -> bool:
        return attempt.task in self._tasks

    def abandon(self, attempt: Attempt) -> None:
        """Abandon a handler that does not end after cancellation. A new task replaces its own."""
        if attempt.task is None or attempt.stop is None or attempt.abandoned:
            return
        log.error(
            "handler did not stop after cancellation; abandoning it job=%s id=%s reason=%s",
            attempt.job.name,
            attempt.delivery.id,
            attempt.stop,
        )
        attempt.abandoned = True
        self._finish(attempt, self.executor.settle_stop(attempt, attempt.stop))
        if not self._stopping:
            self._add_task()

    async def end(self) -> None:
        if self._claims is not None:
            await self._claims.end()
        if self._watch is not None:
            self._worker.session.wakeup.unwatch(self._watch)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=1)
