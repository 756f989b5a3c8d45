"""Typed calls of history.sql, and of the totals of a queue."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from trunkline.db.pool import Connection
from trunkline.db.query import fetch_rows


class DeliveryRun(NamedTuple):
    """Adjoining offsets of a log that were delivered and settled together. An open delivery has no outcome."""

    queue: str
    topic: str | None
    partition: int
    first_offset: int
    last_offset: int
    n: int
    attempt: int
    consumer: str | None
    claimed_at: datetime
    settled_at: datetime | None
    outcome: str | None
    error: str | None


class Completed(NamedTuple):
    """An acked message."""

    id: UUID
    created_at: datetime
    processed_at: datetime
    attempts: int
    consumer: str | None
    topic: str | None
    key: str | None
    label: str | None
    bytes: int


class Totals(NamedTuple):
    """The messages that a queue accepted, and their states: `accepted` is the sum of the others."""

    accepted: int
    ready: int
    delayed: int
    leased: int
    acked: int
    dead: int
    expired: int
    purged: int


async def list_deliveries(
    conn: Connection, queue: str | None = None, *, since: timedelta, limit: int = 1000
) -> list[DeliveryRun]:
    query = (
        "select queue, topic, partition, first_offset, last_offset, n, attempt, consumer, claimed_at, settled_at, outcome,"
        " error from trunkline.list_deliveries(%b::text, %b, %b::int)"
    )
    return [DeliveryRun(*row) for row in await fetch_rows(conn, query, (queue, since, limit))]


async def list_archive(conn: Connection, queue: str | None = None, *, since: timedelta, limit: int = 100) -> list[Completed]:
    """Return acked messages without their payloads."""
    query = (
        "select id, created_at, processed_at, attempts, consumer, topic, key, label, octet_length(payload)"
        " from trunkline.list_archive(%b::text, %b, %b::int)"
    )
    return [Completed(*row) for row in await fetch_rows(conn, query, (queue, since, limit))]


async def audit_queue(conn: Connection, queue: str) -> Totals:
    """Exact only while no claim is open and no pass runs."""
    query = "select accepted, ready, pending, leased, acked, dead, expired, purged from trunkline.audit_queue(%b)"
    [row] = await fetch_rows(conn, query, (queue,))
    return Totals(*row)
