"""PgQueuer with several queue managers in one process, as in its own benchmark, and with larger batches.

Uses asyncpg, the driver that PgQueuer recommends, if it is installed; else psycopg.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Self

import msgspec
import psycopg
from pgqueuer import PgQueuer
from pgqueuer.db import Driver, PsycopgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.solo.contract import Seen

_MANAGERS = 4
_BATCH = 500


def make(url: str) -> Queuer:
    return Queuer(url)


class Queuer:
    unfinished = "select count(*) from pgqueuer"

    def __init__(self, url: str) -> None:
        logging.getLogger("pgqueuer").setLevel(logging.WARNING)
        self._url = url
        self._opened: list[Any] = []

    async def __aenter__(self) -> Self:
        # A driver has one connection and runs one call at a time. Ten of them match the pool of the other contestants.
        self._queries: asyncio.Queue[Queries] = asyncio.Queue()
        for _ in range(10):
            self._queries.put_nowait(Queries(await self._driver()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for conn in self._opened:
            await conn.close()

    async def _driver(self) -> Driver:
        if find_spec("asyncpg"):
            import asyncpg  # type: ignore[import-not-found,import-untyped,unused-ignore]
            from pgqueuer.db import AsyncpgDriver

            self._opened.append(await asyncpg.connect(self._url))
            return AsyncpgDriver(self._opened[-1])
        self._opened.append(await psycopg.AsyncConnection.connect(self._url, autocommit=True))
        return PsycopgDriver(self._opened[-1])

    async def install(self) -> None:
        queries = await self._queries.get()
        await queries.install()
        self._queries.put_nowait(queries)

    async def add(self, body: dict[str, str]) -> None:
        queries = await self._queries.get()
        await queries.enqueue("noop", msgspec.json.encode(body))
        self._queries.put_nowait(queries)

    async def add_many(self, bodies: Sequence[dict[str, str]]) -> None:
        queries = await self._queries.get()
        payloads: list[bytes | None] = [msgspec.json.encode(body) for body in bodies]
        await queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))
        self._queries.put_nowait(queries)

    async def work(self, seen: Seen) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(_MANAGERS):
                manager = PgQueuer(await self._driver())

                @manager.entrypoint("noop")
                async def noop(_: Job) -> None:
                    seen(1)

                group.create_task(manager.run(batch_size=_BATCH))
