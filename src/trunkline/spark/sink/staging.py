"""Exactly-once writes, without Spark: tasks copy rows to the log, invisible to readers; one transaction publishes them.

A task that runs twice stages its rows under two attempts; a commit publishes only the attempts that it names. The
commit records its version in the same transaction, so repeating it has no effect.
"""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.db.calls import spark as calls
from trunkline.errors import DatabaseUnavailable, InvalidArgument, OutcomeUnknown, PayloadTooLarge, TrunklineError
from trunkline.spark.database import arrow, fetch, plain
from trunkline.spark.sink import key_partitions
from trunkline.spark.source.log_reader import outside

if TYPE_CHECKING:
    from adbc_driver_postgresql.dbapi import Connection as ArrowConnection

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
_NUL_HINT = "Postgres keeps no NUL in text: remove it, or encode the value."
_HEX_ID = "^[0-9a-f]{32}$"
# Size of one copy: large enough to amortise its statements, small enough for a task's memory.
_ROWS = 100_000
_BYTES = 32 << 20


@dataclass(frozen=True)
class Staged:
    """Rows staged by one attempt of a task."""

    attempt: str
    rows: int


@dataclass(frozen=True)
class Committed:
    """Result of a commit. `done` is false if the version was already published; `rows` counts rows of this call."""

    done: bool
    rows: int


def stage(url: str, batches: Iterable[pa.RecordBatch], *, topic: str | None = None, job: str | None = None) -> Staged:
    """Copy batches (columns of STAGE_SCHEMA, at least `payload`) to the log, for `commit` to publish. Runs in a task.

    All rows go to `topic` (or `queue:<name>`); without it, the column `topic` decides for each row. `job` is common to
    all attempts at the same work: `commit` discards those that it does not publish.
    """
    attempt = _new_attempt(job)
    targets: dict[str, _Target] = {}
    rows = 0
    try:
        for chunk in _chunks(batches):
            try:
                with arrow(url) as conn:
                    for name, part in _by_topic(chunk, topic):
                        if name not in targets:
                            targets[name] = _Target.load(conn, name)
                        _copy(conn, attempt, targets[name], part)
            except InvalidArgument as exc:
                _check_headers(chunk, rows, exc)
                raise
            rows += chunk.num_rows
    except BaseException:
        # No commit will name this attempt. Until it is dropped, it blocks retention of the segments with its rows.
        with suppress(TrunklineError):
            discard(url, [Staged(str(attempt), rows)])
        raise
    return Staged(str(attempt), rows)


def _new_attempt(job: str | None) -> uuid.UUID:
    """Return an attempt id. Attempts of one job are version 8 uuids with the same first half."""
    if job is None:
        return uuid.uuid4()
    half = bytearray(hashlib.sha256(job.encode()).digest()[:8])
    half[6] = 0x80 | (half[6] & 0x0F)
    return uuid.UUID(bytes=bytes(half) + uuid.uuid4().bytes[8:])


def check_target(url: str, name: str) -> None:
    """Raise an error if the topic (or `queue:<name>`) does not exist, before any work is done."""
    with arrow(url) as conn:
        _Target.load(conn, name)


def commit(url: str, writer: str, version: int, staged: Sequence[Staged]) -> Committed:
    """Publish staged rows in this order, once for each version of the writer."""
    attempts = [uuid.UUID(one.attempt) for one in staged if one.rows]
    rows = [one.rows for one in staged if one.rows]

    def publish() -> int | None:
        with plain(url) as conn:
            return calls.commit_stage(conn, writer, version, attempts=attempts, rows=rows)

    try:
        published = publish()
    except OutcomeUnknown:
        # The connection broke. If the rows were published, the second call has no effect and returns None.
        return Committed(True, publish() or sum(rows))
    return Committed(published is not None, published or 0)


def newest_version(url: str, writer: str) -> int | None:
    """Return the newest version that the writer has published; None if there is none."""
    with plain(url) as conn:
        return calls.newest_commit(conn, writer)


def discard(url: str, staged: Sequence[Staged]) -> None:
    """Discard the unpublished rows of these attempts."""
    try:
        with plain(url) as conn:
            calls.drop_stage(conn, [uuid.UUID(one.attempt) for one in staged])
    except DatabaseUnavailable:
        # Upkeep discards them after three days.
        return


