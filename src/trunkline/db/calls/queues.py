"""Typed calls of queues.sql, claim.sql and settle.sql: queues, claims and settlements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from trunkline.codec import decoder, error_text
from trunkline.db.calls.list_records import ConsumerRow, DelayedRow
from trunkline.db.calls.statements import FIELDS, message_fields, named_arguments, within_bytes
from trunkline.db.pool import Connection
from trunkline.db.query import fetch_records, fetch_rows, fetch_value
from trunkline.receipt import of_one_lease
from trunkline.resources import NewQueueSettings, sql_types
from trunkline.types import Queue, ReadyMessage, Result

S = TypeVar("S")


async def create_queue(conn: Connection, name: str, **settings: Any) -> Queue:
    named, values = named_arguments(settings, sql_types(NewQueueSettings))
    await fetch_rows(conn, f"select from trunkline.create_queue(%b{named})", (name, *values))
    return await get_queue(conn, name)


async def alter_queue(conn: Connection, name: str, **settings: Any) -> Queue:
    named, values = named_arguments(settings, sql_types(NewQueueSettings))
    await fetch_rows(conn, f"select from trunkline.alter_queue(%b{named})", (name, *values))
    return await get_queue(conn, name)


async def ensure_queue(conn: Connection, name: str, **settings: Any) -> Queue:
    named, values = named_arguments(settings, sql_types(NewQueueSettings))
    await fetch_rows(conn, f"select from trunkline.ensure_queue(%b{named})", (name, *values))
    return await get_queue(conn, name)


async def get_queue(conn: Connection, name: str) -> Queue:
    return (await fetch_records(conn, Queue, "select * from trunkline.get_queue(%b)", (name,)))[0]


async def list_queues(
    conn: Connection, *, after: str | None = None, limit: int | None = None, names: Sequence[str] | None = None
) -> list[Queue]:
    query = "select * from trunkline.list_queues(%b::text, %b::int, %b::text[])"
    return await fetch_records(conn, Queue, query, (after, limit, None if names is None else list(names)))


async def delete_queue(conn: Connection, name: str, *, force: bool = False) -> None:
    await fetch_rows(conn, "select trunkline.delete_queue(%b, %b)", (name, force))


async def pause_queue(conn: Connection, name: str, *, paused: bool) -> None:
    verb = "pause_queue" if paused else "resume_queue"
    await fetch_rows(conn, f"select trunkline.{verb}(%b)", (name,))


async def purge_queue(conn: Connection, name: str) -> int:
    """Drop one bounded step of undelivered messages. Return their number."""
    return int(await fetch_value(conn, "select trunkline.purge_queue(%b)", (name,)))


async def trim_queue(conn: Connection, name: str) -> int:
    """Remove finished messages. Return the number of segments and shared-store partitions emptied."""
    return int(await fetch_value(conn, "select trunkline.trim_queue(%b)", (name,)))


async def peek_queue(
    conn: Connection, queue: str, *, limit: int = 10, max_bytes: int | None = None, type: Any = None
) -> list[ReadyMessage[Any]]:
    """Return the next messages: retries by due time, then new ones. Claims nothing and counts no attempt."""
    fields, function = f"{FIELDS}, topic, attempt, due_at, error", "peek_queue(%b, %b::int)"
    if max_bytes is None:
        rows = await fetch_rows(conn, f"select {fields} from trunkline.{function}", (queue, limit))  # noqa: S608
    else:
        rows = await fetch_rows(conn, within_bytes(fields, function), (queue, limit, max_bytes))
    decode = decoder(type)
    return [
        ReadyMessage(**message_fields(row), topic=row[11], attempt=row[12], due_at=row[13], error=row[14], _decode=decode)
        for row in rows
    ]


async def claim(
    conn: Connection,
    make: Callable[..., S],
    queue: str,
    *,
    limit: int = 1,
    lease: timedelta | None = None,
    labels: Sequence[str] | None = None,
    consumer: str | None = None,
    type: Any = None,
) -> list[S]:
    """Claim messages of a queue with a relaxed commit, because it is always a separate transaction."""
    rows = await fetch_rows(
        conn,
        f"select {FIELDS}, receipt, attempt, deadline, topic"  # noqa: S608
        " from trunkline.claim(%b, %b::int, %b::interval, %b::text[], %b::text, true)",
        (queue, limit, lease, None if labels is None else list(labels), consumer),
    )
    decode = decoder(type)
    return [
        make(
            partition=row[0],
            offset=row[1],
            id=row[2],
            key=row[3],
            routing_key=row[4],
            label=row[5],
            headers=row[6],
            payload=row[7],
            content_type=row[8],
            occurred_at=row[9],
            created_at=row[10],
            receipt=row[11],
            attempt=row[12],
            deadline=row[13],
            topic=row[14],
            _decode=decode,
        )
        for row in rows
    ]


async def ack(conn: Connection, receipts: Sequence[str]) -> list[Result]:
    # receipts of several leases, and texts that are none, which the function rejects, take the general path
    if (known := of_one_lease(receipts)) is not None:
        results = await fetch_value(conn, "select trunkline.ack_lease(%b, %b::bigint[])", known)
        return ["done"] * len(receipts) if results is None else results
    rows = await fetch_rows(conn, "select result from trunkline.ack(%b::text[])", (list(receipts),))
    return [row[0] for row in rows]


async def nack(
    conn: Connection, receipts: Sequence[str], *, delay: timedelta | None = None, error: str | None = None
) -> list[Result]:
    rows = await fetch_rows(
        conn,
        "select result from trunkline.nack(%b::text[], %b::interval, %b::text)",
        (list(receipts), delay, error_text(error)),
    )
    return [row[0] for row in rows]


async def bury(conn: Connection, receipts: Sequence[str], *, error: str | None = None) -> list[Result]:
    values = (list(receipts), error_text(error))
    rows = await fetch_rows(conn, "select result from trunkline.bury(%b::text[], %b::text)", values)
    return [row[0] for row in rows]


async def release(conn: Connection, receipts: Sequence[str]) -> list[Result]:
    rows = await fetch_rows(conn, "select result from trunkline.release(%b::text[])", (list(receipts),))
    return [row[0] for row in rows]


async def extend(conn: Connection, receipts: Sequence[str], *, lease: timedelta) -> list[Result]:
    rows = await fetch_rows(conn, "select result from trunkline.extend(%b::text[], %b)", (list(receipts), lease))
    return [row[0] for row in rows]


async def queues_of_cursors(conn: Connection, cursors: Sequence[int]) -> dict[int, str]:
    """Return the queue of each cursor; receipts contain the number of theirs. Deleted cursors are left out."""
    rows = await fetch_rows(conn, "select cursor_id, queue from trunkline._queues_of_cursors(%b::int[])", (list(cursors),))
    return {row[0]: row[1] for row in rows}


# Lists


async def list_delayed(
    conn: Connection, *, queue: str | None = None, topic: str | None = None, after: str | None = None, limit: int = 100
) -> list[DelayedRow]:
    """Return returned and delayed messages of a queue or topic, after the position of a row."""
    query = "select * from trunkline.list_delayed(%b::text, %b::text, %b::text, %b::int)"
    return await fetch_records(conn, DelayedRow, query, (queue, topic, after, limit))


async def list_consumers(conn: Connection, queue: str, *, since: timedelta, limit: int = 100) -> list[ConsumerRow]:
    query = "select * from trunkline.list_consumers(%b, %b, %b::int)"
    return await fetch_records(conn, ConsumerRow, query, (queue, since, limit))
