"""`trunkline migrate`: install the schema, or bring it up to date."""

from __future__ import annotations

import click
import msgspec

from trunkline.settings import Settings


@click.command("migrate")
@click.option("--database-url", metavar="URL", help="The database; without it the embedded server of --data.")
@click.option("--data", metavar="DIR", help="Data directory of a running `trunkline up`.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), help="Default: table on a terminal.")
def command(database_url: str | None, data: str | None, output: str | None) -> None:
    """Install the schema, or bring it up to date.

    Safe to repeat, to interrupt and to run twice at once; needs neither superuser nor extension.
    """
    from trunkline.cli.output import wants_table
    from trunkline.cli.target import conninfo
    from trunkline.sql.migrate import migrate

    report = migrate(conninfo(Settings.load({"database_url": database_url, "data": data})))
    if not wants_table(output):
        click.echo(msgspec.json.encode({"applied": list(report.applied), "version": report.version}))
    elif report.applied:
        for name in report.applied:
            click.echo(f"applied  {name}")
        click.echo(f"schema trunkline is at version {report.version}")
    else:
        click.echo(f"nothing to do: schema trunkline is at version {report.version}")
