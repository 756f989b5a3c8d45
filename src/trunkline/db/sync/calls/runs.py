# Written by tools/unasync.py from src/trunkline/db/calls/runs.py; change that file, not this one.
"""Typed calls of runs.sql and dead_groups.sql."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from trunkline.db.sync.pool import Connection
from trunkline.db.sync.query import fetch_records, fetch_rows, fetch_value
from trunkline.types import DeadGroup, DeadShare, Run, RunEvent, RunFailure, RunPreview


def _json(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(value).decode()


_GROUPS = "select * from trunkline.dead_groups(%b::text, %b::interval, %b::int)"


def dead_groups(
    conn: Connection, queue: str | None = None, *, since: timedelta | None = None, limit: int = 100
) -> list[DeadGroup]:
    return fetch_records(conn, DeadGroup, _GROUPS, (queue, since, limit))


def dead_spread(conn: Connection, queue: str, fingerprint: str, *, limit: int = 10) -> list[DeadShare]:
    query = "select * from trunkline.dead_spread(%b, %b, %b::int)"
    return fetch_records(conn, DeadShare, query, (queue, fingerprint, limit))


def preview_run(conn: Connection, kind: str, selector: Mapping[str, Any]) -> RunPreview:
    found = fetch_value(conn, "select trunkline.preview_run(%b, %b::jsonb)", (kind, _json(selector)))
    return msgspec.convert(found, RunPreview)


def start_run(
    conn: Connection,
    kind: str,
    selector: Mapping[str, Any],
    *,
    expected: int,
    options: Mapping[str, Any],
    by: str | None = None,
) -> int:
    query = "select trunkline.start_run(%b, %b::jsonb, %b::bigint, %b::jsonb, %b::text)"
    return int(fetch_value(conn, query, (kind, _json(selector), expected, _json(options), by)))


def pause_run(conn: Connection, run_id: int, *, reason: str | None = None) -> None:
    fetch_rows(conn, "select trunkline.pause_run(%b::bigint, %b::text)", (run_id, reason))


def resume_run(conn: Connection, run_id: int) -> None:
    fetch_rows(conn, "select trunkline.resume_run(%b::bigint)", (run_id,))


def abort_run(conn: Connection, run_id: int, *, reason: str | None = None) -> None:
    fetch_rows(conn, "select trunkline.abort_run(%b::bigint, %b::text)", (run_id, reason))


def undo_run(conn: Connection, run_id: int) -> int:
    return int(fetch_value(conn, "select trunkline.undo_run(%b::bigint)", (run_id,)))


def list_runs(
    conn: Connection, states: Sequence[str] | None = None, *, before: int | None = None, limit: int = 100
) -> list[Run]:
    query = "select * from trunkline.list_runs(%b::text[], %b::bigint, %b::int)"
    return fetch_records(conn, Run, query, (None if states is None else list(states), before, limit))


def get_run(conn: Connection, run_id: int) -> Run:
    [run] = fetch_records(conn, Run, "select * from trunkline.get_run(%b::bigint)", (run_id,))
    failures, log = msgspec.convert((run.failures, run.log), tuple[list[RunFailure], list[RunEvent]])
    return msgspec.structs.replace(run, failures=failures, log=log)
