"""Runs: bulk actions that the database executes."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

from trunkline.client.resource import Resource
from trunkline.db import calls
from trunkline.types import Run, RunPreview


class Runs(Resource):
    """`client.runs`"""

    async def preview(self, kind: str, selector: Mapping[str, Any]) -> RunPreview:
        """Return how many messages a run would process now. Changes nothing.

        Kinds: `redrive`, `retry_jobs`, `purge_dead_letters`, `replay`, `purge_queue`. The selector has `queue`, and for
        dead letters some of `all`, `ids`, `fingerprint`, `label`, `key`, `topic`, `reason`, `error`, `headers`, `since`
        and `until`; for a replay `from` and `to`.
        """
        async with self._reading() as conn:
            return await calls.preview_run(conn, kind, selector)

    async def start(
        self,
        kind: str,
        selector: Mapping[str, Any],
        *,
        expected: int,
        options: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> Run:
        """Start a run. `expected` is `messages` of its preview; raises `PreviewOutdated` if it has changed by over 10 %.

        Options: `grace` (seconds), `rate` (messages per second), `to` (a queue), `canary`, `canary_timeout`,
        `stop_share` and `stop_window`. `by` names who started it.
        """
        async with self._writing() as conn:
            number = await calls.start_run(conn, kind, selector, expected=expected, options=options or {}, by=by)
            return await calls.get_run(conn, number)

    async def pause(self, run_id: int, *, reason: str | None = None) -> None:
        """Pause a run. Raises `InUse` if it has ended."""
        async with self._writing() as conn:
            await calls.pause_run(conn, run_id, reason=reason)

    async def resume(self, run_id: int) -> None:
        """Continue a run that is paused, or was stopped by its rule or an error."""
        async with self._writing() as conn:
            await calls.resume_run(conn, run_id)

    async def abort(self, run_id: int, *, reason: str | None = None) -> None:
        """End a run early. Messages that it has not processed stay as they are."""
        async with self._writing() as conn:
            await calls.abort_run(conn, run_id, reason=reason)

    async def undo(self, run_id: int) -> None:
        """Move a group back to the exact positions that it had before a seek. Raises `NotSupported` for other runs."""
        async with self._writing() as conn:
            await calls.undo_run(conn, run_id)

    async def list(
        self, states: Sequence[str] | None = None, *, before: int | None = None, limit: int = 100
    ) -> builtins.list[Run]:
        """List runs, newest first. For the next page pass the last `run_id` as `before`."""
        async with self._reading() as conn:
            return await calls.list_runs(conn, states, before=before, limit=limit)

    async def get(self, run_id: int) -> Run:
        """Return a run with its log and up to five messages that failed again. Raises `RunNotFound`."""
        async with self._reading() as conn:
            return await calls.get_run(conn, run_id)
