"""The app: the jobs of a program, their queues, limits and schedules."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload
from uuid import UUID

import msgspec

from trunkline.client import Client
from trunkline.codec import duration
from trunkline.concurrency.aio import log
from trunkline.db.calls import jobs as calls
from trunkline.errors import InvalidArgument, InvalidType, InvalidValue, PermissionDenied, QueueNotFound
from trunkline.jobs import enqueue
from trunkline.jobs.arguments import Arguments, parameters, wants_context
from trunkline.jobs.backoff import Backoff
from trunkline.jobs.context import Context, ProcessContext, SyncContext
from trunkline.jobs.errors import UnknownKind
from trunkline.jobs.handle import Handle
from trunkline.jobs.job import Call, Catching, Definition, Job, Middleware, Options
from trunkline.jobs.limits import Limit
from trunkline.jobs.outcomes import result_type
from trunkline.types import CatchUp, Duration

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_ATTEMPTS = 5


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is enqueued at the times of a cron expression, once across all processes."""

    name: str
    cron: str
    call: Call
    timezone: str
    catch_up: CatchUp


class JobMaker:
    """The decorator `@app.job`, with or without settings."""

    def __init__(self, app: App, settings: dict[str, Any] | None = None) -> None:
        self._app = app
        self._settings = settings or {}

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[SyncContext, P], R], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[ProcessContext, P], R], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Job[P, R]: ...
    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        errors: Mapping[type[BaseException], Backoff | None] | None = None,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        limits: Sequence[Limit] = (),
        result: bool = False,
        at_most_once: bool = False,
        process: bool = False,
        key: Callable[..., str | None] | None = None,
        unique: bool | Callable[..., str] = False,
        hold: Duration = "1d",
        cron: str | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp = "one",
    ) -> JobMaker: ...
    def __call__(self, function: Any = None, /, **settings: Any) -> Any:
        """Register a function as a job, or return a decorator with these settings. See `App.job`."""
        if function is None:
            return JobMaker(self._app, self._settings | settings)
        return self._app._define(function, sys._getframe(1).f_locals, **self._settings)


