"""Both clients, one after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support import both_clients


@pytest.fixture(params=["async", "sync"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def mq(kind: str, db: str) -> AsyncIterator[Any]:
    """A client on the test's database: async, or the sync twin used as if it were."""
    async with both_clients.client(kind, db) as client:
        yield client
