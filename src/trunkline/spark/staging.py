"""Writing exactly once, without Spark: tasks copy rows to a stage, one transaction publishes what they brought.

A task that runs twice stages twice under two attempts; only the attempts that a commit names are published. The commit
writes down its version in the same transaction, so a repeat of it finds that out and changes nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.db import spark as calls
from trunkline.errors import DatabaseUnavailable, InvalidArgument, OutcomeUnknown
from trunkline.spark.connections import arrow, plain

_TIME = pa.timestamp("us", "UTC")
STAGE_SCHEMA = pa.schema(
    [
        ("payload", pa.binary()),
        ("key", pa.string()),
        ("routing_key", pa.string()),
        ("label", pa.string()),
        ("headers", pa.string()),
        ("header_keys", pa.list_(pa.string())),
        ("header_values", pa.list_(pa.string())),
        ("content_type", pa.string()),
        ("id", pa.string()),
        ("occurred_at", _TIME),
        ("topic", pa.string()),
        ("partition", pa.int32()),
    ]
)
_LONGEST = {"key": 1000, "routing_key": 1000, "label": 200, "content_type": 200}


@dataclass(frozen=True)
class Staged:
    """What one attempt of a task has staged, and for which topics."""

    stage: str
    attempt: str
    rows: int
    topics: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Committed:
    """`done` is False when the version had been published before; `rows` is what this call published."""

    done: bool
    rows: int


def stage(url: str, writer: str, batches: Iterable[pa.RecordBatch], *, topic: str | None = None) -> Staged:
    """Copy batches (columns of STAGE_SCHEMA, at least `payload`) to the writer's stage. Runs in a task.

    All rows go to `topic` (or `queue:<name>`); without it each row's column `topic` says where.
    """
    attempt = uuid.uuid4()
    counts: dict[str, int] = {}
    nonempty = (batch for batch in batches if batch.num_rows)
    first = next(nonempty, None)
    if first is None:
        return Staged(writer, str(attempt), 0, ())
    with arrow(url) as conn:
        with conn.cursor() as cursor:
            cursor.execute(calls.open_stage_statement(writer))
            opened = cursor.fetch_arrow_table()
        # the table must be there for good before rows are copied to it
        conn.commit()
        at = opened.column("at")[0].as_py()
        rows = (_staged(batch, attempt, topic, counts, at) for batch in chain([first], nonempty))
        head = next(rows)
        reader = pa.RecordBatchReader.from_batches(head.schema, chain([head], rows))
        with conn.cursor() as cursor:
            cursor.adbc_ingest(opened.column("stage")[0].as_py(), reader, mode="append", db_schema_name="trunkline")
    return Staged(writer, str(attempt), sum(counts.values()), tuple(counts.items()))


def commit(url: str, writer: str, version: int, staged: Sequence[Staged]) -> Committed:
    """Publish what was staged, in this order, once for each version of the writer."""
    topics, attempts, rows = [], [], []
    for one in staged:
        for topic, count in one.topics:
            topics.append(topic)
            attempts.append(uuid.UUID(one.attempt))
            rows.append(count)
    name = next((one.stage for one in staged), writer)

    def publish() -> int | None:
        with plain(url) as conn:
            calls.make_room(conn, topics, rows)
            return calls.commit_stage(conn, name, writer, version, topics=topics, attempts=attempts, rows=rows)

    try:
        answer = publish()
    except OutcomeUnknown:
        # the connection broke: if it was published all the same, a second try finds that out
        before = newest_version(url, writer)
        if before is not None and before >= version:
            return Committed(True, sum(rows))
        answer = publish()
    return Committed(answer is not None, answer or 0)


def newest_version(url: str, writer: str) -> int | None:
    """The newest version that the writer has published; None for none."""
    with plain(url) as conn:
        return calls.newest_commit(conn, writer)


def discard(url: str, writer: str) -> None:
    """Drop the writer's stage, with everything in it that was not published."""
    try:
        with plain(url) as conn:
            calls.drop_stage(conn, writer)
    except DatabaseUnavailable:
        # upkeep drops it when it has not been used for a day
        return


