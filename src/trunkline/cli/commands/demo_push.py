"""Webhooks and pipelines of `trunkline demo`: receivers in this process that accept, fail sometimes, or always fail."""

from __future__ import annotations

import asyncio
import importlib.util
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from trunkline.errors import AlreadyExists

if TYPE_CHECKING:
    from trunkline import Client

Receiver = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_SHARES = {"shop": 0.0, "erp": 0.3, "crm": 1.0}
"""The share of requests that each receiver refuses with 503."""
_PIPELINE = "events-to-search"
_MOST = 1_000_000


class Webhooks:
    """Endpoints whose receivers run here, with a dispatcher that sends the orders to them."""

    def __init__(self, mq: Client, url: str) -> None:
        self._mq = mq
        self._url = url
        # a fixed seed makes each demo the same
        self._random = random.Random(7)  # noqa: S311  # nosec B311
        self._servers: list[asyncio.Server] = []
        self._stop = asyncio.Event()
        self._dispatcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start receivers and dispatcher, and bind a queue of orders to each endpoint. Needs the packages for webhooks."""
        if importlib.util.find_spec("aiohttp") is None or importlib.util.find_spec("cryptography") is None:
            return
        from trunkline.push.dispatcher import Dispatcher

        there = {(each.queue, each.name) for each in await self._mq.subscriptions.list()}
        for name, share in _SHARES.items():
            server = await asyncio.start_server(self._receiver(share), "127.0.0.1", 0, limit=_MOST)
            self._servers.append(server)
            address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hooks"
            try:
                await self._mq.endpoints.create(name, address, max_in_flight=4, timeout="2s")
            except AlreadyExists:
                await self._mq.endpoints.alter(name, url=address)
            queue = f"hooks.{name}"
            await self._mq.queues.ensure(queue, max_attempts=5, backoff_base="1s", backoff_cap="20s")
            if (queue, "orders") not in there:
                await self._mq.subscriptions.add(queue, "orders", pattern="order.paid.#")
            await self._mq.endpoints.bind(queue, name)
        dispatcher = Dispatcher(self._url, allow=("127.0.0.0/8",), max_connections=2, grace=2.0)
        self._dispatcher = asyncio.create_task(dispatcher.run(self._stop), name="trunkline demo dispatcher")

    def _receiver(self, share: float) -> Receiver:
        """Return a receiver that reads a request and returns 200, or 503 for this share of the requests."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = head.partition(b"content-length:")[2].partition(b"\r\n")[0].strip()
                await reader.readexactly(min(int(size or b"0"), _MOST))
                failed = self._random.random() < share
                body = b"the database of this shop is down" if failed else b""
                status = b"503 Service Unavailable" if failed else b"200 OK"
                writer.write(b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
                await writer.drain()
            writer.close()

        return answer

    async def close(self) -> None:
        """Stop the dispatcher, then the receivers."""
        self._stop.set()
        if self._dispatcher is not None:
            await self._dispatcher
        for server in self._servers:
            server.close()


class Pipelines:
    """A pipeline that reads events for a search index and reports its progress, beside one that has failed."""

    def __init__(self, mq: Client, url: str) -> None:
        self._mq = mq
        self._url = url
        self._rows = 0
        self._batch = 0

    async def start(self) -> None:
        from trunkline.spark.progress import report

        error = "[PATH_NOT_FOUND] Path does not exist: file:/lake/orders"
        await asyncio.to_thread(report, self._url, "orders-to-lake", "python", state="failed", error=error)

    async def round(self) -> None:
        """Read a batch as the group `search` and report it."""
        from trunkline.spark.progress import report

        loop = asyncio.get_running_loop()
        began = loop.time()
        batch = await self._mq.fetch("events", "search", member=_PIPELINE, limit=2, lease="5s")
        if batch is None:
            return
        count = len(batch)
        fetched = loop.time()
        await batch.commit()
        ended = loop.time()
        self._batch += 1
        self._rows += count
        lag = sum(row.lag for row in (await self._mq.stats()).groups if (row.topic, row.group) == ("events", "search"))
        times = {"triggerExecution": ended - began, "getBatch": fetched - began, "commitOffsets": ended - fetched}
        await asyncio.to_thread(
            report,
            self._url,
            _PIPELINE,
            "python",
            batch=self._batch,
            rows=self._rows,
            rows_per_second=count / max(ended - began, 0.001),
            lag=lag,
            detail={"durations": {name: max(1, round(1000 * value)) for name, value in times.items()}},
        )
