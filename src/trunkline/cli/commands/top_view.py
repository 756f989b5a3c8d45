"""The interactive view of `trunkline top`: scrolling, sorting, filtering and their keys."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

R = TypeVar("R")
LONGEST_NAME = 40
HELP = "q quit  arrows, j/k, space/b scroll  s sort  / filter: Enter ends, Esc clears"
"""Fits into 80 columns."""
_KEYS = {"\x1b[A": "k", "\x1b[B": "j", "\x1b[6~": " ", "\x1b[5~": "b"}
_KEY = re.compile(r"\x1b\[[\d;]*[A-Za-z~]|.", re.DOTALL)
"""An arrow or page key, which sends a sequence, or one character."""
_ESCAPE, _BACKSPACE = "\x1b", ("\x7f", "\b")


def short(name: str) -> str:
    """Return a name in the width of a column."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


class View:
    """The state of the screen. `press` changes it; `rows` and `window` apply it."""

    def __init__(self) -> None:
        self.quit = False
        self.filter = ""
        self._by_activity = False
        self._typing = False
        self._help = False
        self._top = 0
        self._page = 1

    def press(self, key: str) -> None:
        """Apply one key."""
        key = _KEYS.get(key, key)
        if self._typing:
            self._type(key)
            return
        match key:
            case "q":
                self.quit = True
            case "?":
                self._help = not self._help
            case "s":
                self._by_activity = not self._by_activity
            case "/":
                self._typing, self._top = True, 0
            case "j" | "k" | " " | "b":
                self._top += {"j": 1, "k": -1, " ": self._page, "b": -self._page}[key]
            case _ if key == _ESCAPE:
                self.filter = ""

    def _type(self, key: str) -> None:
        if key in ("\r", "\n", _ESCAPE):
            self._typing = False
            self.filter = "" if key == _ESCAPE else self.filter
        elif key in _BACKSPACE:
            self.filter = self.filter[:-1]
        elif key.isprintable():
            self.filter += key

    def rows(self, rows: Iterable[R], name: Callable[[R], str], activity: Callable[[R], float]) -> list[R]:
        """Return the rows to show, sorted and filtered."""
        shown = [row for row in rows if self.filter.lower() in name(row).lower()]
        return sorted(shown, key=activity, reverse=True) if self._by_activity else shown

    def window(self, console: Console, picture: RenderableType) -> RenderableType:
        """Return the visible part of the frame, with the state in the last line."""
        from rich.console import Group
        from rich.segment import Segment, Segments
        from rich.text import Text

        lines = console.render_lines(picture, pad=False)
        self._page = max(console.height - 1, 1)
        self._top = max(0, min(self._top, len(lines) - self._page))
        shown = lines[self._top : self._top + self._page]
        segments: list[Any] = [segment for line in shown for segment in (*line, Segment.line())]
        return Group(Segments(segments), Text(self._state(len(lines)), style="reverse", no_wrap=True, overflow="ellipsis"))

    def _state(self, lines: int) -> str:
        if self._help:
            return HELP
        parts = ["q quit", "? help"]
        if lines > self._page:
            parts.append(f"lines {self._top + 1}-{min(self._top + self._page, lines)} of {lines}")
        parts.append("sorted by activity" if self._by_activity else "sorted by name")
        if self._typing or self.filter:
            parts.append(f"filter: {self.filter}{'_' if self._typing else ''}")
        return "   ".join(parts)


@asynccontextmanager
async def keys() -> AsyncIterator[asyncio.Queue[str]]:
    """Yield pressed keys one by one, or none if the input is not a terminal."""
    pressed: asyncio.Queue[str] = asyncio.Queue()
    if not sys.stdin or not sys.stdin.isatty():
        yield pressed
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            text = os.read(descriptor, 64).decode("utf-8", "ignore")
        except OSError:  # the terminal is gone
            text = ""
        if not text:
            loop.remove_reader(descriptor)
        for key in _KEY.findall(text):
            pressed.put_nowait(key)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(descriptor)
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
