"""History of calls: each process records every call before and after it.

Each process appends to its own file, one JSON line per event: `invoke` before a call, then `ok`, `fail` (it did not
happen) or `info` (unknown). A line is passed to the operating system before the next step, so a kill -9 of the process
loses no recorded result. A call without a second line counts as `info`.

All processes and the database run on one machine, so `at` and the database's clock are the same clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line."""

    op: int
    type: str
    f: str
    at: float
    data: dict[str, Any] = {}


class Op(msgspec.Struct, frozen=True):
    """One call with its outcome: `ok`, `fail` or `info`."""

    proc: str
    f: str
    outcome: str
    start: float
    end: float
    args: dict[str, Any]
    result: dict[str, Any] = {}


class Recorder:
    """Appends one process's events. A name is used once: a process that starts again takes a new one."""

    def __init__(self, directory: Path, proc: str) -> None:
        self.proc = proc
        self._fd = os.open(directory / f"{proc}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._encoder = msgspec.json.Encoder()
        self._next = 0

    def invoke(self, f: str, /, **args: Any) -> int:
        self._next += 1
        self._write(Event(self._next, "invoke", f, time.time(), args))
        return self._next

    def done(self, op: int, type: str, /, **result: Any) -> None:
        self._write(Event(op, type, "", time.time(), result))

    def note(self, f: str, /, **args: Any) -> None:
        """A fact without a call: a fault, or a final read."""
        self.done(self.invoke(f, **args), "ok")

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, event: Event) -> None:
        os.write(self._fd, self._encoder.encode(event) + b"\n")


def load(directory: Path) -> Iterator[Op]:
    """Yield the calls of all processes, process by process, each in call order."""
    decoder = msgspec.json.Decoder(Event)
    for path in sorted(directory.glob("*.jsonl")):
        yield from _load_file(path, decoder)


def _load_file(path: Path, decoder: msgspec.json.Decoder[Event]) -> Iterator[Op]:
    waiting: dict[int, Event] = {}
    with path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break  # the process was killed in the middle of its last line
            event = decoder.decode(line)
            if event.type == "invoke":
                waiting[event.op] = event
                continue
            begun = waiting.pop(event.op)
            yield Op(path.stem, begun.f, event.type, begun.at, event.at, begun.data, event.data)
    for begun in waiting.values():
        yield Op(path.stem, begun.f, "info", begun.at, float("inf"), begun.data)
