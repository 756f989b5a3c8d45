"""Checks that a database can be used."""

from __future__ import annotations

from trunkline.db.pool import Connection


async def read_schema(conn: Connection) -> None:
    """Read one row of the schema. Raises if the schema is not installed."""
    await conn.execute("select 1 from trunkline.migrations limit 1")
