"""Interpreters for the blocks of a page: psql, Python and bash, each kept open for the whole page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.docs.pages import Block, agree
from trunkline.embedded.install import psql

_MARK = "-- end of block --"


def as_url(conninfo: str) -> str:
    """The form of a connection string that all drivers read."""
    parts: dict[str, Any] = dict(conninfo_to_dict(conninfo))
    user, password, name = parts.pop("user"), parts.pop("password", None), parts.pop("dbname")
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    return f"postgresql://{login}@/{name}?{urlencode(parts)}"


def environment(conninfo: str | None, **more: str) -> dict[str, str]:
    """As a reader has it who followed the tutorial: our programs on the PATH, the database in a variable."""
    path = f"{Path(sys.executable).parent}:{psql().parent}:{os.environ['PATH']}"
    url = {**({} if conninfo is None else {"TRUNKLINE_DATABASE_URL": as_url(conninfo)}), **more}
    ours = {"TRUNKLINE_SPARK_KEEP_CLASSES": "off"}  # no page leaves a process behind
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRUNKLINE_", "PG"))} | ours
    return {**kept, **url, "PATH": path, "PGTZ": "UTC", "PGCLIENTENCODING": "UTF8", "COLUMNS": "120", "TZ": "UTC"}


class Up:
    """`trunkline up` in a directory, as the tutorial begins."""

    def __init__(self, folder: Path) -> None:
        command = [str(Path(sys.executable).with_name("trunkline")), "up", "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment(None))
        assert self._process.stdout is not None
        self.said = ""
        for line in self._process.stdout:
            self.said += line
            if line.startswith("Ctrl-C"):
                break
        home = folder / ".trunkline"
        password, port = (home / "password").read_text().strip(), (home / "port").read_text().strip()
        self.conninfo = f"user=trunkline password={password} host=127.0.0.1 port={port} dbname=trunkline"

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=60)


class Upkeep:
    """Run upkeep twice a second, as `trunkline up` does."""

    def __init__(self, conninfo: str) -> None:
        self._conn = psycopg.connect(conninfo, autocommit=True)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while not self._stop.wait(0.5):
            self._conn.execute("call trunkline.upkeep()")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._conn.close()


class Shells:
    """Run blocks and return their output; an error raises."""

    def __init__(
        self, env: dict[str, str], folder: Path, conninfo: str | None = None, *, ports: dict[str, str] | None = None
    ) -> None:
        self._env = {**env, "NO_PROXY": "127.0.0.1"}
        self._ports = ports or {}
        """The local address of the page's servers."""
        self._url = env["TRUNKLINE_DATABASE_URL"] if conninfo is None else conninfo
        self._folder = folder
        self._psql: subprocess.Popen[str] | None = None
        self._python: subprocess.Popen[str] | None = None

    def run(self, block: Block) -> None:
        way = {"sql": self._sql, "python": self._python_block, "bash": self._bash, "console": self._console}[block.language]
        output, wanted = way(block)
        if wanted is not None:
            assert agree(wanted, output), f"{block.where} shows\n{wanted}\nbut this came:\n{output}"

    def close(self) -> None:
        for process in (self._psql, self._python):
            if process is not None:
                process.communicate(timeout=30)

    def _open(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._env,
            cwd=self._folder,
        )

    def _sql(self, block: Block) -> tuple[str, str | None]:
        if self._psql is None:
            self._psql = self._open(str(psql()), "-Xq", "-P", "pager=off", "-P", "null=", "-d", self._url)
        assert self._psql.stdin is not None and self._psql.stdout is not None
        self._psql.stdin.write(f"{block.text}\n\\echo {_MARK}\n")
        self._psql.stdin.flush()
        output = ""
        for line in self._psql.stdout:
            if line.rstrip() == _MARK:
                break
            # what the server remarks on the way is no result
            if not line.startswith("NOTICE:"):
                output += line
        else:
            raise AssertionError(f"{block.where}: psql ended\n{output}")
        if "ERROR:" in output and "ERROR:" not in (block.expected or ""):
            raise AssertionError(f"{block.where}:\n{output}")
        return output, block.expected

    def _python_comments(self, block: Block) -> str | None:
        """`print(x)  # 42`: what is printed, where the page says it behind the call."""
        printed = [line for line in block.text.splitlines() if line.lstrip().startswith("print(")]
        said = [line.rpartition("  # ")[2] for line in printed if "  # " in line]
        assert not said or len(said) == len(printed), f"{block.where}: some of its prints say what comes, some do not"
        return "\n".join(said) if said else None

    def _run_python(self, block: Block) -> dict[str, Any]:
        if self._python is None:
            self._python = self._open(sys.executable, "-X", "dev", str(Path(__file__).with_name("interpreter.py")))
        assert self._python.stdin is not None and self._python.stdout is not None
        request = {"text": block.text, "line": block.line, "page": block.page}
        self._python.stdin.write(json.dumps(request) + "\n")
        self._python.stdin.flush()
        noise = ""
        for line in self._python.stdout:
            if line.startswith('{"output"'):
                answer: dict[str, Any] = json.loads(line)
                return answer
            noise += line
        raise AssertionError(f"{block.where}: Python ended\n{noise}")

    def _python_block(self, block: Block) -> tuple[str, str | None]:
        answer = self._run_python(block)
        assert answer["error"] is None, f"{block.where}:\n{answer['output']}\n{answer['error']}"
        return answer["output"], block.expected or self._python_comments(block)

    def _bash(self, block: Block) -> tuple[str, str | None]:
        return self._command(block.where, block.text), block.expected

    def _console(self, block: Block) -> tuple[str, str | None]:
        """`$ command`, and below it what it says."""
        output, wanted = "", ""
        for part in block.text.split("\n$ "):
            command, _, shown = part.removeprefix("$ ").partition("\n")
            output += self._command(block.where, command)
            wanted += shown + "\n"
        return output, wanted

    def _command(self, where: str, text: str) -> str:
        for named, here in self._ports.items():
            text = text.replace(named, here)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._env,
            cwd=self._folder,
            timeout=100,
        )
        assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{text}\n{done.stdout}"
        return done.stdout
