"""Jobs: functions that a worker runs later, with methods to enqueue them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload
from uuid import UUID

import msgspec

from trunkline.client import Client, SyncClient
from trunkline.client.foreign_connections import AsyncForeignConnection, SyncForeignConnection
from trunkline.errors import InvalidType, InvalidValue
from trunkline.jobs.arguments import Arguments
from trunkline.jobs.backoff import Backoff
from trunkline.jobs.handle import Handle
from trunkline.jobs.limits import Limit
from trunkline.types import Duration, Headers, NewMessage

if TYPE_CHECKING:
    from trunkline.jobs.app import App

P = ParamSpec("P")
R = TypeVar("R")
Catching = dict[type[BaseException], Backoff | None]

MAX_ATTEMPTS = "trunkline-max-attempts"
TRACK = "trunkline-track"
UNIQUE = "trunkline-unique"
_JSON = "application/json"


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a job definition."""

    queue: str
    max_attempts: int | None = None
    backoff: Backoff | None = None
    errors: Catching = {}
    timeout: timedelta | None = None
    concurrency: int | None = None
    limits: tuple[Limit, ...] = ()
    result: bool = False
    at_most_once: bool = False
    process: bool = False
    key: Callable[..., str | None] | None = None
    unique: bool | Callable[..., str] = False
    hold: timedelta = timedelta(days=1)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one enqueued job; see `Job.options`."""

    queue: str | None = None
    key: str | None = None
    headers: Headers | None = None
    id: UUID | None = None
    idempotency_key: str | None = None
    max_attempts: int | None = None
    delay: Duration | None = None
    run_at: datetime | None = None
    priority: int | None = None
    unique: str | None = None
    track: bool | None = None
    after: Sequence[Handle[Any]] | None = None


_PLAIN = Options()


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A job with validated arguments, ready to be enqueued, from `job.bind(...)`."""

    job: Job[..., Any]
    queue: str
    message: NewMessage
    unique: str | None = None
    hold: timedelta = timedelta(days=1)
    after: tuple[UUID, ...] = ()
    tracked: bool = False

    @property
    def plain(self) -> bool:
        return self.unique is None and not self.after


