"""Read ranges of the log as Arrow, without Spark. Verifies that each offset comes once and in order."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.db.calls import spark as calls
from trunkline.errors import InvalidArgument, OffsetOutOfRange
from trunkline.spark.database import arrow, fetch, plain
from trunkline.spark.options import Selection
from trunkline.spark.source.id_runs import IdRuns, Ints, as_runs, ascending
from trunkline.spark.source.ranges import Head, OffsetRange

if TYPE_CHECKING:
    from adbc_driver_postgresql.dbapi import Connection as ArrowConnection

_TIME = pa.timestamp("us", "UTC")
LOG_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("id", pa.string()),
        ("key", pa.string()),
        ("routing_key", pa.string()),
        ("label", pa.string()),
        ("headers", pa.string()),
        ("payload", pa.binary()),
        ("content_type", pa.string()),
        ("occurred_at", _TIME),
        ("created_at", _TIME),
    ]
)
# Headers as two lists, names and values: the source builds Kafka's header type from them.
_HEADER_LISTS = {"header_keys": pa.list_(pa.string()), "header_values": pa.list_(pa.string())}
# The years 1 to 9999, which clients can represent, in microseconds since 1970.
_FIRST_TIME, _END_OF_TIME = -62_135_596_800_000_000, 253_402_300_800_000_000
_BATCH_BYTES = 4 << 20
_WINDOW_BYTES = 32 << 20
_WINDOW_ROWS = 32_768
# Message sizes are unknown until some have been read, so the first window is small.
_FIRST_WINDOW = 16
_log = logging.getLogger(__name__)


def heads(url: str, topics: Sequence[str]) -> list[Head]:
    """Return the head of each partition of these topics. Includes all messages committed before the call."""
    with plain(url) as conn:
        calls.sequence(conn, topics)
        return [Head(*row) for row in calls.log_heads(conn, topics)]


def read_range(
    url: str, range_: OffsetRange, columns: Sequence[str] | None = None, *, selection: Selection | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range by offset, in batches with these columns of LOG_SCHEMA (None: all).

    With a selection, only matching messages. Raises OffsetOutOfRange if an offset of the range is missing.
    """
    names = list(LOG_SCHEMA.names) if columns is None else list(columns)
    chosen = resolved(url, selection)
    with arrow(url) as conn:
        fetch(conn, calls.SET_FOR_READING)
        # In chunks: with many publishers, a large range has a long list of runs.
        for lo in range(range_.lo, range_.hi, 250_000):
            part = range_.between(lo, min(range_.hi, lo + 250_000))
            yield from _read_part(conn, part, names, chosen)


def resolved(url: str, selection: Selection | None) -> Selection | None:
    """Return the selection with its routing-key pattern resolved to a regular expression."""
    if not selection:
        return None
    if selection.routing_key is None or selection.routing_regex is not None:
        return selection
    with plain(url) as conn:
        regex = calls.pattern_regex(conn, selection.routing_key)
    return Selection(selection.routing_key, selection.label, selection.key, regex)


def _read_part(
    conn: ArrowConnection, range_: OffsetRange, columns: list[str], selection: Selection | None
) -> Iterator[pa.RecordBatch]:
    table = fetch(conn, calls.runs_statement(range_.topic, range_.topic_id, range_.partition, range_.lo, range_.hi))
    runs = as_runs(*(table.column(name) for name in ("first_offset", "first_id", "n")))
    fetched = [name for name in columns if name != "offset"]
    at = range_.lo
    direct = table.num_rows == 0 or table.column("direct")[0].as_py()
    parts = ascending(runs) if direct else []
    streamed = chain.from_iterable(_rows(conn, range_, part, fetched, selection) for part in parts)
    for batch in streamed if parts else _windows(conn, range_, runs, fetched, selection, direct=direct):
        lo, hi = batch.column("offset")[0].as_py(), batch.column("offset")[-1].as_py() + 1
        # Yield nothing after a hole, so the caller knows from which offset to continue in the archive.
        if selection is None and (lo != at or hi - lo != batch.num_rows):
            break
        at = hi
        yield batch.select(columns)
    _check(conn, range_, at, selection)


