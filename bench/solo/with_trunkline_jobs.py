"""Trunkline jobs: typed functions, run by a worker and settled individually."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

from bench.solo.contract import Seen
from trunkline.jobs import App, Limit, Worker

QUEUE = "jobs"
_CONCURRENCY = 100
LIMIT = "bench"


def make(url: str) -> TrunklineJobs:
    return TrunklineJobs(url)


class TrunklineJobs:
    unfinished = f"select ready + delayed + leased + dead from trunkline.queue_stats('{QUEUE}')"

    def __init__(self, url: str, limits: Sequence[Limit] = ()) -> None:
        self._app = App(url, queue=QUEUE)
        self._seen: Seen = lambda _: None

        @self._app.job(limits=limits)
        async def noop(body: str) -> None:
            self._seen(1)

        self._noop = noop

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._app.close()

    async def install(self) -> None:
        await self._app.setup()

    async def add(self, body: dict[str, str]) -> None:
        await self._noop.enqueue(**body)

    async def add_many(self, bodies: Sequence[dict[str, str]]) -> None:
        await self._app.enqueue_many(self._noop.bind(**body) for body in bodies)

    async def work(self, seen: Seen) -> None:
        self._seen = seen
        async with Worker(self._app, queues={QUEUE: _CONCURRENCY}):
            await asyncio.Event().wait()
