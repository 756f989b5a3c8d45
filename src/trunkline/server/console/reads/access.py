"""Reads of the pages of tokens, sessions and the audit log."""

from __future__ import annotations

from typing import NamedTuple

from trunkline.db.calls import sessions, tokens
from trunkline.db.calls.sessions import OpenSession
from trunkline.db.calls.tokens import AuditEntry, Token
from trunkline.db.pool import Connection

TOKENS = "token list"
SESSIONS = "console sessions"
CHAIN = "audit chain"


async def all_tokens(conn: Connection) -> list[Token]:
    return await tokens.list_tokens(conn)


async def open_sessions(conn: Connection) -> list[OpenSession]:
    return await sessions.list_sessions(conn)


class Wanted(NamedTuple):
    """Which entries to show. `action`: a part of it."""

    actor: str | None = None
    action: str | None = None
    object: str | None = None


async def audit(conn: Connection, wanted: Wanted, before: int | None, limit: int) -> list[AuditEntry]:
    return await tokens.find_audit(
        conn, actor=wanted.actor, action=wanted.action, object=wanted.object, before=before, limit=limit
    )


async def chain(conn: Connection) -> tuple[int | None]:
    """Return the first entry that was changed or removed, if any."""
    return (await tokens.verify_audit(conn),)
