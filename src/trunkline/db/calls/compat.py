"""Typed calls of `sql/functions/compat.sql`, for clients of other systems, which use neither receipts nor generations."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from trunkline.codec import decoder, headers_json
from trunkline.db.calls.procedures import sequence
from trunkline.db.calls.statements import FIELDS, message_fields
from trunkline.db.pool import Connection
from trunkline.db.query import fetch_rows
from trunkline.types import Headers, Message


class Held(NamedTuple):
    """The state of a message in a queue (leased, acked, ready, dead or gone), with the receipt of its lease."""

    state: str
    receipt: str | None


class Pulled(NamedTuple):
    """Messages fetched for a group member, with the generation that proves ownership."""

    generation: UUID
    messages: list[Message[Any]]


async def delivery_of(conn: Connection, queue: str, id: UUID) -> Held | None:
    """Return the state of a message, or None if the queue never received it."""
    rows = await fetch_rows(conn, "select state, receipt from trunkline._delivery_of(%b, %b)", (queue, id))
    return Held(*rows[0]) if rows else None


async def drop_leases(conn: Connection, queue: str) -> int:
    return int((await fetch_rows(conn, "select trunkline._drop_leases(%b)", (queue,)))[0][0])


async def subscribe_once(conn: Connection, name: str, *, queue: str, topic: str, headers: Headers | None) -> None:
    await fetch_rows(
        conn,
        "select from trunkline._subscribe_once(%b, %b, %b, '#', %b::jsonb, 'latest')",
        (name, queue, topic, headers_json(headers)),
    )


async def pull(
    conn: Connection, topic: str, group: str, *, member: str, limit: int, lease: timedelta, max_bytes: int
) -> Pulled | None:
    rows = await fetch_rows(
        conn,
        f"select {FIELDS}, generation from trunkline._pull(%b, %b, %b, %b::int, %b, %b::bigint)",  # noqa: S608
        (topic, group, member, limit, lease, max_bytes),
    )
    if not rows:
        return None
    decode = decoder(None)
    return Pulled(rows[0][11], [Message(**message_fields(row), _decode=decode) for row in rows])


async def ack_upto(conn: Connection, topic: str, group: str, offset: int) -> int:
    return int((await fetch_rows(conn, "select trunkline._ack_upto(%b, %b, %b::bigint)", (topic, group, offset)))[0][0])


async def committed(conn: Connection, topic: str, group: str) -> int:
    return int((await fetch_rows(conn, "select trunkline._committed(%b, %b)", (topic, group)))[0][0])


async def offset_of(conn: Connection, topic: str, id: UUID) -> int | None:
    await sequence(conn, topics=[topic])
    value = (await fetch_rows(conn, "select trunkline._offset_of(%b, %b)", (topic, id)))[0][0]
    return None if value is None else int(value)
