"""Data on stdout: tables for people, JSON for programs. Messages on stderr. Control characters are always escaped."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import click
import msgspec

from trunkline.types import Message

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

FORMATS = ("table", "json", "jsonl")
_SHOWN = 60
_WIDE = 1000
# Control characters (C0, DEL, C1), line and paragraph separators, and marks that change text direction.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class ClosedOutput(Exception):
    """The reader of our output has gone. Not an OSError, for which click would exit with code 1."""


class Column(NamedTuple):
    """A table column. `whole`: never wrap the text, so that it can be copied."""

    title: str
    value: str | Callable[[Any], Any]
    whole: bool = False
    right: bool = False

    def text(self, record: Any) -> str:
        if callable(self.value):
            return show(self.value(record))
        return show(record[self.value] if isinstance(record, Mapping) else getattr(record, self.value))


class Output:
    """Writes records in the format of `-o`. The default is a table on a terminal, else JSON."""

    def __init__(self, choice: str | None) -> None:
        self.chosen = choice is not None
        self.format = choice or ("table" if stdout_is_terminal() else "json")

    @property
    def table(self) -> bool:
        return self.format == "table"

    def line_by_line(self) -> None:
        """Use JSON lines instead of one document, for output without an end."""
        if self.format == "json":
            self.format = "jsonl"

    def many(self, records: Iterable[Any], columns: Sequence[Column]) -> None:
        """Write a list: a table, an array or JSON lines."""
        if self.table:
            write_table(columns, list(records))
        elif self.format == "jsonl":
            for record in records:
                write_line(to_json(record))
        else:
            _write_array(records)

    def one(self, record: Any) -> None:
        """Write one record: a line per field, or an object."""
        if self.table:
            fields = plain(record)
            write_fields({name: show(value) for name, value in fields.items()})
        else:
            write_line(to_json(record))

    async def stream(self, records: AsyncIterable[Any], columns: Sequence[Column]) -> None:
        """Write records as they arrive, one line each in every format."""
        async for record in records:
            write_line("  ".join(column.text(record) for column in columns) if self.table else to_json(record))


def stdout_is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def stderr_is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def say(text: str) -> None:
    """Print a message for people on stderr."""
    click.echo(safe(text, keep="\n"), err=True)


def write_line(text: str) -> None:
    """Write a line of data without buffering, so that pipes get it at once and a closed pipe is noticed."""
    try:
        click.echo(text)
    except BrokenPipeError:
        raise ClosedOutput from None


def safe(text: str, *, keep: str = "") -> str:
    """Escape control characters."""
    return _UNSAFE.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), text)


def _escape(character: str) -> str:
    return _NAMED.get(character) or (f"\\x{ord(character):02x}" if character <= "\xff" else f"\\u{ord(character):04x}")


# JSON


def to_json(record: Any) -> str:
    """Encode a record as one line of JSON, with all unsafe characters escaped, including those JSON allows."""
    text = msgspec.json.encode(plain(record)).decode()
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _write_array(records: Iterable[Any]) -> None:
    """Write an array with one record per line, without collecting the records."""
    line = "["
    for record in records:
        write_line(line if line == "[" else f"{line},")
        line = f"  {to_json(record)}"
    if line == "[":
        write_line("[]")
    else:
        write_line(f"{line}\n]")


def plain(record: Any) -> dict[str, Any]:
    """Convert a record to JSON fields: durations as flags accept them, a JSON body unchanged."""
    if isinstance(record, Message):
        return _plain_message(record)
    if isinstance(record, Mapping):
        return {str(name): _plain_value(value) for name, value in record.items()}
    fields = record.__struct_fields__
    values = {name: _plain_value(getattr(record, name)) for name in fields if not name.startswith("_")}
    if "payload" in values and "content_type" in values:
        values.pop("payload")
        values |= body(record.payload, record.content_type)
    return values


def _plain_value(value: Any) -> Any:
    if isinstance(value, timedelta):
        return duration_text(value)
    if isinstance(value, msgspec.Struct):
        return plain(value)
    if isinstance(value, list | tuple):
        return [_plain_value(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain_value(each) for name, each in value.items()}
    return value


def _plain_message(message: Message[Any]) -> dict[str, Any]:
    fields = [name for name in message.__struct_fields__ if not name.startswith("_") and name != "payload"]
    return {name: _plain_value(getattr(message, name)) for name in fields} | body(message.payload, message.content_type)


def body(payload: bytes, content_type: str) -> dict[str, Any]:
    """Return `body` for JSON and text, `payload_base64` for everything else."""
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == "application/json" or kind.endswith("+json"):
            payload.decode()
            # preserves numbers digit by digit
            return {"body": msgspec.Raw(msgspec.json.format(payload, indent=-1))}
        if kind.startswith("text/"):
            return {"body": payload.decode()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return {"payload_base64": base64.b64encode(payload).decode()}


# Text for tables


def show(value: Any) -> str:
    """Format a value for people."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.1f}"
        case timedelta():
            return duration_text(value)
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        case msgspec.Raw():
            return safe(bytes(value).decode())
        case str() | UUID():
            return safe(str(value))
        case _:
            return safe(msgspec.json.encode(value).decode())


