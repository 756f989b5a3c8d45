"""An app on the test's database, and ways to wait for what its workers do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from trunkline.jobs import App
from trunkline.jobs.backoff import Backoff


@pytest.fixture
async def app(db: str) -> AsyncIterator[App]:
    app = App(db, backoff=Backoff("50ms", cap="1s"))
    yield app
    await app.close()


async def until(condition: Callable[[], Any], *, seconds: float = 30.0) -> Any:
    """Wait until something is so; plain or awaited. What never happens fails."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        found = condition()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        assert asyncio.get_running_loop().time() < end, "it did not happen"
        await asyncio.sleep(0.01)


async def stats(app: App, queue: str = "default") -> Any:
    return next(row for row in (await app.client.stats()).queues if row.queue == queue)


async def dead(app: App, queue: str = "default") -> list[Any]:
    """The dead letters, once there is one."""
    found: list[Any] = await until(lambda: app.client.dead.list(queue))
    return found
