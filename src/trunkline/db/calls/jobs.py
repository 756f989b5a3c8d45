"""One typed call per SQL function of jobs.sql, by the same rules as the other calls."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from trunkline.codec import EncodedMessage, error_text, to_json
from trunkline.db.calls.job_records import JobEnd, JobResult, JobRow, JobView, LimitRow, WorkerRow
from trunkline.db.pool import Connection
from trunkline.db.query import fetch_records, fetch_rows, fetch_value
from trunkline.types import Published, Result


async def ack_lease(conn: Connection, lease: str, offsets: Sequence[int]) -> list[Result]:
    results = await fetch_value(conn, "select trunkline.ack_lease(%b, %b::bigint[])", (lease, list(offsets)))
    return ["done"] * len(offsets) if results is None else results


async def settle_jobs(conn: Connection, verb: str, ends: Sequence[JobEnd], *, error: str | None = None) -> list[Result]:
    """Settle jobs, store their results, free their unique keys and start the jobs that wait for them."""
    results: list[Result] = await fetch_value(
        conn,
        "select trunkline.settle_jobs(%b, %b::text[], %b::uuid[], %b::bytea[], %b::bool[], %b::text[], %b::text)",
        (
            verb,
            [end.receipt for end in ends],
            [end.id for end in ends],
            [end.result for end in ends],
            [end.tracked for end in ends],
            [end.unique for end in ends],
            error_text(error),
        ),
    )
    return results


async def snooze(conn: Connection, receipts: Sequence[str], *, delay: timedelta) -> list[Result]:
    rows = await fetch_rows(conn, "select result from trunkline.snooze(%b::text[], %b::interval)", (list(receipts), delay))
    return [row[0] for row in rows]


async def lost_before(conn: Connection, receipts: Sequence[str]) -> list[bool]:
    """Return, for each delivery, whether its previous attempt ended without being settled."""
    lost: list[bool] = await fetch_value(conn, "select trunkline.lost_before(%b::text[])", (list(receipts),))
    return lost


async def store_result(conn: Connection, id: UUID, result: bytes | None) -> None:
    await fetch_rows(conn, "select trunkline.store_result(%b, %b::bytea)", (id, result))


async def job_results(conn: Connection, ids: Sequence[UUID]) -> list[JobResult]:
    return await fetch_records(conn, JobResult, "select * from trunkline.job_results(%b::uuid[])", (list(ids),))


# Enqueuing


async def enqueue_unique(
    conn: Connection, queue: str, message: EncodedMessage, *, unique: str, hold: timedelta
) -> Published:
    rows = await fetch_rows(
        conn,
        "select id, duplicate from trunkline.enqueue_unique(%b, %b, %b, %b, %b::text, %b::jsonb, %b::uuid, %b::interval,"
        " %b::timestamptz, %b::int, %b)",
        (
            queue,
            unique,
            message.payload,
            message.label,
            message.key,
            message.headers,
            message.id,
            message.delay,
            message.deliver_at,
            message.priority,
            hold,
        ),
    )
    return Published(*rows[0])


async def enqueue_after(conn: Connection, queue: str, message: EncodedMessage, *, after: Sequence[UUID]) -> Published:
    rows = await fetch_rows(
        conn,
        "select id, duplicate from trunkline.enqueue_after(%b, %b::uuid[], %b, %b, %b::text, %b::jsonb, %b::uuid, %b::int)",
        (
            queue,
            list(after),
            message.payload,
            message.label,
            message.key,
            message.headers,
            message.id,
            message.priority,
        ),
    )
    return Published(*rows[0])


async def start_waiting(conn: Connection) -> int:
    return int(await fetch_value(conn, "select trunkline.start_waiting()"))


# Effects that run once


async def begin_once(conn: Connection, scope: str, key: str, *, rerun: bool = False) -> tuple[str, bytes | None]:
    """Return `start`, `done` with the stored result, or `unknown`."""
    rows = await fetch_rows(conn, "select state, result from trunkline.begin_once(%b, %b, %b)", (scope, key, rerun))
    return rows[0][0], rows[0][1]


async def end_once(conn: Connection, scope: str, key: str, *, done: bool, result: bytes | None = None) -> None:
    await fetch_rows(conn, "select trunkline.end_once(%b, %b, %b, %b::bytea)", (scope, key, done, result))


# Cancelling and retrying


async def cancel_job(conn: Connection, id: UUID, reason: str | None) -> str:
    return str(await fetch_value(conn, "select trunkline.cancel_job(%b, %b::text)", (id, reason)))


async def uncancel_job(conn: Connection, id: UUID) -> str:
    """Withdraw a cancel request. Return `withdrawn`, or the state of a job that has none."""
    return str(await fetch_value(conn, "select trunkline.uncancel_job(%b)", (id,)))


async def list_cancels(conn: Connection, after: int) -> list[tuple[int, UUID, str]]:
    rows = await fetch_rows(conn, "select n, job_id, reason from trunkline.list_cancels(%b::bigint)", (after,))
    return [(row[0], row[1], row[2]) for row in rows]


async def retry_job(conn: Connection, id: UUID) -> str:
    return str(await fetch_value(conn, "select trunkline.retry_job(%b)", (id,)))


# Limits across all processes


async def ensure_limit(
    conn: Connection, name: str, *, max_running: int | None, rate: float | None, burst: float | None
) -> None:
    await fetch_rows(
        conn, "select trunkline.ensure_limit(%b, %b::int, %b::float8, %b::float8)", (name, max_running, rate, burst)
    )


async def acquire_limit(
    conn: Connection, worker: str, limits: Sequence[str], wants: Sequence[int], *, span: timedelta
) -> list[int]:
    """Acquire capacity with a relaxed commit: what a crash loses is requested again a second later."""
    grants: list[int] = await fetch_value(
        conn,
        "select trunkline.acquire_limit(%b, %b::text[], %b::int[], %b, true)",
        (worker, list(limits), list(wants), span),
    )
    return grants


async def acquire_tokens(conn: Connection, limit: str, want: int) -> tuple[int, float]:
    """Return the number of tokens granted and the seconds until the next one."""
    rows = await fetch_rows(conn, "select granted, seconds from trunkline.acquire_tokens(%b, %b::int, true)", (limit, want))
    return rows[0][0], rows[0][1]


# Workers and inspection


async def register_worker(
    conn: Connection, worker: str, info: dict[str, Any], schemas: dict[str, Any] | None = None
) -> None:
    """Register a worker. None keeps the schemas of its kinds."""
    text = None if schemas is None else to_json(schemas).decode()
    query = "select trunkline.register_worker(%b, %b::jsonb, %b::jsonb)"
    await fetch_rows(conn, query, (worker, to_json(info).decode(), text))


async def forget_worker(conn: Connection, worker: str) -> None:
    await fetch_rows(conn, "select trunkline.forget_worker(%b)", (worker,))


async def list_workers(conn: Connection, within: timedelta) -> list[WorkerRow]:
    return await fetch_records(conn, WorkerRow, "select * from trunkline.list_workers(%b)", (within,))


async def list_jobs(
    conn: Connection,
    queue: str | None = None,
    *,
    state: str | None = None,
    kind: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> list[JobRow]:
    """Return up to `limit` jobs after the position of a row."""
    return await fetch_records(
        conn,
        JobRow,
        "select * from trunkline.list_jobs(%b::text, %b::text, %b::int, %b::text, %b::text)",
        (queue, state, limit, kind, after),
    )


class _LimitRow(msgspec.Struct):
    name: str
    max_running: int | None
    rate: float | None
    burst: float | None
    tokens: float | None
    running: int
    waiting: int
    holders: list[Any]


async def list_limits(conn: Connection) -> list[LimitRow]:
    rows = await fetch_records(conn, _LimitRow, "select * from trunkline.list_limits()")
    return [msgspec.convert(msgspec.structs.asdict(row), LimitRow) for row in rows]


async def get_job(conn: Connection, id: UUID) -> JobView:
    return (await fetch_records(conn, JobView, "select * from trunkline.get_job(%b)", (id,)))[0]


# For tests


async def fake_clock(conn: Connection, *, fake: bool) -> None:
    """Let `move_clock` move the database's clock, or restore the real one. Requires the owner of the schema."""
    skew = " + coalesce((select value::interval from trunkline.settings where name = 'test_clock'), '0')" if fake else ""
    await conn.execute(
        "create or replace function trunkline.clock() returns timestamptz language sql volatile parallel safe"
        f" as $$ select clock_timestamp(){skew} $$".encode()
    )
    await conn.execute("delete from trunkline.settings where name = 'test_clock'")


async def move_clock(conn: Connection, by: timedelta) -> None:
    await conn.execute(
        "insert into trunkline.settings as s (name, value) values ('test_clock', %s::interval::text)"
        " on conflict (name) do update set value = (s.value::interval + excluded.value::interval)::text",
        (by,),
    )