# Chunks


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Validate the rows and combine them into larger batches."""
    buffer: list[pa.RecordBatch] = []
    seen = rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        buffer.append(_checked(batch, seen))
        seen += batch.num_rows
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _ROWS or size >= _BYTES:
            yield _joined(buffer)
            buffer, rows, size = [], 0, 0
    if buffer:
        yield _joined(buffer)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _checked(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """Return the batch with the types of STAGE_SCHEMA. Raise an error that names column and row of an invalid value.

    `first` is the number of the batch's first row in its task, counted from 0.
    """
    if "payload" not in batch.schema.names:
        raise InvalidArgument("the rows have no payload", hint="Add a column value.")
    columns = {field.name: converted(batch.column(field.name), field.name, field.type, first) for field in _fields(batch)}
    if batch.column("payload").null_count:
        row = first + pc.index(batch.column("payload").is_null(), True).as_py()
        raise InvalidArgument(
            f"value of row {row} of the task is null", hint="Publish an empty value or the JSON value null instead."
        )
    for name, longest in _LONGEST.items():
        if name in columns:
            lengths = pc.utf8_length(columns[name])
            length = pc.max(lengths).as_py()
            if length is not None and length > longest:
                row = first + pc.index(lengths, length).as_py()
                raise InvalidArgument(
                    f"{name} of row {row} of the task has {length} characters, the limit is {longest}",
                    hint=f"Shorten {name}.",
                )
            if (row := _first(pc.match_substring(columns[name], "\0"))) is not None:
                raise InvalidArgument(f"{name} of row {first + row} of the task has a NUL character", hint=_NUL_HINT)
    if "id" in columns and (row := _first(pc.invert(pc.match_substring_regex(_hex(columns["id"]), _HEX_ID)))) is not None:
        raise InvalidArgument(
            f"the id {columns['id'][row].as_py()[:60]!r} of row {first + row} of the task is not a uuid",
            hint="Omit the column to have ids generated.",
        )
    if "occurred_at" in columns and (row := outside(columns["occurred_at"])) is not None:
        raise InvalidArgument(
            f"occurred_at of row {first + row} of the task is outside of the years 1 to 9999",
            hint="Use null if the time is not known.",
        )
    return pa.record_batch(columns)


def _first(mask: pa.Array) -> int | None:
    """Return the number of the first row for which the mask is true."""
    at = pc.index(mask, True).as_py()
    return None if at < 0 else int(at)


def _hex(ids: pa.Array) -> pa.Array:
    return pc.replace_substring(pc.ascii_lower(ids), "-", "")


def _fields(batch: pa.RecordBatch) -> list[pa.Field]:
    return [field for field in STAGE_SCHEMA if field.name in batch.schema.names]


_READ_AS = {"payload": "value", "header_values": "headers", "header_keys": "headers"}


def converted(column: pa.Array, name: str, kind: pa.DataType, first: int = 0) -> pa.Array:
    """Cast a column. If a value cannot be converted, the error names column and row."""
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as exc:
        row = _first_misfit(column, kind)
        value = repr(column[row].as_py())
        excerpt, column_name = value if len(value) <= 60 else f"{value[:60]}...", _READ_AS.get(name, name)
        if pa.types.is_integer(kind):
            raise InvalidArgument(
                f"{column_name} of row {first + row} of the task does not fit into 32 bits: {excerpt}",
                hint=f"Use a smaller {column_name}.",
            ) from exc
        raise InvalidArgument(
            f"{column_name} of row {first + row} of the task is not UTF-8 text: {excerpt}",
            hint=f"Encode {column_name}, for example as base64 or hex.",
        ) from exc


def _first_misfit(column: pa.Array, kind: pa.DataType) -> int:
    """Return the first row that cannot be cast, by binary search. The column must have one."""
    lo, hi = 0, len(column)
    while hi - lo > 1:
        middle = (lo + hi) // 2
        try:
            column.slice(lo, middle - lo).cast(kind)
            lo = middle
        except pa.ArrowInvalid:
            hi = middle
    return lo


def _check_headers(chunk: pa.RecordBatch, first: int, cause: InvalidArgument) -> None:
    """Raise an error that names a row whose headers are not a JSON object. Called after the database rejected rows."""
    texts = chunk.column("headers").to_pylist() if "headers" in chunk.schema.names else []
    for row, text in enumerate(texts):
        try:
            valid = text is None or isinstance(msgspec.json.decode(text), dict)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            valid = False
        if not valid:
            excerpt = text if len(text) <= 60 else f"{text[:60]}..."
            raise InvalidArgument(
                f"headers of row {first + row} of the task are not a JSON object: {excerpt}",
                hint='Write them as {"name": "value"}, or use a column of type map.',
            ) from cause
        if text is not None and "\\u0000" in text:
            raise InvalidArgument(
                f"headers of row {first + row} of the task have a NUL character", hint=_NUL_HINT
            ) from cause


def _by_topic(chunk: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    if topic is not None:
        yield topic, chunk
        return
    if "topic" not in chunk.schema.names:
        raise InvalidArgument("no topic for the rows", hint="Set the option topic, or add a column topic.")
    encoded = chunk.column("topic").dictionary_encode()
    if encoded.null_count:
        raise InvalidArgument("a row has no topic", hint="Fill the column topic, or set the option topic.")
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], chunk
        return
    codes = encoded.indices.to_numpy()
    for code, name in enumerate(names):
        yield name, chunk.take(pa.array(np.flatnonzero(codes == code)))


# Copying


class _Target:
    """The partitioning and limits of a topic that rows are copied to."""

    def __init__(self, name: str, partitions: int, all_partitions: int, max_payload: int) -> None:
        self.name = name
        self._partitions = partitions
        self._all = all_partitions
        self._max_payload = max_payload
        # All rows of a task that have no key go to the same random partition.
        self._any = random.randrange(partitions)  # noqa: S311  # nosec B311

    @classmethod
    def load(cls, conn: ArrowConnection, name: str) -> _Target:
        row = fetch(conn, calls.stage_target_statement(name)).to_pylist()[0]
        if row["partitions"] > 1 and int(key_partitions.hashes(pa.array([key_partitions.PROBE]))[0]) != row["probe"]:
            raise InvalidArgument(
                "the database and this program hash keys differently", hint="Write to a topic with one partition."
            )
        return cls(name, row["partitions"], row["all_partitions"], row["max_payload"])

    def shares(self, rows: pa.RecordBatch) -> dict[int, pa.RecordBatch]:
        """Split rows by partition, keeping their order."""
        longest = pc.max(pc.binary_length(rows.column("payload"))).as_py()
        if longest > self._max_payload:
            raise PayloadTooLarge(
                f"a payload has {longest} bytes, the limit of {self.name} is {self._max_payload}",
                hint="Store it elsewhere and publish a reference, or raise max_payload with trunkline.alter_topic.",
            )
        chosen = self._chosen(rows)
        distinct = np.unique(chosen)
        if distinct[0] < 0 or distinct[-1] >= self._all:
            bad = distinct[0] if distinct[0] < 0 else distinct[-1]
            raise InvalidArgument(
                f"partition must be between 0 and {self._all - 1}, got {bad}",
                hint=f"Choose an existing partition of {self.name}, or leave the column null.",
            )
        if len(distinct) == 1:
            return {int(distinct[0]): rows}
        return {int(partition): rows.take(pa.array(np.flatnonzero(chosen == partition))) for partition in distinct}

    def _chosen(self, rows: pa.RecordBatch) -> Any:
        chosen = np.full(rows.num_rows, self._any, np.int32)
        if self._partitions > 1 and "key" in rows.schema.names:
            texts = rows.column("key")
            chosen = np.where(_valid(texts), key_partitions.partitions(texts, self._partitions), chosen)
        if "partition" in rows.schema.names:
            explicit = rows.column("partition")
            chosen = np.where(_valid(explicit), pc.fill_null(explicit, 0).to_numpy(), chosen)
        return chosen


def _valid(column: pa.Array) -> Any:
    return column.is_valid().to_numpy(zero_copy_only=False)


def _copy(conn: ArrowConnection, attempt: uuid.UUID, target: _Target, rows: pa.RecordBatch) -> None:
    """Reserve ids, copy the rows, and have the database verify the copy."""
    shares = target.shares(rows)
    counts = {partition: share.num_rows for partition, share in shares.items()}
    extents = fetch(conn, calls.open_stage_statement(target.name, attempt, counts)).to_pylist()
    # Commit now: other publishers wait for this transaction, and the segments must be durable before the copy.
    conn.commit()
    copied = dict.fromkeys(shares, 0)
    for extent in extents:
        partition, count = extent["partition"], extent["n"]
        share = shares[partition].slice(copied[partition], count)
        copied[partition] += count
        log_rows = _log_rows(share, extent["first_id"], extent["at"])
        with conn.cursor() as cursor:
            cursor.adbc_ingest(extent["segment"], log_rows, mode="append", db_schema_name="trunkline")
    fetch(conn, calls.close_stage_statement(attempt))
    conn.commit()


def _log_rows(batch: pa.RecordBatch, first_id: int, at: datetime) -> pa.RecordBatch:
    """Convert a batch to rows of the log's table."""
    rows = batch.num_rows
    columns: dict[str, Any] = {
        "id": pa.array(np.arange(first_id, first_id + rows)),
        "message_id": _ids(batch, rows, at),
        "created_at": pa.repeat(pa.scalar(at, _TIME), rows),
    }
    for name in ("payload", "key", "routing_key", "label", "occurred_at"):
        if name in batch.schema.names:
            columns[name] = batch.column(name)
    if "content_type" in batch.schema.names:
        columns["content_type"] = pc.fill_null(batch.column("content_type"), "application/json")
    headers = _headers(batch)
    if headers is not None:
        columns["headers"] = pa.ExtensionArray.from_storage(pa.json_(pa.string()), headers)
    return pa.record_batch(columns)


