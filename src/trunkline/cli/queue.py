"""`trunkline queue`: queues, what waits in them, and deliveries by hand."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

from trunkline.cli import confirm, publishing
from trunkline.cli.command import Count, Duration, Noun, Session, stacked
from trunkline.cli.output import Column, payload_text, progress, shorten
from trunkline.cli.topic import given
from trunkline.errors import Conflict, NotFound
from trunkline.types import Result

if TYPE_CHECKING:
    from trunkline import Client

command = Noun("queue", help="Queues: mailboxes with a delivery policy.")

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
    Column("from", lambda row: row.topic or "inbox"),
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


_settings = stacked(
    click.option("--lease", type=Duration(), help="How long a consumer holds a message."),
    click.option("--max-attempts", type=Count(1), help="After so many attempts it is a dead letter."),
    click.option("--backoff-base", type=Duration(), help="Delay after the first nack."),
    click.option("--backoff-factor", type=float, help="The delay grows by this factor."),
    click.option("--backoff-cap", type=Duration(), help="Longest delay after a nack."),
    click.option("--backoff-jitter", type=float, help="Share of the delay that is random, 0 to 1."),
    click.option("--ttl", type=Duration(), help="Messages older than this are not delivered; 0s for no limit."),
    click.option("--delivery-delay", type=Duration(), help="Every message waits so long."),
    click.option("--history", type=Duration(), help="How long it is kept who had which message; 0s for not at all."),
    click.option("--retention", type=Duration(), help="How long finished messages can stay in the log of the inbox."),
    click.option("--max-payload", type=Count(1), metavar="BYTES", help="Largest payload."),
)


@command.verb("list", example="trunkline queue list")
def list_(session: Session) -> None:
    """All queues, with what is in them."""
    session.out.many(session.run(lambda mq: mq.queues.stats()), _QUEUES)


@command.verb("show", example="trunkline queue show mail")
@click.argument("name")
def show(session: Session, name: str) -> None:
    """The settings and numbers of a queue."""

    async def work(mq: Client) -> dict[str, Any]:
        queue, numbers = await mq.queues.get(name), (await mq.queues.stats(name))[0]
        counted = {key: value for key, value in msgspec.structs.asdict(numbers).items() if key != "queue"}
        return msgspec.structs.asdict(queue) | counted

    session.out.one(session.run(work))


@command.verb("create", example="trunkline queue create mail --lease 30s --max-attempts 5")
@click.argument("name")
@_settings
@click.option("--ordered", is_flag=True, default=None, help="Messages with the same key are done in order.")
@click.option("--partitions", type=Count(1), help="Of an ordered queue: how many keys can be worked on at once.")
@click.option("--priorities", type=Count(1), help="Number of levels; 0 is the lowest.")
@click.option("--ensure", is_flag=True, help="One that is there gets the settings given here.")
def create(session: Session, name: str, ensure: bool, **settings: Any) -> None:
    """Make a queue."""
    session.out.one(
        session.run(lambda mq: mq.queues.ensure(name, **settings) if ensure else mq.queues.create(name, **settings))
    )


@command.verb("alter", example="trunkline queue alter mail --max-attempts 10 --backoff-cap 1h")
@click.argument("name")
@_settings
def alter(session: Session, name: str, **settings: Any) -> None:
    """Change the policy of a queue."""
    chosen = given(settings)
    session.out.one(session.run(lambda mq: mq.queues.alter(name, **chosen)))


@command.verb("pause", example="trunkline queue pause mail")
@click.argument("name")
def pause(session: Session, name: str) -> None:
    """Deliver nothing until `resume`; what is out can be settled."""
    session.run(lambda mq: mq.queues.pause(name))
    session.say(f"queue {name} is paused")


@command.verb("resume", example="trunkline queue resume mail")
@click.argument("name")
def resume(session: Session, name: str) -> None:
    """Deliver again."""
    session.run(lambda mq: mq.queues.resume(name))
    session.say(f"queue {name} delivers")


@command.verb("purge", example="trunkline queue purge mail --dry-run", http=False)
@click.argument("name")
@confirm.dry_run()
@confirm.yes()
def purge(session: Session, name: str, dry_run: bool, yes: bool) -> None:
    """Remove everything that waits in a queue. What is leased and what is dead stays."""
    numbers = session.run(lambda mq: mq.queues.stats(name))[0]
    waiting = numbers.ready + numbers.delayed
    if dry_run:
        session.say(f"would purge {waiting:,} messages from {name}")
        return
    confirm.confirm(f"purge {waiting:,} messages from queue {name}", name, given=yes)
    with progress("purging", waiting, quiet=session.quiet) as done:
        removed = session.run(lambda mq: mq.queues.purge(name, on_progress=done))
    session.out.one({"queue": name, "purged": removed})


@command.verb("cleanup", example="trunkline queue cleanup mail", http=False)
@click.argument("name")
def cleanup(session: Session, name: str) -> None:
    """Give back the disk of finished messages now instead of at the next upkeep."""
    emptied = session.run(lambda mq: mq.queues.cleanup(name))
    session.out.one({"queue": name, "segments": emptied})


@command.verb("delete", example="trunkline queue delete mail --dry-run")
@click.argument("name")
@click.option("--force", is_flag=True, help="Even when messages wait in it.")
@confirm.dry_run()
@confirm.yes()
def delete(session: Session, name: str, force: bool, dry_run: bool, yes: bool) -> None:
    """Remove a queue, its subscriptions and everything in it."""
    numbers = session.run(lambda mq: mq.queues.stats(name))[0]
    waiting = numbers.ready + numbers.delayed + numbers.leased
    what = f"delete queue {name} with {waiting:,} messages and {numbers.dead:,} dead letters"
    if dry_run:
        session.say(f"would {what}")
        return
    confirm.confirm(what, name, given=yes)
    session.run(lambda mq: mq.queues.delete(name, force=force))
    session.say(f"deleted queue {name}")


@command.verb("enqueue", example='trunkline queue enqueue mail \'{"to": "a@example.com"}\' --delay 10m')
@click.argument("name")
@publishing.options
@click.option("--priority", type=Count(0), help="For queues with priorities; 0 is the lowest.")
def enqueue(session: Session, name: str, priority: int | None, **values: Any) -> int:
    """Put one message (BODY or --body-file) into a queue, or one for each line of --file or stdin."""

    async def target(mq: Client) -> publishing.Target:
        queue = await mq.queues.get(name)
        return publishing.Target(name, mq.enqueue, mq.enqueue_many, queue.max_payload)

    return publishing.publish(session, target, values, priority=priority)


@command.verb("peek", example="trunkline queue peek mail --limit 5")
@click.argument("name")
@click.option("--limit", type=Count(1, 10_000), default=10, show_default=True, help="At most so many.")
def peek(session: Session, name: str, limit: int) -> None:
    """What waits: first what came back, then what is new. Claims nothing and counts no attempt."""
    session.out.many(session.run(lambda mq: mq.queues.peek(name, limit=limit)), _WAITING)


@command.verb("claim", example="trunkline queue claim mail --limit 10 --lease 5m -o jsonl")
@click.argument("name")
@click.option("--limit", type=Count(1, 1000), default=1, show_default=True, help="At most so many.")
@click.option("--lease", type=Duration(), help="How long they are yours.  [default: of the queue]")
@click.option("--label", "labels", multiple=True, help="Only with this label; may be repeated.")
@click.option("--consumer", help="Who you are, for the history.  [default: trunkline]")
@click.option("--ack", "settle", is_flag=True, help="Ack each one after it is written out; until then it is only leased.")
def claim(
    session: Session,
    name: str,
    limit: int,
    lease: timedelta | None,
    labels: tuple[str, ...],
    consumer: str | None,
    settle: bool,
) -> None:
    """Take messages for the time of a lease. Settle them with their receipts."""

    # over HTTP the service is the consumer
    who = consumer or (None if session.service else "trunkline")

    async def work(mq: Client) -> None:
        deliveries = await mq.claim(name, limit=limit, lease=lease, labels=list(labels) or None, consumer=who)
        session.out.many(deliveries, _DELIVERIES)
        if settle and deliveries:
            # only what has left this process is done
            if sys.stdout is not None:
                sys.stdout.flush()
            lost = sum(result != "done" for result in await deliveries.ack())
            if lost:
                raise Conflict(
                    f"{lost} of {len(deliveries)} leases ended before the ack", hint="give them more time with --lease"
                )

    session.run(work)


def _settle(
    session: Session, receipts: tuple[str, ...], verb: Callable[[Client, list[str]], Awaitable[list[Result]]]
) -> None:
    """Settle receipts given as arguments or, for `-`, as lines of stdin; exit code 4 when one of them was lost."""
    given = [each for each in receipts if each != "-"]
    if "-" in receipts:
        if sys.stdin is None:
            raise click.UsageError("there is no input: stdin is closed")
        given += [line.strip() for line in sys.stdin if line.strip()]
    if not given:
        raise click.UsageError("no receipt was given")
    results = session.run(lambda mq: verb(mq, given))
    session.out.many(
        [{"receipt": receipt, "result": result} for receipt, result in zip(given, results, strict=True)], _RESULTS
    )
    if lost := results.count("lost"):
        raise Conflict(f"{lost} of {len(given)} leases were lost; for those nothing changed")
    if unknown := results.count("unknown"):
        raise NotFound(f"{unknown} of {len(given)} receipts are not known", hint="they come from `trunkline queue claim`")


@command.verb(
    "ack",
    example="trunkline queue ack RECEIPT\ntrunkline queue claim mail -o jsonl | jq -r .receipt | trunkline queue ack -",
)
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
def ack(session: Session, receipts: tuple[str, ...]) -> None:
    """These are done and never delivered again. `-` reads receipts from stdin."""
    _settle(session, receipts, lambda mq, given: mq.ack(given))


@command.verb("nack", example="trunkline queue nack RECEIPT --delay 10m --error 'mail server is down'")
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
@click.option("--delay", type=Duration(), help="Deliver again after this time.  [default: the queue's backoff]")
@click.option("--error", help="Why.")
def nack(session: Session, receipts: tuple[str, ...], delay: timedelta | None, error: str | None) -> None:
    """Deliver these again, or make them dead letters after their last attempt."""
    _settle(session, receipts, lambda mq, given: mq.nack(given, delay=delay, error=error))


@command.verb("bury", example="trunkline queue bury RECEIPT --error 'no such address'")
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
@click.option("--error", help="Why.")
def bury(session: Session, receipts: tuple[str, ...], error: str | None) -> None:
    """Make these dead letters at once."""
    _settle(session, receipts, lambda mq, given: mq.bury(given, error=error))


@command.verb("release", example="trunkline queue release RECEIPT")
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
def release(session: Session, receipts: tuple[str, ...]) -> None:
    """Give these back as if they had not been delivered."""
    _settle(session, receipts, lambda mq, given: mq.release(given))


@command.verb("extend", example="trunkline queue extend RECEIPT --lease 10m")
@click.argument("receipts", nargs=-1, required=True, metavar="RECEIPT...")
@click.option("--lease", type=Duration(), required=True, help="Keep them so long from now.")
def extend(session: Session, receipts: tuple[str, ...], lease: timedelta) -> None:
    """Keep these longer."""
    _settle(session, receipts, lambda mq, given: mq.extend(given, lease=lease))
