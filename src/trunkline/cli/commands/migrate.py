"""`trunkline migrate`: install or upgrade the schema."""

from __future__ import annotations

import click

from trunkline.cli.framework import confirm
from trunkline.cli.framework.command import Session
from trunkline.cli.framework.command import command as make_command
from trunkline.cli.framework.database import naming
from trunkline.cli.framework.output import write_line


@make_command("migrate", example="trunkline migrate --database-url postgresql:///app")
@click.option(
    "--with",
    "extra",
    type=click.Choice(["pgmb"]),
    multiple=True,
    help="Additional compatibility schema to install; may be repeated.",
)
@confirm.dry_run("Show which migrations would be applied.")
def command(session: Session, extra: tuple[str, ...], dry_run: bool) -> None:
    """Install or upgrade the schema.

    Safe to repeat, to interrupt and to run concurrently. Needs neither superuser nor extensions. With -q, only failures
    and the output of -o are printed.
    """
    from trunkline.sql.migrate import migrate

    if dry_run:
        _plan(session)
        return
    url = session.url
    with session.limited(), naming(session.source):
        report = migrate(url, extra=extra)
    if session.quiet and not session.out.chosen:
        return
    if not session.out.table:
        session.out.one({"applied": list(report.applied), "version": report.version})
    elif report.applied:
        for name in report.applied:
            write_line(f"applied  {name}")
        write_line(f"schema trunkline is at version {report.version}")
    else:
        write_line(f"nothing to do: schema trunkline is at version {report.version}")


def _plan(session: Session) -> None:
    import psycopg

    from trunkline.sql.migrate import installed_version, pending_migrations

    with naming(session.source), psycopg.connect(session.url, autocommit=True, connect_timeout=10) as conn:
        installed, pending = installed_version(conn) or 0, pending_migrations(conn)
    session.out.one({"pending": pending, "version": installed})
