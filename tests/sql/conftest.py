"""The SQL tests run on the oldest and the newest Postgres that we support."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.conftest import Connection, Servers, _database
from tests.support.postgres import VERSIONS


def _name(version: int) -> str:
    return f"pg{version}"


@pytest.fixture(params=VERSIONS, ids=_name)
def pg_version(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version


@pytest.fixture(scope="module", params=VERSIONS, ids=_name)
def shared_conn(servers: Servers, request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection to one migrated database for a whole file: only for tests that must not change anything."""
    for url in _database(servers, request.param, "tl_template"):
        with psycopg.connect(url, autocommit=True) as conn:
            yield conn
