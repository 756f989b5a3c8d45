"""`trunkline queue`: manage queues, inspect them, and claim and settle messages."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

from trunkline.cli.commands import publish
from trunkline.cli.commands.topic import MESSAGES, given
from trunkline.cli.framework import confirm
from trunkline.cli.framework.command import CommandGroup, Count, Duration, Invocation, setting_options
from trunkline.cli.framework.output import Column, payload_text, progress, shorten
from trunkline.cli.framework.searching import run_search, search_options
from trunkline.errors import Conflict, NotFound
from trunkline.resources import NewQueueSettings, QueueSettings
from trunkline.types import Result

if TYPE_CHECKING:
    from trunkline.messaging import Messaging

command = CommandGroup("queue", help="Manage queues.")

_QUEUES = (
    Column("queue", "queue", whole=True),
    Column("ready", "ready", right=True),
    Column("delayed", "delayed", right=True),
    Column("leased", "leased", right=True),
    Column("dead", "dead", right=True),
    Column("acked", "acked", right=True),
    Column("expired", "expired", right=True),
    Column("oldest s", "oldest_age", right=True),
    Column("paused", "paused"),
)
_WAITING = (
    Column("id", "id", whole=True),
    Column("from", lambda row: row.topic or "direct"),
    Column("created", "created_at", whole=True),
    Column("due", "due_at", whole=True),
    Column("attempts", "attempt", right=True),
    Column("key", "key"),
    Column("payload", payload_text),
    Column("error", lambda row: shorten(row.error)),
)
_DELIVERIES = (
    Column("receipt", "receipt", whole=True),
    Column("attempt", "attempt", right=True),
    Column("until", "deadline", whole=True),
    Column("key", "key"),
    Column("label", "label"),
    Column("payload", payload_text),
)
_RESULTS = (Column("receipt", "receipt", whole=True), Column("result", "result"))


@command.subcommand("list", example="trunkline queue list")
def list_(invocation: Invocation) -> None:
    """List queues with their message counts."""
    invocation.out.many(invocation.run(lambda mq: mq.queues.stats()), _QUEUES)


@command.subcommand("show", example="trunkline queue show mail")
@click.argument("name")
def show(invocation: Invocation, name: str) -> None:
    """Show a queue's settings and message counts."""

    async def work(mq: Messaging) -> dict[str, Any]:
        queue, numbers = await mq.queues.get(name), (await mq.queues.stats(name))[0]
        counted = {key: value for key, value in msgspec.structs.asdict(numbers).items() if key != "queue"}
        return msgspec.structs.asdict(queue) | counted

    invocation.out.one(invocation.run(work))


@command.subcommand("create", example="trunkline queue create mail --lease 30s --max-attempts 5")
@click.argument("name")
@setting_options(NewQueueSettings)
@click.option("--ensure", is_flag=True, help="If the queue exists, update it with these settings.")
def create(invocation: Invocation, name: str, ensure: bool, **settings: Any) -> None:
    """Create a queue."""
    invocation.out.one(
        invocation.run(lambda mq: mq.queues.ensure(name, **settings) if ensure else mq.queues.create(name, **settings))
    )


@command.subcommand("alter", example="trunkline queue alter mail --max-attempts 10 --backoff-cap 1h")
@click.argument("name")
@setting_options(QueueSettings)
def alter(invocation: Invocation, name: str, **settings: Any) -> None:
    """Change queue settings. Omitted settings stay unchanged."""
    chosen = given(settings)
    invocation.out.one(invocation.run(lambda mq: mq.queues.alter(name, **chosen)))


@command.subcommand("pause", example="trunkline queue pause mail")
@click.argument("name")
def pause(invocation: Invocation, name: str) -> None:
    """Pause deliveries. Leased messages can still be settled."""
    invocation.run(lambda mq: mq.queues.pause(name))
    invocation.say(f"queue {name} is paused")


@command.subcommand("resume", example="trunkline queue resume mail")
@click.argument("name")
def resume(invocation: Invocation, name: str) -> None:
    """Resume deliveries."""
    invocation.run(lambda mq: mq.queues.resume(name))
    invocation.say(f"queue {name} is resumed")


