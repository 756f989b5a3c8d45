"""`trunkline topic`: manage topics, publish and read messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import click

from trunkline.cli.commands import publish as publishing
from trunkline.cli.framework import confirm
from trunkline.cli.framework.command import CommandGroup, Count, Invocation, setting_options
from trunkline.cli.framework.output import Column, payload_text, size_text
from trunkline.cli.framework.positions import Position, resolve
from trunkline.cli.framework.searching import run_search, search_options
from trunkline.errors import NotFound
from trunkline.resources import TopicSettings
from trunkline.types import Message

if TYPE_CHECKING:
    from trunkline.messaging import Messaging

_PAGE = 1000
command = CommandGroup("topic", help="Manage topics.")

_TOPICS = (
    Column("topic", "topic", whole=True),
    Column("partitions", "partitions", right=True),
    Column("messages", "messages", right=True),
    Column("size", lambda row: size_text(row["bytes"]), right=True),
    Column("per second", "rate_per_second", right=True),
    Column("delayed", "delayed", right=True),
    Column("retention", "retention", right=True),
)
_OFFSETS = (
    Column("topic", "topic", whole=True),
    Column("partition", "partition", right=True),
    Column("lowest", "earliest_offset", right=True),
    Column("head", "head", right=True),
    Column("at", "offset_at", right=True),
)
_MAP = (
    Column("partition", "partition", right=True),
    Column("lowest", "earliest_offset", right=True),
    Column("head", "head", right=True),
    Column("segments", lambda row: len(row.segments), right=True),
    Column("size", lambda row: size_text(sum(segment.bytes or 0 for segment in row.segments)), right=True),
    Column("archived to", lambda row: row.archive[-1].last_offset if row.archive else None, right=True),
    Column("staged", "staged", right=True),
    Column("kept until", lambda row: row.keeps.until if row.keeps else None),
    Column("readers", lambda row: ", ".join(f"{each.name} at {each.next_offset}" for each in row.readers)),
)
MESSAGES = (
    Column("position", lambda message: f"{message.partition}@{message.offset}", whole=True),
    Column("created", "created_at", whole=True),
    Column("id", "id", whole=True),
    Column("key", "key"),
    Column("routing key", "routing_key"),
    Column("label", "label"),
    Column("payload", payload_text),
)


def given(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings given on the command line. Raise if there are none."""
    chosen = {name: value for name, value in settings.items() if value is not None}
    if not chosen:
        raise click.UsageError("nothing to change: specify at least one setting")
    return chosen


@command.subcommand("list", example="trunkline topic list")
def list_(invocation: Invocation) -> None:
    """List topics with their sizes."""

    async def work(mq: Messaging) -> list[dict[str, Any]]:
        stats = {name: list(rows) for name, rows in groupby(await mq.topics.stats(), key=lambda row: row.topic)}
        return [
            {
                "topic": topic.name,
                "partitions": topic.partitions,
                "messages": sum(row.head - row.earliest_offset + 1 for row in stats.get(topic.name, [])),
                "bytes": sum(row.bytes or 0 for row in stats.get(topic.name, [])),
                "rate_per_second": sum(row.rate_per_second for row in stats.get(topic.name, [])),
                "delayed": max((row.delayed for row in stats.get(topic.name, [])), default=0),
                "retention": topic.retention,
            }
            for topic in await mq.topics.list()
        ]

    invocation.out.many(invocation.run(work), _TOPICS)


@command.subcommand("show", example="trunkline topic show orders")
@click.argument("name")
def show(invocation: Invocation, name: str) -> None:
    """Show a topic's settings."""
    invocation.out.one(invocation.run(lambda mq: mq.topics.get(name)))


@command.subcommand("create", example="trunkline topic create orders --partitions 4 --retention 30d")
@click.argument("name")
@setting_options(TopicSettings)
@click.option("--ensure", is_flag=True, help="If the topic exists, update it with these settings.")
def create(invocation: Invocation, name: str, ensure: bool, **settings: Any) -> None:
    """Create a topic."""
    invocation.out.one(
        invocation.run(lambda mq: mq.topics.ensure(name, **settings) if ensure else mq.topics.create(name, **settings))
    )


@command.subcommand("alter", example="trunkline topic alter orders --retention 14d")
@click.argument("name")
@setting_options(TopicSettings)
def alter(invocation: Invocation, name: str, **settings: Any) -> None:
    """Change topic settings. Partitions can be added but not removed."""
    chosen = given(settings)
    invocation.out.one(invocation.run(lambda mq: mq.topics.alter(name, **chosen)))


@command.subcommand("delete", example="trunkline topic delete orders --dry-run")
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete even if groups or queues read it.")
@confirm.dry_run()
@confirm.yes()
def delete(invocation: Invocation, name: str, force: bool, dry_run: bool, yes: bool) -> None:
    """Delete a topic and all its messages."""

    async def look(mq: Messaging) -> str:
        rows = await mq.topics.stats(name)
        groups, queues = await mq.groups.list(name), await mq.subscriptions.list(topic=name)
        count = sum(row.head - row.earliest_offset + 1 for row in rows)
        return f"delete topic {name} with {count:,} messages, {len(groups)} groups and {len(queues)} subscriptions"

    what = invocation.run(look)
    if dry_run:
        invocation.say(f"would {what}")
        return
    confirm.confirm(what, name, confirmed=yes)
    invocation.run(lambda mq: mq.topics.delete(name, force=force))
    invocation.say(f"deleted topic {name}")


