"""Typed calls of groups.sql: consumer groups, their members and positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from trunkline.codec import decoder, headers_json
from trunkline.db.calls.statements import FIELDS, message_fields, named_arguments
from trunkline.db.pool import Connection
from trunkline.db.query import fetch_records, fetch_rows, fetch_value
from trunkline.types import (
    Group,
    Headers,
    Message,
    Range,
    Result,
)

S = TypeVar("S")


async def create_group(
    conn: Connection,
    topic: str,
    group: str,
    *,
    start: str,
    pattern: str | None = None,
    headers: Headers | None = None,
    ensure: bool = False,
) -> Group:
    named, values = named_arguments(
        {"pattern": pattern, "filter": headers_json(headers)}, {"pattern": "text", "filter": "jsonb"}
    )
    verb = "ensure_group" if ensure else "create_group"
    query = f"select g.name, g.pattern, g.filter, g.created_at from trunkline.{verb}(%b, %b, %b{named}) g"  # noqa: S608
    name, pattern, filter, created_at = (await fetch_rows(conn, query, (topic, group, start, *values)))[0]
    return Group(topic=topic, name=name, pattern=pattern, headers=filter, created_at=created_at)


async def list_groups(
    conn: Connection,
    topic: str | None = None,
    *,
    after: str | None = None,
    limit: int | None = None,
    names: Sequence[str] | None = None,
) -> list[Group]:
    return await fetch_records(
        conn,
        Group,
        "select topic, name, pattern, filter as headers, created_at"
        " from trunkline.list_groups(%b::text, %b::text, %b::int, %b::text[])",
        (topic, after, limit, None if names is None else list(names)),
    )


async def delete_group(conn: Connection, topic: str, group: str) -> None:
    await fetch_rows(conn, "select trunkline.delete_group(%b, %b)", (topic, group))


async def fetch(
    conn: Connection,
    make: Callable[..., S],
    topic: str,
    group: str,
    *,
    member: str,
    limit: int,
    lease: timedelta,
    generation: UUID | None = None,
    max_bytes: int | None = None,
    type: Any = None,
) -> S | None:
    """Fetch the next messages of one partition as a batch, or None if there is nothing for this member.

    Uses a relaxed commit, because it is always a separate transaction.
    """
    rows = await fetch_rows(
        conn,
        f"select {FIELDS}, generation, deadline"  # noqa: S608
        " from trunkline.fetch(%b, %b, %b, %b::int, %b, p_relaxed => true, p_generation => %b::uuid,"
        " p_max_bytes => %b::bigint)",
        (topic, group, member, limit, lease, generation, max_bytes),
    )
    if not rows:
        return None
    decode = decoder(type)
    messages: list[Message[Any]] = [Message(**message_fields(row), _decode=decode) for row in rows]
    return make(generation=rows[0][11], deadline=rows[0][12], messages=messages)


async def commit(
    conn: Connection, topic: str, group: str, *, partition: int, generation: UUID, offset: int
) -> tuple[Result, str]:
    """Commit a position. Return the result and the id of its transaction."""
    row = (
        await fetch_rows(
            conn,
            "select trunkline.commit(%b, %b, %b::int, %b, %b::bigint), pg_current_xact_id()::text",
            (topic, group, partition, generation, offset),
        )
    )[0]
    return row[0], row[1]


async def leave(conn: Connection, topic: str, group: str, *, member: str) -> int:
    return int(await fetch_value(conn, "select trunkline.leave(%b, %b, %b)", (topic, group, member)))


async def heartbeat(conn: Connection, topic: str, group: str, *, member: str, lease: timedelta) -> int:
    return int(await fetch_value(conn, "select trunkline.heartbeat(%b, %b, %b, %b)", (topic, group, member, lease)))


async def claim_range(conn: Connection, topic: str, group: str, *, limit: int = 100) -> Range | None:
    rows = await fetch_rows(
        conn,
        "select partition, first_offset, last_offset from trunkline.claim_range(%b, %b, %b::bigint)",
        (topic, group, limit),
    )
    return Range(*rows[0]) if rows else None


async def seek(conn: Connection, topic: str, group: str, to: str, *, partition: int | None = None) -> dict[int, int]:
    """Move a group. Return the next offset of each partition moved."""
    rows = await fetch_rows(
        conn,
        "select partition, next_offset from trunkline.seek(%b, %b, %b, %b::int)",
        (topic, group, to, partition),
    )
    return {row[0]: row[1] for row in rows}