class App:
    """The jobs of a program: `app = App("postgresql:///app")`. The URL defaults to TRUNKLINE_DATABASE_URL.

    The first enqueue opens a client; `async with app:` closes it at the end. Missing queues are created, with the
    settings declared on the app, when a worker starts or a job is first enqueued.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        client: Client | None = None,
        queue: str = "default",
        max_attempts: int = _ATTEMPTS,
        backoff: Backoff | None = None,
        max_connections: int = 10,
    ) -> None:
        self.url = url
        self.default_queue = queue
        self.max_attempts = max_attempts
        self.backoff = backoff or Backoff()
        self.kinds: dict[str, Job[..., Any]] = {}
        self.queues: dict[str, dict[str, Any]] = {}
        self.queue_limits: dict[str, tuple[Limit, ...]] = {}
        self.schedules: dict[str, Schedule] = {}
        self.middlewares: list[Middleware] = []
        self.observers: list[Callable[[Call, Handle[Any]], None]] = []
        """Callbacks for every job that this app enqueues, for tests."""
        self.job = JobMaker(self)
        """Registers a function as a job: `@app.job`, or `@app.job(queue="mail", max_attempts=8, timeout="30s")`.

        An async function runs on the worker's event loop. A plain function runs in a thread or, with `process=True`, in
        a process. If the first parameter is annotated `Context` (`SyncContext` in threads, `ProcessContext` in
        processes), it receives the context.
        """
        self._client = client
        self._owns_client = client is None
        self._max_connections = max_connections

    # Lifetime

    @property
    def client(self) -> Client:
        """The client of this app, opened on first use."""
        if self._client is None:
            self._client = Client(self.url, max_connections=self._max_connections)
        return self._client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._client is not None and self._owns_client:
            client, self._client = self._client, None
            await client.close()

    @asynccontextmanager
    async def transaction(self) -> Any:
        """Open a transaction on one of the app's connections, to combine `job.on(conn)` with your own writes."""
        async with self.client.connection() as conn, conn.transaction():
            yield conn
        self.client.wake()

    # Defining

    def _define(
        self,
        function: Callable[..., Any],
        names: Mapping[str, Any],
        *,
        name: str | None = None,
        queue: str | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        errors: Catching | None = None,
        timeout: Duration | None = None,
        hold: Duration = "1d",
        limits: Sequence[Limit] = (),
        cron: str | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp = "one",
        **rest: Any,
    ) -> Job[..., Any]:
        kind = name or function.__name__
        arguments, context = Arguments.of(kind, function, names)
        definition = Definition(
            queue=queue or self.default_queue,
            max_attempts=max_attempts,
            backoff=backoff,
            errors=dict(errors or {}),
            timeout=duration(timeout),
            hold=duration(hold) or timedelta(days=1),
            limits=tuple(limits),
            **rest,
        )
        _, hints = parameters(function, names)
        job = self._add(
            Job(self, kind, function, arguments, definition, context=context, returns=result_type(hints.get("return")))
        )
        if cron is not None:
            self.schedule(kind, cron, job.bind(), timezone=timezone, catch_up=catch_up)
        return job

    def _add(self, job: Job[..., Any]) -> Job[..., Any]:
        known = self.kinds.get(job.name)
        if known is not None and known.function is not None:
            raise InvalidValue(f"job {job.name!r} is already defined; set another name with name=")
        self.kinds[job.name] = job
        self.queue(job.definition.queue)
        return job

    def kind(self, name: str, type: type[T], *, queue: str | None = None, result: bool = False) -> Job[[T], Any]:
        """Declare a job by name and payload type, without its function: for producers, and for `handlers`."""
        arguments = Arguments(name, [("payload", type, None)], whole=type)
        definition = Definition(queue=queue or self.default_queue, result=result)
        job: Job[[T], Any] = Job(self, name, None, arguments, definition)
        self._add(job)
        return job

    def handlers(self, handlers: Mapping[Any, Callable[..., Any]]) -> Self:
        """Register handlers by name or by job from `kind`.

        A handler takes the payload, or the payload and the context.
        """
        names = sys._getframe(1).f_locals
        for which, function in handlers.items():
            name = which.name if isinstance(which, Job) else str(which)
            signature, hints = parameters(function, names)
            known = self.kinds.get(name)
            context = len(signature) > 1
            if not 1 <= len(signature) <= 2 or (context and not wants_context(hints.get(signature[1].name, Context))):
                raise InvalidType(f"the handler of {name!r} must take the payload, or the payload and the context")
            whole = hints.get(signature[0].name, Any)
            arguments = known.arguments if known else Arguments(name, [("payload", whole, None)], whole=whole)
            definition = known.definition if known else Definition(queue=self.default_queue)
            self._add(Job(self, name, function, arguments, definition, context=context, context_last=True))
        return self

    def queue(self, name: str, *, limits: Sequence[Limit] = (), **settings: Any) -> Self:
        """Declare a queue with settings of `client.queues.create`. `limits` apply to all its jobs."""
        self.queues.setdefault(name, {}).update(settings)
        if limits:
            self.queue_limits[name] = tuple(limits)
        return self

    def schedule(self, name: str, cron: str, call: Call, *, timezone: str = "UTC", catch_up: CatchUp = "one") -> Self:
        """Enqueue `call` at the times of a cron expression, once across all processes. Requires upkeep to run."""
        if name in self.schedules:
            raise InvalidValue(f"schedule {name!r} is already defined")
        if not call.plain:
            raise InvalidValue("a scheduled job cannot have unique or after")
        self.schedules[name] = Schedule(name=name, cron=cron, call=call, timezone=timezone, catch_up=catch_up)
        return self

    def middleware(self, function: Middleware) -> Middleware:
        """Wrap every handler: `@app.middleware async def around(ctx, call): ...`. The first middleware is outermost."""
        self.middlewares.append(function)
        return function

    def get(self, kind: str) -> Job[..., Any]:
        """Return a job by name. Raises `UnknownKind`."""
        try:
            return self.kinds[kind]
        except KeyError:
            known = ", ".join(sorted(self.kinds)) or "none"
            raise UnknownKind(f"job {kind!r} does not exist", hint=f"Jobs of this app: {known}.") from None

    # Setup

    async def setup(self) -> None:
        """Create or update the declared queues, limits and schedules. A worker does this when it starts."""
        for name in self.queues:
            await self.setup_queue(name)
        try:
            async with self.client.session.connection(writing=True) as conn:
                for limit in self._limits().values():
                    await calls.ensure_limit(conn, limit.name, max_running=limit.running, rate=limit.rate, burst=limit.burst)
            for schedule in self.schedules.values():
                await self._setup_schedule(schedule)
        except PermissionDenied as exc:
            log.warning("could not update limits and schedules error=%s", exc)

    async def _setup_schedule(self, schedule: Schedule) -> None:
        message = schedule.call.message
        try:
            await self.client.schedules.ensure(
                schedule.name,
                schedule.cron,
                queue=schedule.call.queue,
                body=msgspec.Raw(message.body),
                key=message.key,
                label=message.label,
                headers=message.headers,
                timezone=schedule.timezone,
                catch_up=schedule.catch_up,
            )
        except InvalidArgument as exc:
            # name the schedule
            raise InvalidArgument(
                f"schedule {schedule.name!r}: {exc.message}", hint=exc.hint, sqlstate=exc.sqlstate
            ) from exc

    def _limits(self) -> dict[str, Limit]:
        limits: dict[str, Limit] = {}
        groups = [*self.queue_limits.values(), *(job.definition.limits for job in self.kinds.values())]
        for limit in (limit for group in groups for limit in group):
            if limits.setdefault(limit.name, limit) is not limit:
                raise InvalidValue(f"limit {limit.name!r} is defined twice; use one Limit object for both")
        return limits

    def attempts_of(self, queue: str) -> int:
        """Return the maximum attempts of a queue: its own setting, or the highest of its jobs and the app."""
        own: int | None = self.queues.get(queue, {}).get("max_attempts")
        attempts = [job.definition.max_attempts for job in self.kinds.values() if job.definition.queue == queue]
        return own if own is not None else max([self.max_attempts, *(n for n in attempts if n is not None)])

    async def setup_queue(self, name: str) -> None:
        """Create or update one declared queue."""
        settings = dict(self.queues.get(name, {}))
        settings["max_attempts"] = self.attempts_of(name)
        try:
            await self.client.queues.ensure(name, **settings)
        except PermissionDenied as exc:
            log.warning("could not update queue settings queue=%s error=%s", name, exc)

    # Enqueuing

    async def add(
        self,
        kind: str | Job[[T], Any],
        payload: T,
        *,
        idempotency_key: str | None = None,
        max_attempts: int | None = None,
    ) -> Handle[Any]:
        """Enqueue a job by name or by a job from `kind`: `add("send-email", {...}, idempotency_key=...)`."""
        job: Job[..., Any] = kind if isinstance(kind, Job) else self.get(kind)
        return await job.options(idempotency_key=idempotency_key, max_attempts=max_attempts).enqueue(payload)

    async def enqueue_many(self, todo: Iterable[Call]) -> list[Handle[Any]]:
        """Enqueue jobs of any kinds in one transaction, all or none. Returns handles in input order."""
        return await self.enqueue_calls(list(todo))

    async def chain(self, *todo: Call) -> list[Handle[Any]]:
        """Enqueue jobs that run one after another: each starts when the previous one is done.

        All or none are enqueued.
        """
        chained: list[Call] = []
        for call in todo:
            id = call.message.id or UUID(int=_next_id())
            headers = dict(call.message.headers or {})
            if not call.tracked:
                headers["trunkline-track"] = True
            message = msgspec.structs.replace(call.message, id=id, headers=headers or None)
            after = (*call.after, chained[-1].message.id) if chained else call.after
            chained.append(msgspec.structs.replace(call, message=message, after=after, tracked=True))
        return await self.enqueue_calls(chained)

    async def enqueue_calls(self, todo: Sequence[Call], *, on: Any = None) -> list[Handle[Any]]:
        """Enqueue calls through the app's client, or through the client or async connection `on`."""
        if not todo:
            return []
        if isinstance(on, Client) or on is None:
            client = on or self.client
            try:
                results = await enqueue.enqueue(client, todo)
            except QueueNotFound:
                if not all(call.queue in self.queues for call in todo):
                    raise
                for queue in {call.queue for call in todo}:
                    await self.setup_queue(queue)
                results = await enqueue.enqueue(client, todo)
        else:
            results = await enqueue.enqueue_borrowed(on, todo)
        return self._handles(todo, results)

    def enqueue_calls_sync(self, todo: Sequence[Call], *, on: Any) -> list[Handle[Any]]:
        """Enqueue calls through the sync client or connection `on`."""
        return self._handles(todo, enqueue.enqueue_borrowed_sync(on, todo))

    def _handles(self, todo: Sequence[Call], results: Sequence[Any]) -> list[Handle[Any]]:
        # not Handle[Any](...), which costs as much as everything else here
        handles: list[Handle[Any]] = [
            Handle(
                self, published.id, call.job.name, duplicate=published.duplicate, tracked=call.tracked, type=call.job.returns
            )
            for call, published in zip(todo, results, strict=True)
        ]
        for observer in self.observers:
            for call, handle in zip(todo, handles, strict=True):
                observer(call, handle)
        return handles

    # Managing jobs

    async def cancel(self, id: UUID, reason: str | None = None) -> str:
        """Cancel a job.

        Returns `requested` for a job that is ready or running: it does not start, or its handler is cancelled, and it
        becomes a dead letter with the reason. Returns `cancelled` for a job that waits for other jobs; it is removed at
        once. For a job that has ended, returns its state: `done`, `dead`, `cancelled`, `failed` or `gone`. Raises
        `JobNotFound` for an unknown id.
        """
        async with self.client.session.connection(writing=True) as conn:
            return await calls.cancel_job(conn, id, reason)

    async def retry(self, id: UUID) -> str:
        """Move a dead job back to its queue. Attempts start again from 1. Returns the queue name."""
        async with self.client.session.connection(writing=True) as conn:
            queue = await calls.retry_job(conn, id)
        self.client.wake()
        return queue


def _next_id() -> int:
    from datetime import UTC, datetime

    from trunkline.db.binary_copy import new_ids

    return new_ids(1, datetime.now(UTC))[0].int


__all__ = ["App", "Options"]
