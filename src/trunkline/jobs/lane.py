"""One queue of a worker: claims ahead, runs so many at once, and gives back what it did not start."""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from trunkline.db import calls
from trunkline.db.codec import duration
from trunkline.db.tasks import Background, Bell, log
from trunkline.db.wakeup import Watch
from trunkline.errors import PermissionDenied, TrunklineError, Unavailable
from trunkline.jobs.arguments import to_json
from trunkline.jobs.job import MAX_ATTEMPTS, Job
from trunkline.jobs.limits import Holder
from trunkline.jobs.outcomes import Bury, Done, Retry, Snooze
from trunkline.jobs.processes import HandlerError
from trunkline.jobs.refusals import EffectUnknown, InvalidArguments
from trunkline.jobs.running import Item, Lease
from trunkline.jobs.running_calls import call
from trunkline.jobs.settling import Verdict
from trunkline.types import Delivery

if TYPE_CHECKING:
    from trunkline.jobs.worker import Worker

_RETRY_SECONDS = 0.5
_MOST = 1000
_TURN = 32
_QUICK = 0.2
_BY_LABEL_SECONDS = 300.0
_NEVER_STARTED = 1_000_000_000


class Lane:
    """What a worker does for one queue."""

    def __init__(self, worker: Worker, queue: str, concurrency: int, prefetch: int | None) -> None:
        self.queue = queue
        self.concurrency = concurrency
        self.running = 0
        self.done = 0
        self.failed = 0
        self.claiming = False
        self._worker = worker
        self._kinds = {name: job for name, job in worker.app.kinds.items() if job.function is not None}
        self._gates = {name: _Gate(worker, job, worker.app.queue_limits.get(queue, ())) for name, job in self._kinds.items()}
        self._ready: deque[Item] = deque()
        self._blocked: dict[str, deque[Item]] = {}
        self._partitions: dict[int, deque[Item]] = {}
        self._idle: deque[asyncio.Future[None]] = deque()
        self._ahead = prefetch if prefetch is not None else concurrency
        self._fixed = prefetch is not None
        self._low = Bell()
        self._watch: Watch | None = None
        self._claimer: Background | None = None
        self._slots: set[asyncio.Task[None]] = set()
        self._lease = timedelta(seconds=30)
        self._max_attempts = _NEVER_STARTED
        self._ordered = False
        self._by_label_until = 0.0
        self._stopping = False

    async def start(self) -> None:
        runtime = self._worker.runtime
        try:
            async with runtime.connection() as conn:
                settings = await calls.get_queue(conn, self.queue)
            self._lease, self._max_attempts, self._ordered = settings.lease, settings.max_attempts, settings.ordered
        except PermissionDenied:
            log.warning("the settings of queue %s cannot be read; a lease of 30 s is used", self.queue)
        if self._worker.lease is not None:
            self._lease = self._worker.lease
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
                log.warning("queue %s: %s; trying again", self.queue, exc)
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception as exc:
                log.error("queue %s: %s: %s; trying again", self.queue, type(exc).__name__, exc)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _claim_turn(self) -> None:
        assert self._watch is not None  # noqa: S101
        self._low.hush()
        self._watch.hush()
        held = len(self._ready) + self.running + sum(map(len, self._blocked.values()))
        want = min(_MOST, self.concurrency + self._ahead - held)
        if want < max(1, (self._ahead + 1) // 2):
            await self._low.wait(1.0)
            return
        labels = self._labels()
        if labels is not None and not labels:
            await self._low.wait(1.0)
            return
        began = monotonic()
        self.claiming = True
        try:
            taken = await self._claim(want, labels, began)
        finally:
            self.claiming = False
        if len(taken) < want:
            await self._watch.wait()
        elif not self._fixed:
            await self._low.wait(1.0)
            quick = monotonic() - began < _QUICK
            self._ahead = min(_MOST, self._ahead * 2) if quick else max(self.concurrency, self._ahead // 2)

    def _labels(self) -> list[str] | None:
        """The kinds to ask for. None, the short way, while all that comes can be handled and nothing is held back."""
        if self._ordered:
            return None
        full = {name for name, gate in self._gates.items() if gate.full(self._blocked.get(name))}
        if not full and monotonic() > self._by_label_until:
            return None
        return [name for name in self._kinds if name not in full]

    async def _claim(self, want: int, labels: list[str] | None, began: float) -> list[Delivery[Any]]:
        runtime = self._worker.runtime
        # at the same time, so that an idle worker picks up a job in one round trip
        cancels = asyncio.create_task(self._read_cancels()) if self._worker.cancels_due else None
        async with runtime.connection() as conn:
            take = partial(
                calls.claim,
                conn,
                Delivery,
                max_messages=want,
                lease=self._lease,
                labels=labels,
                consumer=self._worker.name,
            )
            taken: list[Delivery[Any]] = await runtime.own_function(conn, "queue", self.queue, take)
        if cancels is not None:
            await cancels
        if taken:
            self._receive(taken, began)
        return taken

    async def _read_cancels(self) -> None:
        try:
            await self._worker.refresh_cancels()
        except TrunklineError as exc:
            log.warning("cancels could not be read: %s", exc)

    def _receive(self, taken: list[Delivery[Any]], began: float) -> None:
        span = self._lease.total_seconds()
        leases: dict[str, Lease] = {}
        foreign: list[Item] = []
        for delivery in taken:
            text = delivery.receipt.partition(".")[2]
            lease = leases.get(text)
            if lease is None:
                lease = leases[text] = Lease(text, span, began + span)
            job = self._kinds.get(delivery.label or "")
            item = Item(delivery, job or self._worker.nobody, lease, self._limit(delivery, job))
            lease.open[delivery.offset] = item
            if self._stopping:
                # the stop came while the claim was under way
                item.settled = True
                self._worker.settler.settle(item, Verdict("release"))
            elif job is None:
                foreign.append(item)
            else:
                self._queue_up(item)
        for lease in leases.values():
            self._worker.heartbeat.add(lease)
        if foreign:
            self._pass_over(foreign)
        self._wake(len(taken))

    def _pass_over(self, foreign: list[Item]) -> None:
        """Kinds that this worker does not know stay for others, without an attempt; from now on it asks by kind."""
        self._by_label_until = monotonic() + _BY_LABEL_SECONDS
        for item in foreign:
            if self._ordered:
                # nothing behind it may run before it, so it cannot be passed over for ever
                error = f"no worker of this queue knows the job {item.delivery.label!r}"
                self._worker.settler.settle(item, Verdict("nack", None, error))
            else:
                self._worker.settler.settle(item, Verdict("release"))

    def _limit(self, delivery: Delivery[Any], job: Job[..., Any] | None) -> int:
        """How often this job may be tried: what it was enqueued with, its kind, the app, the queue."""
        own = None if delivery.headers is None else delivery.headers.get(MAX_ATTEMPTS)
        if isinstance(own, int) and own > 0:
            return min(own, self._max_attempts)
        kind = None if job is None else job.definition.max_attempts
        return min(kind or self._worker.app.max_attempts, self._max_attempts)

    def _queue_up(self, item: Item) -> None:
        if not self._ordered:
            self._ready.append(item)
            return
        # one at a time per partition: the next one comes when this one has ended
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
                # meant for a job that ended at the same moment
                if self._worker.closed:
                    raise
                me.uncancel()
            except Exception:
                log.exception("a slot of queue %s goes on after", self.queue)

    def _next(self) -> Item | None:
        """The next job that may start now; those that a limit holds back are put aside."""
        while self._ready:
            item = self._ready.popleft()
            if len(self._ready) * 2 <= self._ahead:
                self._low.ring()
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
        """A limit may have room: look again at what was put aside."""
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
        try:
            verdict = await self._judge(item)
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
        if len(self._ready) * 2 <= self._ahead:
            self._low.ring()
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
        self._forget(item, came_back=verdict is not None and verdict.verb in ("nack", "snooze", "release"))
        blocked = self._blocked.get(item.job.name)
        if blocked:
            gate.unwait()
            self._ready.appendleft(blocked.popleft())
            self._wake(1)
        self._worker.finished(item, verdict)

    def _forget(self, item: Item, *, came_back: bool = False) -> None:
        if item.lost:
            item.lease.open.pop(item.delivery.offset, None)
        if not self._ordered:
            return
        partition = self._partitions.get(item.delivery.partition)
        if not partition or item not in partition:
            return
        partition.popleft()
        if came_back or item.lost:
            # the kernel took back all that is behind it
            for behind in partition:
                behind.lease.open.pop(behind.delivery.offset, None)
            partition.clear()
        if partition:
            self._ready.append(partition[0])
            self._wake(1)

    async def _judge(self, item: Item) -> Verdict | None:
        """Run the handler and say what is to become of the job. None: nothing, it is not ours any more."""
        delivery, job = item.delivery, item.job
        if self._worker.cancels and (reason := await self._worker.cancelled(delivery.id)) is not None:
            return Verdict("bury", None, f"cancelled before it started: {reason}")
        if delivery.attempt > item.max_attempts:
            return Verdict("bury", None, f"its worker died in each of {item.max_attempts} attempts")
        definition = job.definition
        try:
            if definition.at_most_once:
                item.settled = await self._worker.settler.ack_now(item) == "done"
                if not item.settled:
                    return None
            if definition.timeout is not None:
                self._worker.give_time(item, definition.timeout.total_seconds())
            value = await call(self._worker, item)
        except asyncio.CancelledError as exc:
            if item.reason is not None:
                return self._stopped(item)
            if self._worker.closed:
                raise
            # the handler's own: it waited for something that was cancelled
            return self._failed(item, exc)
        except (InvalidArguments, EffectUnknown) as exc:
            return Verdict("bury", None, f"{type(exc).__name__}: {exc}")
        except BaseException as exc:
            if item.reason is not None:
                return self._stopped(item)
            return self._failed(item, exc)
        if item.reason is not None and item.reason.startswith("timeout"):
            return self._stopped(item)
        return self._answered(item, value)

    def _answered(self, item: Item, value: Any) -> Verdict | None:
        match value:
            case Retry():
                return self._again(item, value.error or "the handler asked for a retry", duration(value.after))
            case Snooze():
                return Verdict("snooze", duration(value.after))
            case Bury():
                return Verdict("bury", None, value.reason)
            case Done():
                value = value.result
        if item.tracked and not (item.settled and item.result is not None):
            try:
                result = to_json(value)
            except (TypeError, ValueError, RecursionError) as exc:
                return Verdict("bury", None, f"the result cannot be stored: {exc}")
            if item.settled:
                self._worker.store_result(item, result)
            item.result = result
        return Verdict("ack")

    def _stopped(self, item: Item) -> Verdict | None:
        kind, _, words = (item.reason or "").partition(": ")
        if kind == "lost":
            return None
        if kind == "stop":
            return Verdict("release")
        if kind == "cancel":
            return Verdict("bury", None, f"cancelled: {words}")
        return self._again(item, words, None, TimeoutError())

    def _failed(self, item: Item, exc: BaseException) -> Verdict:
        if isinstance(exc, HandlerError):
            words = f"{exc}\n{exc.trace}"
        else:
            lines = traceback.format_exception(exc, limit=-12)
            words = f"{type(exc).__name__}: {exc}\n{''.join(lines)}"
        log.warning(
            "job %s %s failed in attempt %s: %s",
            item.job.name,
            item.delivery.id,
            item.delivery.attempt,
            words.splitlines()[0],
        )
        return self._again(item, words, None, exc)

    def _again(self, item: Item, error: str, delay: timedelta | None, exc: BaseException | None = None) -> Verdict:
        """Another attempt after a pause; or none, because this was the last or its error is not worth one."""
        definition, attempt = item.job.definition, item.delivery.attempt
        backoff = definition.backoff or self._worker.app.backoff
        for kind, other in definition.errors.items():
            if isinstance(exc, kind):
                if other is None:
                    return Verdict("bury", None, error)
                backoff = other
                break
        if attempt >= item.max_attempts:
            # where the queue's own limit is reached, its dead letter says so
            if attempt < self._max_attempts:
                return Verdict("bury", None, error)
            return Verdict("nack" if item.plain and not self._ordered else "bury", timedelta(0), error)
        return Verdict("nack", backoff.after(attempt) if delay is None else delay, error)

    # Ending

    def stop(self) -> list[Item]:
        """No new claims; answers what was taken and not started."""
        self._stopping = True
        self._low.ring()
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
        """Leave a handler behind that does not end although it was told to; another slot takes its place."""
        if item.slot is None or item.abandoned:
            return
        log.error(
            "the handler of job %s %s ignores that it was told to end (%s); left behind",
            item.job.name,
            item.delivery.id,
            item.reason,
        )
        item.abandoned = True
        self._finish(item, self._stopped(item))
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


class _Gate:
    """How many jobs of one kind may run here: its own concurrency, and the worker's shares of limits over all processes."""

    def __init__(self, worker: Worker, job: Job[..., Any], queue_limits: Any) -> None:
        self._most = job.definition.concurrency
        self._running = 0
        self._worker = worker
        self.holders: list[Holder] = [worker.holder(limit) for limit in (*queue_limits, *job.definition.limits)]

    @property
    def open(self) -> bool:
        """Whether one more may start."""
        return self.local_room() and (not self.holders or self.room())

    def local_room(self) -> bool:
        return self._most is None or self._running < self._most

    def room(self) -> bool:
        now = monotonic()
        return all(holder.room(now) for holder in self.holders)

    def full(self, blocked: deque[Item] | None) -> bool:
        """Whether more of this kind would only wait here."""
        if not blocked:
            return False
        return not self.local_room() or len(blocked) >= 2 * max(1, self._running) or not self.room()

    def enter(self) -> None:
        self._running += 1
        for holder in self.holders:
            holder.enter()

    def leave(self) -> None:
        self._running -= 1
        for holder in self.holders:
            holder.leave()

    def wait(self) -> None:
        for holder in self.holders:
            holder.waiting += 1
        self._worker.need_limits()

    def unwait(self) -> None:
        for holder in self.holders:
            holder.waiting = max(0, holder.waiting - 1)
