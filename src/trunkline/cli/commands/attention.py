"""`trunkline attention`: what needs attention now."""

from __future__ import annotations

from trunkline.cli.framework.command import Invocation
from trunkline.cli.framework.command import command as make_command
from trunkline.cli.framework.output import Column

ATTENTION = (
    Column("severity", "severity", whole=True),
    Column("what", lambda row: f"{row.kind} {row.subject}", whole=True),
    Column("since", "since"),
    Column("deadline", "deadline"),
    Column("cause", "cause"),
    Column("next step", "next_step"),
)


@make_command("attention", example="trunkline attention\ntrunkline attention -o jsonl")
def command(invocation: Invocation) -> None:
    """Show what needs attention, first what loses data, each with its cause and the next step. Makes no changes."""
    invocation.out.many(invocation.run(lambda mq: mq.inspect.attention()), ATTENTION)
