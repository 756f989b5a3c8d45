"""A real HTTP server that responds as a test specifies, and records every request."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from aiohttp import web

T = TypeVar("T")


class Seen(NamedTuple):
    """A request as it came."""

    at: float
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


class Receiver:
    """A server in a separate thread. `answer(seen)` makes the response: a status, a response, or a bad way (below)."""

    def __init__(self, answer: Callable[[Seen], Any] | None = None) -> None:
        self.answer = answer or (lambda seen: 200)
        self.seen: list[Seen] = []
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def start(self) -> Receiver:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def stop(self) -> None:
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """In the server's own event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def wait(self, condition: Callable[[list[Seen]], bool], seconds: float = 60) -> list[Seen]:
        """Until what was seen fulfils the condition."""
        until = time.monotonic() + seconds
        with self._changed:
            while not condition(self.seen):
                left = until - time.monotonic()
                assert left > 0, f"after {seconds} s only {len(self.seen)} requests: {self.seen[-3:]}"
                self._changed.wait(left)
            return list(self.seen)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._ready.set()
        self._loop.run_forever()

    async def _serve(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        # what hangs is ended when the server is
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def _end(self) -> None:
        await self._runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        seen = Seen(time.monotonic(), request.path, {k.lower(): v for k, v in request.headers.items()}, body)
        with self._changed:
            self.seen.append(seen)
            self._changed.notify_all()
        made = self.answer(seen)
        if asyncio.iscoroutine(made):
            made = await made
        if isinstance(made, int):
            return web.Response(status=made, text=f"status {made}")
        if made == "hang":
            await asyncio.sleep(3600)
        if request.transport is None:
            # the sender is gone already
            return web.Response()
        if made == "reset":
            sock = request.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.transport.abort()
            return web.Response()
        if made == "half":
            response = web.StreamResponse(status=200, headers={"content-length": "1000"})
            await response.prepare(request)
            await response.write(b"x" * 10)
            request.transport.close()
            return response
        return made


@contextmanager
def receiving(answer: Callable[[Seen], Any] | None = None) -> Iterator[Receiver]:
    receiver = Receiver(answer).start()
    try:
        yield receiver
    finally:
        receiver.stop()
