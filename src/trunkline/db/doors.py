"""Typed calls of `sql/functions/doors.sql`, for HTTP clients that use neither receipts nor generations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from trunkline.codec import decoder, headers_json
from trunkline.db import calls
from trunkline.db.calls import message_fields
from trunkline.db.pool import Connection
from trunkline.db.query import fetch_rows
from trunkline.types import Headers, Message

_FIELDS = "partition, log_offset, id, key, routing_key, label, headers, payload, content_type, occurred_at, created_at"


class Held(NamedTuple):
    """The state of a message in a queue (leased, acked, waiting, dead or gone), with the receipt of its lease."""

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


async def queues_of_cursors(conn: Connection, cursors: Sequence[int]) -> dict[int, str]:
    rows = await fetch_rows(conn, "select cursor_id, queue from trunkline._queues_of_cursors(%b::int[])", (list(cursors),))
    return {row[0]: row[1] for row in rows}


async def subscribe_once(
    conn: Connection, name: str, *, queue: str, topic: str, pattern: str, headers: Headers | None, start: str
) -> None:
    await fetch_rows(
        conn,
        "select from trunkline._subscribe_once(%b, %b, %b, %b, %b::jsonb, %b)",
        (name, queue, topic, pattern, headers_json(headers), start),
    )


async def pull(
    conn: Connection, topic: str, group: str, *, member: str, limit: int, lease: timedelta, max_bytes: int
) -> Pulled | None:
    rows = await fetch_rows(
        conn,
        f"select {_FIELDS}, generation from trunkline._pull(%b, %b, %b, %b::int, %b, %b::bigint)",  # noqa: S608
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
    await calls.sequence(conn, topics=[topic])
    value = (await fetch_rows(conn, "select trunkline._offset_of(%b, %b)", (topic, id)))[0][0]
    return None if value is None else int(value)


class Ages(NamedTuple):
    """Ages in seconds of the oldest transaction that holds back vacuum and the oldest gap that blocks sequencing."""

    transaction: float
    unsequenced: float


async def ages(conn: Connection) -> Ages:
    rows = await fetch_rows(conn, "select * from trunkline._ages()")
    return Ages(*rows[0])


class UpkeepTask(NamedTuple):
    """An upkeep task: its state, and seconds since its last run (None: never; negative: the clock was set back)."""

    task: str
    state: str
    age: float | None


async def upkeep_tasks(conn: Connection) -> list[UpkeepTask]:
    rows = await fetch_rows(conn, "select task, state, age_seconds from trunkline.upkeep_stats()")
    return [UpkeepTask(*row) for row in rows]


class PipelineLag(NamedTuple):
    """A Spark pipeline or streaming query: its state, messages it has yet to read, and seconds since it last reported."""

    name: str
    state: str
    lag: int | None
    age: float


async def pipeline_lags(conn: Connection, limit: int) -> list[PipelineLag]:
    """Return the pipelines that reported most recently."""
    query = (
        "select name, state, lag, extract(epoch from trunkline.clock() - updated_at)::float8"
        " from trunkline.list_pipelines() limit %b"
    )
    return [PipelineLag(*row) for row in await fetch_rows(conn, query, (limit,))]


async def answers(conn: Connection) -> bool:
    """Return whether the database responds and has the schema."""
    return int((await fetch_rows(conn, "select count(*) from trunkline.migrations"))[0][0]) > 0
