"""Formats one job for people: settings, state, arguments, attempts, result and error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.cli.framework.output import body, console, safe, show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trunkline.db.calls.job_records import JobView

# job terms for delivery outcomes
_OUTCOMES = {"acked": "done", "nacked": "failed", None: "running"}


def record(job: JobView) -> dict[str, Any]:
    """Return the fields for programs: arguments and result as stored JSON, or as base64 if not JSON."""
    fields = {name: getattr(job, name) for name in job.__struct_fields__ if name not in ("payload", "result")}
    return fields | _stored("arguments", job.payload) | _stored("result", job.result)


def write_job(job: JobView, *, result: str | None = None) -> None:
    """Yield the non-empty sections. The handler's result is passed in if it was not stored."""
    target = console()
    for number, part in enumerate(_sections(job, result)):
        if number:
            target.print()
        for each in part:
            target.print(each)


def _sections(job: JobView, result: str | None) -> Iterator[list[RenderableType]]:
    yield _fields(
        "Job",
        {
            "kind": job.kind,
            "id": job.id,
            "queue": job.queue,
            "key": job.key,
            "headers": job.headers or None,
            "enqueued": job.created_at,
        },
    )
    yield _fields(
        "State",
        {
            "state": job.state,
            "why": (job.reason or "").partition("\n")[0] or None,
            "due": job.due_at,
            "ended": job.ended_at,
            "worker": job.worker,
            "attempts": job.attempt,
            "waits for": ", ".join(map(str, job.waits_for or ())) or None,
            "cancel": job.cancel if job.state in ("running", "ready", "delayed") else None,
        },
    )
    if job.payload is not None:
        yield _arguments(job.payload)
    if job.history:
        yield [_title("Attempts"), _grid((str(row["attempt"]), safe(_attempt(row), keep="\n")) for row in job.history)]
    if job.result is not None:
        yield _text("Result", safe(job.result.decode(errors="backslashreplace")))
    elif result is not None:
        yield _text("Result (not stored)", safe(result))
    if job.error:
        yield _text("Error", safe(job.error.rstrip(), keep="\n"))


def _arguments(payload: bytes) -> list[RenderableType]:
    try:
        given = msgspec.json.decode(payload)
    except (ValueError, RecursionError):
        return _text("Arguments (not JSON)", safe(payload.decode(errors="backslashreplace")))
    if isinstance(given, dict):
        return _fields("Arguments", {name: _value(value) for name, value in given.items()} or {"none": ""})
    return _text("Arguments", show(given))


def _fields(title: str, values: dict[str, Any]) -> list[RenderableType]:
    return [_title(title), _grid((safe(name), show(value)) for name, value in values.items() if value is not None)]


def _grid(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Format fields in two columns, wrapping long values within theirs."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(Text(f"  {name}"), Text(text))
    return grid


def _text(title: str, text: str) -> list[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    return [_title(title), Padding(Text(text, overflow="fold"), (0, 0, 0, 2), expand=False)]


def _title(text: str) -> RenderableType:
    from rich.text import Text

    return Text(text, style="bold")


def _value(value: Any) -> Any:
    """Format an argument: a string without quotes, other values as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _attempt(row: dict[str, Any]) -> str:
    """Format an attempt: time, outcome and consumer, with the error below."""
    start, end = (None if text is None else datetime.fromisoformat(text) for text in (row["claimed_at"], row["settled_at"]))
    took = "" if start is None or end is None else f" after {(end - start).total_seconds():,.3g} s"
    who = f", {row['consumer']}" if row["consumer"] else ""
    words = f"{show(start)}  {_OUTCOMES.get(row['outcome'], row['outcome'])}{took}{who}"
    error = (row["error"] or "").partition("\n")[0]
    return f"{words}\n{error}" if error else words


def _stored(name: str, text: bytes | None) -> dict[str, Any]:
    if text is None:
        return {name: None}
    found = body(text, "application/json")
    return {name: found["body"]} if "body" in found else {f"{name}_base64": found["payload_base64"]}
