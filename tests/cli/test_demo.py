"""`trunkline demo`: every command has something to show."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import COMMAND, Cli
from tests.support.waiting import wait_until
from trunkline.embedded.postmaster import find_processes

SECONDS = "100"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("demo")
    yield directory
    for pid in find_processes(directory / "data" / "pgdata"):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def demo(home: Path) -> Iterator[tuple[Cli, str]]:
    """A running demo, and what it printed."""
    environment = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [COMMAND, "demo", "--data", str(home / "data"), "--seconds", SECONDS],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=home,
    )
    printed: list[str] = []
    ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line)
            if line.startswith("Traffic is running"):
                ready.set()
        ready.set()

    threading.Thread(target=read, daemon=True).start()
    assert ready.wait(60) and process.poll() is None, "".join(printed)
    cli = Cli("", home)
    cli.environment = lambda **more: {"PATH": os.environ["PATH"], "TRUNKLINE_DATA": str(home / "data"), **more}  # type: ignore[method-assign]
    yield cli, "".join(printed)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0, "".join(printed)
    assert not find_processes(home / "data" / "pgdata")


@pytest.mark.parametrize(
    "arguments",
    [
        "topic list",
        "topic read orders",
        "topic read events",
        "topic offsets orders",
        "topic tail orders --start earliest --limit 3 -o jsonl",
        "group list",
        "group lag",
        "queue list",
        "queue peek mail",
        "queue peek reports",
        "subscription list",
        "subscription test orders order.created.eu",
        "dead list mail",
        "dead list mail --reason attempts",
        "dead list mail --reason buried",
        "dead export mail",
        "schedule list",
        "schedule next daily-report",
        "endpoint list",
        "pipeline list",
        "top --once",
        "doctor",
    ],
)
def test_every_list_has_rows(demo: tuple[Cli, str], arguments: str) -> None:
    cli, _ = demo
    got = cli.process(*arguments.split())
    rows: Any = got.lines if "jsonl" in arguments or "export" in arguments else got.json
    assert rows
    if "export" not in arguments and "tail" not in arguments:
        assert len(cli.process(*arguments.split(), "-o", "table").stdout.splitlines()) >= 2


def test_failures_are_among_it(demo: tuple[Cli, str]) -> None:
    cli, printed = demo
    trace = re.search(r"message trace (\S+)", printed)
    assert trace is not None
    outcomes = {row["event"] for row in cli.process("message", "trace", trace[1]).json}
    assert {"published", "claimed", "nacked", "dead"} <= outcomes
    lag = {row["group"]: row["lag"] for row in cli.process("group", "lag").json}
    assert lag["analytics"] > 0
    paused = {row["queue"]: row["paused"] for row in cli.process("queue", "list").json}
    assert paused["audit"] and not paused["mail"]
    assert cli.process("topic", "list").json[1]["delayed"] > 0
    states = {row["name"]: row["state"] for row in cli.process("pipeline", "list").json}
    assert states == {"events-to-search": "running", "orders-to-lake": "failed"}
    wait_until(lambda: {row["status"] for row in cli.process("endpoint", "attempts", "crm").json} == {503})
    wait_until(lambda: 200 in {row["status"] for row in cli.process("endpoint", "attempts", "shop").json})
    cli.process("group", "lag", "orders", "analytics", "--max-messages", 0, code=5)


def test_once_in_a_temporary_directory(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [COMMAND, "demo", "--once"], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "Explore it from another terminal" in done.stdout and "One round is done." in done.stderr
    assert list(tmp_path.iterdir()) == []
