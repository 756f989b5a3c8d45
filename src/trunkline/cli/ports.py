"""Ports to listen on: asked for before anything is started, so that a taken one is an error in words."""

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
    """Where the HTTP service listens."""

    http: int
    metrics: int | None = None


@contextmanager
def reserved_port(host: str, port: int) -> Iterator[int]:
    """The port, if nobody listens there; for 0 a free one, which stays ours until the block ends."""
    holder = _bound(host, port)
    try:
        chosen: int = holder.getsockname()[1]
        # Where two sockets may be bound to one port as long as one listens, the holder keeps everybody else
        # from being given a free port between now and the moment our server listens on it.
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
            # a server that was killed a moment ago may still be about to leave
            if time.monotonic() > deadline:
                raise SettingsError(
                    f"cannot listen on port {port} of {host}: {(exc.strerror or str(exc)).lower()}",
                    hint="choose another with --port, or 0 for a free one",
                ) from None
        else:
            return holder
        time.sleep(0.05)