class Job(Generic[P, R]):
    """A kind of job. Calling it runs the function directly; `enqueue` lets a worker run it."""

    def __init__(
        self,
        app: App,
        name: str,
        function: Callable[..., Any] | None,
        arguments: Arguments,
        definition: Definition,
        *,
        context: bool = False,
        context_last: bool = False,
        returns: Any = None,
        options: Options | None = None,
    ) -> None:
        self.app = app
        self.name = name
        self.function = function
        self.arguments = arguments
        self.definition = definition
        self.wants_context = context
        self.context_last = context_last
        self.is_async = function is not None and inspect.iscoroutinefunction(function)
        self.returns = returns
        self._options = options or _PLAIN

    def __repr__(self) -> str:
        return f"Job({self.name!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function directly, without a worker."""
        if self.function is None:
            raise InvalidType(f"cannot call job {self.name!r}: it has no function in this program")
        return self.function(*args, **kwargs)

    def options(
        self,
        *,
        queue: str | None = None,
        key: str | None = None,
        headers: Headers | None = None,
        id: UUID | None = None,
        idempotency_key: str | None = None,
        max_attempts: int | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        unique: str | None = None,
        track: bool | None = None,
        after: Sequence[Handle[Any]] | None = None,
    ) -> Job[P, R]:
        """Return the job with other enqueue options: `send.options(delay="1h").enqueue(...)`.

        `idempotency_key`: a repeated enqueue returns the first job. `max_attempts`: replaces the job's own, up to the
        limit of its queue. `key`: jobs with the same key run in order, in an ordered queue. `unique`: enqueue only if
        no unfinished job has this key. `after`: start when these jobs are done; they must be tracked. `track`: keep the
        result.
        """
        changes = {name: value for name, value in locals().items() if name != "self" and value is not None}
        if max_attempts is not None:
            self._check_attempts(max_attempts, queue or self._options.queue or self.definition.queue)
        return self._with(msgspec.structs.replace(self._options, **changes))

    def _check_attempts(self, max_attempts: object, queue: str) -> None:
        """Reject more attempts than the queue allows, which it would silently ignore."""
        limit = self.app.attempts_of(queue)
        if type(max_attempts) is not int or not 1 <= max_attempts <= limit:
            raise InvalidValue(
                f"max_attempts of one job must be a whole number from 1 to {limit}, the limit of queue {queue!r},"
                f" got {max_attempts!r}; raise the limit with App(max_attempts=...) or @app.job(max_attempts=...)"
            )

    def _with(self, options: Options) -> Job[P, R]:
        return Job(
            self.app,
            self.name,
            self.function,
            self.arguments,
            self.definition,
            context=self.wants_context,
            context_last=self.context_last,
            returns=self.returns,
            options=options,
        )

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Bind arguments to the job, for `app.enqueue_many`, `app.chain` and `app.schedule`."""
        options, definition = self._options, self.definition
        payload = self.arguments.encode(args, dict(kwargs))
        if options is _PLAIN and definition.key is None and not definition.unique:
            # fast path for most jobs and for large batches
            message = NewMessage(body=payload, content_type=_JSON, label=self.name)
            return Call(job=self, queue=definition.queue, message=message, tracked=definition.result)
        key = options.key if options.key is not None else _of(definition.key, args, kwargs)
        unique = options.unique
        if unique is None and definition.unique:
            own = payload.decode() if definition.unique is True else _of(definition.unique, args, kwargs)
            unique = f"{self.name}:{own}"[:255]
        tracked = definition.result if options.track is None else options.track
        headers = options.headers
        if options.max_attempts is not None or tracked != definition.result:
            headers = dict(headers or {})
            if options.max_attempts is not None:
                headers[MAX_ATTEMPTS] = options.max_attempts
            if tracked != definition.result:
                headers[TRACK] = tracked
        message = NewMessage(
            body=payload,
            content_type=_JSON,
            label=self.name,
            key=key,
            headers=headers,
            id=options.id,
            idempotency_key=options.idempotency_key,
            delay=options.delay,
            deliver_at=options.run_at,
            priority=options.priority,
        )
        return Call(
            job=self,
            queue=options.queue or definition.queue,
            message=message,
            unique=unique,
            hold=definition.hold,
            after=self._parents(),
            tracked=tracked,
        )

    def _parents(self) -> tuple[UUID, ...]:
        parents = self._options.after or ()
        for parent in parents:
            if not parent.tracked:
                raise InvalidValue(f"cannot run after job {parent.kind!r}, which is not tracked; enqueue it with track=True")
        if parents and (self._options.idempotency_key or self._options.delay or self._options.run_at):
            raise InvalidValue("after cannot be combined with idempotency_key, delay or run_at")
        return tuple(parent.id for parent in parents)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue the job for a worker. It is on disk when this returns."""
        return (await self.app.enqueue_calls([self.bind(*args, **kwargs)]))[0]

    async def enqueue_many(self, calls: Iterable[Call]) -> list[Handle[R]]:
        """Enqueue all calls or none: `send.enqueue_many(send.bind(n) for n in range(1000))`.

        Returns handles in order.
        """
        return await self.app.enqueue_many(calls)

    @overload
    def on(self, conn: AsyncForeignConnection | Client) -> BoundJob[P, R]: ...
    @overload
    def on(self, conn: SyncForeignConnection | SyncClient) -> SyncBoundJob[P, R]: ...
    def on(self, conn: Any) -> BoundJob[P, R] | SyncBoundJob[P, R]:
        """Enqueue on your connection, in your transaction. The job is enqueued if and only if the transaction commits.

        Takes any connection that `client.on` takes, or a client. On an async connection or client, `enqueue` must be
        awaited; on others it is a plain call.
        """
        from trunkline.client.foreign_connections import is_async

        if isinstance(conn, Client) or (not isinstance(conn, SyncClient) and is_async(conn)):
            return BoundJob(self, conn)
        return SyncBoundJob(self, conn)


class BoundJob(Generic[P, R]):
    """A job bound to the caller's async connection."""

    def __init__(self, job: Job[P, R], conn: Any) -> None:
        self._job = job
        self._conn = conn

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        return (await self._job.app.enqueue_calls([self._job.bind(*args, **kwargs)], on=self._conn))[0]


class SyncBoundJob(Generic[P, R]):
    """A job bound to the caller's sync connection."""

    def __init__(self, job: Job[P, R], conn: Any) -> None:
        self._job = job
        self._conn = conn

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        return self._job.app.enqueue_calls_sync([self._job.bind(*args, **kwargs)], on=self._conn)[0]


def _of(function: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return None if function is None else function(*args, **kwargs)


Middleware = Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""`async def around(ctx, call): ...; return await call()`."""
