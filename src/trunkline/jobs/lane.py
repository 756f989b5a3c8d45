"""One queue of a worker: claims jobs, runs them concurrently, and releases jobs that it did not start."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from trunkline.concurrency.aio import Background, log
from trunkline.db import calls
from trunkline.db.calls import jobs
from trunkline.db.wakeup import Watch
from trunkline.errors import PermissionDenied, TrunklineError, Unavailable
from trunkline.jobs.gates import Gate
from trunkline.jobs.job import MAX_ATTEMPTS
from trunkline.jobs.judging import Judge
from trunkline.jobs.pace import Pace
from trunkline.jobs.running import Item, Lease
from trunkline.jobs.settling import Verdict
from trunkline.types import Delivery

if TYPE_CHECKING:
    from trunkline.jobs.worker import Worker

_RETRY_SECONDS = 0.5
_TURN = 32
_BY_LABEL_SECONDS = 300.0
_KEEP_SECONDS = 1.0
_POLL_SECONDS = 0.02
_ALONE_SECONDS = 10.0
"""Seconds that a job that must run alone waits for running jobs before it starts beside them."""
_TRUSTED_ATTEMPTS = 2
_NEVER_STARTED = 1_000_000_000


class Lane:
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
        self._gates = {name: Gate(worker, job, worker.app.queue_limits.get(queue, ())) for name, job in self._kinds.items()}
        self._ready: deque[Item] = deque()
        self._blocked: dict[str, deque[Item]] = {}
        self._partitions: dict[int, deque[Item]] = {}
        self._idle: deque[asyncio.Future[None]] = deque()
        self._pace = Pace(prefetch)
        self._watch: Watch | None = None
        self._claimer: Background | None = None
        self._slots: set[asyncio.Task[None]] = set()
        self._lease = timedelta(seconds=30)
        self._max_attempts = _NEVER_STARTED
        self._ordered = False
        self._by_label_until = 0.0
        self._stopping = False
        self._restless = False

    async def start(self) -> None:
        runtime = self._worker.runtime
        try:
            async with runtime.connection() as conn:
                settings = await calls.get_queue(conn, self.queue)
            self._lease, self._max_attempts, self._ordered = settings.lease, settings.max_attempts, settings.ordered
        except PermissionDenied:
            log.warning("no permission to read queue settings; using a lease of 30 s queue=%s", self.queue)
        if self._worker.lease is not None:
            self._lease = self._worker.lease
        self._judge = Judge(self._worker, max_attempts=self._max_attempts, ordered=self._ordered)
        self._watch = runtime.wakeup.watch("queue", self.queue)
        for _ in range(self.concurrency):
            self._add_slot()
        self._claimer = Background(self._claim_for_ever, f"trunkline claims of {self.queue}")

    # Claiming

    async def _claim_for_ever(self) -> None:
        while not self._stopping:
            try:
                await self._claim_turn()
            except asyncio.CancelledError:
                raise
            except Unavailable as exc:
                log.warning("claim failed; retrying in %s s queue=%s error=%s", _RETRY_SECONDS, self.queue, exc)
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception as exc:
                log.error(
                    "claim failed; retrying in %s s queue=%s error=%s: %s",
                    _RETRY_SECONDS,
                    self.queue,
                    type(exc).__name__,
                    exc,
                )
                await asyncio.sleep(_RETRY_SECONDS)

    async def _claim_turn(self) -> None:
        assert self._watch is not None  # noqa: S101
        if await self._stand_aside():
            return
        labels = self._labels()
        self._watch.hush(labels)
        # Then more jobs may become claimable whenever one ends, even during the claim.
        self._restless = self._ordered or (labels is not None and len(labels) < len(self._kinds))
        want = 0 if labels == [] else self._pace.want(self.held, self.concurrency)
        if not want:
            await self._pace.one_ends(1.0)
            self._release_idle()
            return
        claimed = await self._claim(want, labels)
        if self._worker.alone is self:
            return
        if len(claimed) < want:
            self._pace.fell_short(len(claimed))
            await self._watch.wait()
        else:
            await self._pace.settle_in()

    @property
    def held(self) -> int:
        """Number of claimed jobs, running or not."""
        return self.running + len(self._ready) + sum(map(len, self._blocked.values()))

    def _closed(self) -> None:
        if self._restless and self._watch is not None:
            self._watch.ring()

    def _release_idle(self) -> None:
        """Release prefetched jobs that wait for slow ones, so that other workers can run them.

        No attempt is counted.
        """
        if self._ordered or not self._ready or monotonic() - self._ready[0].lease.since < _KEEP_SECONDS:
            return
        for item in self._ready:
            self._release(item)
        self._ready.clear()

    def _release(self, item: Item) -> None:
        item.settled = True
        self._worker.settler.settle(item, Verdict("release"))

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
            async with self._worker.runtime.connection(writing=True) as conn:
                await calls.sequence(conn, queues=[self.queue])
            claimed = await self._claim(1, self._labels() or None, alone=True)
        if not any(self._may_kill(delivery.attempt, self._limit(delivery)) for delivery in claimed):
            self._worker.alone = None
        else:
            while self.held and not self._stopping:
                await self._pace.one_ends(1.0)
        return True

    def _labels(self) -> list[str] | None:
        """Return the kinds to claim.

        None, the fast path, claims any kind: while all are known and none is at a limit.
        """
        if self._ordered:
            return None
        full = {name for name, gate in self._gates.items() if gate.full(self._blocked.get(name))}
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
                    self._watch.found()
                await self._receive(claimed, began, alone=alone)
        finally:
            self.claiming = False
        return claimed

    async def _fetch(self, want: int, labels: list[str] | None) -> list[Delivery[Any]]:
        runtime = self._worker.runtime
        # concurrently, so that an idle worker picks up a job in one round trip
        cancels = asyncio.create_task(self._read_cancels()) if self._worker.cancels_due else None
        async with runtime.connection() as conn:
            deliveries: list[Delivery[Any]] = await calls.claim(
                conn,
                Delivery,
                self.queue,
                limit=want,
                lease=self._lease,
                labels=labels,
                consumer=self._worker.name,
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
        span = self._lease.total_seconds()
        leases: dict[str, Lease] = {}
        items: list[Item] = []
        for delivery in deliveries:
            text = delivery.receipt.partition(".")[2]
            lease = leases.get(text)
            if lease is None:
                lease = leases[text] = Lease(text, span, began, self._closed)
                self._worker.heartbeat.add(lease)
            job = self._kinds.get(delivery.label or "")
            item = Item(delivery, job or self._worker.nobody, lease, self._limit(delivery))
            lease.open[item.position] = item
            items.append(item)
        if not alone:
            items = await self._set_apart(items)
        foreign: list[Item] = []
        for item in items:
            if self._stopping:
                # the worker was stopped during the claim
                self._release(item)
            elif item.job is self._worker.nobody:
                foreign.append(item)
            else:
                self._queue_up(item)
        if foreign:
            self._return_foreign(foreign)
        self._wake(len(items))

    async def _set_apart(self, items: list[Item]) -> list[Item]:
        """Return the items to run now, and release those that must run alone.

        A job must run alone if it lost its worker twice, or lost one and has only its last attempt left. It is released
        without counting an attempt and claimed again when no other job runs here. So if it kills the worker, no other
        job loses an attempt; and if another job killed the worker, this one is not affected again.
        """
        doubtful = [item for item in items if self._may_kill(item.delivery.attempt, item.max_attempts)]
        if not doubtful:
            return items
        try:
            async with self._worker.runtime.connection() as conn:
                lost = await jobs.lost_before(conn, [item.receipt for item in doubtful])
        except TrunklineError as exc:
            log.warning("could not check whether jobs lost their worker queue=%s error=%s", self.queue, exc)
            return items
        apart = [item for item, was_lost in zip(doubtful, lost, strict=True) if was_lost]
        if not apart:
            return items
        await self._worker.settler.release_now(apart)
        if self._worker.alone is None:
            self._worker.alone = self
        return [item for item in items if not item.settled]

    def _may_kill(self, attempt: int, most: int) -> bool:
        return 1 < attempt <= most and (attempt > _TRUSTED_ATTEMPTS or attempt == most) and not self._ordered

    def _return_foreign(self, foreign: list[Item]) -> None:
        """Release jobs of unknown kinds for other workers, without counting an attempt, and claim by kind from now on."""
        self._by_label_until = monotonic() + _BY_LABEL_SECONDS
        for item in foreign:
            if self._ordered:
                # later jobs of its partition may not run before it, so it must not be released forever
                error = f"this worker has no job named {item.delivery.label!r}"
                self._worker.settler.settle(item, Verdict("nack", None, error))
            else:
                self._release(item)

    def _limit(self, delivery: Delivery[Any]) -> int:
        """Return the maximum attempts of a job: from its headers, its kind or the app, limited by the queue."""
        own = None if delivery.headers is None else delivery.headers.get(MAX_ATTEMPTS)
        if isinstance(own, int) and own > 0:
            return min(own, self._max_attempts)
        job = self._kinds.get(delivery.label or "")
        kind = None if job is None else job.definition.max_attempts
        return min(kind or self._worker.app.max_attempts, self._max_attempts)

    def _queue_up(self, item: Item) -> None:
        if not self._ordered:
            self._ready.append(item)
            return
        # one at a time per partition: the next job starts when this one has ended
        partition = self._partitions.setdefault(item.delivery.partition, deque())
        partition.append(item)
        if len(partition) == 1:
            self._ready.append(item)

    # Running

    def _add_slot(self) -> None:
        task = asyncio.create_task(self._slot(), name=f"trunkline slot of {self.queue}")
        self._slots.add(task)
        task.add_done_callback(self._slots.discard)

    def _wake(self, count: int) -> None:
        while count > 0 and self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                count -= 1

    async def _slot(self) -> None:
        me = asyncio.current_task()
        assert me is not None  # noqa: S101
        turn = 0
        while True:
            try:
                item = self._next()
                if item is None:
                    if self._stopping:
                        return
                    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._idle.append(waiting)
                    await waiting
                    continue
                await self._run(item, me)
                if item.abandoned:
                    return
                turn += 1
                if turn % _TURN == 0:
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                # the cancellation was for a job that ended at the same moment
                if self._worker.closed:
                    raise
                me.uncancel()
            except Exception:
                log.exception("unexpected error in worker task; continuing queue=%s", self.queue)

    def _next(self) -> Item | None:
        """Return the next job that may start now. Jobs at a limit are set aside."""
        while self._ready:
            item = self._ready.popleft()
            if item.lease.until < monotonic():
                # the process was suspended longer than the lease: another worker may own the job
                item.lost = True
            if item.lost:
                self._forget(item)
                continue
            gate = self._gates[item.job.name]
            if gate.open:
                gate.enter()
                return item
            if gate.holders:
                gate.wait()
            self._blocked.setdefault(item.job.name, deque()).append(item)
        return None

    def unblock(self) -> None:
        """Reconsider the jobs that were set aside: their limits may have room now."""
        for name, items in list(self._blocked.items()):
            if not items:
                del self._blocked[name]
                continue
            self._ready.extendleft(reversed(items))
            for _ in items:
                self._gates[name].unwait()
            items.clear()
        self._wake(len(self._ready))

    async def _run(self, item: Item, me: asyncio.Task[None]) -> None:
        self.running += 1
        item.slot = me
        item.began = monotonic()
        try:
            verdict = await self._judge.run(item)
        finally:
            item.slot = None
            if item.timer is not None:
                item.timer.cancel()
            if item.reason is not None:
                while me.cancelling():
                    me.uncancel()
        if not item.abandoned:
            self._finish(item, verdict)

    def _finish(self, item: Item, verdict: Verdict | None) -> None:
        self.running -= 1
        gate = self._gates[item.job.name]
        gate.leave()
        if verdict is not None and not item.settled:
            item.settled = True
            if verdict.verb == "ack":
                self.done += 1
                self._worker.settler.ack(item)
            else:
                self.failed += verdict.verb in ("nack", "bury")
                self._worker.settler.settle(item, verdict)
        elif item.settled:
            self.done += 1
        self._forget(item, returned=verdict is not None and verdict.verb in ("nack", "snooze", "release"))
        blocked = self._blocked.get(item.job.name)
        if blocked:
            gate.unwait()
            self._ready.appendleft(blocked.popleft())
            self._wake(1)
        self._pace.ended(monotonic() - item.began)
        self._worker.finished(item, verdict)

    def _forget(self, item: Item, *, returned: bool = False) -> None:
        if item.lost:
            item.lease.open.pop(item.position, None)
        if not self._ordered:
            return
        partition = self._partitions.get(item.delivery.partition)
        if not partition or item not in partition:
            return
        partition.popleft()
        if returned or item.lost:
            # the database returned all later jobs of the partition too
            for behind in partition:
                behind.lease.open.pop(behind.position, None)
            partition.clear()
        if partition:
            self._ready.append(partition[0])
            self._wake(1)

    # Ending

    def stop(self) -> list[Item]:
        """Stop claiming. Returns the claimed jobs that have not started."""
        self._stopping = True
        self._pace.wake()
        if self._watch is not None:
            self._watch.ring()
        unused = [*self._ready, *(item for items in self._blocked.values() for item in items)]
        for partition in self._partitions.values():
            unused += [item for item in partition if item not in unused and item.slot is None]
        self._ready.clear()
        self._blocked.clear()
        self._wake(self.concurrency)
        return unused

    def active(self) -> list[Item]:
        return [
            item
            for lease in self._worker.heartbeat.leases()
            for item in list(lease.open.values())
            if item.slot in self._slots
        ]

    def abandon(self, item: Item) -> None:
        """Abandon a handler that does not end after cancellation. A new slot replaces its own."""
        if item.slot is None or item.abandoned:
            return
        log.error(
            "handler did not stop after cancellation; abandoning it job=%s id=%s reason=%s",
            item.job.name,
            item.delivery.id,
            item.reason,
        )
        item.abandoned = True
        self._finish(item, self._judge.stopped(item))
        if not self._stopping:
            self._add_slot()

    async def end(self) -> None:
        if self._claimer is not None:
            await self._claimer.end()
        if self._watch is not None:
            self._worker.runtime.wakeup.unwatch(self._watch)
        for task in list(self._slots):
            task.cancel()
        if self._slots:
            await asyncio.wait(list(self._slots), timeout=1)
