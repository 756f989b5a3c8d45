"""What psycopg says about connections of our pools: callers receive the error, so the log does not repeat it."""

from __future__ import annotations

import logging

import pytest

from trunkline.db import pool
from trunkline.db.sync import pool as sync_pool


class Abandoned(pool._Pooled):
    """A connection of which only the class matters."""

    def __init__(self) -> None:
        pass

    def __del__(self) -> None:
        pass


class AbandonedInThread(sync_pool._Pooled):
    def __init__(self) -> None:
        pass

    def __del__(self) -> None:
        pass


@pytest.mark.parametrize("logger", ["psycopg", "psycopg.pool"])
@pytest.mark.parametrize(("conn", "shown"), [(Abandoned(), False), (AbandonedInThread(), False), ("another", True)])
def test_only_connections_of_others_are_named(logger: str, conn: object, shown: bool) -> None:
    text = "error ignored in rollback on %s: %s"
    record = logging.LogRecord(logger, logging.WARNING, "", 0, text, (conn, "another command is in progress"), None)
    assert bool(logging.getLogger(logger).filter(record)) is shown
