"""What psycopg says about connections of our pools: callers receive the error, so the log does not repeat it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from trunkline.db import pool
from trunkline.db.sync import pool as sync_pool


def abandoned(kind: type[Any]) -> Any:
    """A connection of which only the class matters."""
    return type("Abandoned", (kind,), {"__init__": lambda self: None, "__del__": lambda self: None})()


CONNECTIONS = [(abandoned(pool._Pooled), False), (abandoned(sync_pool._Pooled), False), ("another", True)]


@pytest.mark.parametrize("logger", ["psycopg", "psycopg.pool"])
@pytest.mark.parametrize(("conn", "shown"), CONNECTIONS)
def test_only_connections_of_others_are_named(logger: str, conn: object, shown: bool) -> None:
    text = "error ignored in rollback on %s: %s"
    record = logging.LogRecord(logger, logging.WARNING, "", 0, text, (conn, "another command is in progress"), None)
    assert bool(logging.getLogger(logger).filter(record)) is shown
