"""The SQL of the Spark integration: driver calls over psycopg, and the statements that tasks run over ADBC.

The calls are typed like the others, but blocking: they run in Spark processes. Statements for ADBC contain
literals, because its COPY takes no parameters; every name in them is validated or quoted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import psycopg
from psycopg.rows import tuple_row

from trunkline.codec import error_text
from trunkline.errors import InvalidValue, from_psycopg

Connection = psycopg.Connection[tuple[Any, ...]]
PING = "select 1"
"""Fails on a connection that cannot be used any more."""


def connect(url: str) -> Connection:
    """Open a connection in autocommit mode. Errors are raised as TrunklineError."""
    try:
        return psycopg.connect(url, autocommit=True, application_name="trunkline-spark")
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc


def _rows(conn: Connection, query: str, args: Sequence[Any] = (), *, writing: bool = False) -> list[tuple[Any, ...]]:
    try:
        cursor = psycopg.Cursor(conn, row_factory=tuple_row)
        return cursor.execute(query.encode(), args, binary=True).fetchall()
    except psycopg.Error as exc:
        raise from_psycopg(exc, writing=writing) from exc


# Reading: the driver


class HeadRow(NamedTuple):
    topic: str
    topic_id: int
    partition: int
    base: int
    head: int


def sequence(conn: Connection, topics: Sequence[str]) -> None:
    """Sequence all committed messages of these topics. A standby only shows what its primary has sequenced."""
    try:
        conn.execute("call trunkline.sequence('{}', %b::text[])", (list(topics),))
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc


def log_heads(conn: Connection, topics: Sequence[str]) -> list[HeadRow]:
    return [HeadRow(*row) for row in _rows(conn, "select * from trunkline.log_heads(%b)", (list(topics),))]


def topic_names(conn: Connection) -> list[str]:
    return [row[0] for row in _rows(conn, "select name from trunkline.list_topics()")]


def offset_at(conn: Connection, topic: str, partition: int, at: datetime) -> int:
    """Return the first offset created at or after this time, or the newest offset plus one if there is none."""
    return int(_rows(conn, "select trunkline.offset_at(%b, %b, %b)", (topic, partition, at))[0][0])


def pattern_regex(conn: Connection, pattern: str) -> str:
    """Return the regular expression that the database uses for a routing-key pattern."""
    return str(_rows(conn, "select trunkline.pattern_regex(%b)", (pattern,))[0][0])


def advance_group(conn: Connection, topic: str, group: str, positions: Mapping[int, int]) -> None:
    _rows(
        conn,
        "select trunkline.advance_group(%b, %b, %b::int[], %b::bigint[])",
        (topic, group, list(positions), list(positions.values())),
    )


# Reading: statements for tasks

# Columns that a task can select, and their SQL expressions.
EXPRESSIONS = {
    "id": "message_id::text as id",
    "key": "key",
    "routing_key": "routing_key",
    "label": "label",
    "headers": "headers::text as headers",
    # in the sort order of Python, which reads the keys from the archive
    "header_keys": '(select array_agg(k order by k collate "C") from jsonb_object_keys(headers) h(k)) as header_keys',
    "header_values": '(select array_agg(v order by k collate "C") from jsonb_each_text(headers) h(k, v)) as header_values',
    "payload": "payload",
    "content_type": "content_type",
    "occurred_at": "occurred_at",
    "created_at": "created_at",
}
# A read is one primary key scan: no sort, no parallel workers, no JIT.
_READ_SETTINGS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
}
# Set for the transaction in one statement, because tasks are short and each statement is a round trip.
SET_FOR_READING = "select " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in _READ_SETTINGS.items())


def quoted(text: str) -> str:
    """Quote text as an SQL literal, independent of the server's string settings."""
    if "\0" in text:
        raise InvalidValue("text must not contain NUL characters")
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'" if "\\" in text else f"'{escaped}'"


def runs_statement(topic: str, topic_id: int, partition: int, lo: int, hi: int) -> str:
    return (
        f"select first_offset, first_id, n, has_table_privilege('trunkline.topic_{int(topic_id)}', 'select') as direct from"  # noqa: S608
        f" trunkline.log_runs({quoted(topic)}, {int(topic_id)}, {int(partition)}, {int(lo)}, {int(hi)})"
    )


def lowest_statement(topic_id: int, partition: int) -> str:
    return f"select trunkline.earliest_offset({int(topic_id)}, {int(partition)}) as lowest"


def rows_statement(
    topic_id: int,
    partition: int,
    spans: Sequence[tuple[int, int]],
    columns: Iterable[str],
    conditions: Sequence[str] = (),
    *,
    direct: bool = True,
) -> str:
    """Return a statement for the rows in half-open spans of ids, ordered by id within a span, with `row_id` first.

    Without `direct`, for a role that cannot read the table, it uses a function, which costs the server a copy.
    """
    selected = ", ".join(["id as row_id", *(EXPRESSIONS[name] for name in columns)])
    source = f"trunkline.topic_{int(topic_id)} where partition = {int(partition)}"
    more = "".join(f" and {condition}" for condition in conditions)
    los = ",".join(str(lo) for lo, _ in spans)
    his = ",".join(str(hi) for _, hi in spans)
    if not direct:
        rows = f"trunkline.log_rows({int(topic_id)}, {int(partition)}, '{{{los}}}', '{{{his}}}')"
        return f"select {selected} from {rows} where true{more}"  # noqa: S608
    if len(spans) <= 8:
        parts = [
            f"(select {selected} from {source} and id >= {lo} and id < {hi}{more} order by row_id)"  # noqa: S608
            for lo, hi in spans
        ]
        return " union all ".join(parts)
    return (
        f"select m.* from unnest('{{{los}}}'::bigint[], '{{{his}}}'::bigint[]) r(lo, hi) cross join lateral"  # noqa: S608
        f" (select {selected} from {source} and id >= r.lo and id < r.hi{more} order by row_id) m"
    )


