"""Schedules over HTTP."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import Unpack
from uuid import UUID

import msgspec

from trunkline.codec import position_text, to_json
from trunkline.http_client.resource import HttpResource
from trunkline.http_client.transport import quoted
from trunkline.messaging import ScheduleOptions
from trunkline.resources import check_known
from trunkline.types import (
    Schedule,
)
from trunkline.wire import ScheduleView


class HttpSchedules(HttpResource):
    """`client.schedules`"""

    async def create(self, name: str, cron: str, **options: Unpack[ScheduleOptions]) -> Schedule:
        """Create a schedule that publishes `body` to a topic or a queue."""
        return await self._make(name, cron, options, ensure=False)

    async def ensure(self, name: str, cron: str, **options: Unpack[ScheduleOptions]) -> Schedule:
        """Create the schedule, or update it if it exists."""
        return await self._make(name, cron, options, ensure=True)

    async def _make(self, name: str, cron: str, options: ScheduleOptions, *, ensure: bool) -> Schedule:
        check_known(ScheduleOptions, options)
        body = options.pop("body", None)
        request = {"name": name, "cron": cron, "payload": msgspec.Raw(to_json(body)), **options}
        query = {"ensure": str(ensure).lower()}
        return (await self._transport.ask("POST", "/v1/schedules", request, query=query, kind=ScheduleView)).schedule()

    async def list(self) -> builtins.list[Schedule]:
        """List all schedules by name."""
        return [row.schedule() for row in await self._transport.every("/v1/schedules", ScheduleView)]

    async def pause(self, name: str) -> None:
        """Stop firing the schedule until `resume`."""
        await self._transport.ask("PUT", f"/v1/schedules/{quoted(name)}/pause")

    async def resume(self, name: str) -> None:
        await self._transport.ask("PUT", f"/v1/schedules/{quoted(name)}/resume")

    async def delete(self, name: str) -> None:
        await self._transport.ask("DELETE", f"/v1/schedules/{quoted(name)}")

    async def run(self, name: str) -> UUID:
        """Fire the schedule now, in addition to its times. Returns the message id."""
        return UUID((await self._transport.ask("POST", f"/v1/schedules/{quoted(name)}/run"))["id"])

    async def next_runs(
        self, cron: str, *, timezone: str = "UTC", limit: int = 5, after: datetime | None = None
    ) -> builtins.list[datetime]:
        """Return the next `limit` times of a cron expression."""
        query = {
            "cron": cron,
            "timezone": timezone,
            "limit": limit,
            "after": None if after is None else position_text(after),
        }
        body = await self._transport.ask("GET", "/v1/next-runs", query=query)
        return msgspec.convert(body["data"], builtins.list[datetime])
