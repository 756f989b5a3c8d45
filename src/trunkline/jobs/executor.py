"""Executes one job attempt: check that it may start, run the handler under its timeout, decide how to settle it.

`Executor.execute` is the whole pipeline. The rest of the file follows in the order of the calls.
"""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Protocol, assert_never
from uuid import UUID

from trunkline import telemetry
from trunkline.codec import duration
from trunkline.concurrency.aio import log
from trunkline.jobs.arguments import result_to_json
from trunkline.jobs.attempt import ACK, RELEASE, Attempt, Settlement, Stop, StopReason
from trunkline.jobs.backoff import Backoff
from trunkline.jobs.context import Context, ProcessContext, SyncContext
from trunkline.jobs.errors import EffectUnknown, HandlerStalled, InvalidArguments
from trunkline.jobs.job import Middleware
from trunkline.jobs.outcomes import Bury, Done, Retry, Snooze
from trunkline.jobs.process_pool import HandlerError, ProcessPool
from trunkline.jobs.thread_pool import ThreadPool
from trunkline.types import Result

LEAVE_SECONDS = 5.0
"""Seconds that a stopped handler may take to end before it is abandoned."""
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


class Host(Protocol):
    """The part of a worker that an executor needs."""

    threads: ThreadPool
    processes: ProcessPool
    closed: bool

    async def cancel_reason(self, id: UUID) -> str | None: ...
    async def ack_now(self, attempt: Attempt) -> Result: ...
    def start_timeout(self, attempt: Attempt, seconds: float) -> None: ...
    def store_result(self, attempt: Attempt, result: bytes) -> None: ...
    def context(self, attempt: Attempt) -> Context: ...
    def sync_context(self, attempt: Attempt) -> SyncContext: ...
    def exit_if_forked(self) -> None: ...


class Returned(NamedTuple):
    """The handler returned an outcome, or the result of a job that is done."""

    value: Any


class Failed(NamedTuple):
    """The handler raised."""

    error: BaseException


class Stopped(NamedTuple):
    """The handler had to end, and did."""

    stop: Stop


class NotOurs(NamedTuple):
    """The lease ended before the handler started."""


Performed = Returned | Failed | Stopped | NotOurs


