"""`trunkline subscription`: manage subscriptions, which feed queues from topics."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from trunkline.cli.framework import confirm
from trunkline.cli.framework.command import CommandGroup, Invocation
from trunkline.cli.framework.input import parse_headers
from trunkline.cli.framework.output import Column
from trunkline.cli.framework.positions import Position
from trunkline.errors import SubscriptionNotFound

if TYPE_CHECKING:
    from trunkline.messaging import Messaging

command = CommandGroup("subscription", help="Manage subscriptions, which feed queues from topics.")

_SUBSCRIPTIONS = (
    Column("queue", "queue", whole=True),
    Column("name", "name", whole=True),
    Column("topic", "topic", whole=True),
    Column("pattern", "pattern"),
    Column("headers", "headers"),
    Column("created", "created_at"),
)
_READERS = (
    Column("kind", "kind"),
    Column("name", "name", whole=True),
    Column("subscription", "subscription"),
    Column("pattern", "pattern"),
    Column("headers", "headers"),
    Column("matches", "matches"),
)


@command.subcommand("list", example="trunkline subscription list --topic orders")
@click.option("--queue", help="Only subscriptions of this queue.")
@click.option("--topic", help="Only subscriptions to this topic.")
def list_(invocation: Invocation, queue: str | None, topic: str | None) -> None:
    """List subscriptions."""

    async def work(mq: Messaging) -> list[Any]:
        if queue is not None:
            await mq.queues.get(queue)
        if topic is not None:
            await mq.topics.get(topic)
        return await mq.subscriptions.list(queue, topic)

    invocation.out.many(invocation.run(work), _SUBSCRIPTIONS)


@command.subcommand("add", example="trunkline subscription add mail orders --pattern 'order.created.#'")
@click.argument("queue")
@click.argument("topic")
@click.option("--pattern", default="#", show_default=True, help="Pattern of routing keys: * matches one word, # any number.")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Only messages with this header; may be repeated."
)
@click.option(
    "--start",
    type=Position(),
    default="latest",
    show_default=True,
    help="Position: earliest, latest, an offset, a time, or an age.",
)
@click.option("--name", help="Name of the subscription.  [default: the topic's name]")
def add(
    invocation: Invocation,
    queue: str,
    topic: str,
    pattern: str,
    headers: tuple[str, ...],
    start: str | int | datetime,
    name: str | None,
) -> None:
    """Subscribe a queue to a topic."""
    filters = parse_headers(headers)

    async def work(mq: Messaging) -> Any:
        return await mq.subscriptions.add(queue, topic, pattern=pattern, headers=filters, start=start, name=name)

    invocation.out.one(invocation.run(work))


@command.subcommand("remove", example="trunkline subscription remove mail orders --yes")
@click.argument("queue")
@click.argument("name")
@confirm.dry_run()
@confirm.yes()
def remove(invocation: Invocation, queue: str, name: str, dry_run: bool, yes: bool) -> None:
    """Remove a subscription. Its unsettled messages are dropped."""

    async def look(mq: Messaging) -> Any:
        matches = [each for each in await mq.subscriptions.list(queue) if each.name == name]
        if not matches:
            raise SubscriptionNotFound(
                f"queue {queue!r} has no subscription {name!r}",
                hint="List subscriptions with `trunkline subscription list`.",
            )
        return matches[0]

    subscription = invocation.run(look)
    source = f"topic {subscription.topic} (pattern {subscription.pattern})"
    what = f"stop feeding queue {queue} from {source} and drop its unsettled messages"
    if dry_run:
        invocation.say(f"would {what}")
        return
    confirm.confirm(what, name, confirmed=yes)
    invocation.run(lambda mq: mq.subscriptions.remove(queue, name))
    invocation.say(f"removed subscription {name} of queue {queue}")


@command.subcommand("test", example="trunkline subscription test orders order.created.eu -H region=eu")
@click.argument("topic")
@click.argument("routing_key", required=False)
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of the message; may be repeated."
)
def test(invocation: Invocation, topic: str, routing_key: str | None, headers: tuple[str, ...]) -> None:
    """Show which readers would get a message with this routing key and these headers. Publishes nothing."""
    given = parse_headers(headers)
    invocation.out.many(invocation.run(lambda mq: mq.subscriptions.test(topic, routing_key, headers=given)), _READERS)
