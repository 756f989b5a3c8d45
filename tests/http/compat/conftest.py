"""A server with a port for each API of another system, and clients that find it at the root or below its prefix."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from tests.http.servers import HttpServer, free_port, serving


class CompatServer:
    """A server and the addresses of the APIs: below its prefixes, and on ports of their own."""

    def __init__(self, server: HttpServer, ports: dict[str, int]) -> None:
        self.url = server.url
        self.port = server.port
        self.ports = ports
        self.log = server.log

    def base(self, api: str, place: str) -> str:
        return f"{self.url}/compat/{api}" if place == "prefix" else f"http://127.0.0.1:{self.ports[api]}"


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/", timeout=5)
            return
        time.sleep(0.05)
    raise RuntimeError(f"no server on port {port}")


@pytest.fixture(scope="module")
def server(module_db: str, request: pytest.FixtureRequest) -> Iterator[CompatServer]:
    """A server with ports for the APIs in the module's PORTS."""
    ports = {api: free_port() for api in getattr(request.module, "PORTS", ())}
    with serving(module_db, *(f"--compat-port={api}={port}" for api, port in ports.items())) as running:
        for port in ports.values():
            wait_for_port(port)
        yield CompatServer(running, ports)


@pytest.fixture(params=["prefix", "port"])
def place(request: pytest.FixtureRequest) -> str:
    """Where a test finds the API: below its prefix, or on a port of its own."""
    where: str = request.param
    return where


@pytest.fixture
def native(server: CompatServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=40) as client:
        yield client
