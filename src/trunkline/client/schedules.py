"""Schedules: messages published at the times of a cron expression."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import Any
from uuid import UUID

from trunkline.client.resource import Resource
from trunkline.codec import headers_json, to_json
from trunkline.db import calls
from trunkline.types import CatchUp, Headers, Schedule


class Schedules(Resource):
    """`client.schedules`"""

    async def create(
        self,
        name: str,
        cron: str,
        *,
        topic: str | None = None,
        queue: str | None = None,
        body: Any = None,
        key: str | None = None,
        routing_key: str | None = None,
        label: str | None = None,
        headers: Headers | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp = "one",
    ) -> Schedule:
        """Create a schedule that publishes `body` to a topic or a queue.

        It fires once across all processes that run upkeep. `catch_up` decides about times missed while no process ran
        upkeep: `skip` them, fire `one`, or fire `all`.
        """
        return await self._make(False, name, cron, topic, queue, body, key, routing_key, label, headers, timezone, catch_up)

    async def ensure(
        self,
        name: str,
        cron: str,
        *,
        topic: str | None = None,
        queue: str | None = None,
        body: Any = None,
        key: str | None = None,
        routing_key: str | None = None,
        label: str | None = None,
        headers: Headers | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp = "one",
    ) -> Schedule:
        """Create the schedule, or update it if it exists."""
        return await self._make(True, name, cron, topic, queue, body, key, routing_key, label, headers, timezone, catch_up)

    async def _make(
        self,
        ensure: bool,
        name: str,
        cron: str,
        topic: str | None,
        queue: str | None,
        body: Any,
        key: str | None,
        routing_key: str | None,
        label: str | None,
        headers: Headers | None,
        timezone: str,
        catch_up: CatchUp,
    ) -> Schedule:
        payload = to_json(body).decode()
        async with self._writing() as conn:
            return await calls.create_schedule(
                conn,
                name,
                cron,
                ensure=ensure,
                topic=topic,
                queue=queue,
                payload=payload,
                key=key,
                routing_key=routing_key,
                label=label,
                headers=headers_json(headers),
                timezone=timezone,
                catch_up=catch_up,
            )

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
