"""Writing exactly once, without Spark: tasks copy rows to the log, unseen; one transaction gives them offsets.

A task that runs twice stages twice under two attempts; only the attempts that a commit names are published. The commit
writes down its version in the same transaction, so a repeat of it finds that out and changes nothing.
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

from trunkline.db import spark as calls
from trunkline.errors import DatabaseUnavailable, InvalidArgument, OutcomeUnknown, PayloadTooLarge, TrunklineError
from trunkline.spark import keys
from trunkline.spark.connections import arrow, fetch, plain
from trunkline.spark.reading import outside

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
_NUL_HINT = "Postgres keeps no NUL in text: remove it, or encode the value"
_HEX_ID = "^[0-9a-f]{32}$"
# Copied at once: enough to make the statements around it cheap, little enough for the memory of a task.
_ROWS = 100_000
_BYTES = 32 << 20


@dataclass(frozen=True)
class Staged:
    """What one attempt of a task has staged."""

    attempt: str
    rows: int


@dataclass(frozen=True)
class Committed:
    """`done` is False when the version had been published before; `rows` is what this call published."""

    done: bool
    rows: int


def stage(url: str, batches: Iterable[pa.RecordBatch], *, topic: str | None = None, job: str | None = None) -> Staged:
    """Copy batches (columns of STAGE_SCHEMA, at least `payload`) to the log, for a commit to publish. Runs in a task.

    All rows go to `topic` (or `queue:<name>`); without it each row's column `topic` says where. `job` is the same for all
    attempts of which one is to be committed: the commit gives up the others.
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
                            targets[name] = _Target.found(conn, name)
                        _copy(conn, attempt, targets[name], part)
            except InvalidArgument as exc:
                _check_headers(chunk, rows, exc)
                raise
            rows += chunk.num_rows
    except BaseException:
        # No commit will name this attempt. Until it is dropped, retention cannot remove the segments of its rows.
        with suppress(TrunklineError):
            discard(url, [Staged(str(attempt), rows)])
        raise
    return Staged(str(attempt), rows)


def _new_attempt(job: str | None) -> uuid.UUID:
    """Return an id for an attempt. Those of one job are uuids of version 8 with the same first half."""
    if job is None:
        return uuid.uuid4()
    half = bytearray(hashlib.sha256(job.encode()).digest()[:8])
    half[6] = 0x80 | (half[6] & 0x0F)
    return uuid.UUID(bytes=bytes(half) + uuid.uuid4().bytes[8:])


def check_target(url: str, name: str) -> None:
    """An unknown topic (or `queue:<name>`) is told before any work is done."""
    with arrow(url) as conn:
        _Target.found(conn, name)


def commit(url: str, writer: str, version: int, staged: Sequence[Staged]) -> Committed:
    """Publish what was staged, in this order, once for each version of the writer."""
    attempts = [uuid.UUID(one.attempt) for one in staged if one.rows]
    rows = [one.rows for one in staged if one.rows]

    def publish() -> int | None:
        with plain(url) as conn:
            return calls.commit_stage(conn, writer, version, attempts=attempts, rows=rows)

    try:
        published = publish()
    except OutcomeUnknown:
        # the connection broke: if the rows were published all the same, a second call finds that out
        return Committed(True, publish() or sum(rows))
    return Committed(published is not None, published or 0)


def newest_version(url: str, writer: str) -> int | None:
    """The newest version that the writer has published; None for none."""
    with plain(url) as conn:
        return calls.newest_commit(conn, writer)


def discard(url: str, staged: Sequence[Staged]) -> None:
    """Give up what these attempts have staged and nobody has published."""
    try:
        with plain(url) as conn:
            calls.drop_stage(conn, [uuid.UUID(one.attempt) for one in staged])
    except DatabaseUnavailable:
        # upkeep does it after three days
        return


