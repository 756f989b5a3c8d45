"""`trunkline doctor`: check durability and performance risks, with a hint for each finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import click

from trunkline.cli.commands.findings import Finding
from trunkline.cli.framework.command import CHECK_FAILED, Session
from trunkline.cli.framework.command import command as make_command
from trunkline.cli.framework.database import naming
from trunkline.cli.framework.output import Column

if TYPE_CHECKING:
    from trunkline.cli.commands.findings import Connection

_FINDINGS = (
    Column("", "level", whole=True),
    Column("check", "check", whole=True),
    Column("found", "message"),
    Column("what to do", lambda finding: finding.hint or ""),
)


@make_command("doctor", example="trunkline doctor --database-url postgresql:///app")
@click.option("--strict", is_flag=True, help="Treat warnings as failures.")
def command(session: Session, strict: bool) -> int:
    """Check durability and performance risks. Makes no changes. Exits with 5 if a check fails."""
    url = session.url
    with session.limited(), naming(session.source):
        findings = examine(url)
    session.out.many(findings, _FINDINGS)
    bad = ("fail", "warn") if strict else ("fail",)
    return CHECK_FAILED if any(finding.level in bad for finding in findings) else 0


def examine(url: str) -> list[Finding]:
    """Run every check on one connection."""
    import psycopg

    from trunkline import __version__
    from trunkline.cli.commands import checks_schema, checks_server
    from trunkline.cli.framework.database import is_embedded
    from trunkline.sql.migrate import installed_version

    findings = [
        Finding("program", "ok", f"trunkline {__version__}"),
        Finding("database", "ok", "embedded server of trunkline up" if is_embedded(url) else "separate server"),
    ]
    with psycopg.connect(url, autocommit=True, connect_timeout=10, application_name="trunkline doctor") as conn:
        # an administrator may run this: objects in other schemas must not run with its rights
        conn.execute("set search_path = pg_catalog, pg_temp")
        checks: list[Callable[[Connection], Iterable[Finding]]] = [*checks_server.CHECKS, schema_version]
        if installed_version(conn) is not None:
            checks += checks_schema.CHECKS
        for check in checks:
            try:
                findings += check(conn)
            except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction):
                # the schema has another version, which the schema check reports
                name = check.__name__.replace("_", " ")
                findings.append(Finding(name, "warn", "not supported by this version of the schema"))
            except psycopg.errors.InsufficientPrivilege as exc:
                findings.append(
                    Finding(check.__name__.replace("_", " "), "warn", f"permission denied: {exc.diag.message_primary}")
                )
    return findings


def schema_version(conn: Connection) -> Iterator[Finding]:
    """Check that the schema is installed, in the version of this program."""
    from trunkline.sql.migrate import installed_version, latest_version

    installed, latest = installed_version(conn), latest_version()
    if installed is None:
        yield Finding("schema", "fail", "schema trunkline is not installed", "Run trunkline migrate.")
    elif installed != latest:
        remedy = "Run trunkline migrate." if installed < latest else "Upgrade this program."
        yield Finding("schema", "fail", f"version {installed}, this program has {latest}", remedy)
    else:
        yield Finding("schema", "ok", f"version {installed}")
