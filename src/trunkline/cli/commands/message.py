"""`trunkline message`: explain or trace a message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from trunkline.cli.framework.command import CommandGroup, Invocation
from trunkline.cli.framework.output import Column, shorten, show, write_fields, write_line, write_table
from trunkline.errors import NotFound
from trunkline.types import Explanation

if TYPE_CHECKING:
    from trunkline.messaging import Messaging

command = CommandGroup("message", help="Explain or trace a message.")

_POSITION = re.compile(r"(?P<topic>[^/@]+)/(?P<partition>\d{1,9})@(?P<offset>\d{1,18})", re.ASCII)
_READERS = (
    Column("reader", lambda row: f"{row['kind']} {row['name']}", whole=True),
    Column("state", "state", whole=True),
    Column("attempt", lambda row: row.get("attempt"), right=True),
    Column("until", lambda row: row.get("until")),
    Column("reason", lambda row: row.get("reason")),
)
_EVENTS = (
    Column("at", "at", whole=True),
    Column("event", "event", whole=True),
    Column("where", "where", whole=True),
    Column("who", "who"),
    Column("detail", lambda row: shorten(row["detail"])),
)


async def _explain(mq: Messaging, which: str) -> Explanation:
    """Look up a message by id or by topic/partition@offset."""
    position = _POSITION.fullmatch(which)
    if position is not None:
        explanation = await mq.explain_offset(position["topic"], int(position["partition"]), offset=int(position["offset"]))
    else:
        try:
            id = UUID(which)
        except ValueError:
            raise click.BadParameter(f"must be an id or topic/partition@offset, got {which!r}", param_hint="'ID'") from None
        explanation = await mq.explain(id)
    if explanation.state == "unknown":
        raise NotFound(
            f"message {which} does not exist", hint=explanation.reason or "It was never published, or retention removed it."
        )
    return explanation


@command.subcommand(
    "explain",
    example="trunkline message explain 019a8d2e-7c1b-7000-8000-000000000000\ntrunkline message explain orders/3@9981205",
)
@click.argument("id")
def explain(invocation: Invocation, id: str) -> None:
    """Explain where a message is, who holds it, and why it is not delivered."""
    explanation = invocation.run(lambda mq: _explain(mq, id), untouched=True)
    if not invocation.out.table:
        invocation.out.one(explanation)
        return
    write_fields({name: show(value) for name, value in explanation.items() if name != "readers" and value is not None})
    if explanation.readers:
        write_line("")
        write_table(_READERS, explanation.readers)


@command.subcommand("trace", example="trunkline message trace 019a8d2e-7c1b-7000-8000-000000000000")
@click.argument("id")
def trace(invocation: Invocation, id: str) -> None:
    """Trace a message: when it was published, claimed and settled, and by which consumer."""
    explanation = invocation.run(lambda mq: _explain(mq, id), untouched=True)
    events = sorted(_events(explanation), key=lambda event: (event["at"] is None, event["at"] or ""))
    invocation.out.many(events, _EVENTS)


def _events(explanation: Explanation) -> Iterator[dict[str, Any]]:
    """Yield the events of a message, and last the current state of each reader, without a time."""
    redrives = explanation.get("redrives") or []
    first = next((step for step in redrives if step.get("offset") is not None), explanation)
    home = _home(first)
    detail = None if first.get("offset") is None else f"partition {first.get('partition')}, offset {first['offset']}"
    yield {"at": explanation.get("published_at"), "event": "published", "where": home, "who": None, "detail": detail}
    for step in redrives:
        yield from _deliveries(f"queue {step.get('queue')}", step.get("history") or [])
        yield {
            "at": step["at"],
            "event": "redriven",
            "where": _home(explanation),
            "who": None,
            "detail": step.get("error") or step.get("reason"),
        }
    for reader in explanation.readers:
        where = f"{reader['kind']} {reader['name']}"
        yield from _deliveries(where, reader.get("history") or [])
        yield {
            "at": None,
            "event": f"now {reader['state']}",
            "where": where,
            "who": reader.get("consumer"),
            "detail": reader.get("reason"),
        }
    if not explanation.readers:
        yield {
            "at": None,
            "event": f"now {explanation.state}",
            "where": _home(explanation),
            "who": None,
            "detail": explanation.reason,
        }


def _home(position: dict[str, Any]) -> str:
    return f"topic {position['topic']}" if position.get("topic") else f"queue {position.get('queue')}"


def _deliveries(where: str, history: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for step in history:
        who, attempt = step.get("consumer"), f"attempt {step.get('attempt')}"
        yield {"at": step.get("claimed_at"), "event": "claimed", "where": where, "who": who, "detail": attempt}
        if step.get("settled_at") is not None:
            yield {
                "at": step["settled_at"],
                "event": step["outcome"],
                "where": where,
                "who": who,
                "detail": step.get("error") or attempt,
            }