@command.subcommand(
    "publish",
    example="trunkline topic publish orders '{\"id\": 42}' --key cust-7 --routing-key order.created.eu\n"
    "trunkline topic publish orders --file orders.ndjson --idempotency-prefix import-7",
)
@click.argument("name")
@publishing.options
def publish(invocation: Invocation, name: str, **values: Any) -> int:
    """Publish one message (BODY or --body-file), or one per line of --file or stdin."""

    async def target(mq: Messaging) -> publishing.Destination:
        topic = await mq.topics.get(name)
        return publishing.Destination(name, mq.publish, mq.publish_many, topic.max_payload)

    return publishing.publish(invocation, target, values)


@command.subcommand("read", example="trunkline topic read orders --start 1h --limit 20 -o jsonl")
@click.argument("name")
@click.option("--partition", type=Count(0), help="Only this partition.")
@click.option(
    "--start",
    type=Position(),
    default="earliest",
    show_default=True,
    help="Position: earliest, an offset, a time, or an age such as 1h.",
)
@click.option("--limit", type=Count(1), default=100, show_default=True, help="Maximum number of messages.")
@click.option("--live", is_flag=True, help="Skip the archive.")
def read(
    invocation: Invocation, name: str, partition: int | None, start: str | int | datetime, limit: int, live: bool
) -> None:
    """Read a topic up to its head, including its archive. Has no effect on other readers."""
    # over HTTP only the live log is available
    if not live and invocation.service is None and _has_archive(invocation, name):
        _read_tiered(invocation, name, partition, start, limit)
        return

    async def work(mq: Messaging) -> list[Message[Any]]:
        positions = await resolve(mq, name, start)
        if partition is not None and partition not in positions:
            raise NotFound(f"topic {name!r} has no partition {partition}", hint=f"Partitions are 0 to {len(positions) - 1}.")
        messages: list[Message[Any]] = []
        for number in positions if partition is None else [partition]:
            at = positions[number]
            while len(messages) < limit:
                page = await mq.topics.read(name, number, start=at, limit=min(_PAGE, limit - len(messages)))
                if not page:
                    break
                messages += page
                at = page[-1].offset + 1
        return messages

    invocation.out.many(invocation.run(work), MESSAGES)


@command.subcommand(
    "search",
    example="trunkline topic search orders --key customer-7 --start 1d\n"
    "trunkline topic search orders --text refund --limit 10",
)
@click.argument("name")
@search_options
def search(invocation: Invocation, name: str, **given: Any) -> None:
    """Search the messages of a topic, the newest first. Has no effect on readers.

    Stops at the limits and says how to continue. All given conditions must match.
    """
    run_search(invocation, name, MESSAGES, lambda mq: mq.topics, given)


@command.subcommand("map", example="trunkline topic map orders")
@click.argument("name")
def map_(invocation: Invocation, name: str) -> None:
    """Show what each partition holds: segments, readers, archive, staged rows, and until when it is kept."""
    invocation.out.many(invocation.run(lambda mq: mq.topics.map(name)), _MAP)


def _has_archive(invocation: Invocation, name: str) -> bool:
    from trunkline.db.calls.archive import archived_topics

    return name in archived_topics(invocation.url)


def _read_tiered(invocation: Invocation, name: str, partition: int | None, start: str | int | datetime, limit: int) -> None:
    from trunkline.cli.commands.pipeline import needs_spark

    with needs_spark(), invocation.limited():
        from trunkline.spark.source import tiered_messages

        partitions = tiered_messages.partitions(invocation.url, name)
        if partition is not None and partition not in partitions:
            raise NotFound(
                f"topic {name!r} has no partition {partition}", hint=f"Partitions are 0 to {len(partitions) - 1}."
            )
        messages = tiered_messages.read(invocation.url, name, start=start, partition=partition)
        invocation.out.many(list(islice(messages, limit)), MESSAGES)


@command.subcommand("tail", example="trunkline topic tail orders -o jsonl | jq .body.id")
@click.argument("name")
@click.option(
    "--start",
    type=Position(),
    default="latest",
    show_default=True,
    help="Position: earliest, latest, an offset, a time, or an age such as 1h.",
)
@click.option("--limit", type=Count(1), help="Stop after this many messages.")
def tail(invocation: Invocation, name: str, start: str | int | datetime, limit: int | None) -> None:
    """Print new messages as they arrive, one per line, until Ctrl-C. Has no effect on other readers."""

    async def messages(mq: Messaging) -> AsyncIterator[Message[Any]]:
        count = 0
        async for message in mq.topics.tail(name, start=start):
            yield message
            count += 1
            if count == limit:
                return

    invocation.run(lambda mq: invocation.out.stream(messages(mq), MESSAGES))


@command.subcommand("offsets", example="trunkline topic offsets orders --at 2026-01-31T12:00:00Z")
@click.argument("name")
@click.option(
    "--at",
    "position",
    type=Position(),
    help="Also show the first offset at or after this time (a time, or an age such as 1h).",
)
def offsets(invocation: Invocation, name: str, position: str | int | datetime | None) -> None:
    """Show the earliest available offset and the head of each partition."""
    if position is not None and not isinstance(position, datetime):
        raise click.BadParameter("must be a time, or an age such as 1h", param_hint="'--at'")

    async def work(mq: Messaging) -> list[dict[str, Any]]:
        return [
            {
                "topic": row.topic,
                "partition": row.partition,
                "earliest_offset": row.earliest_offset,
                "head": row.head,
                "offset_at": None if position is None else await mq.topics.offset_at(name, row.partition, at=position),
            }
            for row in await mq.topics.stats(name)
        ]

    invocation.out.many(invocation.run(work), _OFFSETS if position is not None else _OFFSETS[:-1])