class Executor:
    """Executes the attempts of one queue."""

    def __init__(
        self,
        host: Host,
        *,
        queue: str,
        middlewares: Sequence[Middleware],
        backoff: Backoff,
        queue_max_attempts: int,
        ordered: bool,
    ) -> None:
        self._host = host
        self._queue = queue
        self._middlewares = middlewares
        self._backoff = backoff
        self._queue_max_attempts = queue_max_attempts
        self._ordered = ordered

    async def execute(self, attempt: Attempt) -> Settlement | None:
        """Run an attempt and return how to settle it, or None if its lease was lost."""
        if (refusal := await self._check_start(attempt)) is not None:
            return refusal
        match await self._perform(attempt):
            case Returned(value):
                return self._settle_value(attempt, value)
            case Failed(error):
                return self._settle_error(attempt, error)
            case Stopped(stop):
                return self.settle_stop(attempt, stop)
            case NotOurs():
                return None
            case unexpected:
                assert_never(unexpected)

    # Before the handler

    async def _check_start(self, attempt: Attempt) -> Settlement | None:
        if (reason := await self._host.cancel_reason(attempt.delivery.id)) is not None:
            return Settlement("bury", error=f"cancelled before it started: {reason}")
        # a claim counts an attempt, so a job that kills its worker arrives here with one more than allowed
        if attempt.delivery.attempt > attempt.max_attempts:
            return Settlement("bury", error=f"its worker died in each of {attempt.max_attempts} attempts")
        return None

    async def _perform(self, attempt: Attempt) -> Performed:
        """Run the handler and return how it ended. Raises only if the worker itself is cancelled."""
        definition = attempt.job.definition
        try:
            if definition.at_most_once:
                if await self._host.ack_now(attempt) != "done":
                    return NotOurs()
                attempt.settled = ACK
            if definition.timeout is not None:
                self._host.start_timeout(attempt, definition.timeout.total_seconds())
            value = await self._call(attempt)
        except (InvalidArguments, EffectUnknown) as exc:
            return Failed(exc)
        except BaseException as exc:
            if attempt.stop is not None:
                return Stopped(attempt.stop)
            if isinstance(exc, asyncio.CancelledError) and self._host.closed:
                raise
            # a CancelledError is then the handler's own: it awaited something that was cancelled
            return Failed(exc)
        # a result after the timeout is void; after any other request to end it counts, because the work is done
        if attempt.stop is not None and attempt.stop.reason is StopReason.TIMEOUT:
            return Stopped(attempt.stop)
        return Returned(value)

    # The handler

    async def _call(self, attempt: Attempt) -> Any:
        """Call the handler inside the middlewares, in a span. The first middleware is the outermost."""
        args, kwargs = attempt.job.arguments.decode(attempt.delivery.payload)
        step: Callable[[], Awaitable[Any]] = partial(self._call_handler, attempt, args, kwargs)
        if self._middlewares:
            context = self._host.context(attempt)
            for middleware in reversed(self._middlewares):
                step = partial(middleware, context, step)
        with telemetry.handling(attempt.delivery, self._queue):
            return await step()

    async def _call_handler(self, attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an async handler on the event loop, a plain one in a thread or a process."""
        job = attempt.job
        if job.is_async:
            attempt.calling = True
            try:
                return await _invoke(attempt, self._host.context, args, kwargs)
            finally:
                attempt.calling = False
                self._host.exit_if_forked()
        if not job.definition.process:
            # in a copy of the context, which has the span
            call = partial(copy_context().run, self._call_plain, attempt, args, kwargs)
            return await _interruptible(*self._host.threads.start(call))
        assert job.function is not None  # noqa: S101
        delivery = attempt.delivery
        about = ProcessContext(delivery.id, job.name, delivery.attempt, delivery.headers or {})
        function = (job.function.__module__, job.function.__qualname__)
        return await _interruptible(*self._host.processes.start(*function, about, delivery.payload))

    def _call_plain(self, attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return _invoke(attempt, self._host.sync_context, args, kwargs)
        finally:
            self._host.exit_if_forked()

    # After the handler

    def _settle_value(self, attempt: Attempt, value: Any) -> Settlement:
        match value:
            case Retry():
                return self._retry(attempt, value.error or "the handler asked for a retry", delay=duration(value.after))
            case Snooze():
                return Settlement("snooze", duration(value.after))
            case Bury():
                return Settlement("bury", error=value.reason)
            case Done():
                return self._settle_result(attempt, value.result)
        return self._settle_result(attempt, value)

    def _settle_result(self, attempt: Attempt, result: Any) -> Settlement:
        # a handler that settled the job in its own transaction may have set the result there too
        if attempt.tracked and not (attempt.settled and attempt.result is not None):
            try:
                encoded = result_to_json(result)
            except (TypeError, ValueError, RecursionError) as exc:
                return Settlement("bury", error=f"the result cannot be stored: {exc}")
            if attempt.settled == ACK:
                self._host.store_result(attempt, encoded)
            attempt.result = encoded
        return ACK

    def _settle_error(self, attempt: Attempt, error: BaseException) -> Settlement:
        if isinstance(error, InvalidArguments | EffectUnknown):
            return Settlement("bury", error=f"{type(error).__name__}: {error}")
        text = _error_text(error)
        name, delivery = attempt.job.name, attempt.delivery
        log.warning("job %s %s failed in attempt %s: %s", name, delivery.id, delivery.attempt, text.splitlines()[0])
        return self._retry(attempt, text, cause=error)

    def settle_stop(self, attempt: Attempt, stop: Stop) -> Settlement | None:
        """Return how to settle an attempt that had to end, or whose handler was abandoned."""
        match stop.reason:
            case StopReason.LEASE_LOST:
                return None
            case StopReason.SHUTDOWN:
                return RELEASE
            case StopReason.CANCELLED:
                return Settlement("bury", error=f"cancelled: {stop.detail}")
            case StopReason.TIMEOUT:
                return self._retry(attempt, stop.detail, cause=TimeoutError())
            case unexpected:
                assert_never(unexpected)

    def settle_stall(self, attempt: Attempt, error: str) -> Settlement:
        """Return how to settle an attempt whose handler blocks the event loop. Called from another thread."""
        return self._retry(attempt, error, cause=HandlerStalled())

    def _retry(
        self, attempt: Attempt, error: str, *, delay: timedelta | None = None, cause: BaseException | None = None
    ) -> Settlement:
        """Retry after a delay, or bury the job if this was its last attempt or its error must not be retried."""
        definition, number = attempt.job.definition, attempt.delivery.attempt
        backoff = definition.backoff or self._backoff
        for kind, override in definition.errors.items():
            if isinstance(cause, kind):
                if override is None:
                    return Settlement("bury", error=error)
                backoff = override
                break
        if number < attempt.max_attempts:
            return Settlement("nack", backoff.after(number) if delay is None else delay, error)
        # at the queue's own limit, nack lets the queue record "attempts" as the reason of the dead letter
        if number >= self._queue_max_attempts and attempt.plain and not self._ordered:
            return Settlement("nack", timedelta(0), error)
        return Settlement("bury", error=error)


def _invoke(attempt: Attempt, context: Callable[[Attempt], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function of a job. An async one returns its coroutine."""
    job = attempt.job
    assert job.function is not None  # noqa: S101
    if not job.wants_context:
        return job.function(*args, **kwargs)
    if job.context_last:
        return job.function(*args, context(attempt))
    return job.function(context(attempt), *args, **kwargs)


async def _interruptible(running: asyncio.Future[Any], interrupt: Callable[[], None]) -> Any:
    """Wait for a handler in a thread or process. On cancellation, interrupt it, and abandon it if it does not end."""
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if running.done() and not running.cancelled():
            raise
        interrupt()
        await asyncio.wait([running], timeout=LEAVE_SECONDS)
        if running.done():
            _retrieve(running)
        else:
            running.add_done_callback(_retrieve)
        raise


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark an exception as seen, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


def _error_text(error: BaseException) -> str:
    if isinstance(error, HandlerError):
        return f"{error}\n{error.trace}"
    lines = traceback.format_exception(type(error), error, _handler_frames(error.__traceback__), limit=-12)
    return f"{type(error).__name__}: {error}\n{''.join(lines)}"


def _handler_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that starts outside this package, or all of it if none does."""
    frame = trace
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.tb_next
    return frame or trace
