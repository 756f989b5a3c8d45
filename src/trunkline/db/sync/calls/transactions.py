# Written by tools/unasync.py from src/trunkline/db/calls/transactions.py; change that file, not this one.
"""The identity of the current transaction."""

from __future__ import annotations

from trunkline.db.sync.pool import Connection
from trunkline.db.sync.query import fetch_value


def transaction_number(conn: Connection) -> str:
    """Return the id of the current transaction, to detect later whether it is still the same one."""
    return str(fetch_value(conn, "select pg_current_xact_id()::text"))
