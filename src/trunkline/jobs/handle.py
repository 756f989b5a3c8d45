"""Handles of enqueued jobs: their id, result and cancellation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from trunkline.codec import duration
from trunkline.db.calls import jobs as calls
from trunkline.db.calls.job_records import JobResult
from trunkline.errors import InvalidValue, Timeout
from trunkline.jobs.arguments import from_json
from trunkline.jobs.errors import JobFailed
from trunkline.types import Duration

if TYPE_CHECKING:
    from trunkline.jobs.app import App

R = TypeVar("R")
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.5


class Handle(Generic[R]):
    """An enqueued job. `duplicate`: nothing was enqueued, and this is the existing job."""

    __slots__ = ("_app", "_type", "duplicate", "id", "kind", "tracked")

    def __init__(
        self, app: App, id: UUID, kind: str, *, duplicate: bool = False, tracked: bool = False, type: Any = None
    ) -> None:
        self.id = id
        self.kind = kind
        self.duplicate = duplicate
        self.tracked = tracked
        """True if its result is kept, so that it can be awaited and other jobs can wait for it."""
        self._app = app
        self._type = type

    def __repr__(self) -> str:
        return f"Handle({self.kind} {self.id}{' duplicate' if self.duplicate else ''})"

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait until the job is done and return its result.

        Raises `JobFailed` if it became a dead letter, and `Timeout` after `timeout`. Requires a job whose result is
        kept: `@app.job(result=True)` or `options(track=True)`.
        """
        if not self.tracked:
            raise InvalidValue(
                f"the result of job {self.kind!r} is not kept; declare it with result=True or enqueue it with track=True"
            )
        span = duration(timeout)
        pause = _FIRST_PAUSE
        async with asyncio.timeout(None) as limit:
            if span is not None:
                limit.reschedule(asyncio.get_running_loop().time() + span.total_seconds())
            try:
                while (outcome := await self._query()) is None:
                    await asyncio.sleep(pause)
                    pause = min(_LONGEST_PAUSE, pause * 1.5)
            except asyncio.CancelledError:
                if limit.expired():
                    raise Timeout(
                        f"job {self.id} has not ended after {span}",
                        hint="Wait longer, or inspect it with trunkline job show.",
                    ) from None
                raise
        if outcome.state == "failed":
            raise JobFailed(outcome.error or "the job failed", hint="Run it again with trunkline job retry.")
        value: R = None if outcome.result is None else from_json(outcome.result, self._type)  # type: ignore[assignment]
        return value

    async def _query(self) -> JobResult | None:
        async with self._app.client.connection() as conn:
            rows = await calls.job_results(conn, [self.id])
        return rows[0] if rows else None

    async def cancel(self, reason: str | None = None) -> str:
        """Cancel the job. Returns `requested`, `cancelled`, or the state of a job that has ended; see `App.cancel`."""
        return await self._app.cancel(self.id, reason)
