"""Calls of the procedures that commit by themselves: sequencing and upkeep."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import psycopg

from trunkline.db.pool import Connection


async def sequence(conn: Connection, *, queues: Sequence[str] = (), topics: Sequence[str] = ()) -> None:
    """Sequence committed messages of these queues and topics, and return messages that are due.

    Runs in a separate transaction. A claim or fetch that found nothing may find messages afterwards.
    """
    await conn.execute("call trunkline.sequence(%b::text[], %b::text[])", (list(queues), list(topics)))


async def sequence_before_reading(conn: Connection, *, queue: str | None = None, topic: str | None = None) -> None:
    """Sequence a queue or topic (neither: some hundred of all) before reading, in case no process runs upkeep.

    Reads do not assign offsets themselves. Skipped inside a transaction, or if this role may not sequence.
    """
    if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        return
    names = (None, None) if queue is None and topic is None else ([queue] if queue else [], [topic] if topic else [])
    with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable):
        await conn.execute("call trunkline.sequence(%b::text[], %b::text[])", names)


async def upkeep(conn: Connection) -> None:
    """Run the upkeep tasks that are due. Must not run inside a transaction: each task commits."""
    await conn.execute("call trunkline.upkeep()")
