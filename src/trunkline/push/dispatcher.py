"""The dispatcher: sends messages of bound queues to their endpoints. Several processes may run; they share limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Any
from uuid import UUID

import aiohttp

from trunkline.concurrency.aio import log
from trunkline.db.calls import push
from trunkline.db.calls.push import EndpointPlan
from trunkline.errors import OutcomeUnknown, TrunklineError, Unavailable
from trunkline.push.attempt_log import AttemptLog, RenewedLeases
from trunkline.push.egress import Guard
from trunkline.push.endpoint_sender import EndpointSender, trial_settlement
from trunkline.push.outcomes import Reply
from trunkline.push.rate_limiter import RateLimiter
from trunkline.push.request import READ_LIMIT, Prepared, trial
from trunkline.push.sender import Sender
from trunkline.runtime.names import consumer_name
from trunkline.runtime.session import Session

PLAN_SECONDS = 0.9


class DispatchContext:
    """State shared by all endpoints of a dispatcher."""

    def __init__(self, session: Session, sender: Sender, on_start: Callable[[str], None] | None) -> None:
        self.name = consumer_name()
        self.session = session
        self.held = RenewedLeases(session)
        self.attempt_log = AttemptLog(session, self.name, self.held)
        self._sender = sender
        self._on_start = on_start
        self._clock = time.time() - monotonic()

    def set_clock(self, now: datetime) -> None:
        """Set the database's clock, which request timestamps follow."""
        self._clock = now.timestamp() - monotonic()

    def now(self) -> float:
        return self._clock + monotonic()

    def request(self, planned: EndpointPlan, prepared: Prepared, limit: int = READ_LIMIT) -> Coroutine[Any, Any, Reply]:
        if self._on_start is not None:
            self._on_start(planned.name)
        return self._sender.send(
            planned.url,
            prepared,
            secrets=planned.secrets,
            headers=planned.headers,
            timeout=planned.timeout,
            stamp=int(self.now()),
            limit=limit,
        )


class Dispatcher:
    """`await Dispatcher(url).run(stop)` sends until `stop` is set, then finishes the requests in flight.

    `allow` lists networks that requests may reach besides the public internet. `on_start` is called with the endpoint's
    name at the start of each request.
    """

    def __init__(
        self,
        url: str,
        *,
        allow: Sequence[str] = (),
        max_connections: int = 10,
        grace: float = 30.0,
        on_start: Callable[[str], None] | None = None,
        resolver: aiohttp.abc.AbstractResolver | None = None,
    ) -> None:
        self._url = url
        self._guard = Guard(allow)
        self._max_connections = max_connections
        self._grace = grace
        self._on_start = on_start
        self._resolver = resolver
        self._senders: dict[int, EndpointSender] = {}
        self._trials: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        session = Session(self._url, max_connections=self._max_connections, prepare=True, pool_timeout=timedelta(seconds=30))
        sender = Sender(self._guard, resolver=self._resolver)
        context = DispatchContext(session, sender, self._on_start)
        try:
            while not stop.is_set():
                await self._refresh(context)
                try:
                    await asyncio.wait_for(stop.wait(), PLAN_SECONDS)
                except TimeoutError:
                    continue
        finally:
            await self._end(context)
            await sender.close()
            await session.close()

    async def _refresh(self, context: DispatchContext) -> None:
        asked_at = monotonic()
        try:
            async with context.session.connection(writing=True) as conn:
                plan = await push.dispatch_plan(conn, context.name)
        except (Unavailable, OutcomeUnknown) as exc:
            log.warning("could not load the dispatch plan; retrying in %s s: %s", PLAN_SECONDS, exc)
            return
        if plan:
            context.set_clock(plan[0].now)
        wanted = {planned.endpoint_id: planned for planned in plan if planned.queues}
        for gone in self._senders.keys() - wanted.keys():
            task = asyncio.create_task(self._senders.pop(gone).stop(self._grace))
            self._keep(task)
        for number, planned in wanted.items():
            if number in self._senders:
                self._senders[number].update(planned, asked_at)
            else:
                self._senders[number] = EndpointSender(context, planned)
        for planned in plan:
            for id in planned.tests or ():
                self._keep(asyncio.create_task(self._try_out(context, planned, id)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._trials.add(task)
        task.add_done_callback(self._trials.discard)

    async def _try_out(self, context: DispatchContext, planned: EndpointPlan, id: UUID) -> None:
        async def take(want: int) -> push.Permits:
            async with context.session.connection(writing=True) as conn:
                return await push.acquire_permits(conn, planned.endpoint_id, want)

        if planned.rate is not None:
            # test requests count towards the rate limit
            await RateLimiter(take).permit()
        started = monotonic()
        response = await context.request(planned, trial(id))
        if response.refused:
            async with context.session.connection(writing=True) as conn:
                await push.deny_egress(conn, context.name, planned.endpoint_id, response.error or "", probing=False)
                if await push.return_test(conn, planned.endpoint_id, id):
                    return  # another dispatcher may send it
        context.attempt_log.add([trial_settlement(planned, id, response, started)])

    async def _end(self, context: DispatchContext) -> None:
        stopping = [sender.stop(self._grace) for sender in self._senders.values()]
        await asyncio.gather(*stopping, return_exceptions=True)
        if self._trials:
            await asyncio.wait(tuple(self._trials), timeout=self._grace)
        await context.attempt_log.drain()
        try:
            async with context.session.connection(writing=True) as conn:
                await push.leave_dispatch(conn, context.name)
        except TrunklineError as exc:
            log.warning("could not deregister dispatcher dispatcher=%s error=%s", context.name, exc)