# Headers


def _headers(batch: pa.RecordBatch) -> pa.Array | None:
    """Return the headers as JSON text, from a text column or from lists of names and values."""
    text = batch.column("headers") if "headers" in batch.schema.names else None
    if "header_keys" not in batch.schema.names:
        return text
    pairs = zip(batch.column("header_keys").to_pylist(), batch.column("header_values").to_pylist(), strict=True)
    encoded = pa.array(
        [
            msgspec.json.encode(dict(zip(names, values or [], strict=True))).decode() if names else None
            for names, values in pairs
        ],
        pa.string(),
    )
    return encoded if text is None else pc.coalesce(text, encoded)


def header_lists(column: pa.Array, first: int = 0) -> tuple[pa.Array, pa.Array]:
    """Convert Kafka's headers, a list of structs, to two lists of text.

    `first` is the number of the column's first row.
    """
    items = column.flatten()
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    texts = []
    for name in ("key", "value"):
        part = pc.struct_field(items, name)
        try:
            texts.append(part.cast(pa.string()))
        except pa.ArrowInvalid as exc:
            row = first + _row_of(lengths, _first_misfit(part, pa.string()))
            raise InvalidArgument(
                f"headers of row {row} of the task: the {name} of a header is not UTF-8 text",
                hint=f"Encode the {name}, for example as base64.",
            ) from exc
        if (at := _first(pc.match_substring(texts[-1], "\0"))) is not None:
            raise InvalidArgument(
                f"headers of row {first + _row_of(lengths, at)} of the task: the {name} of a header has a NUL character",
                hint=_NUL_HINT,
            )
    if (at := _first(texts[0].is_null())) is not None:
        raise InvalidArgument(
            f"headers of row {first + _row_of(lengths, at)} of the task: the key of a header is null",
            hint="Give each header a key.",
        )
    if (at := _first(_repeated(texts[0], lengths))) is not None:
        raise InvalidArgument(
            f"headers of row {first + _row_of(lengths, at)} of the task: the name {texts[0][at].as_py()!r} occurs twice",
            hint="A name has one value. Merge the values, for example as a JSON array.",
        )
    lists = (pa.ListArray.from_arrays(offsets, part, mask=column.is_null()) for part in texts)
    names, values = lists
    return names, values


