"""The identity of the current transaction."""

from __future__ import annotations

from trunkline.db.pool import Connection
from trunkline.db.query import fetch_value


async def transaction_number(conn: Connection) -> str:
    """Return the id of the current transaction, to detect later whether it is still the same one."""
    return str(await fetch_value(conn, "select pg_current_xact_id()::text"))