def _staged(
    batch: pa.RecordBatch, attempt: uuid.UUID, topic: str | None, counts: dict[str, int], at: datetime
) -> pa.RecordBatch:
    """The batch as the stage takes it: numbered in the order of its topic, with ids."""
    names = [name for name in batch.schema.names if name in STAGE_SCHEMA.names]
    _refuse(batch, names)
    rows = batch.num_rows
    columns: dict[str, Any] = {
        "attempt": pa.ExtensionArray.from_storage(
            pa.uuid(), pa.array([attempt.bytes], pa.binary(16)).take(pa.array(np.zeros(rows, np.int8)))
        ),
        "idx": pa.array(_numbers(batch, topic, counts)),
        "id": _ids(batch, rows, at),
    }
    for name in names:
        if name != "id" and not (name == "topic" and topic is not None):
            columns[name] = batch.column(name).cast(STAGE_SCHEMA.field(name).type)
    return pa.record_batch(columns)


def _numbers(batch: pa.RecordBatch, topic: str | None, counts: dict[str, int]) -> Any:
    """Each row's number among those of this attempt and its topic."""
    if topic is not None:
        before = counts.get(topic, 0)
        counts[topic] = before + batch.num_rows
        return np.arange(before, before + batch.num_rows)
    if "topic" not in batch.schema.names:
        raise InvalidArgument("there is no topic for the rows", hint="give the option topic, or a column topic")
    encoded = batch.column("topic").cast(pa.string()).dictionary_encode()
    if encoded.null_count:
        raise InvalidArgument("a row has no topic", hint="fill the column topic, or give the option topic")
    codes = encoded.indices.to_numpy()
    numbers = np.zeros(batch.num_rows, np.int64)
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        rows = np.flatnonzero(codes == code)
        before = counts.get(name, 0)
        numbers[rows] = np.arange(before, before + len(rows))
        counts[name] = before + len(rows)
    return numbers


def _refuse(batch: pa.RecordBatch, names: Sequence[str]) -> None:
    """What no topic takes is refused before it travels; the rest is up to the database."""
    if "payload" not in names:
        raise InvalidArgument("there is no payload", hint="give a column value")
    if batch.column("payload").null_count:
        raise InvalidArgument("the value of a row is null", hint="publish an empty value or the JSON value null instead")
    for name, longest in _LONGEST.items():
        if name in names:
            found = pc.max(pc.utf8_length(batch.column(name).cast(pa.string()))).as_py()
            if found is not None and found > longest:
                raise InvalidArgument(f"{name} has {found} characters", hint=f"the limit is {longest}")


# Ids


def _ids(batch: pa.RecordBatch, rows: int, at: datetime) -> pa.Array:
    made = _new_ids(rows, at)
    if "id" in batch.schema.names:
        given = batch.column("id").cast(pa.string())
        if given.null_count < rows:
            kept = np.flatnonzero(given.is_valid().to_numpy(zero_copy_only=False))
            made[kept] = _parsed(given.drop_null())
    storage = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), rows, [None, pa.py_buffer(made.tobytes())])
    return pa.ExtensionArray.from_storage(pa.uuid(), storage)


def _new_ids(rows: int, at: datetime) -> Any:
    """Version 7 uuids of this moment, in growing order as far as 4,096 go."""
    made = np.frombuffer(bytearray(np.random.default_rng().bytes(rows * 16)), np.uint8).reshape(rows, 16)
    made[:, :6] = np.frombuffer(int(at.timestamp() * 1000).to_bytes(6, "big"), np.uint8)
    count = np.arange(rows) & 0xFFF
    made[:, 6] = 0x70 | (count >> 8)
    made[:, 7] = count & 0xFF
    made[:, 8] = 0x80 | (made[:, 8] & 0x3F)
    return made


def _parsed(texts: pa.Array) -> Any:
    """Text ids as bytes, all at once."""
    plain_hex = pc.replace_substring(pc.ascii_lower(texts), "-", "")
    if not pc.all(pc.match_substring_regex(plain_hex, "^[0-9a-f]{32}$")).as_py():
        raise InvalidArgument("the id of a row is not a uuid", hint="leave the column out, and ids are made")
    return np.frombuffer(bytes.fromhex("".join(plain_hex.to_pylist())), np.uint8).reshape(len(texts), 16)


def header_lists(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Kafka's headers, a list of structs, as two lists of text."""
    items = column.flatten()
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    try:
        values = items.field("value").cast(pa.string())
    except pa.ArrowInvalid as exc:
        raise InvalidArgument("the value of a header is not UTF-8 text", hint="encode it, for example as base64") from exc
    lists = (
        pa.ListArray.from_arrays(offsets, part, mask=column.is_null())
        for part in (items.field("key").cast(pa.string()), values)
    )
    keys, found = lists
    return keys, found
