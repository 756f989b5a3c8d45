"""Typed calls of runs.sql and dead_groups.sql."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from trunkline.db.pool import Connection
from trunkline.db.query import fetch_records, fetch_rows, fetch_value
from trunkline.types import DeadGroup, DeadShare, Run, RunEvent, RunFailure, RunPreview


def _json(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(value).decode()


_GROUPS = "select * from trunkline.dead_groups(%b::text, %b::interval, %b::int)"


async def dead_groups(
    conn: Connection, queue: str | None = None, *, since: timedelta | None = None, limit: int = 100
) -> list[DeadGroup]:
    return await fetch_records(conn, DeadGroup, _GROUPS, (queue, since, limit))


async def dead_spread(conn: Connection, queue: str, fingerprint: str, *, limit: int = 10) -> list[DeadShare]:
    query = "select * from trunkline.dead_spread(%b, %b, %b::int)"
    return await fetch_records(conn, DeadShare, query, (queue, fingerprint, limit))


async def preview_run(conn: Connection, kind: str, selector: Mapping[str, Any]) -> RunPreview:
    found = await fetch_value(conn, "select trunkline.preview_run(%b, %b::jsonb)", (kind, _json(selector)))
    return msgspec.convert(found, RunPreview)


async def start_run(
    conn: Connection,
    kind: str,
    selector: Mapping[str, Any],
    *,
    expected: int,
    options: Mapping[str, Any],
    by: str | None = None,
) -> int:
    query = "select trunkline.start_run(%b, %b::jsonb, %b::bigint, %b::jsonb, %b::text)"
    return int(await fetch_value(conn, query, (kind, _json(selector), expected, _json(options), by)))


async def pause_run(conn: Connection, run_id: int, *, reason: str | None = None) -> None:
    await fetch_rows(conn, "select trunkline.pause_run(%b::bigint, %b::text)", (run_id, reason))


async def resume_run(conn: Connection, run_id: int) -> None:
    await fetch_rows(conn, "select trunkline.resume_run(%b::bigint)", (run_id,))


async def abort_run(conn: Connection, run_id: int, *, reason: str | None = None) -> None:
    await fetch_rows(conn, "select trunkline.abort_run(%b::bigint, %b::text)", (run_id, reason))


async def undo_run(conn: Connection, run_id: int) -> int:
    return int(await fetch_value(conn, "select trunkline.undo_run(%b::bigint)", (run_id,)))


async def list_runs(
    conn: Connection, states: Sequence[str] | None = None, *, before: int | None = None, limit: int = 100
) -> list[Run]:
    query = "select * from trunkline.list_runs(%b::text[], %b::bigint, %b::int)"
    return await fetch_records(conn, Run, query, (None if states is None else list(states), before, limit))


async def get_run(conn: Connection, run_id: int) -> Run:
    [run] = await fetch_records(conn, Run, "select * from trunkline.get_run(%b::bigint)", (run_id,))
    failures, log = msgspec.convert((run.failures, run.log), tuple[list[RunFailure], list[RunEvent]])
    return msgspec.structs.replace(run, failures=failures, log=log)
