"""`trunkline migrate`: install or upgrade the schema."""

from __future__ import annotations

import click

from trunkline.cli.framework import confirm
from trunkline.cli.framework.command import Invocation
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
def command(invocation: Invocation, extra: tuple[str, ...], dry_run: bool) -> None:
    """Install or upgrade the schema.

    Safe to repeat, to interrupt and to run concurrently. Needs neither superuser nor extensions. With -q, only failures
    and the output of -o are printed.
    """
    from trunkline.sql.migrate import migrate

    if dry_run:
        _plan(invocation)
        return
    url = invocation.url
    with invocation.limited(), naming(invocation.source):
        report = migrate(url, extra=extra)
    if invocation.quiet and not invocation.out.chosen:
        return
    if not invocation.out.table:
        invocation.out.one({"applied": list(report.applied), "version": report.version})
    elif report.applied:
        for name in report.applied:
            write_line(f"applied  {name}")
        write_line(f"schema trunkline is at version {report.version}")
    else:
        write_line(f"nothing to do: schema trunkline is at version {report.version}")


def _plan(invocation: Invocation) -> None:
    import psycopg

    from trunkline.sql.migrate import installed_version, pending_migrations

    with naming(invocation.source), psycopg.connect(invocation.url, autocommit=True, connect_timeout=10) as conn:
        installed, pending = installed_version(conn) or 0, pending_migrations(conn)
    invocation.out.one({"pending": pending, "version": installed})
