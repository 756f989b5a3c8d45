"""`trunkline top` in a terminal: its keys, its ways out, and names that are too long."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from rich.console import Console
from rich.text import Text

from trunkline.cli.commands.top_view import LONGEST_NAME, View, short

COMMAND = [str(Path(sys.executable).parent / "trunkline"), "top", "--every", "100ms"]


def press(view: View, keys: str) -> None:
    for key in keys:
        view.press(key)


def test_a_filter_and_an_order() -> None:
    view = View()
    rows = [("mail", 1.0), ("audit", 5.0), ("Mailing", 9.0)]
    shown = lambda: [name for name, _ in view.rows(rows, lambda row: row[0], lambda row: row[1])]  # noqa: E731
    assert shown() == ["mail", "audit", "Mailing"]
    press(view, "/mailq\x7f\r")
    assert not view.quit and shown() == ["mail", "Mailing"]
    press(view, "s")
    assert shown() == ["Mailing", "mail"]
    view.press("\x1b")
    assert shown() == ["Mailing", "audit", "mail"]
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


def test_long_names_are_cut() -> None:
    assert short("x" * LONGEST_NAME) == "x" * LONGEST_NAME
    assert len(short("x" * 200)) == LONGEST_NAME and short("x" * 200).endswith("…")


@pytest.mark.parametrize(
    "leave",
    [lambda fd, process: os.write(fd, b"q"), lambda fd, process: process.send_signal(signal.SIGINT)],
    ids=["q", "Ctrl-C"],
)
def test_leaving_is_no_failure(db: str, leave: Callable[[int, subprocess.Popen[bytes]], object]) -> None:
    with psycopg.connect(db, autocommit=True) as conn:
        conn.execute("select trunkline.create_topic('orders', 2)")
        conn.execute("select trunkline.publish('orders', '1', p_delay => '1 hour')")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TRUNKLINE_DATABASE_URL": db, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(COMMAND, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment)
    os.close(theirs)
    try:
        seen, deadline = b"", time.monotonic() + 60
        while b"orders" not in seen or b"q quit" not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([ours], [], [], 0.2)[0]:
                seen += os.read(ours, 65536)
        leave(ours, process)
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    os.read(ours, 65536)
                except OSError:
                    break
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert (process.returncode, errors) == (0, b"")


def test_delayed_messages_of_a_topic_are_counted_once(db: str) -> None:
    import json

    with psycopg.connect(db, autocommit=True) as conn:
        conn.execute("select trunkline.create_topic('orders', 2)")
        conn.execute("select trunkline.publish('orders', '1', p_delay => '1 hour')")
    environment = {**os.environ, "TRUNKLINE_DATABASE_URL": db}
    done = subprocess.run([*COMMAND, "--once", "-o", "json"], capture_output=True, env=environment, timeout=60, check=True)
    topics = [row for row in json.loads(done.stdout)["topics"] if row["topic"] == "orders"]
    assert [row["scheduled"] for row in topics] == [1, 0]
