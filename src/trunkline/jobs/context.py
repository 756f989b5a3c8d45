"""What a handler is given: who it is, and the verbs that belong to its job."""

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

from trunkline.client.sync import transactions as sync_transactions
from trunkline.client.transactions import settled
from trunkline.db import calls
from trunkline.db import jobs as db
from trunkline.db.codec import duration
from trunkline.db.pool import Connection
from trunkline.db.sync import calls as sync_calls
from trunkline.db.sync import jobs as sync_db
from trunkline.db.sync.pool import Connection as SyncConnection
from trunkline.jobs.arguments import from_json, result_to_json, to_json
from trunkline.jobs.refusals import EffectUnknown
from trunkline.types import Duration, Headers, Result

if TYPE_CHECKING:
    from trunkline.jobs.running import Item
    from trunkline.jobs.worker import Worker

T = TypeVar("T")
OnUnknown = Literal["raise", "skip", "rerun"]
_log = logging.getLogger("trunkline.jobs")


class ProcessContext(msgspec.Struct, frozen=True):
    """What a handler in another process knows about its job; it has no verbs."""

    id: UUID
    kind: str
    attempt: int
    headers: Headers


class _About:
    """What a job is, for both contexts."""

    __slots__ = ("_item", "_worker")

    def __init__(self, worker: Worker, item: Item) -> None:
        self._worker = worker
        self._item = item

    @property
    def id(self) -> UUID:
        """The same in every attempt."""
        return self._item.delivery.id

    @property
    def kind(self) -> str:
        return self._item.job.name

    @property
    def attempt(self) -> int:
        """Counted from 1."""
        return self._item.delivery.attempt

    @property
    def headers(self) -> Headers:
        return self._item.delivery.headers or {}

    @property
    def key(self) -> str | None:
        return self._item.delivery.key

    @property
    def max_attempts(self) -> int:
        return self._item.max_attempts

    @property
    def time_left(self) -> timedelta | None:
        """Until the time-out of this attempt; None: it has none."""
        cut = self._item.cut_at
        return None if cut is None else timedelta(seconds=max(0.0, cut - monotonic()))

    @property
    def deadline(self) -> datetime | None:
        """When the time-out comes, by this machine's clock; only `time_left` counts."""
        left = self.time_left
        return None if left is None else datetime.now(UTC) + left

    @property
    def stopping(self) -> str | None:
        """Why the handler is to end now: time-out, lost lease, cancel or stop. For handlers that look by themselves."""
        return self._item.reason

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry the job."""
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
        """Give this attempt `span` from now: its lease, and its time-out if it has one."""
        wanted = duration(span) or timedelta(0)
        self._worker.give_time(self._item, wanted.total_seconds())
        async with self._worker.runtime.connection(writing=True) as conn:
            return (await calls.extend(conn, [self._item.receipt], lease=max(wanted, timedelta(seconds=1))))[0]

    def set_result(self, value: Any) -> None:
        """What the job answers, for a handler that ends in `transaction()`: stored in that same transaction."""
        self._item.result = result_to_json(value)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """What you write on the connection and the end of the job happen together, exactly once.

        `LeaseLost` rolls both back: then someone else has the job. Enqueue more jobs in it with `job.on(conn)`.
        """
        item = self._item

        async def settle(conn: Connection) -> tuple[Result, str]:
            answer = (await db.finish_jobs(conn, "ack", [item.ending()]))[0]
            return answer, await calls.transaction_number(conn)

        async with settled(self._worker.runtime, settle, once=[item.once]) as conn:
            yield conn
        self._worker.settled_by_handler(item)

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
        """Run an effect once for this job and key, whatever the number of attempts; a repeat answers the stored result.

        With the connection of `transaction()` as `on`: key, effects, result and the end of the job are one transaction.
        Without: a marker is on disk before the effect starts, so it never runs twice. If an earlier attempt died in between,
        nobody knows whether it happened: `on_unknown` says beforehand what then, `raise` (EffectUnknown), `skip` (None) or
        `rerun`. An effect that raises has not happened and runs again with the next attempt. `scope` widens the key beyond
        this job.
        """
        where = scope or str(self.id)
        if on is not None:
            return await _once_in(on, where, key, effect, type)
        runtime = self._worker.runtime
        async with runtime.connection(writing=True) as conn:
            found = await db.begin_once(conn, where, key, rerun=on_unknown == "rerun")
        if found[0] != "start":
            return _instead(key, *found, type, skip=on_unknown == "skip")
        try:
            value = await effect()
            result = to_json(value)
        except Exception:
            async with runtime.connection(writing=True) as conn:
                await db.end_once(conn, where, key, done=False)
            raise
        async with runtime.connection(writing=True) as conn:
            await db.end_once(conn, where, key, done=True, result=result)
        return value


async def _once_in(conn: Connection, scope: str, key: str, effect: Callable[[Connection], Awaitable[Any]], type: Any) -> Any:
    found = await db.begin_once(conn, scope, key)
    if found[0] != "start":
        return _instead(key, *found, type)
    value = await effect(conn)
    await db.end_once(conn, scope, key, done=True, result=to_json(value))
    return value


def _instead(key: str, state: str, stored: bytes | None, type: Any, *, skip: bool = False) -> Any:
    """What stands for an effect that must not run again: its answer, or nothing if nobody knows and it may be skipped."""
    if state == "done":
        return None if stored is None else from_json(stored, type)
    if skip:
        _log.warning("the effect %r may or may not have happened; skipped", key)
        return None
    raise EffectUnknown(
        f"the effect {key!r} was started by an earlier attempt that died; it may or may not have happened",
        hint="look whether it did, or choose on_unknown='skip' or 'rerun'",
    )


class SyncContext(_About):
    """The context of a plain handler, which runs in a thread: the same verbs without await."""

    __slots__ = ()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._worker.loop).result()

    def extend(self, span: Duration) -> Result:
        """Give this attempt `span` from now: its lease, and its time-out if it has one."""
        return self._wait(Context(self._worker, self._item).extend(span))

    def set_result(self, value: Any) -> None:
        """What the job answers, for a handler that ends in `transaction()`."""
        self._item.result = result_to_json(value)

    @contextmanager
    def transaction(self) -> Iterator[SyncConnection]:
        """What you write on the connection and the end of the job happen together, exactly once."""
        item = self._item

        def settle(conn: SyncConnection) -> tuple[Result, str]:
            answer = sync_db.finish_jobs(conn, "ack", [item.ending()])[0]
            return answer, sync_calls.transaction_number(conn)

        runtime = self._worker.sync_client._runtime()
        # the mark of the async twin has the same field, and one attempt has one mark
        with sync_transactions.settled(runtime, settle, once=[item.once]) as conn:  # type: ignore[list-item]
            yield conn
        self._worker.loop.call_soon_threadsafe(self._worker.settled_by_handler, item)
        item.settled = True

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
            found = sync_db.begin_once(on, where, key)
            if found[0] != "start":
                return _instead(key, *found, type)
            value = effect(on)
            sync_db.end_once(on, where, key, done=True, result=to_json(value))
            return value

        runtime = self._worker.sync_client._runtime()
        with runtime.connection(writing=True) as conn:
            found = sync_db.begin_once(conn, where, key, rerun=on_unknown == "rerun")
        if found[0] != "start":
            return _instead(key, *found, type, skip=on_unknown == "skip")
        try:
            value = effect()
            result = to_json(value)
        except Exception:
            with runtime.connection(writing=True) as conn:
                sync_db.end_once(conn, where, key, done=False)
            raise
        with runtime.connection(writing=True) as conn:
            sync_db.end_once(conn, where, key, done=True, result=result)
        return value
