"""Reads of the pages of endpoints."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from trunkline.db.calls import push, stats
from trunkline.db.calls.list_records import EndpointEvent
from trunkline.db.calls.push import EndpointStats
from trunkline.db.pool import Connection
from trunkline.types import Attempt, Endpoint, QueueStats

LIST = "endpoint list"
_MOST = 500


class Endpoints(msgspec.Struct, frozen=True):
    """All endpoints, with the requests of the last minute and the queues that they receive."""

    endpoints: list[Endpoint]
    stats: dict[str, EndpointStats]
    queues: dict[str, QueueStats]


async def all_endpoints(conn: Connection) -> Endpoints:
    return Endpoints(
        await push.list_endpoints(conn),
        {row.endpoint: row for row in await push.endpoint_stats(conn, limit=_MOST)},
        {row.queue: row for row in await stats.queue_stats(conn)},
    )


async def one(conn: Connection, name: str) -> Endpoint:
    return await push.get_endpoint(conn, name)


async def events(conn: Connection, name: str, before: int | None, limit: int) -> list[EndpointEvent]:
    return await push.list_endpoint_events(conn, name, before=before, limit=limit)


class Wanted(msgspec.Struct, frozen=True):
    """Which attempts to show. `status`: a status, the first digit of a class, or 0 for no response."""

    outcome: str | None = None
    status: int | None = None
    id: UUID | None = None
    start: datetime | None = None
    end: datetime | None = None
    after: tuple[datetime, UUID] | None = None
    since: timedelta = timedelta(days=1)


async def attempts(conn: Connection, name: str, wanted: Wanted, limit: int) -> list[Attempt]:
    return await push.list_attempts(
        conn,
        name,
        id=wanted.id,
        since=wanted.since,
        limit=limit,
        outcome=wanted.outcome,
        status=wanted.status,
        start=wanted.start,
        end=wanted.end,
        after=wanted.after,
    )
