"""A server process per module with a separate database, and clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.conftest import Servers, drop_database
from tests.http.servers import HttpServer, serving


@pytest.fixture(scope="module")
def module_db(servers: Servers, request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a migrated database of the module's own."""
    url = servers.url(18)
    name = "http_" + request.module.__name__.rpartition(".")[2]
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"create database {name} template tl_template strategy file_copy")
    yield make_conninfo(url, dbname=name)
    drop_database(url, name)


@pytest.fixture(scope="module")
def server(module_db: str) -> Iterator[HttpServer]:
    with serving(module_db) as running:
        yield running


@pytest.fixture
def http(server: HttpServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=40) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    text: Any = request.node.name
    return "".join(c if c.isalnum() else "-" for c in str(text))[:80]
