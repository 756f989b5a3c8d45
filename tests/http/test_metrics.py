"""Metrics cost what the server decides, not what its clients send."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterable
from typing import Any

import httpx
from prometheus_client.core import Metric

from tests.http.servers import HttpServer
from trunkline import Client
from trunkline.server.metrics import Metrics


def _series(http: httpx.Client) -> set[str]:
    return {line.rpartition(" ")[0] for line in http.get("/metrics").text.splitlines() if line.startswith("http_request")}


def test_made_up_methods_add_no_series(server: HttpServer, http: httpx.Client) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as conn:
        conn.settimeout(30)
        for number in range(50):
            conn.sendall(f"M{number:08d} /nothing HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            received = b""
            while b"\r\n\r\n" not in received:
                received += conn.recv(65536)
            if number == 0:
                # the first scrape is itself counted in the second
                _series(http)
                before = _series(http)
    after = _series(http)
    assert {name for name in after if 'method="other"' in name}
    assert not [name for name in after if 'method="M0' in name]
    assert after == before


async def test_the_event_loop_runs_while_metrics_are_rendered(db: str) -> None:
    """A collector that waits for the loop: it would wait in vain if the loop waited for it."""
    loop = asyncio.get_running_loop()
    reached = threading.Event()

    class Slow:
        def collect(self) -> Iterable[Metric]:
            loop.call_soon_threadsafe(reached.set)
            yield Metric("reached", "", "gauge") if reached.wait(10) else Metric("blocked", "", "gauge")

    metrics = Metrics()
    slow: Any = Slow()
    async with Client(db) as mq:
        metrics.registry.register(slow)
        reached.clear()
        content, _ = await metrics.render(mq)
    assert b"# TYPE reached gauge" in content