def conditions(routing_regex: str | None, label: str | None, key: str | None) -> list[str]:
    """Return the SQL conditions of a selection."""
    terms = []
    if routing_regex is not None:
        # as for subscriptions and groups: a missing routing key equals an empty one
        terms.append(f"coalesce(routing_key, '') ~ {quoted(routing_regex)}")
    if label is not None:
        terms.append(f"label = {quoted(label)}")
    if key is not None:
        terms.append(f"key = {quoted(key)}")
    return terms


def dead_letters_statement(queue: str, after: int, limit: int) -> str:
    return (
        'select dead_id, id::text as id, topic, partition, log_offset as "offset", key, routing_key, label,'  # noqa: S608
        " headers::text as headers, payload as value, content_type, occurred_at, created_at as timestamp, attempts, error,"
        " reason, dead_at"
        f" from trunkline.list_dead_letters({quoted(queue)}, {int(after)}, {int(limit)})"
    )


def deliveries_statement(queue: str | None, since: str) -> str:
    return (
        "select queue, topic, partition, first_offset, last_offset, n, attempt, consumer, claimed_at, settled_at, outcome,"  # noqa: S608
        " error"
        f" from trunkline.list_deliveries({'null' if queue is None else quoted(queue)}, {quoted(since)}::interval, 1000000)"
    )


# Writing


# If a crash loses staged rows, their commit detects it; that commit also flushes everything before it.
_RELAXED = "set_config('synchronous_commit', 'off', true)"


def stage_target_statement(topic: str) -> str:
    return f"select * from trunkline.stage_target({quoted(topic)})"  # noqa: S608


def open_stage_statement(topic: str, attempt: UUID, rows: Mapping[int, int]) -> str:
    """Return a statement that reserves ids for the given number of rows of each partition."""
    partitions = ",".join(str(int(partition)) for partition in rows)
    counts = ",".join(str(int(count)) for count in rows.values())
    return (
        f"select o.*, {_RELAXED} as relaxed from"  # noqa: S608
        f" trunkline.open_stage({quoted(topic)}, '{attempt}', '{{{partitions}}}', '{{{counts}}}') o"
    )


def close_stage_statement(attempt: UUID) -> str:
    return f"select trunkline.close_stage('{attempt}') as rows, {_RELAXED} as relaxed"


def drop_stage(conn: Connection, attempts: Sequence[UUID]) -> None:
    _rows(conn, "select trunkline.drop_stage(%b::uuid[])", (list(attempts),))


def commit_stage(
    conn: Connection, writer: str, version: int, *, attempts: Sequence[UUID], rows: Sequence[int]
) -> int | None:
    """Publish staged rows. Return their number, or None if this version was already published."""
    count = _rows(
        conn,
        "select trunkline.commit_stage(%b, %b::bigint, %b::uuid[], %b::bigint[])",
        (writer, version, list(attempts), list(rows)),
        writing=True,
    )[0][0]
    return None if count is None else int(count)


def newest_commit(conn: Connection, writer: str) -> int | None:
    version = _rows(conn, "select trunkline.newest_commit(%b)", (writer,))[0][0]
    return None if version is None else int(version)


# Pipelines


class Pipeline(msgspec.Struct, frozen=True):
    """The status of a pipeline, from its last report."""

    name: str
    kind: str
    state: str
    batch: int | None
    rows: int
    rows_per_second: float | None
    lag: int | None
    error: str | None
    detail: dict[str, Any]
    started_at: datetime
    updated_at: datetime
    ended_at: datetime | None


def report_pipeline(
    conn: Connection,
    name: str,
    kind: str,
    *,
    state: str = "running",
    batch: int | None = None,
    rows: int | None = None,
    rows_per_second: float | None = None,
    lag: int | None = None,
    error: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    _rows(
        conn,
        "select trunkline.report_pipeline(%b, %b, %b, %b::bigint, %b::bigint, %b::float8, %b::bigint, %b, %b::jsonb)",
        (
            name,
            kind,
            state,
            batch,
            rows,
            rows_per_second,
            lag,
            error_text(error),
            None if detail is None else msgspec.json.encode(detail).decode(),
        ),
    )


def list_pipelines(conn: Connection) -> list[Pipeline]:
    names = ", ".join(Pipeline.__struct_fields__)
    return [Pipeline(*row) for row in _rows(conn, f"select {names} from trunkline.list_pipelines()")]  # noqa: S608


def forget_pipeline(conn: Connection, name: str) -> bool:
    return bool(_rows(conn, "select trunkline.forget_pipeline(%b)", (name,))[0][0])
