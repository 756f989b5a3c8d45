"""The HTTP service of `trunkline up`: a `trunkline serve` process that ends with its parent."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import sys
import time
import urllib.error
import urllib.request

import click

from trunkline.cli.framework.ports import Ports
from trunkline.errors import Unavailable
from trunkline.server.config import STOP_SIGNAL

_HOST = "127.0.0.1"
_START_SECONDS = 30.0
_STOP_SECONDS = 30.0
_LONGEST_PAUSE = 30.0


def installed() -> bool:
    return all(importlib.util.find_spec(name) for name in ("granian", "jinja2", "litestar", "prometheus_client"))


class HttpService:
    """One server process. Its output goes to our stderr."""

    def __init__(self, database_url: str, ports: Ports) -> None:
        self.url = f"http://{_HOST}:{ports.http}"
        self.compat_ports = ports.compat
        self.console = ports.console
        self._database_url = database_url
        self._ports = ports
        self._in_process = not ports.compat
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, stop: asyncio.Event) -> None:
        """Start the server. Return when all its ports respond, or when `stop` is set."""
        # one process is enough, because `keep` restarts it; several ports need a worker each
        # its own session: Ctrl-C must reach only us, so that we stop it in order
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "trunkline", "serve", "--no-upkeep"),
            *("--host", _HOST, "--port", str(self._ports.http), "--parent", str(os.getpid())),
            *(() if self._ports.metrics is None else ("--metrics-port", str(self._ports.metrics))),
            *(() if self._ports.console else ("--no-console",)),
            *(word for name, port in self._ports.compat for word in ("--compat-port", f"{name}={port}")),
            *(("--in-process",) if self._in_process else ()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr,
            # not on the command line, where other users could read the password
            env={**os.environ, "TRUNKLINE_DATABASE_URL": self._database_url},
            start_new_session=True,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not stop.is_set() and not await asyncio.to_thread(self._answers):
            if self._process.returncode is not None or time.monotonic() > deadline:
                await self.stop()
                raise Unavailable("the HTTP service did not start", hint="See its output above, or use --no-http.")
            await asyncio.sleep(0.05)

    async def keep(self, stop: asyncio.Event) -> None:
        """Restart the server whenever it ends, until `stop` is set."""
        pause = 0.5
        while await self._ended_before(stop):
            click.echo("The HTTP service has stopped; restarting it.", err=True)
            try:
                await self.start(stop)
                pause = 0.5
            except Unavailable as exc:
                pause = min(pause * 2, _LONGEST_PAUSE)
                click.echo(f"trunkline: {exc.message} [{exc.code}]; retrying in {pause:.0f} s", err=True)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), pause)

    async def stop(self) -> None:
        """Stop the server after the requests in flight."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._in_process:
                process.send_signal(STOP_SIGNAL)
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _ended_before(self, stop: asyncio.Event) -> bool:
        if stop.is_set() or self._process is None:
            return not stop.is_set()
        ended, stopped = asyncio.ensure_future(self._process.wait()), asyncio.ensure_future(stop.wait())
        await asyncio.wait([ended, stopped], return_when=asyncio.FIRST_COMPLETED)
        for waiting in (ended, stopped):
            waiting.cancel()
        return not stop.is_set()

    def _answers(self) -> bool:
        return all(_responds(f"http://{_HOST}:{port}/healthz") for port in self._all_ports())

    def _all_ports(self) -> list[int]:
        return [self._ports.http, *(port for _, port in self._ports.compat)]


def _responds(url: str) -> bool:
    # bypass proxies of the environment: this is our own machine
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url), timeout=5):  # noqa: S310
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