def payload_text(message: Any) -> str | None:
    """Return the start of a payload."""
    payload: bytes = message.payload
    text = payload[: _SHOWN * 4].decode(errors="backslashreplace")
    return shorten(" ".join(text.split(" ")), len(payload) > _SHOWN * 4)


def shorten(text: str | None, cut: bool = False) -> str | None:
    """Shorten text to one line."""
    if text is None:
        return None
    return f"{text[:_SHOWN]}…" if cut or len(text) > _SHOWN else text


def duration_text(value: timedelta) -> str:
    """Format a duration as `parse_duration` reads it: `90s`, `1.5s`, `2h`, `7d`."""
    milliseconds = value / timedelta(milliseconds=1)
    if milliseconds % 1000:
        return f"{milliseconds:g}ms" if milliseconds < 1000 else f"{milliseconds / 1000:g}s"
    seconds = int(milliseconds // 1000)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def size_text(count: int | None) -> str:
    """Format a number of bytes for people."""
    if count is None:
        return "-"
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


# Tables


def console(*, stderr: bool = False) -> Console:
    """Return a console of the terminal's width, or wide enough not to wrap if there is no terminal."""
    from rich.console import Console as Base

    class Quiet(Base):
        def on_broken_pipe(self) -> None:
            raise ClosedOutput  # instead of rich's exit with code 1

    terminal = stderr_is_terminal() if stderr else stdout_is_terminal()
    return Quiet(stderr=stderr, highlight=False, markup=False, emoji=False, width=None if terminal else _WIDE)


def write_table(columns: Sequence[Column], records: Sequence[Any]) -> None:
    """Write a table, or a block of lines per record if the table is too wide for the terminal."""
    rows = [[column.text(record) for column in columns] for record in records]
    target = console()
    if rows and _least_width(columns, rows) > target.width:
        for row in rows:
            write_fields({column.title: cell for column, cell in zip(columns, row, strict=True)})
            write_line("")
        return
    target.print(make_table(columns, rows))


def make_table(columns: Sequence[Column], rows: Iterable[Sequence[str]], title: str | None = None) -> RenderableType:
    """Build a table. Cells are plain text, never markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(
            column.title.upper(), no_wrap=column.whole, overflow="fold", justify="right" if column.right else "left"
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _least_width(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    width = len(columns) - 1
    for number, column in enumerate(columns):
        cells = [row[number] for row in rows]
        longest = max(len(cell) if column.whole else min(len(cell), 12) for cell in cells)
        width += max(longest, len(column.title)) + 1
    return width


def write_fields(fields: Mapping[str, str]) -> None:
    """Write `name  value` lines."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        write_line(f"{name.ljust(width)}  {value}")


# Progress


@contextmanager
def progress(text: str, total: int | None = None, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Show a progress bar with rate and remaining time on stderr, on terminals only.

    Call the result with the amount done and, once known, the total; a third argument replaces the text.
    """
    if quiet or not stderr_is_terminal():
        yield lambda done, total=None, text=None: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "")

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(text, total=total)
        yield lambda done, total=None, text=None: bar.update(task, completed=done, total=total, description=text)
