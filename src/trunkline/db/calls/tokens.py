"""Typed calls of `sql/functions/tokens.sql`. Token secrets exist only in Python; the database stores their hashes."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from trunkline.codec import headers_json
from trunkline.db.pool import Connection
from trunkline.db.query import fetch_records, fetch_value

S = TypeVar("S")
PREFIX = "tl"


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A stored token. It holds a hash that verifies the secret, not the secret."""

    token_id: str
    name: str
    hash: bytes
    old_hash: bytes | None
    old_until: datetime | None
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = None
    made_by: str | None = None


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the audit log: actor, action, time and address."""

    audit_id: int
    at: datetime
    actor: str
    address: str | None
    action: str
    object: str | None
    detail: dict[str, Any] | None = None
    """The target of the action, and the values that it replaced."""


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _new_secret() -> str:
    return secrets.token_hex(32)


async def create_token(
    conn: Connection,
    name: str,
    scopes: Sequence[str],
    *,
    expires_at: datetime | None = None,
    made_by: str | None = None,
) -> tuple[str, Token]:
    """Create a token. Return its secret form, which is shown only once, and the stored record.

    `made_by` is the token that creates it; None: the role of the session.
    """
    id, secret = secrets.token_hex(8), _new_secret()
    rows = await fetch_records(
        conn,
        Token,
        "select * from trunkline._create_token(%b, %b, %b, %b::text[], %b::timestamptz, %b::text)",
        (id, name, digest(secret), list(scopes), expires_at, made_by),
    )
    return f"{PREFIX}_{id}_{secret}", rows[0]


async def rotate_token(
    conn: Connection, name: str, *, grace: timedelta = timedelta(0), expires_at: datetime | None = None
) -> tuple[str, Token]:
    """Give a token a new secret. The previous secret remains valid for `grace`."""
    secret = _new_secret()
    rows = await fetch_records(
        conn,
        Token,
        "select * from trunkline._rotate_token(%b, %b, %b, %b::timestamptz)",
        (name, digest(secret), grace, expires_at),
    )
    return f"{PREFIX}_{rows[0].token_id}_{secret}", rows[0]


async def revoke_token(conn: Connection, name: str) -> None:
    await fetch_value(conn, "select trunkline._revoke_token(%b)", (name,))


async def list_tokens(conn: Connection) -> list[Token]:
    return await fetch_records(conn, Token, "select * from trunkline._list_tokens()")


async def now(conn: Connection) -> datetime:
    """Return the time of the database's clock, which decides about expiry."""
    moment: datetime = await fetch_value(conn, "select trunkline.clock()")
    return moment


async def record_audit(
    conn: Connection,
    *,
    actor: str,
    address: str | None,
    action: str,
    object: str | None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    query = "select trunkline._record_audit(%b, %b::text, %b, %b::text, %b::jsonb)"
    await fetch_value(conn, query, (actor, address, action, object, headers_json(detail)))


async def list_audit(conn: Connection, *, after: int = 0, limit: int = 100) -> list[AuditEntry]:
    return await fetch_records(conn, AuditEntry, "select * from trunkline._list_audit(%b::bigint, %b::int)", (after, limit))


async def note_use(conn: Connection, token_ids: Sequence[str]) -> None:
    """Record that tokens were used, at most once a minute for each."""
    await fetch_value(conn, "select trunkline._note_token_use(%b::text[])", (list(token_ids),))


async def find_audit(
    conn: Connection,
    *,
    actor: str | None = None,
    action: str | None = None,
    object: str | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[AuditEntry]:
    """Return audit entries, newest first. `action` is a part of the action; `before` the last number of a page."""
    return await fetch_records(
        conn,
        AuditEntry,
        "select * from trunkline._find_audit(%b::text, %b::text, %b::text, %b::timestamptz, %b::timestamptz, %b::bigint,"
        " %b::int)",
        (actor, action, object, start, end, before, limit),
    )


async def verify_audit(conn: Connection) -> int | None:
    """Return the id of the first entry that was tampered with, or None."""
    value = await fetch_value(conn, "select trunkline._verify_audit()")
    return None if value is None else int(value)
