"""Reads of the pages of tokens, sessions and the audit log."""

from __future__ import annotations

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


async def audit(
    conn: Connection, actor: str | None, action: str | None, object: str | None, before: int | None, limit: int
) -> list[AuditEntry]:
    return await tokens.find_audit(conn, actor=actor, action=action, object=object, before=before, limit=limit)


async def chain(conn: Connection) -> tuple[int | None]:
    """Return the first entry that was changed or removed, if any."""
    return (await tokens.verify_audit(conn),)
