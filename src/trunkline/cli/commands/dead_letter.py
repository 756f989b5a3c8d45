"""`trunkline dead`: inspect, redrive, purge and export dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click
import msgspec

from trunkline.cli.framework import confirm
from trunkline.cli.framework.command import CommandGroup, Count, Duration, Invocation, stacked
from trunkline.cli.framework.input import check_body, parse_headers
from trunkline.cli.framework.output import Column, payload_text, progress, shorten, to_json, write_line
from trunkline.types import DeadLetter

if TYPE_CHECKING:
    from trunkline.messaging import Messaging

command = CommandGroup("dead", help="Manage dead letters.")

_PAGE = 1000
_DEAD = (
    Column("id", "id", whole=True),
    Column("from", lambda row: row.topic or "direct"),
    Column("dead since", "dead_at", whole=True),
    Column("attempts", "attempts", right=True),
    Column("reason", "reason"),
    Column("error", lambda row: shorten(row.error)),
    Column("key", "key"),
    Column("payload", payload_text),
)


class DeadLetterFilter(msgspec.Struct, frozen=True):
    """Selects dead letters of a queue."""

    ids: tuple[UUID, ...] = ()
    error: str | None = None
    reason: str | None = None
    limit: int | None = None

    @property
    def filtered(self) -> bool:
        return self.error is not None or self.reason is not None

    def takes(self, letter: DeadLetter[Any]) -> bool:
        return (
            (not self.ids or letter.id in self.ids)
            and (self.error is None or self.error in (letter.error or ""))
            and (self.reason is None or self.reason == letter.reason)
        )

    async def find(self, mq: Messaging, queue: str) -> AsyncIterator[DeadLetter[Any]]:
        """Yield matching dead letters, oldest first, reading page by page."""
        after, matches = 0, 0
        while page := await mq.dead.list(queue, after=after, limit=_PAGE):
            for letter in page:
                if self.limit is not None and matches >= self.limit:
                    return
                if self.takes(letter):
                    matches += 1
                    yield letter
            after = page[-1].dead_id


_selection = stacked(
    click.option("--id", "ids", type=click.UUID, multiple=True, help="Only this message; may be repeated."),
    click.option("--error", help="Only messages whose last error contains this text."),
    click.option(
        "--reason",
        type=click.Choice(["attempts", "buried"]),
        help="Only messages that ran out of attempts, or that were buried.",
    ),
    click.option("--limit", type=Count(1), help="Maximum number of messages, oldest first."),
)


async def _count(mq: Messaging, queue: str, selection: DeadLetterFilter) -> int:
    if not selection.filtered and not selection.ids:
        dead = (await mq.queues.stats(queue))[0].dead
        return dead if selection.limit is None else min(dead, selection.limit)
    count = 0
    async for _ in selection.find(mq, queue):
        count += 1
    return count


@command.subcommand("list", example="trunkline dead list mail --error Timeout")
@click.argument("queue")
@_selection
def list_(invocation: Invocation, queue: str, **chosen: Any) -> None:
    """List dead letters, oldest first; 100 unless --limit is higher."""
    selection = DeadLetterFilter(**chosen | {"limit": chosen["limit"] or 100})

    async def work(mq: Messaging) -> list[DeadLetter[Any]]:
        return [letter async for letter in selection.find(mq, queue)]

    invocation.out.many(invocation.run(work), _DEAD)


_GROUPS = (
    Column("queue", "queue"),
    Column("label", "label"),
    Column("error", lambda row: row.error or {"groups": "(further groups)", "older": "(older, not grouped)"}[row.rest]),
    Column("messages", "messages", right=True),
    Column("first", "first_at", whole=True),
    Column("last", "last_at", whole=True),
    Column("fingerprint", "fingerprint", whole=True),
)
_SHARES = (
    Column("dimension", "dimension"),
    Column("value", lambda row: "(others)" if row.others else row.value),
    Column("messages", "messages", right=True),
)


@command.subcommand("groups", example="trunkline dead groups --since 1d")
@click.argument("queue", required=False)
@click.option("--since", type=Duration(), help="Only dead letters of the last hours or days, for example 6h.")
@click.option("--limit", type=Count(1, 1000), default=100, show_default=True, help="Maximum number of groups.")
def groups(invocation: Invocation, queue: str | None, since: timedelta | None, limit: int) -> None:
    """Group dead letters with the same error. Ids, times and numbers in it do not count."""
    invocation.out.many(invocation.run(lambda mq: mq.dead.groups(queue, since=since, limit=limit)), _GROUPS)


@command.subcommand("spread", example="trunkline dead spread mail 9a1c5e0b7d2f4a68")
@click.argument("queue")
@click.argument("fingerprint")
@click.option("--limit", type=Count(1, 100), default=5, show_default=True, help="Maximum number of values of each kind.")
def spread(invocation: Invocation, queue: str, fingerprint: str, limit: int) -> None:
    """Show which consumers, keys, topics and hours the dead letters of a group come from."""
    invocation.out.many(invocation.run(lambda mq: mq.dead.spread(queue, fingerprint, limit=limit)), _SHARES)


@command.subcommand("show", example="trunkline dead show mail 019a8d2e-7c1b-7000-8000-000000000000")
@click.argument("queue")
@click.argument("id", type=click.UUID)
def show(invocation: Invocation, queue: str, id: UUID) -> None:
    """Show a dead letter with its payload and last error."""
    invocation.out.one(invocation.run(lambda mq: mq.dead.get(queue, id)))


@command.subcommand("redrive", example="trunkline dead redrive mail --error ConnectTimeout --dry-run")
@click.argument("queue")
@_selection
@click.option("--to", metavar="QUEUE", help="Move to another queue.")
@confirm.dry_run()
def redrive(invocation: Invocation, queue: str, to: str | None, dry_run: bool, **chosen: Any) -> None:
    """Move dead letters back to the queue. Attempts start again from 1. Safe to interrupt and repeat."""
    selection = DeadLetterFilter(**chosen)

    async def work(mq: Messaging, done: Callable[[int], None]) -> int:
        return await _in_steps(mq, queue, selection, done, lambda **which: mq.dead.redrive(queue, to=to, **which))

    _act(invocation, queue, selection, "redrive", dry_run, work)


@command.subcommand("edit", example='trunkline dead edit mail 019a8d2e-7c1b-7000-8000-000000000000 --body \'{"to": "ann"}\'')
@click.argument("queue")
@click.argument("id", type=click.UUID)
@click.option("--body", required=True, help="JSON.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Replace all headers; may be repeated.")
def edit(invocation: Invocation, queue: str, id: UUID, body: str, headers: tuple[str, ...]) -> None:
    """Redrive one dead letter with another body."""
    content = msgspec.json.decode(check_body(body.encode(errors="surrogateescape"), "application/json"))
    named = parse_headers(headers)
    invocation.run(lambda mq: mq.dead.redrive_edited(queue, id, content, headers=named))
    invocation.say(f"dead letter {id} was redriven with the new body")


@command.subcommand("purge", example="trunkline dead purge mail --reason buried --dry-run")
@click.argument("queue")
@_selection
@confirm.dry_run()
@confirm.yes()
def purge(invocation: Invocation, queue: str, dry_run: bool, yes: bool, **chosen: Any) -> None:
    """Delete dead letters permanently."""
    selection = DeadLetterFilter(**chosen)

    async def work(mq: Messaging, done: Callable[[int], None]) -> int:
        return await _in_steps(mq, queue, selection, done, lambda **which: mq.dead.purge(queue, **which))

    _act(invocation, queue, selection, "purge", dry_run, work, ask=not yes)


def _act(
    invocation: Invocation,
    queue: str,
    selection: DeadLetterFilter,
    verb: str,
    dry_run: bool,
    work: Callable[..., Any],
    *,
    ask: bool = False,
) -> None:
    count: int = invocation.run(lambda mq: _count(mq, queue, selection))
    if dry_run:
        invocation.say(f"would {verb} {count:,} dead letters of {queue}")
        return
    if ask:
        confirm.confirm(f"{verb} {count:,} dead letters of queue {queue}", queue, confirmed=False)
    with progress(verb, count, quiet=invocation.quiet) as done:
        moved: int = invocation.run(lambda mq: work(mq, done))
    left = invocation.run(lambda mq: mq.queues.stats(queue))[0].dead
    invocation.out.one({"queue": queue, "redriven" if verb == "redrive" else "purged": moved, "left": left})


async def _in_steps(
    mq: Messaging, queue: str, selection: DeadLetterFilter, done: Callable[[int], None], verb: Callable[..., Any]
) -> int:
    """Process all at once if there is no filter to evaluate, else page by page."""
    if not selection.filtered:
        return int(await verb(ids=list(selection.ids) or None, limit=selection.limit, on_progress=done))
    total, page = 0, []
    async for letter in selection.find(mq, queue):
        page.append(letter.id)
        if len(page) == _PAGE:
            total += await verb(ids=page)
            done(total)
            page = []
    return total + (int(await verb(ids=page)) if page else 0)


@command.subcommand(
    "export",
    example="trunkline dead export mail --file dead.ndjson\ntrunkline queue enqueue mail --envelope --file dead.ndjson",
)
@click.argument("queue")
@_selection
@click.option("--file", "path", type=click.Path(path_type=Path), help="Output file instead of stdout; must not exist.")
def export(invocation: Invocation, queue: str, path: Path | None, **chosen: Any) -> None:
    """Export dead letters as JSON lines, regardless of -o. Removes nothing."""
    selection = DeadLetterFilter(**chosen)

    async def work(mq: Messaging) -> int:
        count = 0
        if path is None:
            async for letter in selection.find(mq, queue):
                write_line(to_json(letter))
                count += 1
            return count
        await mq.queues.get(queue)
        with path.open("x", encoding="utf-8") as file:
            async for letter in selection.find(mq, queue):
                file.write(to_json(letter) + "\n")
                count += 1
        return count

    try:
        count = invocation.run(work)
    except FileExistsError as exc:
        raise click.ClickException(f"{path} already exists") from exc
    except OSError as exc:
        if path is None:
            raise
        raise click.ClickException(f"cannot write {path}: {exc.strerror}") from exc
    invocation.say(f"exported {count:,} dead letters of {queue}")
