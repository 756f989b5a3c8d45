"""One endpoint in one dispatcher: claims from its queues, sends within its limits, and settles by the answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgspec

from trunkline.client import consuming
from trunkline.db import push
from trunkline.db.push import Planned, Settlement
from trunkline.db.tasks import log
from trunkline.errors import OutcomeUnknown, TrunklineError, Unavailable
from trunkline.push import outcomes, requests
from trunkline.push.breaker import Breaker, Store
from trunkline.push.limits import Window
from trunkline.push.outcomes import Answer, Verdict
from trunkline.push.permits import Pace
from trunkline.types import Delivery

if TYPE_CHECKING:
    from trunkline.push.dispatcher import Post

_RETRY_SECONDS = 0.5
_MOST_CLAIMED = 1000


class Source(NamedTuple):
    """A bound queue."""

    queue_id: int
    name: str
    ordered: bool
    lease: float


class Run(NamedTuple):
    """Deliveries of one queue that are sent one after another, in as many requests as the mode needs."""

    source: Source
    deliveries: list[Delivery[Any]]


class Lane:
    """An endpoint that has queues. Other lanes share nothing with it but the connections to the database."""

    def __init__(self, post: Post, planned: Planned) -> None:
        self._post = post
        self._planned = planned
        self._window = Window(planned.share)
        self._pace = Pace(self._take_permits)
        self._breaker = Breaker(Store(self._open_breaker, self._take_probe, self._close_breaker))
        self._feeds: dict[Source, asyncio.Task[None]] = {}
        self._buffer: deque[Run] = deque()
        self._room: deque[asyncio.Future[None]] = deque()
        self._under_way = 0
        self._held = 0
        self._work: set[asyncio.Task[None]] = set()
        self._starts_at = 0.0
        self._held_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self.update(planned)

    # The plan

    def update(self, planned: Planned) -> None:
        self._planned = planned
        now = monotonic()
        self._window.most = planned.share
        self._starts_at = now + planned.wait
        self._held_until = now + (planned.held_for or 0.0)
        self._breaker.update(planned.openings, planned.open_for)
        wanted = {
            Source(*each)
            for each in zip(
                planned.queue_ids or (), planned.queues or (), planned.ordered or (), planned.leases or (), strict=True
            )
        }
        for source in [each for each in self._feeds if each not in wanted or self._feeds[each].done()]:
            self._feeds.pop(source).cancel()
        for source in wanted - self._feeds.keys():
            self._feeds[source] = asyncio.create_task(self._feed(source), name=f"trunkline push {source.name}")
        if not self._may_send():
            self._give_back()
        self._go_on()

    async def stop(self, grace: float) -> None:
        """No more claims; what was not sent goes back, what is under way gets the grace time."""
        self._stopped = True
        for feed in self._feeds.values():
            feed.cancel()
        self._give_back()
        if self._timer is not None:
            self._timer.cancel()
        if self._work:
            await asyncio.wait(self._work, timeout=grace)
        for task in tuple(self._work):
            task.cancel()
        await self._pace.close()

    def _may_send(self) -> bool:
        return (
            not self._stopped
            and self._planned.enabled
            and self._window.size > 0
            and monotonic() >= max(self._starts_at, self._held_until)
            and (self._breaker.closed or (self._breaker.half_open and not self._breaker.probing))
        )

    # Claiming

    def _limit(self) -> int:
        """How many deliveries to hold: under way, being settled, and enough more so that claims are for many at once."""
        size = self._planned.batch_size if self._planned.mode == "batch" else 1
        limit = 4 * self._window.size * size
        if self._planned.rate is not None:
            limit = min(limit, max(1, int(2 * self._planned.rate)) * size)
        return limit

    def _free(self) -> int:
        if not self._may_send():
            return 0
        if not self._breaker.closed:
            return 1 if self._held == 0 else 0
        limit = self._limit()
        free = limit - self._held
        return free if free >= max(1, limit // 4) else 0

    async def _feed(self, source: Source) -> None:
        """Claims from one queue whenever there is something and room for it."""
        watch = self._post.runtime.wakeup.watch("queue", source.name)
        try:
            while True:
                want = min(await self._reserve(), _MOST_CLAIMED)
                watch.hush()
                taken: Sequence[Delivery[Any]] = ()
                try:
                    taken = await consuming.claim(
                        self._post.runtime,
                        self._post.settler,
                        source.name,
                        max_messages=want,
                        lease=timedelta(seconds=source.lease),
                        labels=None,
                        consumer=self._post.name,
                        type=None,
                    )
                except (Unavailable, OutcomeUnknown) as exc:
                    log.warning("queue %s: %s; trying again", source.name, exc)
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                finally:
                    self._held -= want - len(taken)
                    self._go_on()
                if taken:
                    self._post.held.add([each.receipt for each in taken], source.lease)
                    await self._accept(source, taken)
                else:
                    await watch.wait()
        except TrunklineError as exc:
            # the queue is gone, or is being deleted; the next plan knows
            log.warning("queue %s is not read: %s", source.name, exc)
        finally:
            self._post.runtime.wakeup.unwatch(watch)

    async def _reserve(self) -> int:
        """Room for deliveries, taken before they are claimed. One feed is let in at a time, in the order of asking."""
        while (free := self._free()) <= 0:
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(place)
            await place
        # not all of it for one of many queues: it may be empty
        part = max(1, free // min(4, len(self._feeds)))
        self._held += part
        self._go_on()
        return part

    async def _accept(self, source: Source, taken: Sequence[Delivery[Any]]) -> None:
        if not self._breaker.closed and not await self._take_probe_now():
            self._release(source, taken)
            return
        if source.ordered:
            by_partition = sorted(taken, key=lambda each: (each.topic or "", each.partition, each.offset))
            for _, group in groupby(by_partition, key=lambda each: (each.topic, each.partition)):
                self._buffer.append(Run(source, list(group)))
        else:
            size = self._planned.batch_size if self._planned.mode == "batch" else 1
            for start in range(0, len(taken), size):
                self._buffer.append(Run(source, list(taken[start : start + size])))
        self._pump()

    async def _take_probe_now(self) -> bool:
        try:
            return self._breaker.closed or await self._breaker.take_probe()
        except TrunklineError:
            return False

    def _go_on(self) -> None:
        """Something changed: send what can be sent, let the next feed in, look again when a pause ends."""
        self._pump()
        while self._room and self._room[0].done():
            self._room.popleft()
        if self._room and self._free() > 0:
            self._room.popleft().set_result(None)
        self._watch_the_time()

    def _watch_the_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ends = [at for at in (self._starts_at, self._held_until) if at > monotonic()]
        if ends and not self._stopped:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(ends) - monotonic() + 0.001, self._go_on)

    # Sending

    def _pump(self) -> None:
        size = 1 if not self._breaker.closed else self._window.size
        while self._buffer and self._under_way < size and (self._may_send() or self._breaker.probing):
            run = self._buffer.popleft()
            self._under_way += 1
            task = asyncio.create_task(self._send_run(run))
            self._work.add(task)
            task.add_done_callback(self._work.discard)

    async def _send_run(self, run: Run) -> None:
        try:
            await self._send_parts(run)
        finally:
            # the next request need not wait until these are settled
            self._under_way -= 1
            self._go_on()

    async def _send_parts(self, run: Run) -> None:
        size = self._planned.batch_size if self._planned.mode == "batch" else 1
        for start in range(0, len(run.deliveries), size):
            if self._planned.rate is not None:
                await self._pace.permit()
            # looked at after the wait for a permit, and again for each part of an ordered run
            if not (self._may_send() or self._breaker.probing):
                self._release(run.source, run.deliveries[start:])
                return
            part = run.deliveries[start : start + size]
            verdicts = await self._send(run.source, part)
            if run.source.ordered and any(verdict.outcome != "acked" for verdict in verdicts):
                # the database takes back what is behind the one that failed
                behind = run.deliveries[start + len(verdicts) :]
                self._post.held.drop([each.receipt for each in behind])
                self._held -= len(behind)
                return

    async def _send(self, source: Source, part: list[Delivery[Any]]) -> list[Verdict]:
        """One request; answers what becomes of its deliveries, in an ordered queue up to the first that failed."""
        planned = self._planned
        if planned.mode == "batch":
            prepared, limit = requests.batch([(source.name, each) for each in part]), requests.BATCH_READ_LIMIT
        else:
            prepared, limit = requests.single(source.name, part[0]), requests.READ_LIMIT
        answer = await self._post.request(planned, prepared, limit)
        now = self._post.now()
        if planned.mode == "batch":
            verdicts = outcomes.judge_batch(answer, [each.id for each in part], now)
        else:
            verdicts = [outcomes.judge(answer, now)]
        if source.ordered:
            verdicts = _upto_first_failure(verdicts)
        items = [_settlement(planned, source, each, verdict, answer) for each, verdict in zip(part, verdicts, strict=False)]
        self._settle(items)
        try:
            await self._learn(answer, now)
        except TrunklineError as exc:
            log.warning("the state of endpoint %s was not written: %s", planned.name, exc)
        return verdicts

    async def _learn(self, answer: Answer, now: datetime) -> None:
        """What the answer says about the endpoint."""
        state = outcomes.health(answer)
        if state == "good":
            self._window.went_well()
            if not self._breaker.closed:
                log.info("endpoint %s answers again", self._planned.name)
            await self._breaker.good()
            return
        self._window.went_badly(monotonic())
        if state == "gone":
            log.warning("endpoint %s answered 410 and is disabled", self._planned.name)
            async with self._post.runtime.connection(writing=True) as conn:
                await push.disable_endpoint(conn, self._planned.name, reason="the receiver answered 410 Gone")
            self._planned = msgspec.structs.replace(self._planned, enabled=False)
            self._give_back()
        elif state == "busy":
            # it answers: a probe that gets this closes the breaker
            await self._breaker.good()
            await self._hold(outcomes.pause_asked_for(answer, now))
        elif await self._breaker.failed():
            log.warning("endpoint %s fails; its breaker is open", self._planned.name)
            self._give_back()

    async def _hold(self, pause: timedelta | None) -> None:
        if pause is None or monotonic() + pause.total_seconds() <= self._held_until + 1:
            return
        self._held_until = monotonic() + min(pause.total_seconds(), 3600)
        async with self._post.runtime.connection(writing=True) as conn:
            await push.hold_endpoint(conn, self._planned.endpoint_id, pause)
        self._give_back()

    def _give_back(self) -> None:
        """What was claimed and not sent goes back, without an attempt."""
        runs, self._buffer = list(self._buffer), deque()
        for run in runs:
            self._release(run.source, run.deliveries)

    def _release(self, source: Source, deliveries: Sequence[Delivery[Any]]) -> None:
        verdict = Verdict("released")
        self._settle([_settlement(self._planned, source, each, verdict, None) for each in deliveries])

    def _settle(self, items: list[Settlement]) -> None:
        def settled() -> None:
            self._held -= len(items)
            self._go_on()

        self._post.settlements.add(items, settled)

    # The database

    async def _take_permits(self, want: int) -> push.Permits:
        async with self._post.runtime.connection(writing=True) as conn:
            return await push.take_permits(conn, self._planned.endpoint_id, want)

    async def _open_breaker(self, openings: int) -> float:
        async with self._post.runtime.connection(writing=True) as conn:
            return await push.open_breaker(conn, self._planned.endpoint_id, openings)

    async def _take_probe(self) -> bool:
        async with self._post.runtime.connection(writing=True) as conn:
            return await push.take_probe(conn, self._planned.endpoint_id)

    async def _close_breaker(self) -> None:
        async with self._post.runtime.connection(writing=True) as conn:
            await push.close_breaker(conn, self._planned.endpoint_id)


def _upto_first_failure(verdicts: list[Verdict]) -> list[Verdict]:
    """In an ordered queue nothing behind a message that failed counts: the database sends all of it again."""
    for number, verdict in enumerate(verdicts):
        if verdict.outcome != "acked":
            return verdicts[: number + 1]
    return verdicts


def _settlement(
    planned: Planned, source: Source, delivery: Delivery[Any], verdict: Verdict, answer: Answer | None
) -> Settlement:
    return Settlement(
        endpoint_id=planned.endpoint_id,
        queue_id=source.queue_id,
        receipt=delivery.receipt,
        id=delivery.id,
        attempt=delivery.attempt,
        age=0.0 if answer is None else answer.seconds,
        seconds=None if answer is None else answer.seconds,
        status=None if answer is None else answer.status,
        outcome=verdict.outcome,
        delay=verdict.delay,
        error=verdict.error,
        snippet=None if answer is None else snippet(answer),
    )


def trial_settlement(planned: Planned, id: UUID, answer: Answer) -> Settlement:
    return Settlement(
        endpoint_id=planned.endpoint_id,
        queue_id=None,
        receipt=None,
        id=id,
        attempt=1,
        age=answer.seconds,
        seconds=answer.seconds,
        status=answer.status,
        outcome="tested",
        delay=None,
        error=answer.error,
        snippet=snippet(answer),
    )


def snippet(answer: Answer) -> str | None:
    """The start of the answer as text that Postgres can store."""
    text = answer.body[: requests.SNIPPET].decode("utf-8", "replace").replace("\0", "\ufffd")
    return text or None
