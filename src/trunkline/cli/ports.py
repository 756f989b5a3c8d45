"""Ports to listen on: asked for before anything is started, so that a taken one is an error in words."""

from __future__ import annotations

import socket
import time

from trunkline.errors import SettingsError

_PATIENCE = 1.0


def listening_port(host: str, port: int) -> int:
    """The port, if nobody listens there; for 0 a free one."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return _bound(host, port)
        except OSError as exc:
            # a server that was killed a moment ago may still be about to leave
            if time.monotonic() > deadline:
                raise SettingsError(
                    f"cannot listen on port {port} of {host}: {(exc.strerror or str(exc)).lower()}",
                    hint="choose another with --port, or 0 for a free one",
                ) from None
        time.sleep(0.05)


def _bound(host: str, port: int) -> int:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        found: int = probe.getsockname()[1]
        return found
