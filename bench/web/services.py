"""The measured services. Each runs in a separate process with one worker, on the same database."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.lab import Lab

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SERVE = "from bench.web.nothing import serve; serve()"


class Service:
    """A running service."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self._pid = pid

    @property
    def cpu(self) -> float:
        """Return the CPU seconds of all its processes so far."""
        return sum(_cpu(pid) for pid in _tree(self._pid))

    @property
    def memory(self) -> int:
        """Return the memory of all its processes in bytes."""
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE for pid in _tree(self._pid))


@contextmanager
def ours(lab: Lab) -> Iterator[Service]:
    """Run `trunkline serve` without upkeep, which runs separately, as for all contestants."""
    port = _free_port()
    command = [sys.executable, "-c", _SERVE, "--port", str(port), "--no-upkeep", "--no-require-token"]
    with _running(command, port, {"TRUNKLINE_DATABASE_URL": lab.url}) as service:
        yield service


@contextmanager
def with_uvicorn(lab: Lab) -> Iterator[Service]:
    port = _free_port()
    command = [sys.executable, "-m", "uvicorn", "bench.web.textbook:app", "--port", str(port), "--no-access-log"]
    with _running(command, port, {"BENCH_DATABASE_URL": lab.url}) as service:
        yield service


@contextmanager
def with_granian(lab: Lab) -> Iterator[Service]:
    port = _free_port()
    program = "from granian.cli import entrypoint; entrypoint()"
    command = [sys.executable, "-c", program, "--interface", "asgi", "--port", str(port), "bench.web.textbook:app"]
    with _running(command, port, {"BENCH_DATABASE_URL": lab.url}) as service:
        yield service


@contextmanager
def _running(command: Sequence[str], port: int, environment: dict[str, str]) -> Iterator[Service]:
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)
        try:
            _wait_for(port, process)
            yield Service(port, process.pid)
        except Exception as exc:
            log.seek(0)
            exc.add_note(log.read()[-2000:].decode(errors="replace"))
            raise
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            connection.close()
            return
        time.sleep(0.05)
    raise RuntimeError("the service did not start")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += _tree(int(child))
    return found


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
