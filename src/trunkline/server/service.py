"""The state of a worker: client, upkeep, counters. Created at start, drained at stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

from litestar import Litestar

from trunkline import Client, upkeep
from trunkline.db import calls
from trunkline.db.calls import health
from trunkline.errors import DatabaseUnavailable
from trunkline.server.auth import Auth
from trunkline.server.claiming import Acker, Claimer, cursor_of
from trunkline.server.config import STOP_SIGNAL, Config
from trunkline.server.console.state import Console
from trunkline.server.limits import LimitedPool
from trunkline.server.long_poll import LongPoll
from trunkline.server.metrics import Metrics
from trunkline.server.metrics_server import serve_metrics
from trunkline.server.problems import busy
from trunkline.server.timeouts import TimeoutGroup
from trunkline.server.topic_tail import TopicTails
from trunkline.types import NewMessage, Published

log = logging.getLogger("trunkline.server")
_PATIENCE_SECONDS = 3.0
_GARBAGE = 10_000


class Service:
    """A running worker."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.mq = Client(config.database_url, max_connections=config.max_connections)
        self.mq.session.pool = LimitedPool(config)
        self.claimer = Claimer(self.mq, self.spawn, config.max_response_bytes)
        self.acker = Acker(self.mq)
        self.long_poll = LongPoll(self.mq, self.claimer)
        self.topic_tails = TopicTails(self.mq, config.max_response_bytes)
        self.metrics = Metrics()
        self.auth = Auth(config, self.mq, self.metrics.refused)
        self.console = Console(config, self.mq, self.auth) if config.console else None
        self.timeouts = TimeoutGroup(config.body_seconds)
        self.cursors: dict[int, str] = {}
        self.stopping = asyncio.Event()
        self.examining = asyncio.Lock()
        """Held by the checks of the database: they run one at a time, on a separate connection."""
        self.under_way = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._publishing = 0
        self._publishing_bytes = 0
        self._streaming = 0

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run work that must finish even if its request has ended."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @contextmanager
    def publishing(self, size: int) -> Iterator[None]:
        """Reserve room for a publish, or raise 503: waiting publishes must not exhaust memory."""
        config = self.config
        if self._publishing >= config.max_publishing or (
            self._publishing and self._publishing_bytes + size > config.max_publishing_bytes
        ):
            raise busy("too many concurrent publishes; nothing was stored")
        self._publishing += 1
        self._publishing_bytes += size
        try:
            yield
        finally:
            self._publishing -= 1
            self._publishing_bytes -= size

    async def publish(self, kind: str, name: str, message: NewMessage) -> Published:
        """Publish a message to a topic or, with the kind inbox, to a queue. Concurrent publishes share a statement."""
        with self.publishing(len(message.body)):
            published = await self.mq.session.publisher.publish(kind, name, message)
        self.metrics.published(1)
        return published

    async def check_database(self) -> None:
        """Query the database, without the pool's long retries: a health check must fail fast."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS), self.mq.connection() as conn:
                await health.is_installed(conn)
        except TimeoutError:
            raise DatabaseUnavailable("the database does not respond") from None

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Reserve room for a long stream, or raise 503: streams must leave connections for other requests."""
        if self._streaming >= max(1, self.config.max_connections // 2):
            raise busy("too many concurrent streams; nothing was stored")
        self._streaming += 1
        try:
            yield
        finally:
            self._streaming -= 1

    async def queue_of(self, receipts: list[str]) -> list[str | None]:
        """Return the queue of each receipt, or None if it is not a receipt of an existing queue."""
        numbers = [cursor_of(receipt) for receipt in receipts]
        missing = {number for number in numbers if number is not None and number not in self.cursors}
        if missing:
            async with self.mq.connection() as conn:
                self.cursors.update(await calls.queues_of_cursors(conn, sorted(missing)))
        return [None if number is None else self.cursors.get(number) for number in numbers]

    async def keep_up(self) -> None:
        """Run upkeep until the worker stops."""
        assert self.config.upkeep_seconds is not None  # noqa: S101
        interval = timedelta(seconds=self.config.upkeep_seconds)
        await upkeep.run(self.config.database_url, interval, self.stopping, log.warning)

    def stop(self) -> None:
        """Accept no more work. Requests that wait for messages return empty at once."""
        self.stopping.set()
        self.long_poll.dismiss()
        self.topic_tails.ring()
        if self.console is not None:
            self.console.close()

    async def drain(self) -> None:
        """Stop, and give requests in flight time to finish."""
        self.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.drain_seconds):
                while self.under_way or self._tasks:
                    await asyncio.sleep(0.02)
        self.auth.close()


def _spare_collections() -> None:
    """Exempt loaded modules from garbage collection, which took 9 % of a publish profile."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE, 10, 20)


@asynccontextmanager
async def running(app: Litestar) -> AsyncIterator[None]:
    """Run the service for the lifetime of a worker."""
    service = Service(app.state.config)
    app.state.service = service
    keeper: asyncio.Task[Any] | None = None
    with contextlib.suppress(RuntimeError, NotImplementedError, ValueError):  # not in the main thread
        asyncio.get_running_loop().add_signal_handler(STOP_SIGNAL, service.stop)
    async with service.mq:
        if service.config.upkeep_seconds is not None:
            keeper = asyncio.create_task(service.keep_up(), name="trunkline upkeep")
        scraped = await serve_metrics(service) if service.config.metrics_port is not None else None
        _spare_collections()
        try:
            yield
        finally:
            await service.drain()
            if scraped is not None:
                scraped.close()
            if keeper is not None:
                keeper.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await keeper
