# Written by tools/unasync.py from src/trunkline/client/schedules.py; change that file, not this one.
"""Schedules: messages published at the times of a cron expression."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import Unpack
from uuid import UUID

from trunkline.client.sync.resource import Resource
from trunkline.codec import headers_json, to_json
from trunkline.db.sync import calls
from trunkline.messaging import ScheduleOptions
from trunkline.resources import check_known
from trunkline.types import Schedule


class Schedules(Resource):
    """`client.schedules`"""

    def create(self, name: str, cron: str, **options: Unpack[ScheduleOptions]) -> Schedule:
        """Create a schedule that publishes `body` to a topic or a queue.

        It fires once across all processes that run upkeep. `catch_up` decides about times missed while no process ran
        upkeep: `skip` them, fire `one` (the default), or fire `all`. `timezone` defaults to UTC.
        """
        return self._make(name, cron, options, ensure=False)

    def ensure(self, name: str, cron: str, **options: Unpack[ScheduleOptions]) -> Schedule:
        """Create the schedule, or update it if it exists."""
        return self._make(name, cron, options, ensure=True)

    def _make(self, name: str, cron: str, options: ScheduleOptions, *, ensure: bool) -> Schedule:
        check_known(ScheduleOptions, options)
        payload = to_json(options.pop("body", None)).decode()
        headers = headers_json(options.pop("headers", None))
        with self._writing() as conn:
            return calls.create_schedule(conn, name, cron, ensure=ensure, payload=payload, headers=headers, **options)

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