def _repeated(names: pa.Array, lengths: Any) -> pa.Array:
    """Return for each entry of flattened lists of these lengths whether its name occurs earlier in its list."""
    entries = pa.table({"row": np.repeat(np.arange(len(lengths)), lengths), "name": names, "entry": np.arange(len(names))})
    first = np.zeros(len(names), bool)
    first[entries.group_by(["row", "name"]).aggregate([("entry", "min")]).column("entry_min").to_numpy()] = True
    return pa.array(~first)


def _row_of(lengths: Any, entry: int) -> int:
    """Return the row of an entry of flattened lists of these lengths."""
    return int(np.searchsorted(np.cumsum(lengths), entry, side="right"))


# Ids


def _ids(batch: pa.RecordBatch, rows: int, at: datetime) -> pa.Array:
    ids = _new_ids(rows, at)
    if "id" in batch.schema.names:
        explicit = batch.column("id")
        if explicit.null_count < rows:
            indices = np.flatnonzero(_valid(explicit))
            ids[indices] = _parsed(explicit.drop_null())
    storage = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), rows, [None, pa.py_buffer(ids.tobytes())])
    return pa.ExtensionArray.from_storage(pa.uuid(), storage)


def _new_ids(rows: int, at: datetime) -> Any:
    """Return version 7 uuids with the timestamp `at`, ascending within each group of 4,096."""
    ids = np.frombuffer(bytearray(np.random.default_rng().bytes(rows * 16)), np.uint8).reshape(rows, 16)
    ids[:, :6] = np.frombuffer(int(at.timestamp() * 1000).to_bytes(6, "big"), np.uint8)
    count = np.arange(rows) & 0xFFF
    ids[:, 6] = 0x70 | (count >> 8)
    ids[:, 7] = count & 0xFF
    ids[:, 8] = 0x80 | (ids[:, 8] & 0x3F)
    return ids


def _parsed(texts: pa.Array) -> Any:
    """Convert text ids to bytes, all at once. `_checked` has refused those that are not uuids."""
    return np.frombuffer(bytes.fromhex("".join(_hex(texts).to_pylist())), np.uint8).reshape(len(texts), 16)
