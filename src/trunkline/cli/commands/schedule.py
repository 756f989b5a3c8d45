"""`trunkline schedule`: manage schedules, which publish messages at cron times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from trunkline.cli.framework import confirm
from trunkline.cli.framework.command import CommandGroup, Count, Invocation
from trunkline.cli.framework.input import check_body, parse_headers
from trunkline.cli.framework.output import Column
from trunkline.errors import ScheduleNotFound
from trunkline.types import Schedule

if TYPE_CHECKING:
    from trunkline.messaging import Messaging

command = CommandGroup("schedule", help="Manage schedules.")

_SCHEDULES = (
    Column("schedule", "name", whole=True),
    Column("cron", "cron", whole=True),
    Column("timezone", "timezone"),
    Column("to", lambda row: f"queue {row.queue}" if row.queue else f"topic {row.topic}"),
    Column("next", lambda row: None if row.paused else row.next_at, whole=True),
    Column("last", "last_at", whole=True),
    Column("paused", "paused"),
)
_RUNS = (Column("at", "at", whole=True),)


async def _find(mq: Messaging, name: str) -> Schedule:
    for schedule in await mq.schedules.list():
        if schedule.name == name:
            return schedule
    raise ScheduleNotFound(f"schedule {name!r} does not exist", hint="List schedules with `trunkline schedule list`.")


@command.subcommand("list", example="trunkline schedule list")
def list_(invocation: Invocation) -> None:
    """List schedules with their next times."""
    invocation.out.many(invocation.run(lambda mq: mq.schedules.list()), _SCHEDULES)


@command.subcommand("show", example="trunkline schedule show nightly")
@click.argument("name")
def show(invocation: Invocation, name: str) -> None:
    """Show a schedule and its message."""
    invocation.out.one(invocation.run(lambda mq: _find(mq, name)))


@command.subcommand(
    "create",
    example="trunkline schedule create nightly '0 3 * * *' --queue reports --body '{\"kind\": 1}' --timezone Europe/Berlin",
)
@click.argument("name")
@click.argument("cron")
@click.option("--topic", help="Topic to publish to.")
@click.option("--queue", help="Queue to enqueue to.")
@click.option("--body", default="null", show_default=True, help="JSON.")
@click.option("--key", help="Key of the message.")
@click.option("--routing-key", help="Routing key of the message.")
@click.option("--label", help="Label of the message.")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of the message; may be repeated."
)
@click.option("--timezone", default="UTC", show_default=True, help="Time zone of the cron expression.")
@click.option(
    "--catch-up",
    type=click.Choice(["skip", "one", "all"]),
    default="one",
    show_default=True,
    help="Policy for missed times.",
)
@click.option("--ensure", is_flag=True, help="If the schedule exists, update it.")
def create(
    invocation: Invocation, name: str, cron: str, body: str, headers: tuple[str, ...], ensure: bool, **settings: Any
) -> None:
    """Create a schedule. CRON has five fields: minute, hour, day, month, weekday."""
    if (settings["topic"] is None) == (settings["queue"] is None):
        raise click.UsageError("specify either --topic or --queue")
    content = msgspec.json.decode(check_body(body.encode(errors="surrogateescape"), "application/json"))
    chosen = settings | {"body": content, "headers": parse_headers(headers)}

    async def work(mq: Messaging) -> Schedule:
        return await (mq.schedules.ensure if ensure else mq.schedules.create)(name, cron, **chosen)

    invocation.out.one(invocation.run(work))


@command.subcommand("pause", example="trunkline schedule pause nightly")
@click.argument("name")
def pause(invocation: Invocation, name: str) -> None:
    """Pause a schedule."""
    invocation.run(lambda mq: mq.schedules.pause(name))
    invocation.say(f"schedule {name} is paused")


@command.subcommand("resume", example="trunkline schedule resume nightly")
@click.argument("name")
def resume(invocation: Invocation, name: str) -> None:
    """Resume a schedule."""
    invocation.run(lambda mq: mq.schedules.resume(name))
    invocation.say(f"schedule {name} is resumed")


@command.subcommand("delete", example="trunkline schedule delete nightly --yes")
@click.argument("name")
@confirm.dry_run()
@confirm.yes()
def delete(invocation: Invocation, name: str, dry_run: bool, yes: bool) -> None:
    """Delete a schedule. Published messages remain."""
    found = invocation.run(lambda mq: _find(mq, name))
    what = f"delete schedule {name} ({found.cron} {found.timezone})"
    if dry_run:
        invocation.say(f"would {what}")
        return
    confirm.confirm(what, name, confirmed=yes)
    invocation.run(lambda mq: mq.schedules.delete(name))
    invocation.say(f"deleted schedule {name}")


@command.subcommand("run", example="trunkline schedule run nightly")
@click.argument("name")
@confirm.dry_run()
def run(invocation: Invocation, name: str, dry_run: bool) -> None:
    """Fire a schedule now."""
    if dry_run:
        found = invocation.run(lambda mq: _find(mq, name))
        invocation.say(f"would publish one message to {'queue ' + found.queue if found.queue else f'topic {found.topic}'}")
        return
    invocation.out.one({"schedule": name, "id": invocation.run(lambda mq: mq.schedules.run(name))})


@command.subcommand(
    "next",
    example="trunkline schedule next nightly -n 3\n"
    "trunkline schedule next --cron '*/15 9-17 * * 1-5' --timezone Europe/Berlin",
)
@click.argument("name", required=False)
@click.option("--cron", help="Cron expression instead of a schedule.")
@click.option("--timezone", help="Time zone of --cron.  [default: UTC]")
@click.option("-n", "--limit", type=Count(1, 1000), default=5, show_default=True, help="Number of times.")
def next_(invocation: Invocation, name: str | None, cron: str | None, timezone: str | None, limit: int) -> None:
    """Show the next times of a schedule or a cron expression."""
    if (name is None) == (cron is None):
        raise click.UsageError("specify the name of a schedule, or --cron")
    if name is not None and timezone is not None:
        raise click.UsageError("--timezone requires --cron; a schedule has its own time zone")

    async def work(mq: Messaging) -> list[dict[str, Any]]:
        line, zone = cron or "", timezone or "UTC"
        if name is not None:
            found = await _find(mq, name)
            line, zone = found.cron, found.timezone
        return [{"at": at} for at in await mq.schedules.next_runs(line, timezone=zone, limit=limit)]

    invocation.out.many(invocation.run(work), _RUNS)