def _windows(
    conn: ArrowConnection,
    range_: OffsetRange,
    runs: IdRuns,
    columns: list[str],
    selection: Selection | None,
    *,
    direct: bool,
) -> Iterator[pa.RecordBatch]:
    """Read runs whose ids jump, in windows sorted by offset.

    A window holds about _WINDOW_BYTES at most, or one message.
    """
    rows = _FIRST_WINDOW
    left = runs
    while len(left.n):
        part, rest = left.split(rows)
        batches: list[pa.RecordBatch] = []
        size = count = 0
        for batch in _rows(conn, range_, part, columns, selection, direct=direct):
            size += batch.nbytes
            count += batch.num_rows
            # Too large: discard the rest, and read the window again in smaller ones.
            batches = [*batches, batch] if size <= 2 * _WINDOW_BYTES or part.rows == 1 else []
        fitting = max(1, _WINDOW_BYTES // max(1, size // max(1, count)))
        if count and not batches:
            rows = min(part.rows // 2, fitting)
            continue
        left, rows = rest, min(_WINDOW_ROWS, 8 * rows, fitting)
        if not batches:
            continue
        table = pa.Table.from_batches(batches)
        offsets = table.column("offset").to_numpy()
        if np.any(offsets[1:] < offsets[:-1]):
            table = table.take(pa.array(np.argsort(offsets, kind="stable")))
        yield from table.combine_chunks().to_batches()


def _rows(
    conn: ArrowConnection,
    range_: OffsetRange,
    runs: IdRuns,
    columns: list[str],
    selection: Selection | None,
    *,
    direct: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of these runs by id, with the offset as first column. No batch is empty."""
    conditions = [] if selection is None else calls.conditions(selection.routing_regex, selection.label, selection.key)
    statement = calls.rows_statement(range_.topic_id, range_.partition, runs.spans(), columns, conditions, direct=direct)
    with conn.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)})
        cursor.execute(statement)
        for batch in cursor.fetch_record_batch():
            placed = _with_offsets(batch, runs, columns)
            if placed.num_rows:
                yield placed


def _with_offsets(batch: pa.RecordBatch, runs: IdRuns, columns: list[str]) -> pa.RecordBatch:
    offsets, inside = runs.offsets_of(batch.column("row_id").to_numpy())
    if "occurred_at" in columns:
        _check_times(batch.column("occurred_at"), offsets)
    arrays = [pa.array(offsets), *(batch.column(name) for name in columns)]
    result = pa.RecordBatch.from_arrays(arrays, schema=schema_of(["offset", *columns]))
    return result if inside.all() else result.filter(pa.array(inside))


def _check_times(column: pa.Array, offsets: Ints) -> None:
    """Reject times outside Arrow's range: the driver would silently return wrong ones."""
    if (at := outside(column)) is not None:
        raise InvalidArgument(
            f"occurred_at of offset {offsets[at]} is outside of the years 1 to 9999",
            hint="Omit the column occurred_at from the schema.",
        )


def outside(column: pa.Array) -> int | None:
    """Return the first row whose time is outside of the years 1 to 9999; None if there is none."""
    if len(column) == column.null_count:
        return None
    times = column.cast(pa.int64())
    wrong = pc.invert(pc.and_(pc.greater_equal(times, _FIRST_TIME), pc.less(times, _END_OF_TIME)))
    return int(pc.index(wrong, True).as_py()) if pc.any(wrong).as_py() else None


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of these columns of LOG_SCHEMA and of the header lists, in this order."""
    return pa.schema([(name, _HEADER_LISTS[name]) if name in _HEADER_LISTS else LOG_SCHEMA.field(name) for name in columns])


def _check(conn: ArrowConnection, range_: OffsetRange, at: int, selection: Selection | None) -> None:
    """Raise OffsetOutOfRange if retention removed rows after the runs were fetched.

    With a selection the expected row count is unknown. Retention advances the earliest offset when it removes rows, so
    check that instead.
    """
    if selection is None and at == range_.hi:
        return
    lowest = fetch(conn, calls.lowest_statement(range_.topic_id, range_.partition)).column("lowest")[0].as_py()
    if selection is not None and lowest is not None and lowest <= range_.lo:
        return
    raise OffsetOutOfRange(
        f"offsets {range_.lo} to {range_.hi - 1} of partition {range_.partition} of {range_.topic}: offset {at} is gone",
        hint=f"Retention removed it during the read. Start at the earliest available offset, {lowest}.",
    )
