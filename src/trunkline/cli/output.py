"""Tables for people, JSON lines for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click
import msgspec


def wants_table(choice: str | None) -> bool:
    """What `-o` says; without it a terminal gets a table and a pipe gets JSON."""
    return choice == "table" or (choice is None and sys.stdout.isatty())


def write_json_lines(records: Iterable[object]) -> None:
    """One JSON object per line."""
    for record in records:
        click.echo(msgspec.json.encode(record))


def write_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table as wide as the terminal; the text is shown as it is, never read as markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*headers, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
