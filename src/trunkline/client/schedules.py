"""Schedules: messages published at the times of a cron expression."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import Unpack
from uuid import UUID

from trunkline.client.resource import Resource
from trunkline.codec import headers_json, to_json
from trunkline.db import calls
from trunkline.messaging import ScheduleOptions
from trunkline.resources import check_known
from trunkline.types import Schedule


class Schedules(Resource):
    """`client.schedules`"""

    async def create(self, name: str, cron: str, **options: Unpack[ScheduleOptions]) -> Schedule:
        """Create a schedule that publishes `body` to a topic or a queue.

        It fires once across all processes that run upkeep. `catch_up` decides about times missed while no process ran
        upkeep: `skip` them, fire `one` (the default), or fire `all`. `timezone` defaults to UTC.
        """
        return await self._make(name, cron, options, ensure=False)

    async def ensure(self, name: str, cron: str, **options: Unpack[ScheduleOptions]) -> Schedule:
        """Create the schedule, or update it if it exists."""
        return await self._make(name, cron, options, ensure=True)

    async def _make(self, name: str, cron: str, options: ScheduleOptions, *, ensure: bool) -> Schedule:
        check_known(ScheduleOptions, options)
        payload = to_json(options.pop("body", None)).decode()
        headers = headers_json(options.pop("headers", None))
        async with self._writing() as conn:
            return await calls.create_schedule(conn, name, cron, ensure=ensure, payload=payload, headers=headers, **options)

    async def list(self) -> builtins.list[Schedule]:
        """List all schedules by name."""
        async with self._reading() as conn:
            return await calls.list_schedules(conn)

    async def pause(self, name: str) -> None:
        """Stop firing the schedule until `resume`."""
        async with self._writing() as conn:
            await calls.pause_schedule(conn, name, paused=True)

    async def resume(self, name: str) -> None:
        """Fire the schedule again after `pause`."""
        async with self._writing() as conn:
            await calls.pause_schedule(conn, name, paused=False)

    async def delete(self, name: str) -> None:
        """Delete the schedule."""
        async with self._writing() as conn:
            await calls.delete_schedule(conn, name)

    async def run(self, name: str) -> UUID:
        """Fire the schedule now, in addition to its times. Returns the message id."""
        async with self._writing() as conn:
            id = await calls.run_schedule(conn, name)
        self._session().wakeup.notify()
        return id

    async def next_runs(
        self, cron: str, *, timezone: str = "UTC", limit: int = 5, after: datetime | None = None
    ) -> builtins.list[datetime]:
        """Return the next `limit` times of a cron expression."""
        async with self._reading() as conn:
            return await calls.next_runs(conn, cron, timezone=timezone, limit=limit, after=after)
