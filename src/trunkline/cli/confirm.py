"""What must not happen by accident: a question on a terminal, `--yes` everywhere else, `--dry-run` to see it first."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from trunkline.cli.output import safe, stderr_is_terminal

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def dry_run(words: str = "Say what would happen; change nothing.") -> Decorator:
    return click.option("--dry-run", is_flag=True, help=words)


def yes() -> Decorator:
    return click.option("-y", "--yes", is_flag=True, help="Do not ask. Needed where there is no terminal.")


def confirm(what: str, name: str, *, given: bool) -> None:
    """Go on only when told so: with --yes, or by typing the name on a terminal."""
    if given:
        return
    if sys.stdin is None or not sys.stdin.isatty() or not stderr_is_terminal():
        raise click.UsageError(f"this would {safe(what)}; add --yes to do it (or --dry-run to look first)")
    typed = click.prompt(f"This will {safe(what)}. Type {safe(name)!r} to go on", err=True, default="", show_default=False)
    if typed != name:
        raise click.ClickException("not confirmed; nothing was done")
