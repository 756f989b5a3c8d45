"""`trunkline group`: manage consumer groups."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

from trunkline.cli.framework import confirm
from trunkline.cli.framework.command import CHECK_FAILED, CommandGroup, Count, Duration, Invocation, sequence
from trunkline.cli.framework.input import parse_headers
from trunkline.cli.framework.output import Column
from trunkline.cli.framework.positions import Position, resolve
from trunkline.errors import GroupNotFound
from trunkline.types import GroupStats

if TYPE_CHECKING:
    from trunkline.messaging import Messaging

command = CommandGroup("group", help="Manage consumer groups.")

_GROUPS = (
    Column("topic", "topic", whole=True),
    Column("group", "name", whole=True),
    Column("pattern", "pattern"),
    Column("headers", "headers"),
    Column("created", "created_at"),
)
_LAG = (
    Column("topic", "topic", whole=True),
    Column("group", "group", whole=True),
    Column("partition", "partition", right=True),
    Column("next", "next_offset", right=True),
    Column("head", "head", right=True),
    Column("lag", "lag", right=True),
    Column("seconds", "lag_seconds", right=True),
    Column("member", "member"),
)
_MEMBERS = (
    Column("member", "member", whole=True),
    Column("partitions", lambda row: ", ".join(map(str, row.partitions))),
    Column("leased until", "deadline"),
    Column("seen until", "seen_until"),
)
_DEADLINES = (
    Column("topic", "topic", whole=True),
    Column("partition", "partition", right=True),
    Column("reader", lambda row: f"{row.kind} {row.reader}", whole=True),
    Column("next", "next_offset", right=True),
    Column("unread", "unread", right=True),
    Column("lost at", "lost_at"),
)
_MOVES = (
    Column("topic", "topic", whole=True),
    Column("group", "group", whole=True),
    Column("partition", "partition", right=True),
    Column("from", "from", right=True),
    Column("to", "to", right=True),
)


class Headers(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """A JSON object of header names and their allowed values."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        try:
            return msgspec.json.decode(value, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as exc:
            self.fail(f'must be a JSON object such as {{"country": ["de", "at"]}}, got {value!r}: {exc}', param, ctx)


@command.subcommand("list", example="trunkline group list orders")
@click.argument("topic", required=False)
def list_(invocation: Invocation, topic: str | None) -> None:
    """List groups, optionally of one topic."""

    async def work(mq: Messaging) -> list[Any]:
        if topic is not None:
            await mq.topics.get(topic)
        return await mq.groups.list(topic)

    invocation.out.many(invocation.run(work), _GROUPS)


@command.subcommand("show", example="trunkline group show orders billing")
@click.argument("topic")
@click.argument("group")
def show(invocation: Invocation, topic: str, group: str) -> None:
    """Show a group with its position in each partition."""

    async def work(mq: Messaging) -> dict[str, Any]:
        stats = await mq.groups.stats(topic, group)
        found = [each for each in await mq.groups.list(topic) if each.name == group]
        if not found:
            raise GroupNotFound(f"topic {topic!r} has no group {group!r}")
        members = sorted({row.member for row in stats if row.member is not None})
        return msgspec.structs.asdict(found[0]) | {
            "position": {str(row.partition): row.next_offset for row in stats},
            "lag": sum(row.lag for row in stats),
            "members": members,
        }

    invocation.out.one(invocation.run(work))


@command.subcommand("members", example="trunkline group members orders billing")
@click.argument("topic")
@click.argument("group")
def members(invocation: Invocation, topic: str, group: str) -> None:
    """List the active members of a group and the partitions that each has leased."""
    invocation.out.many(invocation.run(lambda mq: mq.groups.members(topic, group)), _MEMBERS)


@command.subcommand("deadlines", example="trunkline group deadlines orders")
@click.argument("topic", required=False)
def deadlines(invocation: Invocation, topic: str | None) -> None:
    """Show when readers that are behind lose messages by hard retention, the earliest first."""
    invocation.out.many(invocation.run(lambda mq: mq.inspect.deadlines(topic)), _DEADLINES)


@command.subcommand("create", example="trunkline group create orders billing --start latest --pattern 'order.paid.#'")
@click.argument("topic")
@click.argument("group")
@click.option(
    "--start",
    type=Position(),
    default="earliest",
    show_default=True,
    help="Position: earliest, latest, an offset, a time, or an age.",
)
@click.option("--pattern", help="Pattern of routing keys to read: * matches one word, # any number.")
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Read only messages with this header; may be repeated.",
)
@click.option("--filter", type=Headers(), metavar="JSON", help='Header filter with several values: {"header": ["a", "b"]}.')
@click.option("--ensure", is_flag=True, help="Do nothing if the group exists.")
def create(
    invocation: Invocation,
    topic: str,
    group: str,
    start: str | int | datetime,
    pattern: str | None,
    headers: tuple[str, ...],
    filter: dict[str, Any] | None,
    ensure: bool,
) -> None:
    """Create a group that reads a topic from a position, optionally filtered."""
    wanted = {**(filter or {}), **(parse_headers(headers) or {})} or None

    async def work(mq: Messaging) -> Any:
        verb = mq.groups.ensure if ensure else mq.groups.create
        return await verb(topic, group, start=start, pattern=pattern, headers=wanted)

    invocation.out.one(invocation.run(work))


