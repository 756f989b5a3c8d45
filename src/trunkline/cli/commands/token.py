"""`trunkline token`: manage tokens of the HTTP API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trunkline.cli.framework.command import CommandGroup, Duration, Invocation
from trunkline.cli.framework.output import Column

if TYPE_CHECKING:
    from trunkline import Client

T = TypeVar("T")
command = CommandGroup(
    "token",
    help="Manage tokens of the HTTP API and the console. A scope is publish, consume, view, read, operate or admin, a "
    "colon, and a topic or queue name in which * matches any characters.",
)
_TOKENS = (
    Column("token", "name", whole=True),
    Column("scopes", lambda row: " ".join(row["scopes"]), whole=True),
    Column("created", "created_at", whole=True),
    Column("expires", "expires_at", whole=True),
    Column("revoked", "revoked_at", whole=True),
)
_SHOWN = ("name", "scopes", "created_at", "expires_at", "revoked_at")


def _run(invocation: Invocation, action: str, name: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Change a token and record it in the audit log."""
    from trunkline.db.calls import tokens

    async def audited(mq: Client) -> T:
        async with mq.connection() as conn, conn.transaction():
            done = await work(conn)
            await tokens.record_audit(conn, actor="cli", address=None, action=f"token {action}", object=name)
            return done

    return invocation.run_on_database(audited)


def _expiry(after: timedelta | None) -> datetime | None:
    return None if after is None else datetime.now(UTC) + after


@command.subcommand(
    "create", example="trunkline token create shop --scope 'publish:orders.*' --scope 'read:*' --expires 90d"
)
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, required=True, help="Granted scope; may be repeated.")
@click.option("--expires", type=Duration(), help="Time until the token expires.")
def create(invocation: Invocation, name: str, scopes: tuple[str, ...], expires: timedelta | None) -> None:
    """Create a token. It is printed once; only its hash is stored."""
    from trunkline.db.calls import tokens

    text, _ = _run(
        invocation, "create", name, lambda conn: tokens.create_token(conn, name, scopes, expires_at=_expiry(expires))
    )
    click.echo(text)
    invocation.say("Save the token now: it is not shown again.")


@command.subcommand("rotate", example="trunkline token rotate shop --grace 1h")
@click.argument("name")
@click.option("--grace", type=Duration(), default="0s", help="Time during which the previous secret still works.")
@click.option("--expires", type=Duration(), help="Time until the token expires.")
def rotate(invocation: Invocation, name: str, grace: timedelta, expires: timedelta | None) -> None:
    """Replace the secret of a token. The new token is printed once."""
    from trunkline.db.calls import tokens

    text, _ = _run(
        invocation,
        "rotate",
        name,
        lambda conn: tokens.rotate_token(conn, name, grace=grace, expires_at=_expiry(expires)),
    )
    click.echo(text)
    invocation.say("Save the token now: it is not shown again.")


@command.subcommand("revoke", example="trunkline token revoke shop")
@click.argument("name")
def revoke(invocation: Invocation, name: str) -> None:
    """Revoke a token. Servers reject it within seconds."""
    from trunkline.db.calls import tokens

    _run(invocation, "revoke", name, lambda conn: tokens.revoke_token(conn, name))
    invocation.say(f"token {name} is revoked")


@command.subcommand("list", example="trunkline token list")
def list_(invocation: Invocation) -> None:
    """List tokens, without their secrets."""
    from trunkline.db.calls import tokens

    async def work(mq: Client) -> list[dict[str, Any]]:
        async with mq.connection() as conn:
            return [{field: getattr(row, field) for field in _SHOWN} for row in await tokens.list_tokens(conn)]

    invocation.out.many(invocation.run_on_database(work), _TOKENS)
