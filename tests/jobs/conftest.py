"""An app on the test's database, and ways to wait for what its workers do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.waiting import until
from trunkline.jobs import App
from trunkline.jobs.backoff import Backoff


@pytest.fixture
async def app(db: str) -> AsyncIterator[App]:
    app = App(db, backoff=Backoff("50ms", cap="1s"))
    yield app
    await app.close()


async def stats(app: App, queue: str = "default") -> Any:
    return next(row for row in (await app.client.stats()).queues if row.queue == queue)


async def dead(app: App, queue: str = "default") -> list[Any]:
    """The dead letters, once there is one."""
    found: list[Any] = await until(lambda: app.client.dead.list(queue))
    return found
