"""Procrastinate: a worker with many concurrent jobs, and a pool large enough for them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Self

import procrastinate
from procrastinate.types import JSONDict

from bench.solo.contract import Seen

# Procrastinate fetches one job per statement; concurrency applies only to running and finishing jobs.
_CONCURRENCY = 20


def make(url: str) -> Procrastinate:
    return Procrastinate(url)


class Procrastinate:
    unfinished = "select count(*) from procrastinate_jobs where status <> 'succeeded'"

    def __init__(self, url: str) -> None:
        logging.getLogger("procrastinate").setLevel(logging.WARNING)
        self._seen: Seen = lambda _: None
        connector = procrastinate.PsycopgConnector(conninfo=url, min_size=10, max_size=_CONCURRENCY + 2)
        self._app = procrastinate.App(connector=connector)

        @self._app.task(name="noop")
        async def noop(body: str) -> None:
            self._seen(1)

        self._task = noop

    async def __aenter__(self) -> Self:
        await self._app.open_async()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._app.close_async()

    async def install(self) -> None:
        await self._app.schema_manager.apply_schema_async()

    async def add(self, body: dict[str, str]) -> None:
        await self._task.defer_async(**body)

    async def add_many(self, bodies: Sequence[dict[str, str]]) -> None:
        jobs: list[JSONDict] = [{**body} for body in bodies]
        await self._task.batch_defer_async(*jobs)

    async def work(self, seen: Seen) -> None:
        self._seen = seen
        await self._app.run_worker_async(concurrency=_CONCURRENCY, install_signal_handlers=False)
