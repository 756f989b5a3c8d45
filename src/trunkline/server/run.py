"""Runs the server: one or more worker processes per port."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from trunkline.errors import InvalidValue
from trunkline.server import json_logs
from trunkline.server.config import STOP_SIGNAL, Config
from trunkline.server.listen import check_address


def serve(
    config: Config,
    *,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    tls_password: str | None = None,
    in_process: bool = False,
) -> None:
    """Run until SIGINT or SIGTERM, then finish the requests in flight.

    With `in_process`, the only worker runs in this process, which saves the memory of a second one. The caller must then
    restart this process if it ends, and send STOP_SIGNAL before SIGTERM.
    """
    from granian.constants import HTTPModes, Interfaces, Loops
    from granian.http import HTTP1Settings
    from granian.server.mp import MPServer

    ports = (config.port, *config.compat_ports.values())

    class Server(MPServer):
        """Listens on several ports, and signals workers before it stops them, so that requests waiting for messages
        return at once."""

        def _init_shared_socket(self) -> None:
            self._sockets = []
            for port in ports:
                self.bind_port = port
                super()._init_shared_socket()  # type: ignore[no-untyped-call]
                self._sockets.append((self._ssp, self._shd, self._sso))

        def _drop_shared_socket(self) -> None:
            for sockets in self._sockets:
                self._ssp, self._shd, self._sso = sockets
                super()._drop_shared_socket()  # type: ignore[no-untyped-call]

        def _spawn_worker(self, idx: int, *args: Any, **kwargs: Any) -> Any:
            """Start a worker. Each listens on one port."""
            self._ssp, self._shd, self._sso = self._sockets[idx % len(ports)]
            return super()._spawn_worker(idx, *args, **kwargs)

        def shutdown(self, exit_code: int = 0) -> None:
            for worker in self.wrks:
                with contextlib.suppress(ProcessLookupError, TypeError):
                    os.kill(worker._id(), STOP_SIGNAL)  # type: ignore[no-untyped-call]
            super().shutdown(exit_code)  # type: ignore[no-untyped-call]

    class InProcessServer(Server):
        def _serve(self, spawn_target: Any, target_loader: Any) -> None:
            self._init_shared_socket()
            self._spawn_worker(0, spawn_target, target_loader).inner.run()
            self._drop_shared_socket()

    check_address(config.host, tokens=bool(config.require_token))
    msgspec.structs.replace(config, tls=tls_cert is not None).to_environment()
    json_logs.set_up()
    shared: str | None = None
    workers = config.workers * len(ports)
    if in_process and workers > 1:
        raise InvalidValue(f"in_process requires one worker and one port, got {workers} workers")
    if workers > 1:
        shared = tempfile.mkdtemp(prefix="trunkline-metrics-")
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = shared
    try:
        (InProcessServer if in_process else Server)(
            "trunkline.server.app:from_environment",
            factory=True,
            address=config.host,
            port=config.port,
            interface=Interfaces.ASGI,
            workers=workers,
            loop=Loops.auto,
            http=HTTPModes.http1,
            websockets=False,
            backlog=4096,
            backpressure=config.max_requests * 2,
            http1_settings=HTTP1Settings(header_read_timeout=10_000, max_buffer_size=128 * 1024),
            respawn_failed_workers=True,
            workers_kill_timeout=int(config.drain_seconds) + 5,
            ssl_cert=tls_cert,
            ssl_key=tls_key,
            ssl_key_password=tls_password,
            log_enabled=False,
        ).serve()
    finally:
        if shared is not None:
            shutil.rmtree(shared, ignore_errors=True)
