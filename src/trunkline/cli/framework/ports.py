"""Listening ports, checked before anything is started so that a port in use is a clear error."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import click

from trunkline.errors import SettingsError
from trunkline.server.config import COMPAT_APIS

_PATIENCE = 1.0


class Ports(NamedTuple):
    """The ports of the HTTP service."""

    http: int
    metrics: int | None = None
    compat: tuple[tuple[str, int], ...] = ()
    """APIs of other systems with a separate port."""
    console: bool = True
    """Serve the web console."""


class CompatPort(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """An API of another system and its port, such as `psqlqueue=8000`."""

    name = "api=port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        api, _, port = str(value).partition("=")
        if api not in COMPAT_APIS:
            self.fail(f"{api!r} is not one of {', '.join(COMPAT_APIS)}; write API=PORT, such as psqlqueue=8000", param, ctx)
        if not (port.isascii() and port.isdigit() and int(port) < 65536):
            self.fail(f"{port!r} is not a port; write API=PORT, such as {api}=8000", param, ctx)
        return api, int(port)


def compat_port_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--compat-port",
        "compat_ports",
        type=CompatPort(),
        metavar="API=PORT",
        multiple=True,
        help=f"Additional port at whose root another system's API is served ({', '.join(COMPAT_APIS)}); repeatable.",
    )(command)


@contextmanager
def reserved_ports(host: str, http: int, compat: Sequence[tuple[str, int]]) -> Iterator[Ports]:
    """Reserve the HTTP port and those of other systems' APIs until the block ends. See `reserved_port`."""
    twice = {api for api, _ in compat if [name for name, _ in compat].count(api) > 1}
    if twice:
        raise click.UsageError(f"--compat-port is given twice for {', '.join(sorted(twice))}")
    with ExitStack() as stack:
        chosen = stack.enter_context(reserved_port(host, http))
        others = tuple((api, stack.enter_context(reserved_port(host, port, "--compat-port"))) for api, port in compat)
        ports = [chosen, *(port for _, port in others)]
        if len(set(ports)) < len(ports):
            raise click.UsageError("--port and --compat-port must be different ports")
        yield Ports(chosen, compat=others)


@contextmanager
def reserved_port(host: str, port: int, option: str = "--port") -> Iterator[int]:
    """Reserve the port, or a free one for 0, until the block ends. Raise if it is in use."""
    holder = _bound(host, port, option)
    try:
        chosen: int = holder.getsockname()[1]
        # Two sockets may bind one port as long as only one listens. Holding it bound keeps the system from assigning a
        # free port to another process before our server listens on it.
        if sys.platform != "linux":
            holder.close()
        yield chosen
    finally:
        holder.close()


def _bound(host: str, port: int, option: str) -> socket.socket:
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
                    hint=f"Choose another with {option}, or 0 for a free one.",
                ) from None
        else:
            return holder
        time.sleep(0.05)
