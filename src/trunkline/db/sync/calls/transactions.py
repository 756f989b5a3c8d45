# Written by tools/unasync.py from src/trunkline/db/calls/transactions.py; change that file, not this one.
"""The current transaction: its identity and its time limits."""

from __future__ import annotations

from trunkline.db.sync.pool import Connection
from trunkline.db.sync.query import fetch_rows, fetch_value


def transaction_number(conn: Connection) -> str:
    """Return the id of the current transaction, to detect later whether it is still the same one."""
    return str(fetch_value(conn, "select pg_current_xact_id()::text"))


def limit_transaction(conn: Connection, *, lock_seconds: float, statement_seconds: float) -> None:
    """Set limits for this transaction only: a pooler may share the session."""
    fetch_rows(
        conn,
        "select set_config('lock_timeout', %b, true), set_config('statement_timeout', %b, true)",
        (f"{lock_seconds * 1000:.0f}", f"{statement_seconds * 1000:.0f}"),
    )