@command.subcommand("purge", example="trunkline queue purge mail --dry-run")
@click.argument("name")
@confirm.dry_run()
@confirm.yes()
def purge(invocation: Invocation, name: str, dry_run: bool, yes: bool) -> None:
    """Remove all messages that wait in a queue. Leased messages and dead letters remain."""
    numbers = invocation.run(lambda mq: mq.queues.stats(name))[0]
    waiting = numbers.ready + numbers.delayed
    if dry_run:
        invocation.say(f"would purge {waiting:,} messages from {name}")
        return
    confirm.confirm(f"purge {waiting:,} messages from queue {name}", name, confirmed=yes)
    with progress("purging", waiting, quiet=invocation.quiet) as done:
        removed = invocation.run(lambda mq: mq.queues.purge(name, on_progress=done))
    invocation.out.one({"queue": name, "purged": removed})


@command.subcommand("trim", example="trunkline queue trim mail")
@click.argument("name")
def trim(invocation: Invocation, name: str) -> None:
    """Remove finished messages now instead of waiting for upkeep."""
    emptied = invocation.run(lambda mq: mq.queues.trim(name))
    invocation.out.one({"queue": name, "segments": emptied})


@command.subcommand("delete", example="trunkline queue delete mail --dry-run")
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete even if messages are waiting.")
@confirm.dry_run()
@confirm.yes()
def delete(invocation: Invocation, name: str, force: bool, dry_run: bool, yes: bool) -> None:
    """Delete a queue with its subscriptions and messages."""
    numbers = invocation.run(lambda mq: mq.queues.stats(name))[0]
    waiting = numbers.ready + numbers.delayed + numbers.leased
    what = f"delete queue {name} with {waiting:,} messages and {numbers.dead:,} dead letters"
    if dry_run:
        invocation.say(f"would {what}")
        return
    confirm.confirm(what, name, confirmed=yes)
    invocation.run(lambda mq: mq.queues.delete(name, force=force))
    invocation.say(f"deleted queue {name}")


@command.subcommand("enqueue", example='trunkline queue enqueue mail \'{"to": "a@example.com"}\' --delay 10m')
@click.argument("name")
@publish.options
@click.option("--priority", type=Count(0), help="Priority level, for queues with priorities; 0 is the lowest.")
def enqueue(invocation: Invocation, name: str, priority: int | None, **values: Any) -> int:
    """Enqueue one message (BODY or --body-file), or one per line of --file or stdin."""

    async def target(mq: Messaging) -> publish.Destination:
        queue = await mq.queues.get(name)
        return publish.Destination(name, mq.enqueue, mq.enqueue_many, queue.max_payload)

    return publish.publish(invocation, target, values, priority=priority)


@command.subcommand("peek", example="trunkline queue peek mail --limit 5")
@click.argument("name")
@click.option("--limit", type=Count(1, 10_000), default=10, show_default=True, help="Maximum number of messages.")
def peek(invocation: Invocation, name: str, limit: int) -> None:
    """Show the next messages without claiming them, retries first."""
    invocation.out.many(invocation.run(lambda mq: mq.queues.peek(name, limit=limit)), _WAITING)


@command.subcommand("claim", example="trunkline queue claim mail --limit 10 --lease 5m -o jsonl")
@click.argument("name")
@click.option("--limit", type=Count(1, 1000), default=1, show_default=True, help="Maximum number of messages.")
@click.option("--lease", type=Duration(), help="Duration of the lease.  [default: the queue's]")
@click.option("--label", "labels", multiple=True, help="Only messages with this label; may be repeated.")
@click.option("--consumer", default="trunkline", show_default=True, help="Consumer name in the delivery history.")
@click.option("--ack", "settle", is_flag=True, help="Ack each message after writing it to stdout.")
def claim(
    invocation: Invocation,
    name: str,
    limit: int,
    lease: timedelta | None,
    labels: tuple[str, ...],
    consumer: str,
    settle: bool,
) -> None:
    """Claim messages. Settle them with their receipts before the lease ends."""

    async def work(mq: Messaging) -> None:
        deliveries = await mq.claim(name, limit=limit, lease=lease, labels=list(labels) or None, consumer=consumer)
        invocation.out.many(deliveries, _DELIVERIES)
        if settle and len(deliveries):
            # ack only what has been written
            if sys.stdout is not None:
                sys.stdout.flush()
            lost = sum(result != "done" for result in await deliveries.ack())
            if lost:
                raise Conflict(f"{lost} of {len(deliveries)} leases ended before the ack", hint="Use a longer --lease.")

    invocation.run(work)


