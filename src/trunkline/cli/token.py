"""`trunkline token`: tokens of the HTTP service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trunkline.cli.command import Duration, Noun, Session
from trunkline.cli.output import Column

if TYPE_CHECKING:
    from trunkline import Client

T = TypeVar("T")
command = Noun(
    "token",
    help="Tokens of the HTTP service. A scope is publish, consume, read or admin, a colon, and a name of topics or queues "
    "in which * stands for any characters.",
)
_TOKENS = (
    Column("token", "name", whole=True),
    Column("scopes", lambda row: " ".join(row["scopes"]), whole=True),
    Column("created", "created_at", whole=True),
    Column("expires", "expires_at", whole=True),
    Column("revoked", "revoked_at", whole=True),
)
_SHOWN = ("name", "scopes", "created_at", "expires_at", "revoked_at")


def _run(session: Session, action: str, name: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Do something to a token, and write it into the audit log."""
    from trunkline.db import tokens

    async def audited(mq: Client) -> T:
        async with mq.connection() as conn, conn.transaction():
            done = await work(conn)
            await tokens.record_audit(conn, actor="cli", address=None, action=f"token {action}", object=name)
            return done

    return session.run(audited)


def _expiry(after: timedelta | None) -> datetime | None:
    return None if after is None else datetime.now(UTC) + after


@command.verb(
    "create", example="trunkline token create shop --scope 'publish:orders.*' --scope 'read:*' --expires 90d", http=False
)
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, required=True, help="What it may do; can be repeated.")
@click.option("--expires", type=Duration(), help="After this time it is refused.")
def create(session: Session, name: str, scopes: tuple[str, ...], expires: timedelta | None) -> None:
    """Make a token. It is printed once; only a hash of it is kept."""
    from trunkline.db import tokens

    text, _ = _run(
        session, "create", name, lambda conn: tokens.create_token(conn, name, scopes, expires_at=_expiry(expires))
    )
    click.echo(text)
    session.say("keep it: it is not shown again")


@command.verb("rotate", example="trunkline token rotate shop --grace 1h", http=False)
@click.argument("name")
@click.option("--grace", type=Duration(), default="0s", help="How long the former secret is still good.")
@click.option("--expires", type=Duration(), help="After this time it is refused.")
def rotate(session: Session, name: str, grace: timedelta, expires: timedelta | None) -> None:
    """Give a token a new secret, which is printed once."""
    from trunkline.db import tokens

    text, _ = _run(
        session,
        "rotate",
        name,
        lambda conn: tokens.rotate_token(conn, name, grace=grace, expires_at=_expiry(expires)),
    )
    click.echo(text)
    session.say("keep it: it is not shown again")


@command.verb("revoke", example="trunkline token revoke shop", http=False)
@click.argument("name")
def revoke(session: Session, name: str) -> None:
    """Refuse a token from now on; servers notice within seconds."""
    from trunkline.db import tokens

    _run(session, "revoke", name, lambda conn: tokens.revoke_token(conn, name))
    session.say(f"token {name} is revoked")


@command.verb("list", example="trunkline token list", http=False)
def list_(session: Session) -> None:
    """All tokens, without their secrets."""
    from trunkline.db import tokens

    async def work(mq: Client) -> list[dict[str, Any]]:
        async with mq.connection() as conn:
            return [{field: getattr(row, field) for field in _SHOWN} for row in await tokens.list_tokens(conn)]

    session.out.many(session.run(work), _TOKENS)
