"""Runs over HTTP."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from trunkline.http_client.resource import HttpResource
from trunkline.http_client.transport import given
from trunkline.types import Run, RunPreview


class _Runs(msgspec.Struct):
    data: list[Run]


class HttpRuns(HttpResource):
    """`client.runs`"""

    async def preview(self, kind: str, selector: Mapping[str, Any]) -> RunPreview:
        """Return how many messages a run would process now. Changes nothing."""
        request = {"kind": kind, "selector": selector}
        return await self._transport.ask("POST", "/v1/runs/preview", request, kind=RunPreview)

    async def start(
        self, kind: str, selector: Mapping[str, Any], *, expected: int, options: Mapping[str, Any] | None = None
    ) -> Run:
        """Start a run. `expected` is `messages` of its preview; raises `PreviewOutdated` if it has changed by over 10 %."""
        request = {"kind": kind, "selector": selector, "expected": expected, "options": options}
        return await self._transport.ask("POST", "/v1/runs", request, kind=Run)

    async def pause(self, run_id: int, *, reason: str | None = None) -> None:
        """Pause a run. Raises `InUse` if it has ended."""
        await self._transport.ask("POST", f"/v1/runs/{run_id}/pause", {"reason": reason})

    async def resume(self, run_id: int) -> None:
        """Continue a run that is paused, or was stopped by its rule or an error."""
        await self._transport.ask("POST", f"/v1/runs/{run_id}/resume")

    async def abort(self, run_id: int, *, reason: str | None = None) -> None:
        """End a run early. Messages that it has not processed stay as they are."""
        await self._transport.ask("POST", f"/v1/runs/{run_id}/abort", {"reason": reason})

    async def undo(self, run_id: int) -> None:
        """Move a group back to the exact positions that it had before a seek. Raises `NotSupported` for other runs."""
        await self._transport.ask("POST", f"/v1/runs/{run_id}/undo")

    async def list(
        self, states: Sequence[str] | None = None, *, before: int | None = None, limit: int = 100
    ) -> builtins.list[Run]:
        """List runs, newest first. For the next page pass the last `run_id` as `before`."""
        query = given(state=None if states is None else ",".join(states), before=before, limit=limit)
        return (await self._transport.ask("GET", "/v1/runs", query=query, kind=_Runs)).data

    async def get(self, run_id: int) -> Run:
        """Return a run with its log and up to five messages that failed again. Raises `RunNotFound`."""
        return await self._transport.ask("GET", f"/v1/runs/{run_id}", kind=Run)
