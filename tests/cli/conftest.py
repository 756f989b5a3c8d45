"""The command line, run in this process or as a real one, against the test's database."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from trunkline.cli.main import run

COMMAND = str(Path(sys.executable).parent / "trunkline")


class Answer:
    """Output and exit code of a command."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        self.code = code
        self.stdout = stdout
        self.stderr = stderr

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def error(self) -> Any:
        """The error that `-o json` puts on the last line of stderr."""
        return json.loads(self.stderr.splitlines()[-1])["error"]


class Cli:
    """Runs commands; each call says which exit code it expects."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder

    def __call__(self, *arguments: object, code: int = 0) -> Answer:
        """In this process."""
        with CliRunner().isolation() as (out, err, _):
            got = run([str(each) for each in arguments])
            answer = Answer(got, out.getvalue().decode(), err.getvalue().decode())
        assert answer.code == code, f"{arguments}: exit {answer.code}\n{answer.stdout}{answer.stderr}"
        assert "Traceback" not in answer.stderr
        return answer

    def environment(self, **more: str) -> dict[str, str]:
        # PYTHONPATH: a git worktree is tested with the virtual environment of another one
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        return {**kept, "TRUNKLINE_DATABASE_URL": self.url, **more}

    def start(self, *arguments: object, **options: Any) -> subprocess.Popen[bytes]:
        """Start the command in a separate process."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        env = self.environment(**options.pop("env", {}))
        return subprocess.Popen([COMMAND, *map(str, arguments)], cwd=self.folder, env=env, **(pipes | options))  # type: ignore[return-value]

    def process(self, *arguments: object, code: int = 0, input: bytes = b"", **options: Any) -> Answer:
        """Run the command in a separate process to its end."""
        started = self.start(*arguments, **options)
        out, err = started.communicate(input if started.stdin is not None else None, timeout=180)
        answer = Answer(started.returncode, (out or b"").decode(), (err or b"").decode())
        assert answer.code == code, f"{arguments}: exit {answer.code}\n{answer.stdout}{answer.stderr}"
        assert "Traceback" not in answer.stderr
        return answer


def on_a_terminal(
    cli: Cli, *arguments: str, typed: str = "", after: str = "", columns: int = 80, **env: str
) -> tuple[int, str]:
    """Run on a pseudo terminal and type text (once `after` is shown); return the exit code and the output."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(cli.folder)
        os.execve(COMMAND, [COMMAND, *arguments], cli.environment(TERM="xterm", COLUMNS=str(columns), **env))
    shown, waiting = b"", typed.encode()
    if not after:
        os.write(descriptor, waiting)
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
        if after and after.encode() in shown and waiting:
            os.write(descriptor, waiting)
            waiting = b""
    _, status = os.waitpid(pid, 0)
    os.close(descriptor)
    return os.waitstatus_to_exitcode(status), shown.decode()


@pytest.fixture
def cli(db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name in list(os.environ):
        if name.startswith("TRUNKLINE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRUNKLINE_DATABASE_URL", db)
    monkeypatch.chdir(tmp_path)
    return Cli(db, tmp_path)