@command.subcommand("lag", example="trunkline group lag orders billing --max-seconds 60 || page-someone")
@click.argument("topic", required=False)
@click.argument("group", required=False)
@click.option("--max-seconds", type=click.FloatRange(min=0), help="Lag in seconds above which the exit code is 5.")
@click.option("--max-messages", type=Count(0), help="Lag in messages above which the exit code is 5.")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C or until a limit is exceeded.")
@click.option("--every", type=Duration(), default="2s", show_default=True, help="Interval of --watch.")
def lag(
    invocation: Invocation,
    topic: str | None,
    group: str | None,
    max_seconds: float | None,
    max_messages: int | None,
    watch: bool,
    every: timedelta,
) -> int:
    """Show how far groups are behind the head, in messages and in seconds."""

    def behind(rows: Sequence[GroupStats]) -> list[GroupStats]:
        return [
            row
            for row in rows
            if (max_seconds is not None and (row.lag_seconds or 0) > max_seconds)
            or (max_messages is not None and row.lag > max_messages)
        ]

    if watch:
        invocation.out.line_by_line()

    async def work(mq: Messaging) -> list[GroupStats]:
        while True:
            rows = await mq.groups.stats(topic, group)
            if watch and invocation.out.table:
                click.clear()
            invocation.out.many(rows, _LAG)
            if not watch or behind(rows):
                return behind(rows)
            await asyncio.sleep(every.total_seconds())
            await sequence(mq)

    late = invocation.run(work)
    for row in late:
        invocation.say(
            f"group {row.group} is behind on {row.topic}/{row.partition}: {row.lag:,} messages, {row.lag_seconds or 0:.0f} s"
        )
    return CHECK_FAILED if late else 0


@command.subcommand("seek", example="trunkline group seek orders billing --to 1h --dry-run")
@click.argument("topic")
@click.argument("group")
@click.option(
    "--to", type=Position(), required=True, help="New position: earliest, latest, an offset, a time, or an age such as 1h."
)
@click.option("--partition", type=Count(0), help="Only this partition.")
@confirm.dry_run()
@confirm.yes()
def seek(
    invocation: Invocation, topic: str, group: str, to: str | int | datetime, partition: int | None, dry_run: bool, yes: bool
) -> None:
    """Move a group's position to replay or skip messages. Members lose their current batch."""

    async def look(mq: Messaging) -> list[dict[str, Any]]:
        goals = await resolve(mq, topic, to)
        return [
            {"topic": topic, "group": group, "partition": row.partition, "from": row.next_offset, "to": goals[row.partition]}
            for row in await mq.groups.stats(topic, group)
            if partition is None or row.partition == partition
        ]

    moves = invocation.run(look)
    if not dry_run:
        skipped = sum(max(0, move["to"] - move["from"]) for move in moves)
        again = sum(max(0, move["from"] - move["to"]) for move in moves)
        confirm.confirm(f"move group {group}: {again:,} messages read again, {skipped:,} skipped", group, confirmed=yes)
        reached = invocation.run(lambda mq: mq.groups.seek(topic, group, to=to, partition=partition))
        moves = [move | {"to": reached[move["partition"]]} for move in moves if move["partition"] in reached]
    invocation.out.many(moves, _MOVES)


@command.subcommand("delete", example="trunkline group delete orders billing --yes")
@click.argument("topic")
@click.argument("group")
@confirm.dry_run()
@confirm.yes()
def delete(invocation: Invocation, topic: str, group: str, dry_run: bool, yes: bool) -> None:
    """Delete a group and its position."""
    stats = invocation.run(lambda mq: mq.groups.stats(topic, group))
    what = f"delete group {group} of topic {topic}, with {sum(row.lag for row in stats):,} unread messages"
    if dry_run:
        invocation.say(f"would {what}")
        return
    confirm.confirm(what, group, confirmed=yes)
    invocation.run(lambda mq: mq.groups.delete(topic, group))
    invocation.say(f"deleted group {group}")
