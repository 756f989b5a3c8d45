"""The features are tested on the oldest and the newest Postgres that we support."""

from __future__ import annotations

import pytest

from tests.support.postgres import VERSIONS


def _name(version: int) -> str:
    return f"pg{version}"


@pytest.fixture(params=VERSIONS, ids=_name)
def pg_version(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version
