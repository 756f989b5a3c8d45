"""A job that was enqueued: its id, and ways to hear of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from trunkline.db import jobs as calls
from trunkline.db.codec import duration
from trunkline.db.job_records import JobResult
from trunkline.errors import Timeout
from trunkline.jobs.arguments import from_json
from trunkline.jobs.refusals import JobFailed
from trunkline.types import Duration

if TYPE_CHECKING:
    from trunkline.jobs.app import App

R = TypeVar("R")
_FIRST_LOOK = 0.01
_LAST_LOOK = 0.5


class Handle(Generic[R]):
    """What enqueuing answers. `duplicate`: nothing was added, this is the job that was there."""

    __slots__ = ("_app", "_type", "duplicate", "id", "kind", "tracked")

    def __init__(
        self, app: App, id: UUID, kind: str, *, duplicate: bool = False, tracked: bool = False, type: Any = None
    ) -> None:
        self.id = id
        self.kind = kind
        self.duplicate = duplicate
        self.tracked = tracked
        """Whether its result is kept, so that it can be awaited and others can wait for it."""
        self._app = app
        self._type = type

    def __repr__(self) -> str:
        return f"Handle({self.kind} {self.id}{' duplicate' if self.duplicate else ''})"

    async def result(self, timeout: Duration | None = None) -> R:
        """What the job answered, once it is done. `JobFailed` when it became a dead letter, `Timeout` after the time given.

        Needs a job whose results are kept: `@app.job(result=True)`, or `options(track=True)`.
        """
        if not self.tracked:
            raise ValueError(f"job {self.kind!r} keeps no result; declare it with result=True or enqueue with track=True")
        span = duration(timeout)
        pause = _FIRST_LOOK
        async with asyncio.timeout(None) as limit:
            if span is not None:
                limit.reschedule(asyncio.get_running_loop().time() + span.total_seconds())
            try:
                while (found := await self._look()) is None:
                    await asyncio.sleep(pause)
                    pause = min(_LAST_LOOK, pause * 1.5)
            except asyncio.CancelledError:
                if limit.expired():
                    raise Timeout(f"job {self.id} has not ended after {span}", hint="wait longer, or see job show") from None
                raise
        if found.state == "failed":
            raise JobFailed(found.error or "the job failed", hint="trunkline job retry brings it back")
        value: R = None if found.result is None else from_json(found.result, self._type)  # type: ignore[assignment]
        return value

    async def _look(self) -> JobResult | None:
        async with self._app.client.connection() as conn:
            rows = await calls.job_results(conn, [self.id])
        return rows[0] if rows else None

    async def cancel(self, reason: str | None = None) -> str:
        """Ask for its end: `requested`, `cancelled`, or the state of one that has ended; see `App.cancel`."""
        return await self._app.cancel(self.id, reason)
