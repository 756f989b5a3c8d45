# Written by tools/unasync.py from src/trunkline/client/schedules.py; change that file, not this one.
"""Schedules: messages published at the times of a cron expression."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import Any
from uuid import UUID

from trunkline.client.sync.resource import Resource
from trunkline.codec import headers_json, to_json
from trunkline.db.sync import calls
from trunkline.types import CatchUp, Headers, Schedule


class Schedules(Resource):
    """`client.schedules`"""

    def create(
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
        return self._make(False, name, cron, topic, queue, body, key, routing_key, label, headers, timezone, catch_up)

    def ensure(
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
        return self._make(True, name, cron, topic, queue, body, key, routing_key, label, headers, timezone, catch_up)

    def _make(
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
        with self._writing() as conn:
            return calls.create_schedule(
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

    def list(self) -> builtins.list[Schedule]:
        """List all schedules by name."""
        with self._reading() as conn:
            return calls.list_schedules(conn)

    def pause(self, name: str) -> None:
        """Stop firing the schedule until `resume`."""
        with self._writing() as conn:
            calls.pause_schedule(conn, name, paused=True)

    def resume(self, name: str) -> None:
        """Fire the schedule again after `pause`."""
        with self._writing() as conn:
            calls.pause_schedule(conn, name, paused=False)

    def delete(self, name: str) -> None:
        """Delete the schedule."""
        with self._writing() as conn:
            calls.delete_schedule(conn, name)

    def run(self, name: str) -> UUID:
        """Fire the schedule now, in addition to its times. Returns the message id."""
        with self._writing() as conn:
            id = calls.run_schedule(conn, name)
        self._session().wakeup.notify()
        return id

    def next_runs(
        self, cron: str, *, timezone: str = "UTC", limit: int = 5, after: datetime | None = None
    ) -> builtins.list[datetime]:
        """Return the next `limit` times of a cron expression."""
        with self._reading() as conn:
            return calls.next_runs(conn, cron, timezone=timezone, limit=limit, after=after)
