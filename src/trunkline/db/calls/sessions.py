"""Typed calls for the console's sessions, in `sql/functions/tokens.sql`. The database stores only hashes."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from trunkline.db.pool import Connection
from trunkline.db.query import fetch_records, fetch_value


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session. `secret_hash` verifies that the secret of its token is still valid."""

    hash: bytes
    token_id: str
    secret_hash: bytes
    created_at: datetime
    expires_at: datetime


class OpenSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session as administrators see it. `name` is its token's."""

    name: str
    created_at: datetime
    seen_at: datetime
    expires_at: datetime
    address: str | None
    agent: str | None


async def open_session(
    conn: Connection,
    hash: bytes,
    *,
    token_id: str,
    secret_hash: bytes,
    lasts: timedelta,
    address: str | None,
    agent: str | None,
) -> Session:
    query = "select * from trunkline._open_session(%b::bytea, %b::text, %b::bytea, %b, %b::text, %b::text)"
    return (await fetch_records(conn, Session, query, (hash, token_id, secret_hash, lasts, address, agent)))[0]


async def use_session(conn: Connection, hash: bytes) -> Session | None:
    """Return an open session, and note that it was seen."""
    rows = await fetch_records(conn, Session, "select * from trunkline._use_session(%b::bytea)", (hash,))
    return rows[0] if rows else None


async def end_session(conn: Connection, hash: bytes) -> bool:
    return bool(await fetch_value(conn, "select trunkline._end_session(%b::bytea)", (hash,)))


async def end_sessions(conn: Connection, token_id: str) -> int:
    """End all sessions of a token. Return how many."""
    return int(await fetch_value(conn, "select trunkline._end_sessions(%b::text)", (token_id,)))


async def list_sessions(conn: Connection) -> list[OpenSession]:
    return await fetch_records(conn, OpenSession, "select * from trunkline._list_sessions()")
