"""Databases that were made before the baseline, when the schema had 20 migrations and no release.

One at version 20 has the tables of the baseline: only its records change. An older one is refused.
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
    """Return whether the database has the 20 migrations that the baseline replaces.

    Raises SchemaVersion if it has only some of them.
    """
    rows = conn.execute("select version, checksum from trunkline.migrations where version <= %s", (NUMBER,)).fetchall()
    recorded: dict[int, str] = dict(rows)
    if recorded and NUMBER not in recorded:
        raise SchemaVersion(
            f"cannot upgrade a schema of version {max(recorded)}: this program upgrades from version {NUMBER}",
            hint="run trunkline migrate of git revision d031828 first; or process all messages, drop schema trunkline"
            " and install again",
        )
    return recorded.get(NUMBER) == LAST_CHECKSUM


def adopt(conn: psycopg.Connection[Any], file: SqlFile) -> None:
    """Record the baseline in place of the migrations that it replaces."""
    conn.execute("delete from trunkline.migrations where version < %s", (NUMBER,))
    conn.execute(
        "update trunkline.migrations set name = %s, checksum = %s where version = %s", (file.name, file.checksum, NUMBER)
    )