# Chunks


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches, checked."""
    held: list[pa.RecordBatch] = []
    seen = rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(_checked(batch, seen))
        seen += batch.num_rows
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _ROWS or size >= _BYTES:
            yield _joined(held)
            held, rows, size = [], 0, 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _checked(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """Return the batch in the types of STAGE_SCHEMA. Refuse what no topic takes before it travels, with column and row.

    `first` is the number of the batch's first row in its task; the first one of all is 0.
    """
    if "payload" not in batch.schema.names:
        raise InvalidArgument("there is no payload", hint="give a column value")
    columns = {field.name: converted(batch.column(field.name), field.name, field.type, first) for field in _fields(batch)}
    if batch.column("payload").null_count:
        row = first + pc.index(batch.column("payload").is_null(), True).as_py()
        raise InvalidArgument(
            f"value of row {row} of the task is null", hint="publish an empty value or the JSON value null instead"
        )
    for name, longest in _LONGEST.items():
        if name in columns:
            lengths = pc.utf8_length(columns[name])
            found = pc.max(lengths).as_py()
            if found is not None and found > longest:
                row = first + pc.index(lengths, found).as_py()
                raise InvalidArgument(
                    f"{name} of row {row} of the task has {found} characters", hint=f"the limit is {longest}"
                )
            if (row := _first(pc.match_substring(columns[name], "\0"))) is not None:
                raise InvalidArgument(f"{name} of row {first + row} of the task has a NUL character", hint=_NUL_HINT)
    if "id" in columns and (row := _first(pc.invert(pc.match_substring_regex(_hex(columns["id"]), _HEX_ID)))) is not None:
        raise InvalidArgument(
            f"the id {columns['id'][row].as_py()[:60]!r} of row {first + row} of the task is not a uuid",
            hint="leave the column out, and ids are made",
        )
    if "occurred_at" in columns and (row := outside(columns["occurred_at"])) is not None:
        raise InvalidArgument(
            f"occurred_at of row {first + row} of the task is outside of the years 1 to 9999",
            hint="use null if the time is not known",
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
    """Return a column in another type. If a row does not fit, the error names the column, the row and what to do."""
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as exc:
        row = _first_misfit(column, kind)
        value = repr(column[row].as_py())
        shown, column_name = value if len(value) <= 60 else f"{value[:60]}...", _READ_AS.get(name, name)
        if pa.types.is_integer(kind):
            raise InvalidArgument(
                f"{column_name} of row {first + row} of the task is {shown}", hint="it must fit into 32 bits"
            ) from exc
        raise InvalidArgument(
            f"{column_name} of row {first + row} of the task is not UTF-8 text: {shown}",
            hint=f"encode {column_name}, for example as base64 or hex",
        ) from exc


def _first_misfit(column: pa.Array, kind: pa.DataType) -> int:
    """Return the first row that cannot be cast, in a column that cannot."""
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
    """After the database has refused rows: name the row whose headers are not a JSON object."""
    texts = chunk.column("headers").to_pylist() if "headers" in chunk.schema.names else []
    for row, text in enumerate(texts):
        try:
            valid = text is None or isinstance(msgspec.json.decode(text), dict)
        except (msgspec.DecodeError, UnicodeError):
            valid = False
        if not valid:
            shown = text if len(text) <= 60 else f"{text[:60]}..."
            raise InvalidArgument(
                f"headers of row {first + row} of the task are not a JSON object: {shown}",
                hint='write them as {"name": "value"}, or use a column of type map',
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
        raise InvalidArgument("there is no topic for the rows", hint="give the option topic, or a column topic")
    encoded = chunk.column("topic").dictionary_encode()
    if encoded.null_count:
        raise InvalidArgument("a row has no topic", hint="fill the column topic, or give the option topic")
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], chunk
        return
    codes = encoded.indices.to_numpy()
    for code, name in enumerate(names):
        yield name, chunk.take(pa.array(np.flatnonzero(codes == code)))


# Copying


class _Target:
    """A topic as far as rows are shared out by it."""

    def __init__(self, name: str, partitions: int, all_partitions: int, max_payload: int) -> None:
        self.name = name
        self._partitions = partitions
        self._all = all_partitions
        self._max_payload = max_payload
        # Rows without a key stay together with those of their task.
        self._any = random.randrange(partitions)  # noqa: S311  # nosec B311

    @classmethod
    def found(cls, conn: ArrowConnection, name: str) -> _Target:
        row = fetch(conn, calls.stage_target_statement(name)).to_pylist()[0]
        if row["partitions"] > 1 and int(keys.hashes(pa.array([keys.PROBE]))[0]) != row["probe"]:
            raise InvalidArgument(
                "the database hashes keys in another way than this program", hint="write to topics of one partition"
            )
        return cls(name, row["partitions"], row["all_partitions"], row["max_payload"])

    def shares(self, rows: pa.RecordBatch) -> dict[int, pa.RecordBatch]:
        """The rows of each partition, in their order."""
        longest = pc.max(pc.binary_length(rows.column("payload"))).as_py()
        if longest > self._max_payload:
            raise PayloadTooLarge(
                f"a payload has {longest} bytes, the limit of {self.name} is {self._max_payload}",
                hint="store it elsewhere and publish a reference, or raise max_payload with trunkline.alter_topic",
            )
        chosen = self._chosen(rows)
        found = np.unique(chosen)
        if found[0] < 0 or found[-1] >= self._all:
            bad = found[0] if found[0] < 0 else found[-1]
            raise InvalidArgument(f"partition is {bad}", hint=f"{self.name} has partitions 0 to {self._all - 1}")
        if len(found) == 1:
            return {int(found[0]): rows}
        return {int(partition): rows.take(pa.array(np.flatnonzero(chosen == partition))) for partition in found}

    def _chosen(self, rows: pa.RecordBatch) -> Any:
        chosen = np.full(rows.num_rows, self._any, np.int32)
        if self._partitions > 1 and "key" in rows.schema.names:
            texts = rows.column("key")
            chosen = np.where(_there(texts), keys.partitions(texts, self._partitions), chosen)
        if "partition" in rows.schema.names:
            given = rows.column("partition")
            chosen = np.where(_there(given), pc.fill_null(given, 0).to_numpy(), chosen)
        return chosen


def _there(column: pa.Array) -> Any:
    return column.is_valid().to_numpy(zero_copy_only=False)


def _copy(conn: ArrowConnection, attempt: uuid.UUID, target: _Target, rows: pa.RecordBatch) -> None:
    """Get ids, copy the rows to them, and have that checked."""
    shares = target.shares(rows)
    counts = {partition: share.num_rows for partition, share in shares.items()}
    places = fetch(conn, calls.open_stage_statement(target.name, attempt, counts)).to_pylist()
    # a transaction of its own: others wait for it, and the tables must be there for good
    conn.commit()
    taken = dict.fromkeys(shares, 0)
    for place in places:
        partition, count = place["partition"], place["n"]
        share = shares[partition].slice(taken[partition], count)
        taken[partition] += count
        made = _log_rows(share, place["first_id"], place["at"])
        with conn.cursor() as cursor:
            cursor.adbc_ingest(place["segment"], made, mode="append", db_schema_name="trunkline")
    fetch(conn, calls.close_stage_statement(attempt))
    conn.commit()


def _log_rows(batch: pa.RecordBatch, first_id: int, at: datetime) -> pa.RecordBatch:
    """The batch as the log has it."""
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
    """As JSON text: given so, or as lists of names and values."""
    text = batch.column("headers") if "headers" in batch.schema.names else None
    if "header_keys" not in batch.schema.names:
        return text
    pairs = zip(batch.column("header_keys").to_pylist(), batch.column("header_values").to_pylist(), strict=True)
    made = pa.array(
        [
            msgspec.json.encode(dict(zip(names, values or [], strict=True))).decode() if names else None
            for names, values in pairs
        ],
        pa.string(),
    )
    return made if text is None else pc.coalesce(text, made)


def header_lists(column: pa.Array, first: int = 0) -> tuple[pa.Array, pa.Array]:
    """Kafka's headers, a list of structs, as two lists of text. `first` is the number of the first row in its task."""
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
                hint="encode it, for example as base64",
            ) from exc
        if (at := _first(pc.match_substring(texts[-1], "\0"))) is not None:
            raise InvalidArgument(
                f"headers of row {first + _row_of(lengths, at)} of the task: the {name} of a header has a NUL character",
                hint=_NUL_HINT,
            )
    if (at := _first(texts[0].is_null())) is not None:
        raise InvalidArgument(
            f"headers of row {first + _row_of(lengths, at)} of the task: the key of a header is null",
            hint="give each header a key",
        )
    lists = (pa.ListArray.from_arrays(offsets, part, mask=column.is_null()) for part in texts)
    keys, found = lists
    return keys, found


def _row_of(lengths: Any, entry: int) -> int:
    """Return the row of an entry of flattened lists of these lengths."""
    return int(np.searchsorted(np.cumsum(lengths), entry, side="right"))


# Ids


def _ids(batch: pa.RecordBatch, rows: int, at: datetime) -> pa.Array:
    made = _new_ids(rows, at)
    if "id" in batch.schema.names:
        given = batch.column("id")
        if given.null_count < rows:
            kept = np.flatnonzero(_there(given))
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
    """Text ids as bytes, all at once. `_checked` has refused those that are not uuids."""
    return np.frombuffer(bytes.fromhex("".join(_hex(texts).to_pylist())), np.uint8).reshape(len(texts), 16)
