"""Confirmation of destructive commands: a prompt on a terminal, else `--yes`. `--dry-run` previews them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from trunkline.cli.framework.output import safe, stderr_is_terminal

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def dry_run(help: str = "Show what would happen without changing anything.") -> Decorator:
    return click.option("--dry-run", is_flag=True, help=help)


def yes() -> Decorator:
    return click.option("-y", "--yes", is_flag=True, help="Skip the confirmation (required without a terminal).")


def confirm(what: str, name: str, *, confirmed: bool) -> None:
    """Raise unless confirmed with --yes or by typing the name on a terminal."""
    if confirmed:
        return
    if sys.stdin is None or not sys.stdin.isatty() or not stderr_is_terminal():
        raise click.UsageError(f"this would {safe(what)}; confirm with --yes, or preview with --dry-run")
    typed = click.prompt(f"This will {safe(what)}. Type {safe(name)!r} to confirm", err=True, default="", show_default=False)
    if typed != name:
        raise click.ClickException("not confirmed; nothing was changed")
