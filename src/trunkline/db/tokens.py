"""Typed calls of `sql/functions/tokens.sql`, and the secrets, which only Python ever sees."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from trunkline.db.pool import Connection
from trunkline.db.querying import fetch_records, fetch_value

S = TypeVar("S")
PREFIX = "tl"


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is stored: enough to recognise its secret, not to know it."""

    token_id: str
    name: str
    hash: bytes
    old_hash: bytes | None
    old_until: datetime | None
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Who did what, when and from where."""

    audit_id: int
    at: datetime
    actor: str
    address: str | None
    action: str
    object: str | None


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _new_secret() -> str:
    return secrets.token_hex(32)


async def create_token(
    conn: Connection, name: str, scopes: Sequence[str], *, expires_at: datetime | None = None
) -> tuple[str, Token]:
    """The token to hand out, which is shown once, and what is stored of it."""
    id, secret = secrets.token_hex(8), _new_secret()
    rows = await fetch_records(
        conn,
        Token,
        "select * from trunkline._create_token(%b, %b, %b, %b::text[], %b::timestamptz)",
        (id, name, digest(secret), list(scopes), expires_at),
    )
    return f"{PREFIX}_{id}_{secret}", rows[0]


async def rotate_token(
    conn: Connection, name: str, *, grace: timedelta = timedelta(0), expires_at: datetime | None = None
) -> tuple[str, Token]:
    """A new secret for a token; the former one is good for `grace`."""
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
    """The database's clock, which decides about expiry."""
    moment: datetime = await fetch_value(conn, "select trunkline.clock()")
    return moment


async def record_audit(conn: Connection, *, actor: str, address: str | None, action: str, object: str | None) -> None:
    await fetch_value(conn, "select trunkline._record_audit(%b, %b::text, %b, %b::text)", (actor, address, action, object))


async def list_audit(conn: Connection, *, after: int = 0, limit: int = 100) -> list[AuditEntry]:
    return await fetch_records(conn, AuditEntry, "select * from trunkline._list_audit(%b::bigint, %b::int)", (after, limit))


async def verify_audit(conn: Connection) -> int | None:
    """The first entry that was tampered with, or None."""
    value = await fetch_value(conn, "select trunkline._verify_audit()")
    return None if value is None else int(value)
