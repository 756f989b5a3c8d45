"""`trunkline run`: bulk actions that the database executes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from trunkline.cli.framework import confirm
from trunkline.cli.framework.command import CommandGroup, Count, Invocation, stacked
from trunkline.cli.framework.output import Column, shorten
from trunkline.types import Run, RunPreview

if TYPE_CHECKING:
    from trunkline.messaging import Messaging

command = CommandGroup("run", help="Run bulk actions in the database.")

_KINDS = click.Choice(["redrive", "retry_jobs", "purge_dead_letters", "replay", "purge_queue"])
_STATES = click.Choice(["waiting", "canary", "running", "paused", "stopped", "done", "aborted", "undone"])
_RUNS = (
    Column("run", "run_id", right=True),
    Column("kind", "kind"),
    Column("queue or topic", lambda row: row.selector.get("queue") or row.selector.get("topic")),
    Column("state", "state"),
    Column("done", lambda row: f"{row.done:,} of {row.total:,}", right=True),
    Column("failed", "failed", right=True),
    Column("made by", "made_by"),
    Column("start", "start_at", whole=True),
    Column("reason", lambda row: shorten(row.reason)),
)
_selection = stacked(
    click.argument("kind", type=_KINDS),
    click.argument("queue"),
    click.option("--all", "everything", is_flag=True, help="All dead letters of the queue."),
    click.option("--id", "ids", type=click.UUID, multiple=True, help="Only this message; may be repeated."),
    click.option("--fingerprint", help="Only this group of `trunkline dead groups`."),
    click.option("--label", help="Only messages with this label."),
    click.option("--key", help="Only messages with this key."),
    click.option("--topic", help="Only messages of this topic."),
    click.option("--reason", type=click.Choice(["attempts", "buried"]), help="Only messages that died this way."),
    click.option("--error", help="Only messages whose last error contains this text."),
    click.option("--since", metavar="TIME", help="Only messages that died (a replay: were acked) from this time on."),
    click.option("--until", metavar="TIME", help="Only messages that died (a replay: were acked) before this time."),
)


def _selector(kind: str, queue: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the selector, without the options that were not given."""
    named = {
        "all": chosen.pop("everything") or None,
        "ids": [str(id) for id in chosen.pop("ids")] or None,
        "from" if kind == "replay" else "since": chosen.pop("since"),
        "to" if kind == "replay" else "until": chosen.pop("until"),
        **{name: chosen.pop(name) for name in ("fingerprint", "label", "key", "topic", "reason", "error")},
    }
    return {"queue": queue} | {name: value for name, value in named.items() if value is not None}


@command.subcommand("preview", example="trunkline run preview redrive mail --error ConnectTimeout")
@_selection
def preview(invocation: Invocation, kind: str, queue: str, **chosen: Any) -> None:
    """Count the messages that a run would process."""
    selector = _selector(kind, queue, chosen)
    found: RunPreview = invocation.run(lambda mq: mq.runs.preview(kind, selector))
    invocation.out.one(found)


@command.subcommand(
    "start",
    example="trunkline run start redrive mail --error ConnectTimeout --canary 50 --rate 100 --stop-share 0.05\n"
    "trunkline run start purge_dead_letters mail --all --yes",
)
@_selection
@click.option("--to", metavar="QUEUE", help="Move to another queue.")
@click.option("--canary", type=Count(1, 1000), help="Redrive this many messages first, and wait until they are settled.")
@click.option("--canary-timeout", type=Count(1, 86400), help="Seconds to wait for the canary (300).")
@click.option("--rate", type=float, help="Messages per second.")
@click.option("--stop-share", type=float, help="Stop if more than this share of the canary or the window fails again.")
@click.option("--stop-window", type=Count(1, 10000), help="Number of consecutive messages in the window (200).")
@click.option("--grace", type=Count(0, 86400), help="Seconds to wait before the first message (purges: 10).")
@confirm.dry_run()
@confirm.yes()
def start(invocation: Invocation, kind: str, queue: str, dry_run: bool, yes: bool, **chosen: Any) -> None:
    """Start a run. It continues in the database; follow it with `trunkline run show`."""
    selector = _selector(kind, queue, chosen)
    options = {name: value for name, value in chosen.items() if value is not None}
    found: RunPreview = invocation.run(lambda mq: mq.runs.preview(kind, selector))
    what = f"{kind.replace('_', ' ')} {found.messages:,} messages of queue {queue}"
    if dry_run:
        invocation.say(f"would {what}")
        return
    if kind.startswith("purge"):
        confirm.confirm(what, queue, confirmed=yes)

    async def work(mq: Messaging) -> Run:
        return await mq.runs.start(kind, selector, expected=found.messages, options=options)

    invocation.out.one(invocation.run(work))


@command.subcommand("list", example="trunkline run list --state running --state stopped")
@click.option("--state", "states", type=_STATES, multiple=True, help="Only runs in this state; may be repeated.")
@click.option("--limit", type=Count(1, 1000), default=100, show_default=True, help="Maximum number of runs.")
def list_(invocation: Invocation, states: tuple[str, ...], limit: int) -> None:
    """List runs, newest first."""
    invocation.out.many(invocation.run(lambda mq: mq.runs.list(states or None, limit=limit)), _RUNS)


@command.subcommand("show", example="trunkline run show 7")
@click.argument("run", type=Count(1))
def show(invocation: Invocation, run: int) -> None:
    """Show a run with its log and some of the messages that failed again."""
    invocation.out.one(invocation.run(lambda mq: mq.runs.get(run)))


@command.subcommand("pause", example="trunkline run pause 7 --reason 'waiting for the fix'")
@click.argument("run", type=Count(1))
@click.option("--reason", help="Shown with the run.")
def pause(invocation: Invocation, run: int, reason: str | None) -> None:
    """Pause a run after the step that is in progress."""
    invocation.run(lambda mq: mq.runs.pause(run, reason=reason))
    invocation.say(f"run {run} is paused")


@command.subcommand("resume", example="trunkline run resume 7")
@click.argument("run", type=Count(1))
def resume(invocation: Invocation, run: int) -> None:
    """Continue a run that was paused or stopped."""
    invocation.run(lambda mq: mq.runs.resume(run))
    invocation.say(f"run {run} continues")


@command.subcommand("abort", example="trunkline run abort 7")
@click.argument("run", type=Count(1))
@click.option("--reason", help="Shown with the run.")
def abort(invocation: Invocation, run: int, reason: str | None) -> None:
    """End a run early. Messages that it has not processed stay as they are."""
    invocation.run(lambda mq: mq.runs.abort(run, reason=reason))
    invocation.say(f"run {run} is aborted")


@command.subcommand("undo", example="trunkline run undo 8")
@click.argument("run", type=Count(1))
def undo(invocation: Invocation, run: int) -> None:
    """Move a group back to the positions that it had before a seek."""
    invocation.run(lambda mq: mq.runs.undo(run))
    invocation.say(f"run {run} is undone")
