"""The SQL tests run on the oldest and the newest Postgres that we support."""

from __future__ import annotations

import pytest


@pytest.fixture(params=[18, 15], ids=lambda version: f"pg{version}")
def pg_version(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version
