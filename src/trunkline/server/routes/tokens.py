"""Tokens and the audit log. Neither shows a secret or its hash."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from litestar.params import FromPath
from msgspec import Meta

from trunkline.db.calls import tokens
from trunkline.db.calls.tokens import AuditEntry, Token
from trunkline.server.bodies import name_fault, refuse
from trunkline.server.problems import invalid
from trunkline.server.query import LIMIT, OFFSET, Param
from trunkline.server.request import Request
from trunkline.server.response import Response, nothing, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import Page, page

TAG = "tokens"


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    scopes: list[str]
    made_by: str | None
    """The token or role that created it."""
    created_at: datetime
    last_used_at: datetime | None
    """Exact to a minute."""
    expires_at: datetime | None
    revoked_at: datetime | None
    former_until: datetime | None
    """Time until which the secret before the last rotation is valid."""

    @classmethod
    def of(cls, row: Token) -> TokenView:
        return cls(
            name=row.name,
            scopes=row.scopes,
            made_by=row.made_by,
            created_at=row.created_at,
            last_used_at=row.last_used_at,
            expires_at=row.expires_at,
            revoked_at=row.revoked_at,
            former_until=None if row.old_hash is None else row.old_until,
        )


@route("GET", "/tokens", Doc(tag=TAG, scope="admin", params=(OFFSET, LIMIT), responses={200: Page}))
async def list_tokens(request: Request) -> Response:
    """List tokens by name, without their secrets."""
    query = request.query()
    async with request.mq.connection() as conn:
        return respond(page([TokenView.of(row) for row in await tokens.list_tokens(conn)], query))


class NewToken(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A token to create."""

    name: str | None = None
    scopes: Annotated[list[Annotated[str, Meta(max_length=210)]], Meta(min_length=1, max_length=100)]
    expires_seconds: Annotated[float, Meta(gt=0, le=3_153_600_000)] | None = None


class MadeToken(msgspec.Struct, frozen=True):
    name: str
    token: str
    """Shown only here; its hash is stored."""


@route(
    "POST",
    "/tokens",
    Doc(tag=TAG, scope="admin", body=NewToken, responses={201: MadeToken}, problems=(400, 408, 409, 413), audit="body"),
)
async def create_token(request: Request) -> Response:
    """Create a token. Returns it once."""
    request.query()
    body = await request.read(NewToken)
    refuse(name=name_fault(body.name))
    assert body.name is not None  # noqa: S101
    await request.audit(body.name)
    async with request.writing() as conn:
        expires = None if body.expires_seconds is None else await tokens.now(conn) + timedelta(seconds=body.expires_seconds)
        text, token = await tokens.create_token(conn, body.name, body.scopes, expires_at=expires, made_by=request.caller)
    return respond(MadeToken(token.name, text), 201)


class Rotation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`grace_seconds`: how long the former secret stays valid."""

    grace_seconds: Annotated[float, Meta(ge=0, le=2_592_000)] = 0


@route(
    "POST",
    "/tokens/{token:str}/rotate",
    Doc(
        tag=TAG,
        scope="admin",
        body=Rotation,
        optional_body=True,
        responses={200: MadeToken},
        problems=(400, 404, 408, 413),
        audit=True,
    ),
)
async def rotate_token(request: Request, token: FromPath[str]) -> Response:
    """Replace the secret of a token. Returns the new one once."""
    request.query()
    body = await request.read(Rotation, optional=True)
    async with request.writing() as conn:
        text, row = await tokens.rotate_token(conn, token, grace=timedelta(seconds=body.grace_seconds))
    return respond(MadeToken(row.name, text))


@route("DELETE", "/tokens/{token:str}", Doc(tag=TAG, scope="admin", responses={204: None}, problems=(404,), audit=True))
async def revoke_token(request: Request, token: FromPath[str]) -> Response:
    """Revoke a token. Servers reject it within seconds."""
    request.query()
    async with request.writing() as conn:
        await tokens.revoke_token(conn, token)
    return nothing()


class AuditLog(msgspec.Struct, frozen=True, omit_defaults=True):
    data: list[AuditEntry]
    next: int | None = None
    """Pass as `after` to get the next page; omitted on the last."""


@route(
    "GET",
    "/audit",
    Doc(
        tag=TAG,
        scope="admin",
        params=(
            Param(name="actor", words="Only entries of this token or program."),
            Param(name="action", words="Only entries whose action contains this text."),
            Param(name="object", words="Only entries of this object."),
            Param(name="start", kind=datetime, words="Only entries from this time."),
            Param(name="end", kind=datetime, words="Only entries before this time."),
            Param(name="after", kind=int, low=0, words="`next` of the previous page."),
            Param(name="limit", kind=int, default=100, low=1, high=1000, words="Maximum number of entries."),
        ),
        responses={200: AuditLog},
    ),
)
async def list_audit(request: Request) -> Response:
    """List entries of the audit log, newest first."""
    query = request.query()
    if query["start"] is not None and query["end"] is not None and query["start"] > query["end"]:
        raise invalid("start: must not be after end.")
    async with request.mq.connection() as conn:
        rows = await tokens.find_audit(
            conn,
            actor=query["actor"],
            action=query["action"],
            object=query["object"],
            start=query["start"],
            end=query["end"],
            before=query["after"],
            limit=query["limit"],
        )
    return respond(AuditLog(rows, rows[-1].audit_id if len(rows) == query["limit"] else None))


class Verified(msgspec.Struct, frozen=True):
    intact: bool
    first_changed: int | None
    """Number of the first entry that was changed or removed."""


@route("GET", "/audit/verification", Doc(tag=TAG, scope="admin", responses={200: Verified}))
async def verify_audit(request: Request) -> Response:
    """Check the chain of hashes of the audit log. Reads all of it."""
    request.query()
    async with request.mq.connection() as conn:
        first = await tokens.verify_audit(conn)
    return respond(Verified(first is None, first))


ROUTES = [list_tokens, create_token, rotate_token, revoke_token, list_audit, verify_audit]
