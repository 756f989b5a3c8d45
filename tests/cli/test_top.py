"""`trunkline top` in a terminal: its keys, its ways out, and names that are too long."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from rich.console import Console
from rich.text import Text

from trunkline.cli.commands.top_view import HELP, LONGEST_NAME, View, short

COMMAND = [str(Path(sys.executable).parent / "trunkline"), "top", "--every", "100ms"]


def press(view: View, keys: str) -> None:
    for key in keys:
        view.press(key)


def test_a_filter_and_an_order() -> None:
    view = View()
    rows = [("mail", 1.0), ("audit", 5.0), ("Mailing", 9.0)]
    shown = lambda: [name for name, _ in view.rows(rows, lambda row: row[0], lambda row: row[1])]  # noqa: E731
    assert shown() == ["mail", "audit", "Mailing"]  # type: ignore[no-untyped-call]
    press(view, "/mailq\x7f\r")
    assert not view.quit and shown() == ["mail", "Mailing"]  # type: ignore[no-untyped-call]
    press(view, "s")
    assert shown() == ["Mailing", "mail"]  # type: ignore[no-untyped-call]
    view.press("\x1b")
    assert shown() == ["Mailing", "audit", "mail"]  # type: ignore[no-untyped-call]
    press(view, "q")
    assert view.quit


def test_the_window_scrolls_within_the_picture() -> None:
    view, console = View(), Console(width=60, height=5, file=open(os.devnull, "w"))  # noqa: SIM115
    picture = Text("\n".join(f"line {n}" for n in range(10)))

    def lines() -> list[str]:
        drawn = console.render_lines(view.window(console, picture), pad=False)
        return ["".join(segment.text for segment in line) for line in drawn]

    assert lines()[:4] == [f"line {n}" for n in range(4)] and "lines 1-4 of 10" in lines()[4]
    view.press("\x1b[B")
    assert lines()[0] == "line 1"
    press(view, "  ")
    assert lines()[:4] == [f"line {n}" for n in range(6, 10)]
    press(view, "bbbb")
    assert lines()[0] == "line 0"
    view.press("?")
    assert "scroll" in lines()[4]
    assert len(HELP) < 80


def test_long_names_are_cut() -> None:
    assert short("x" * LONGEST_NAME) == "x" * LONGEST_NAME
    assert len(short("x" * 200)) == LONGEST_NAME and short("x" * 200).endswith("…")


class Screen:
    """`trunkline top` in a terminal of 12 lines."""

    def __init__(self, db: str) -> None:
        self.ours, self.theirs = pty.openpty()
        self.before = termios.tcgetattr(self.theirs)
        self.seen = b""
        self.deadline = time.monotonic() + 60
        environment = {**os.environ, "TRUNKLINE_DATABASE_URL": db, "TERM": "xterm", "COLUMNS": "100", "LINES": "12"}
        self.process = subprocess.Popen(
            COMMAND, stdin=self.theirs, stdout=self.theirs, stderr=subprocess.PIPE, env=environment
        )

    def press(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def frame(self) -> bytes:
        """The last frame that was drawn to its end. Each begins at the upper left corner."""
        return self.seen.split(b"\x1b[H")[-2] if self.seen.count(b"\x1b[H") > 1 else b""

    def shows(self, *parts: bytes, not_: bytes | None = None) -> bool:
        """Wait for a frame with these parts."""
        while not all(part in self.frame() for part in parts) or (not_ is not None and not_ in self.frame()):
            assert time.monotonic() < self.deadline, (parts, self.frame())
            self._read(0.2)
        return True

    def _read(self, seconds: float) -> bool:
        if select.select([self.ours], [], [], seconds)[0]:
            self.seen += os.read(self.ours, 65536)
            return True
        return False

    def end(self) -> tuple[int, bytes]:
        """Wait for the end. Returns the exit code and what was written to stderr."""
        while self.process.poll() is None:
            assert time.monotonic() < self.deadline, self.frame()
            self._read(0.1)
        while self._read(0):
            pass
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


@pytest.fixture
def screen(db: str) -> Iterator[Screen]:
    with psycopg.connect(db, autocommit=True) as conn:
        for n in range(20):
            conn.execute("select trunkline.create_topic(%s)", [f"topic-{n:02}"])
        conn.execute("select trunkline.publish('topic-17', '1')")
        conn.execute("call trunkline.sequence()")
        conn.execute("select trunkline.create_group('topic-00', 'a-reader'), trunkline.create_group('topic-17', 'b-reader')")
    screen = Screen(db)
    try:
        yield screen
    finally:
        screen.process.kill()
        screen.process.wait()
        os.close(screen.ours)
        os.close(screen.theirs)


@pytest.mark.parametrize("way", [b"q", signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=str)
def test_leaving_is_no_failure_and_restores_the_terminal(screen: Screen, way: bytes | signal.Signals) -> None:
    screen.shows(b"topic-00", b"q quit")
    assert termios.tcgetattr(screen.theirs) != screen.before and b"\x1b[?1049h" in screen.seen
    if isinstance(way, bytes):
        screen.press(way)
    else:
        screen.process.send_signal(way)
    assert screen.end() == (0, b"")
    # back on the normal screen, with a cursor, lines and echo
    assert screen.seen.rindex(b"\x1b[?1049l") > screen.seen.rindex(b"\x1b[?1049h")
    assert screen.seen.rindex(b"\x1b[?25h") > screen.seen.rindex(b"\x1b[?25l")
    assert termios.tcgetattr(screen.theirs) == screen.before


def test_keys(screen: Screen) -> None:
    screen.shows(b"topic-00", b"lines 1-11 of", b"sorted by name", not_=b"topic-17")
    screen.press(b"j")
    screen.shows(b"lines 2-12 of")
    screen.press(b"\x1b[B")
    screen.shows(b"lines 3-13 of")
    screen.press(b" ")
    screen.shows(b"topic-17", b"lines 14-24 of", not_=b"topic-01")
    screen.press(b"b\x1b[A")
    screen.shows(b"lines 2-12 of")
    screen.press(b"k")
    screen.shows(b"lines 1-11 of", b"topic-00")
    screen.press(b"/reader\r")
    screen.shows(b"a-reader", b"b-reader", b"sorted by name", not_=b"PARTITION")
    assert screen.frame().index(b"a-reader") < screen.frame().index(b"b-reader")
    screen.press(b"s")
    screen.shows(b"b-reader", b"sorted by activity")
    assert screen.frame().index(b"b-reader") < screen.frame().index(b"a-reader"), "it has the larger lag"
    screen.press(b"s\x1b")
    screen.shows(b"sorted by name", not_=b"filter")
    screen.press(b"/17")
    screen.shows(b"topic-17", b"filter: 17_", not_=b"topic-00")
    screen.press(b"q")
    screen.shows(b"filter: 17q_", not_=b"topic-17")
    screen.press(b"\x7f\r")
    screen.shows(b"topic-17", b"filter: 17", not_=b"17_")
    screen.press(b"\x1b")
    screen.shows(b"topic-00", not_=b"filter")
    screen.press(b"?")
    screen.shows(b"Esc clears")
    screen.press(b"q")
    assert screen.end() == (0, b"")


def test_delayed_messages_of_a_topic_are_counted_once(db: str) -> None:
    import json

    with psycopg.connect(db, autocommit=True) as conn:
        conn.execute("select trunkline.create_topic('orders', 2)")
        conn.execute("select trunkline.publish('orders', '1', p_delay => '1 hour')")
    environment = {**os.environ, "TRUNKLINE_DATABASE_URL": db}
    done = subprocess.run([*COMMAND, "--once", "-o", "json"], capture_output=True, env=environment, timeout=60, check=True)
    topics = [row for row in json.loads(done.stdout)["topics"] if row["topic"] == "orders"]
    assert [row["delayed"] for row in topics] == [1, 0]