def _settle(
    invocation: Invocation, receipts: tuple[str, ...], verb: Callable[[Messaging, list[str]], Awaitable[list[Result]]]
) -> None:
    """Settle receipts from the arguments or, for `-`, from stdin. Exit code 4 if any lease was lost."""
    chosen = [each for each in receipts if each != "-"]
    if "-" in receipts:
        if sys.stdin is None:
            raise click.UsageError("no input: stdin is closed")
        chosen += [line.strip() for line in sys.stdin if line.strip()]
    if not chosen:
        raise click.UsageError("no receipts given")
    results = invocation.run(lambda mq: verb(mq, chosen))
    invocation.out.many(
        [{"receipt": receipt, "result": result} for receipt, result in zip(chosen, results, strict=True)], _RESULTS
    )
    if lost := results.count("lost"):
        raise Conflict(f"{lost} of {len(chosen)} leases were lost; these messages were not settled")
    if unknown := results.count("unknown"):
        raise NotFound(f"{unknown} of {len(chosen)} receipts are unknown", hint="Use receipts from `trunkline queue claim`.")


@command.subcommand(
    "ack",
    example="trunkline queue ack RECEIPT\ntrunkline queue claim mail -o jsonl | jq -r .receipt | trunkline queue ack -",
)
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
def ack(invocation: Invocation, receipts: tuple[str, ...]) -> None:
    """Ack messages: they are done and are never delivered again. `-` reads receipts from stdin."""
    _settle(invocation, receipts, lambda mq, given: mq.ack(given))


@command.subcommand("nack", example="trunkline queue nack RECEIPT --delay 10m --error 'mail server is down'")
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
@click.option("--delay", type=Duration(), help="Delay before redelivery.  [default: the queue's backoff]")
@click.option("--error", help="Why.")
def nack(invocation: Invocation, receipts: tuple[str, ...], delay: timedelta | None, error: str | None) -> None:
    """Nack messages: redeliver them, or bury them after their last attempt."""
    _settle(invocation, receipts, lambda mq, given: mq.nack(given, delay=delay, error=error))


@command.subcommand("bury", example="trunkline queue bury RECEIPT --error 'no such address'")
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
@click.option("--error", help="Why.")
def bury(invocation: Invocation, receipts: tuple[str, ...], error: str | None) -> None:
    """Move messages to the dead letters now."""
    _settle(invocation, receipts, lambda mq, given: mq.bury(given, error=error))


@command.subcommand("release", example="trunkline queue release RECEIPT")
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
def release(invocation: Invocation, receipts: tuple[str, ...]) -> None:
    """Return messages to the queue without counting an attempt."""
    _settle(invocation, receipts, lambda mq, given: mq.release(given))


@command.subcommand("extend", example="trunkline queue extend RECEIPT --lease 10m")
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
@click.option("--lease", type=Duration(), required=True, help="New lease, counted from now.")
def extend(invocation: Invocation, receipts: tuple[str, ...], lease: timedelta) -> None:
    """Extend leases."""
    _settle(invocation, receipts, lambda mq, given: mq.extend(given, lease=lease))


@command.subcommand("log", example="trunkline queue log mail --start 100 --limit 20")
@click.argument("name")
@click.option("--partition", type=Count(0), default=0, show_default=True, help="The partition, or the priority.")
@click.option("--start", type=Count(1), default=1, show_default=True, help="First offset.")
@click.option("--limit", type=Count(1, 1000), default=100, show_default=True, help="Maximum number of messages.")
def log(invocation: Invocation, name: str, partition: int, start: int, limit: int) -> None:
    """Read messages that were sent to the queue directly, consumed or not. Claims nothing."""
    rows = invocation.run(lambda mq: mq.queues.read(name, partition, start=start, limit=limit))
    invocation.out.many(rows, MESSAGES)


@command.subcommand("search", example="trunkline queue search mail --text 'ann@example.com' --start 1d")
@click.argument("name")
@search_options
def search(invocation: Invocation, name: str, **given: Any) -> None:
    """Search messages that were sent to a queue directly, the newest first. Claims nothing."""
    run_search(invocation, name, MESSAGES, lambda mq: mq.queues, given)
