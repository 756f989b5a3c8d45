"""Many waiting clients in one process with plain sockets and an epoll loop. Each reports when a message arrives."""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Callable

from bench.alone import Send
from bench.web.load import answer

_SENT = re.compile(rb'"sent":([0-9.]+)')


async def long_pollers(port: int, requests: list[bytes], send: Send) -> None:
    """Repeat each request as soon as its response arrives."""

    def heard(client: socket.socket, number: int, data: bytes) -> bytes:
        found = answer(data)
        if found is None:
            return data
        if found[0] != 200:
            raise RuntimeError(f"status {found[0]}: {found[1][:500]!r}")
        client.sendall(requests[number])
        return b""

    _listen(port, requests, send, heard)


async def followers(port: int, requests: list[bytes], send: Send) -> None:
    """Read an event stream for each request."""

    def heard(_: socket.socket, __: int, data: bytes) -> bytes:
        return data.rpartition(b"\n\n")[2]

    _listen(port, requests, send, heard)


def _listen(port: int, requests: list[bytes], send: Send, heard: Callable[[socket.socket, int, bytes], bytes]) -> None:
    """Open a connection per request. `heard` consumes received data and returns the incomplete rest."""
    poll = select.epoll()
    clients: dict[int, tuple[socket.socket, int]] = {}
    rest: dict[int, bytes] = {}
    for number, content in enumerate(requests):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(content)
        clients[client.fileno()] = (client, number)
        poll.register(client.fileno(), select.EPOLLIN)
    send("ready")
    while True:
        for fd, _ in poll.poll():
            client, number = clients[fd]
            chunk = client.recv(1 << 16)
            now = time.monotonic()
            if not chunk:
                raise RuntimeError("the server closed the connection")
            for sent in _SENT.findall(chunk):
                send(now - float(sent))
            rest[fd] = heard(client, number, rest.get(fd, b"") + chunk)
