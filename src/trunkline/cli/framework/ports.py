"""Listening ports, checked before anything is started so that a port in use is a clear error."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from trunkline.errors import SettingsError

_PATIENCE = 1.0


class Ports(NamedTuple):
    """The listening address of the HTTP service."""

    http: int
    metrics: int | None = None


@contextmanager
def reserved_port(host: str, port: int) -> Iterator[int]:
    """Reserve the port, or a free one for 0, until the block ends. Raise if it is in use."""
    holder = _bound(host, port)
    try:
        chosen: int = holder.getsockname()[1]
        # Two sockets may bind one port as long as only one listens. Holding it bound keeps the system from assigning a
        # free port to another process before our server listens on it.
        if sys.platform != "linux":
            holder.close()
        yield chosen
    finally:
        holder.close()


def _bound(host: str, port: int) -> socket.socket:
    deadline = time.monotonic() + _PATIENCE
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    while True:
        holder = socket.socket(family, kind, protocol)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(address)
        except OSError as exc:
            holder.close()
            # a server that was just killed may still be exiting
            if time.monotonic() > deadline:
                raise SettingsError(
                    f"cannot listen on port {port} of {host}: {(exc.strerror or str(exc)).lower()}",
                    hint="Choose another with --port, or 0 for a free one.",
                ) from None
        else:
            return holder
        time.sleep(0.05)
