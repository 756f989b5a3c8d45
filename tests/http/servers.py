"""Real server processes for the tests."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from httpx._transports import default as _transports

from tests.support.waiting import wait_until
from trunkline.cli.framework.ports import reserved_port

_held = ExitStack()
# A client reads all certificates of the machine when it is made, 50 ms of CPU each time; here one reads them for all.
_transports.create_ssl_context = cache(_transports.create_ssl_context)  # type: ignore[attr-defined]


def free_port() -> int:
    """A port that no other process is given as long as the tests run."""
    return _held.enter_context(reserved_port("127.0.0.1", 0))


class HttpServer:
    """Run `trunkline serve` in a separate process."""

    def __init__(
        self, database_url: str, *arguments: str, port: int | None = None, module: str = "tests.http.serve"
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [
            sys.executable, "-m", module, "--port", str(self.port), *arguments
        ]  # fmt: skip
        self._environment = {**os.environ, "TRUNKLINE_DATABASE_URL": database_url}
        self.log = Path(tempfile.mkstemp(prefix="trunkline-http-", suffix=".log")[1])
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start it and do not wait."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def start(self) -> HttpServer:
        self.launch()
        assert self.process is not None
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                httpx.get(f"{self.url}/healthz", timeout=5)
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"the server did not start:\n{self.log.read_text()}")

    def wait_in_flight(self, handler: str, count: int) -> None:
        """Wait until this number of requests to a path template is in flight, by the server's own metrics."""
        metric = re.compile(rf'^http_requests_inflight{{[^}}]*handler="{re.escape(handler)}"[^}}]*}} (\S+)$', re.MULTILINE)

        def in_flight() -> bool:
            found = metric.search(httpx.get(f"{self.url}/metrics", timeout=30).text)
            return (0 if found is None else float(found[1])) == count

        wait_until(in_flight, message=f"{count} requests to {handler}")

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(30)

    def kill(self) -> None:
        """kill -9 of the process and its workers."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def end(self) -> None:
        self.kill()
        self.log.unlink(missing_ok=True)


def find_test(place: str) -> Any:
    """Return a test by the file and the name that a table gives, such as `streams.lines`."""
    file, _, name = place.partition(".")
    package = "tests.http.compat" if (Path(__file__).parent / "compat" / f"test_{file}.py").exists() else "tests.http"
    return getattr(importlib.import_module(f"{package}.test_{file}"), f"test_{name}")


@contextmanager
def serving(database_url: str, *arguments: str) -> Iterator[HttpServer]:
    server = HttpServer(database_url, *arguments)
    try:
        yield server.start()
    finally:
        server.end()


def problem(answer: httpx.Response, status: int, error: str) -> dict[str, Any]:
    """Check that the response is this problem."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["error"] == error, body
    assert body["status"] == status
    return body
