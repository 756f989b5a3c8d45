"""Typed calls of dead.sql: list, redrive and purge dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from trunkline.codec import decoder
from trunkline.db.calls.statements import FIELDS, message_fields, within_bytes
from trunkline.db.pool import Connection
from trunkline.db.query import Row, fetch_rows, fetch_value
from trunkline.types import (
    DeadLetter,
)


def _dead_letter(row: Row, decode: Callable[[bytes, str], Any]) -> DeadLetter[Any]:
    return DeadLetter(
        **message_fields(row),
        dead_id=row[11],
        topic=row[12],
        attempts=row[13],
        error=row[14],
        reason=row[15],
        dead_at=row[16],
        _decode=decode,
    )


_DEAD = f"{FIELDS}, dead_id, topic, attempts, error, reason, dead_at"


async def list_dead_letters(
    conn: Connection, queue: str, *, after: int = 0, limit: int = 100, max_bytes: int | None = None, type: Any = None
) -> list[DeadLetter[Any]]:
    function, args = "list_dead_letters(%b, %b::bigint, %b::int)", (queue, after, limit)
    if max_bytes is None:
        rows = await fetch_rows(conn, f"select {_DEAD} from trunkline.{function}", args)  # noqa: S608
    else:
        rows = await fetch_rows(conn, within_bytes(_DEAD, function), (*args, max_bytes))
    return [_dead_letter(row, decoder(type)) for row in rows]


async def list_dead_group(
    conn: Connection,
    queue: str,
    fingerprint: str,
    *,
    before: int | None = None,
    limit: int = 100,
    max_bytes: int | None = None,
) -> list[DeadLetter[Any]]:
    """Return dead letters with one label and masked error, the newest first."""
    function, args = "_list_dead_group(%b, %b, %b::bigint, %b::int)", (queue, fingerprint, before, limit)
    if max_bytes is None:
        rows = await fetch_rows(conn, f"select {_DEAD} from trunkline.{function}", args)  # noqa: S608
    else:
        rows = await fetch_rows(conn, within_bytes(_DEAD, function), (*args, max_bytes))
    return [_dead_letter(row, decoder(None)) for row in rows]


async def get_dead_letter(conn: Connection, queue: str, id: UUID, *, type: Any = None) -> DeadLetter[Any]:
    rows = await fetch_rows(conn, f"select {_DEAD} from trunkline.get_dead_letter(%b, %b)", (queue, id))  # noqa: S608
    return _dead_letter(rows[0], decoder(type))


async def redrive(
    conn: Connection, queue: str, *, ids: Sequence[UUID] | None = None, to: str | None = None, limit: int = 1000
) -> int:
    """Redrive one bounded step of dead letters. Return their number."""
    return int(
        await fetch_value(
            conn,
            "select trunkline.redrive(%b, %b::uuid[], %b::text, %b::int)",
            (queue, None if ids is None else list(ids), to, limit),
        )
    )


async def redrive_edited(
    conn: Connection, queue: str, id: UUID, payload: bytes, *, headers: str | None = None, content_type: str | None = None
) -> None:
    query = "select trunkline.redrive_edited(%b, %b, %b, %b::jsonb, %b::text)"
    await fetch_rows(conn, query, (queue, id, payload, headers, content_type))


async def purge_dead_letters(conn: Connection, queue: str, *, ids: Sequence[UUID] | None = None, limit: int = 1000) -> int:
    return int(
        await fetch_value(
            conn,
            "select trunkline.purge_dead_letters(%b, %b::uuid[], %b::int)",
            (queue, None if ids is None else list(ids), limit),
        )
    )
