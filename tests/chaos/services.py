"""The HTTP servers of a run, at addresses that stay the same over their lives."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress

import psutil

from tests.http.servers import HttpServer


class Services:
    """Two servers on one database: one of a single process, one with two workers behind its port."""

    def __init__(self, url: str) -> None:
        self.servers = [
            HttpServer(url, "--max-connections", "4"),
            HttpServer(url, "--max-connections", "4", "--workers", "2"),
        ]

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def kill(self, source: random.Random) -> None:
        """kill -9 of a server with all its processes; it starts again at once."""
        server = source.choice(self.servers)
        server.kill()
        server.launch()

    def kill_worker(self) -> None:
        """kill -9 of one worker; its server makes another."""
        server = self.servers[1]
        assert server.process is not None
        for pid in workers(server.process.pid)[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self, source: random.Random) -> None:
        """SIGTERM, as a new version is rolled out; `look` starts it again."""
        server = source.choice(self.servers)
        assert server.process is not None
        server.process.terminate()

    def look(self) -> None:
        """Start again what has stopped, as a supervisor does: also a server that came up while Postgres was down."""
        for server in self.servers:
            assert server.process is not None
            if server.process.poll() is not None:
                server.launch()

    def end(self) -> list[str]:
        """Kill all; the errors that their logs tell of."""
        found = []
        for server in self.servers:
            server.kill()
            found += [line for line in server.log.read_text(errors="replace").splitlines() if '"level":"ERROR"' in line]
            server.log.unlink(missing_ok=True)
        return found


def workers(parent: int) -> list[int]:
    """The worker processes of a server."""
    found = []
    for process in psutil.Process(parent).children():
        # one that was killed a moment ago has no command line
        with suppress(psutil.NoSuchProcess):
            if "resource_tracker" not in str(process.cmdline()):
                found.append(process.pid)
    return found
