"""`trunkline schedule`: messages published at the times of a cron line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from trunkline.cli import confirm
from trunkline.cli.command import Count, Noun, Session
from trunkline.cli.output import Column
from trunkline.cli.payloads import check_body, parse_headers
from trunkline.errors import ScheduleNotFound
from trunkline.types import Schedule

if TYPE_CHECKING:
    from trunkline import Client

command = Noun("schedule", help="Schedules: messages published at the times of a cron line.")

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


async def _find(mq: Client, name: str) -> Schedule:
    for schedule in await mq.schedules.list():
        if schedule.name == name:
            return schedule
    raise ScheduleNotFound(f"schedule {name!r} does not exist", hint="see trunkline schedule list")


@command.verb("list", example="trunkline schedule list")
def list_(session: Session) -> None:
    """All schedules, with when they fire next."""
    session.out.many(session.run(lambda mq: mq.schedules.list()), _SCHEDULES)


@command.verb("show", example="trunkline schedule show nightly")
@click.argument("name")
def show(session: Session, name: str) -> None:
    """One schedule, with the message it publishes."""
    session.out.one(session.run(lambda mq: _find(mq, name)))


@command.verb(
    "create",
    example="trunkline schedule create nightly '0 3 * * *' --queue reports --body '{\"kind\": 1}' --timezone Europe/Berlin",
)
@click.argument("name")
@click.argument("cron")
@click.option("--topic", help="Publish to this topic.")
@click.option("--queue", help="Or into this queue.")
@click.option("--body", default="null", show_default=True, help="JSON.")
@click.option("--key", help="Key of the message.")
@click.option("--routing-key", help="Routing key of the message.")
@click.option("--label", help="Label of the message.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option("--timezone", default="UTC", show_default=True, help="In which the cron line is read.")
@click.option(
    "--catch-up",
    type=click.Choice(["skip", "one", "all"]),
    default="one",
    show_default=True,
    help="For times that were missed.",
)
@click.option("--ensure", is_flag=True, help="Change it when it is there already.")
def create(
    session: Session, name: str, cron: str, body: str, headers: tuple[str, ...], ensure: bool, **settings: Any
) -> None:
    """Make a schedule. CRON has five fields: minute, hour, day, month, weekday."""
    if (settings["topic"] is None) == (settings["queue"] is None):
        raise click.UsageError("give one of --topic and --queue")
    content = msgspec.json.decode(check_body(body.encode(errors="surrogateescape"), "application/json"))
    chosen = settings | {"body": content, "headers": parse_headers(headers)}

    async def work(mq: Client) -> Schedule:
        return await (mq.schedules.ensure if ensure else mq.schedules.create)(name, cron, **chosen)

    session.out.one(session.run(work))


@command.verb("pause", example="trunkline schedule pause nightly")
@click.argument("name")
def pause(session: Session, name: str) -> None:
    """Do not fire until `resume`."""
    session.run(lambda mq: mq.schedules.pause(name))
    session.say(f"schedule {name} is paused")


@command.verb("resume", example="trunkline schedule resume nightly")
@click.argument("name")
def resume(session: Session, name: str) -> None:
    """Fire again."""
    session.run(lambda mq: mq.schedules.resume(name))
    session.say(f"schedule {name} fires again")


@command.verb("delete", example="trunkline schedule delete nightly --yes")
@click.argument("name")
@confirm.dry_run()
@confirm.yes()
def delete(session: Session, name: str, dry_run: bool, yes: bool) -> None:
    """Remove a schedule; what it published stays."""
    found = session.run(lambda mq: _find(mq, name))
    what = f"delete schedule {name} ({found.cron} {found.timezone})"
    if dry_run:
        session.say(f"would {what}")
        return
    confirm.confirm(what, name, given=yes)
    session.run(lambda mq: mq.schedules.delete(name))
    session.say(f"deleted schedule {name}")


@command.verb("run", example="trunkline schedule run nightly")
@click.argument("name")
@confirm.dry_run()
def run(session: Session, name: str, dry_run: bool) -> None:
    """Fire it now, out of turn."""
    if dry_run:
        found = session.run(lambda mq: _find(mq, name))
        session.say(f"would publish one message to {'queue ' + found.queue if found.queue else f'topic {found.topic}'}")
        return
    session.out.one({"schedule": name, "id": session.run(lambda mq: mq.schedules.run(name))})


@command.verb(
    "next",
    example="trunkline schedule next nightly -n 3\n"
    "trunkline schedule next --cron '*/15 9-17 * * 1-5' --timezone Europe/Berlin",
)
@click.argument("name", required=False)
@click.option("--cron", help="A cron line instead of a schedule.")
@click.option("--timezone", help="Of --cron.  [default: UTC]")
@click.option("-n", "--count", type=Count(1, 1000), default=5, show_default=True, help="How many.")
def next_(session: Session, name: str | None, cron: str | None, timezone: str | None, count: int) -> None:
    """When a schedule, or a cron line, fires next."""
    if (name is None) == (cron is None):
        raise click.UsageError("give the name of a schedule, or --cron")
    if name is not None and timezone is not None:
        raise click.UsageError("--timezone belongs to --cron; a schedule has its own")

    async def work(mq: Client) -> list[dict[str, Any]]:
        line, zone = cron or "", timezone or "UTC"
        if name is not None:
            found = await _find(mq, name)
            line, zone = found.cron, found.timezone
        return [{"at": at} for at in await mq.schedules.next_runs(line, timezone=zone, n=count)]

    session.out.many(session.run(work), _RUNS)
