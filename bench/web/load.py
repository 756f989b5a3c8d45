"""HTTP/1.1 load generator: one process, plain sockets, one epoll loop. Cheaper per request than any server."""

from __future__ import annotations

import gc
import multiprocessing
import select
import socket
import time
import traceback
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection

import msgspec

_fork = multiprocessing.get_context("fork")
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"

Exchange = Generator[tuple[bytes, int], bytes, None]
"""The work of one connection: yields a request with the number of messages that its response completes, and receives
the response body. Ends when there is no work left."""


class Load(msgspec.Struct, kw_only=True):
    """Totals of all connections after the warm-up, and the latency of each request in seconds."""

    messages: int
    seconds: float
    warm_up: float
    latencies: list[float]
    cpu: float
    """Share of one core that the load generator took."""

    @property
    def rate(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0


def request(method: str, path: str, body: bytes = b"", content_type: str = "application/json") -> bytes:
    """Encode a request, to be sent many times."""
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    if body or method != "GET":
        head += f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def answer(data: bytes | bytearray) -> tuple[int, bytes] | None:
    """Return status and body once the response is complete."""
    end = data.find(_HEAD_END)
    if end < 0:
        return None
    status = int(data[9:12])
    head = bytes(data[:end]).lower()
    at = head.find(_LENGTH)
    size = 0 if at < 0 else int(head[at + len(_LENGTH) :].partition(b"\r\n")[0])
    start = end + len(_HEAD_END)
    return None if len(data) < start + size else (status, bytes(data[start : start + size]))


def drive(port: int, make: Callable[[int], Exchange], *, connections: int, seconds: float, warm_up: float = 0.5) -> Load:
    """Run all exchanges concurrently in a separate process, one connection each."""
    ours, theirs = _fork.Pipe(duplex=False)
    gc.freeze()
    process = _fork.Process(target=_run, args=(theirs, port, make, connections, seconds, warm_up), daemon=True)
    process.start()
    theirs.close()
    try:
        found: Load | str = ours.recv()
    except EOFError:
        found = "the load generator died"
    process.join()
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


def _run(
    pipe: Connection, port: int, make: Callable[[int], Exchange], connections: int, seconds: float, warm_up: float
) -> None:
    gc.disable()
    try:
        pipe.send(_Loop(port, make, connections).run(seconds, warm_up))
    except Exception:
        pipe.send(traceback.format_exc())


class _Line:
    """One connection."""

    __slots__ = ("data", "exchange", "moves", "sent", "socket")

    def __init__(self, port: int, exchange: Exchange) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.exchange = exchange
        self.data = b""
        self.sent = 0.0
        self.moves = 0


class _Loop:
    def __init__(self, port: int, make: Callable[[int], Exchange], connections: int) -> None:
        self._lines: dict[int, _Line] = {}
        self._poll = select.epoll()
        for number in range(connections):
            line = _Line(port, make(number))
            self._lines[line.socket.fileno()] = line
            self._poll.register(line.socket.fileno(), select.EPOLLIN)

    def run(self, seconds: float, warm_up: float) -> Load:
        for fd, line in list(self._lines.items()):
            self._next(fd, line, None)
        self._until(time.perf_counter() + warm_up)
        start, cpu = time.perf_counter(), time.process_time()
        messages, latencies, last = self._until(start + seconds)
        # An exhausted source ends the measurement early.
        took = (time.perf_counter() if self._lines else last) - start
        cpu = (time.process_time() - cpu) / took
        return Load(messages=messages, seconds=took, warm_up=warm_up, latencies=latencies, cpu=cpu)

    def _until(self, end: float) -> tuple[int, list[float], float]:
        messages, latencies, now = 0, list[float](), 0.0
        lines, poll, clock = self._lines, self._poll.poll, time.perf_counter
        while lines and (left := end - clock()) > 0:
            for fd, _ in poll(left):
                line = lines[fd]
                chunk = line.socket.recv(1 << 20)
                if not chunk:
                    raise RuntimeError("the server closed the connection")
                line.data = line.data + chunk if line.data else chunk
                found = answer(line.data)
                if found is None:
                    continue
                now = clock()
                latencies.append(now - line.sent)
                messages += line.moves
                line.data = b""
                if found[0] >= 300:
                    raise RuntimeError(f"status {found[0]}: {found[1][:500]!r}")
                self._next(fd, line, found[1])
        return messages, latencies, now

    def _next(self, fd: int, line: _Line, body: bytes | None) -> None:
        try:
            content, line.moves = next(line.exchange) if body is None else line.exchange.send(body)
        except StopIteration:
            self._poll.unregister(fd)
            del self._lines[fd]
            line.socket.close()
            return
        line.sent = time.perf_counter()
        line.socket.sendall(content)
