"""Upgrades databases that were created before the baseline, from the 20 migrations that it replaces.

A database at version 20 already has the tables of the baseline, so only its records change. Older ones are refused.
"""

from __future__ import annotations

from typing import Any

import psycopg

from trunkline.errors import SchemaVersion
from trunkline.sql.catalog import SqlFile

NUMBER = 20
# Of 0020_many_queues.sql, the last migration before the baseline (git revision d031828).
LAST_CHECKSUM = "525fc6569e42c9254388e87ba524dadac0091ba8a044cb5ee22f9ca10620fb8e"


def is_before(conn: psycopg.Connection[Any]) -> bool:
    """Return True if the database has the 20 migrations that the baseline replaces.

    Raises SchemaVersion if it has only some of them.
    """
    rows = conn.execute("select version, checksum from trunkline.migrations where version <= %s", (NUMBER,)).fetchall()
    recorded: dict[int, str] = dict(rows)
    if recorded and NUMBER not in recorded:
        raise SchemaVersion(
            f"schema version must be at least {NUMBER} to be upgraded, got {max(recorded)}",
            hint='Run "trunkline migrate" of git revision d031828 first. Or process all messages, drop schema trunkline'
            " and install again.",
        )
    return recorded.get(NUMBER) == LAST_CHECKSUM


def adopt(conn: psycopg.Connection[Any], file: SqlFile) -> None:
    """Record the baseline in place of the migrations that it replaces."""
    conn.execute("delete from trunkline.migrations where version < %s", (NUMBER,))
    conn.execute(
        "update trunkline.migrations set name = %s, checksum = %s where version = %s", (file.name, file.checksum, NUMBER)
    )
