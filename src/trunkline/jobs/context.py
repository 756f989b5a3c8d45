"""Contexts passed to handlers: facts about the job, and methods that act on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload
from uuid import UUID

import msgspec

from trunkline.codec import duration
from trunkline.db import calls
from trunkline.db.calls import jobs as db
from trunkline.db.pool import Connection
from trunkline.db.sync import calls as sync_calls
from trunkline.db.sync.calls import jobs as sync_db
from trunkline.db.sync.pool import Connection as SyncConnection
from trunkline.jobs.arguments import JobContext, from_json, result_to_json, to_json
from trunkline.jobs.attempt import ACK, Attempt, Stop
from trunkline.jobs.errors import EffectUnknown
from trunkline.runtime.sync import transactions as sync_transactions
from trunkline.runtime.transactions import settled
from trunkline.types import Duration, Headers, Result

if TYPE_CHECKING:
    from trunkline.jobs.worker import Worker

T = TypeVar("T")
OnUnknown = Literal["raise", "skip", "rerun"]
_log = logging.getLogger("trunkline.jobs")


class ProcessContext(msgspec.Struct, JobContext, frozen=True):
    """Facts about the job for a handler in another process. It has no methods."""

    id: UUID
    kind: str
    attempt: int
    headers: Headers


class _About(JobContext):
    """Facts about the job, shared by both contexts."""

    __slots__ = ("_attempt", "_worker")

    def __init__(self, worker: Worker, attempt: Attempt) -> None:
        self._worker = worker
        self._attempt = attempt

    @property
    def id(self) -> UUID:
        """The job id, the same in every attempt."""
        return self._attempt.delivery.id

    @property
    def kind(self) -> str:
        return self._attempt.job.name

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._attempt.delivery.attempt

    @property
    def headers(self) -> Headers:
        return self._attempt.delivery.headers or {}

    @property
    def key(self) -> str | None:
        return self._attempt.delivery.key

    @property
    def max_attempts(self) -> int:
        return self._attempt.max_attempts

    @property
    def time_left(self) -> timedelta | None:
        """Time until the timeout of this attempt, or None without a timeout."""
        cut = self._attempt.deadline
        return None if cut is None else timedelta(seconds=max(0.0, cut - monotonic()))

    @property
    def deadline(self) -> datetime | None:
        """Time of the timeout by this machine's clock. Informational; `time_left` is exact."""
        left = self.time_left
        return None if left is None else datetime.now(UTC) + left

    @property
    def stopping(self) -> Stop | None:
        """A `Stop` with `reason` and `detail` if the handler must end now, or None.

        For handlers that poll it.
        """
        return self._attempt.stop

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that adds the job to each line."""
        extra = {"job_id": str(self.id), "job_kind": self.kind, "attempt": self.attempt}
        return _JobLogger(_log, extra)


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        extra = self.extra or {}
        kwargs["extra"] = {**extra, **(kwargs.get("extra") or {})}
        return f"{extra['job_kind']} {extra['job_id']}: {msg}", kwargs


class Context(_About):
    """The context of an async handler."""

    __slots__ = ()

    async def extend(self, span: Duration) -> Result:
        """Extend the lease of this attempt, and its timeout if it has one, to `span` from now."""
        lease = duration(span) or timedelta(0)
        self._worker.start_timeout(self._attempt, lease.total_seconds())
        async with self._worker.session.connection(writing=True) as conn:
            return (await calls.extend(conn, [self._attempt.receipt], lease=max(lease, timedelta(seconds=1))))[0]

    def set_result(self, value: Any) -> None:
        """Set the job's result, for a handler that ends with `transaction()`: it is stored in the same transaction."""
        self._attempt.result = result_to_json(value)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Complete the job in a transaction with your own writes on the connection, for exactly-once processing.

        Raises `LeaseLost` if another worker may have the job; everything is then rolled back. Enqueue more jobs in the
        transaction with `job.on(conn)`.
        """
        attempt = self._attempt

        async def settle(conn: Connection) -> tuple[Result, str]:
            result = (await db.settle_jobs(conn, "ack", [attempt.ending()]))[0]
            return result, await calls.transaction_number(conn)

        async with settled(self._worker.session, settle, once=[attempt.once]) as conn:
            yield conn
        self._worker.settled_by_handler(attempt)

    @overload
    async def run_once(
        self,
        key: str,
        effect: Callable[[], Awaitable[T]],
        *,
        on_unknown: OnUnknown = "raise",
        scope: str | None = None,
        type: Any = None,
    ) -> T: ...
    @overload
    async def run_once(
        self,
        key: str,
        effect: Callable[[Connection], Awaitable[T]],
        *,
        on: Connection,
        scope: str | None = None,
        type: Any = None,
    ) -> T: ...
    async def run_once(
        self,
        key: str,
        effect: Callable[..., Awaitable[Any]],
        *,
        on: Connection | None = None,
        on_unknown: OnUnknown = "raise",
        scope: str | None = None,
        type: Any = None,
    ) -> Any:
        """Run an effect once for this job and key across all attempts. A repeated call returns the stored result.

        With `on`, the connection of `transaction()`, the key, the effect, its result and the completion of the job are
        one transaction. Without `on`, a marker is written before the effect starts, so that it does not run twice. If
        an earlier attempt died in between, it is unknown whether the effect happened, and `on_unknown` decides: `raise`
        (EffectUnknown), `skip` (return None) or `rerun`. An effect that raises counts as not done and runs again in the
        next attempt. `scope` shares the key with other jobs.
        """
        where = scope or str(self.id)
        if on is not None:
            return await _once_in(on, where, key, effect, type)
        session = self._worker.session
        async with session.connection(writing=True) as conn:
            state, stored = await db.begin_once(conn, where, key, rerun=on_unknown == "rerun")
        if state != "start":
            return _instead(key, state, stored, type, skip=on_unknown == "skip")
        try:
            value = await effect()
            result = to_json(value)
        except Exception:
            async with session.connection(writing=True) as conn:
                await db.end_once(conn, where, key, done=False)
            raise
        async with session.connection(writing=True) as conn:
            await db.end_once(conn, where, key, done=True, result=result)
        return value


async def _once_in(conn: Connection, scope: str, key: str, effect: Callable[[Connection], Awaitable[Any]], type: Any) -> Any:
    state, stored = await db.begin_once(conn, scope, key)
    if state != "start":
        return _instead(key, state, stored, type)
    value = await effect(conn)
    await db.end_once(conn, scope, key, done=True, result=to_json(value))
    return value


def _instead(key: str, state: str, stored: bytes | None, type: Any, *, skip: bool = False) -> Any:
    """Return the stored result of an effect that must not run again, or None if its outcome is unknown and skipped."""
    if state == "done":
        return None if stored is None else from_json(stored, type)
    if skip:
        _log.warning("skipped an effect that may or may not have happened key=%s", key)
        return None
    raise EffectUnknown(
        f"effect {key!r} was started by an earlier attempt that died; it may or may not have happened",
        hint="Check whether it happened, or choose on_unknown='skip' or 'rerun'.",
    )


class SyncContext(_About):
    """The context of a plain handler, which runs in a thread. It has the methods of `Context` without await."""

    __slots__ = ()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._worker.loop).result()

    def extend(self, span: Duration) -> Result:
        """Extend the lease of this attempt, and its timeout if it has one, to `span` from now."""
        return self._wait(Context(self._worker, self._attempt).extend(span))

    def set_result(self, value: Any) -> None:
        """Set the job's result, for a handler that ends with `transaction()`."""
        self._attempt.result = result_to_json(value)

    @contextmanager
    def transaction(self) -> Iterator[SyncConnection]:
        """Complete the job in a transaction with your own writes on the connection. See `Context.transaction`."""
        attempt = self._attempt

        def settle(conn: SyncConnection) -> tuple[Result, str]:
            result = sync_db.settle_jobs(conn, "ack", [attempt.ending()])[0]
            return result, sync_calls.transaction_number(conn)

        session = self._worker.sync_client.session
        # the async twin of `CommitMark` has the same field, and an attempt has one `CommitMark`
        with sync_transactions.settled(session, settle, once=[attempt.once]) as conn:  # type: ignore[list-item]
            yield conn
        self._worker.loop.call_soon_threadsafe(self._worker.settled_by_handler, attempt)
        attempt.settled = ACK

    @overload
    def run_once(
        self,
        key: str,
        effect: Callable[[], T],
        *,
        on_unknown: OnUnknown = "raise",
        scope: str | None = None,
        type: Any = None,
    ) -> T: ...
    @overload
    def run_once(
        self,
        key: str,
        effect: Callable[[SyncConnection], T],
        *,
        on: SyncConnection,
        scope: str | None = None,
        type: Any = None,
    ) -> T: ...
    def run_once(
        self,
        key: str,
        effect: Callable[..., Any],
        *,
        on: SyncConnection | None = None,
        on_unknown: OnUnknown = "raise",
        scope: str | None = None,
        type: Any = None,
    ) -> Any:
        """Run an effect once for this job and key: see `Context.run_once`."""
        where = scope or str(self.id)
        if on is not None:
            state, stored = sync_db.begin_once(on, where, key)
            if state != "start":
                return _instead(key, state, stored, type)
            value = effect(on)
            sync_db.end_once(on, where, key, done=True, result=to_json(value))
            return value

        session = self._worker.sync_client.session
        with session.connection(writing=True) as conn:
            state, stored = sync_db.begin_once(conn, where, key, rerun=on_unknown == "rerun")
        if state != "start":
            return _instead(key, state, stored, type, skip=on_unknown == "skip")
        try:
            value = effect()
            result = to_json(value)
        except Exception:
            with session.connection(writing=True) as conn:
                sync_db.end_once(conn, where, key, done=False)
            raise
        with session.connection(writing=True) as conn:
            sync_db.end_once(conn, where, key, done=True, result=result)
        return value
