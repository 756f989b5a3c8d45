"""Archive files: consecutive offsets of one partition as Parquet.

Each file is read back and verified before it is listed.

A file has all columns of the log, so reads from the archive and from the log return equal rows. Row groups are limited
in rows and bytes, which bounds memory for payloads of any size.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from trunkline.db.calls.archive import ArchiveRange, NewFile
from trunkline.errors import ArchiveDamaged, InvalidArgument, OffsetOutOfRange
from trunkline.spark.source.log_reader import LOG_SCHEMA, schema_of

# The partition is a column, so a file can be read without its path and added to Delta and Iceberg tables.
FILE_SCHEMA = pa.schema([pa.field("partition", pa.int32()), *LOG_SCHEMA])
# Columns that the source can request instead of headers: lists of names and values.
_HEADER_LISTS = ("header_keys", "header_values")
_GROUP_ROWS = 131_072
_GROUP_BYTES = 32 << 20
_DICTIONARY = ["partition", "key", "routing_key", "label", "headers", "content_type"]
# Consecutive ids share a prefix; offsets and times ascend.
_ENCODINGS = {
    "offset": "DELTA_BINARY_PACKED",
    "id": "DELTA_BYTE_ARRAY",
    "occurred_at": "DELTA_BINARY_PACKED",
    "created_at": "DELTA_BINARY_PACKED",
}


def place(location: str) -> tuple[fs.FileSystem, str]:
    """Return the file system and folder of a location: an absolute local path, or a URI such as s3://bucket/folder."""
    try:
        if "://" in location:
            system, base = fs.FileSystem.from_uri(location)
            return system, base
    except (pa.ArrowInvalid, ValueError) as exc:
        raise InvalidArgument(f"location {location!r} cannot be read: {exc}", hint="Give a folder or a URI.") from exc
    except OSError as exc:
        raise InvalidArgument(
            f"location {location!r} cannot be reached: {exc}",
            hint="Give this machine access to it, for S3 with the AWS_ variables. To read only the log, set tier=live.",
        ) from exc
    if not os.path.isabs(location):
        raise InvalidArgument(f"location must be an absolute path or a URI, got {location!r}")
    return fs.LocalFileSystem(), location


def join(location: str, path: str) -> str:
    """Join a location and a path. Settings after `?` in a URI stay at its end."""
    folder, mark, settings = location.partition("?") if "://" in location else (location, "", "")
    return f"{folder.rstrip('/')}/{path}{mark}{settings}"


class Digest:
    """A checksum of row values. It depends on the division into row groups, but not on their encoding."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.rows = 0

    def add(self, table: pa.Table) -> None:
        self.rows += table.num_rows
        for column in table.columns:
            self._add_column(pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0))

    def _add_column(self, values: pa.Array) -> None:
        if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
            self._hash.update(pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False).tobytes())
            values = pc.fill_null(values, "" if pa.types.is_string(values.type) else b"")
            _, offsets, data = values.buffers()
            if data is not None and len(values):
                ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
                self._hash.update(memoryview(data)[int(ends[0]) : int(ends[-1])])
            return
        self._hash.update(np.packbits(pc.is_null(values).to_numpy(zero_copy_only=False)).tobytes())
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.int64())
        self._hash.update(pc.fill_null(values, 0).to_numpy(zero_copy_only=False).tobytes())

    @property
    def text(self) -> str:
        return self._hash.hexdigest()


def new_run() -> str:
    """Return a text that names the files of one round of tasks."""
    return uuid.uuid4().hex[:8]


def write(location: str, topic: str, piece: ArchiveRange, batches: Iterable[pa.RecordBatch], *, run: str = "") -> NewFile:
    """Write the rows of a range to a new file, flush it to disk and verify it. Return its entry for the list.

    The name of the file contains `run`, so that `remove_run` can find it.
    """
    system, base = place(location)
    name = f"{piece.first_offset:020d}-{piece.last_offset:020d}-{run}{uuid.uuid4().hex[len(run) : 12]}.parquet"
    path = f"{topic}/{piece.partition}/{name}"
    folder, whole = f"{base}/{topic}/{piece.partition}", f"{base}/{path}"
    with _writable(location):
        system.create_dir(folder, recursive=True)
        try:
            written, first_at, last_at = _write_rows(system, whole, topic, piece, batches)
            if isinstance(system, fs.LocalFileSystem):
                _flush(whole, base)
        except BaseException:
            _remove(system, whole)
            raise
    if read_back(location, path, piece.last_offset - piece.first_offset + 1) != written:
        raise ArchiveDamaged(
            f"checksum mismatch reading back {join(location, path)}", hint="Check the disk, then archive again."
        )
    return NewFile(
        partition=piece.partition,
        first_offset=piece.first_offset,
        last_offset=piece.last_offset,
        path=path,
        bytes=system.get_file_info(whole).size,
        min_created_at=first_at,
        max_created_at=last_at,
        checksum=written,
    )


def _write_rows(
    system: fs.FileSystem, path: str, topic: str, piece: ArchiveRange, batches: Iterable[pa.RecordBatch]
) -> tuple[str, datetime, datetime]:
    digest = Digest()
    times: list[datetime] = []
    facts = {
        "topic": topic,
        "partition": piece.partition,
        "first_offset": piece.first_offset,
        "last_offset": piece.last_offset,
    }
    schema = FILE_SCHEMA.with_metadata({f"trunkline.{name}": str(value) for name, value in facts.items()})
    with (
        system.open_output_stream(path) as sink,
        pq.ParquetWriter(
            sink,
            schema,
            compression="zstd",
            use_dictionary=_DICTIONARY,
            column_encoding=_ENCODINGS,
            write_statistics=True,
            write_page_index=True,
            write_page_checksum=True,
        ) as writer,
    ):
        for group in _groups(batches):
            table = group.add_column(0, FILE_SCHEMA.field(0), pa.repeat(pa.scalar(piece.partition, pa.int32()), len(group)))
            _check_offsets(table["offset"], piece, digest.rows)
            digest.add(table)
            times += pc.min_max(table["created_at"]).as_py().values()
            writer.write_table(table, row_group_size=len(table))
    missing = piece.last_offset - piece.first_offset + 1 - digest.rows
    if missing:
        raise OffsetOutOfRange(
            f"cannot read the last {missing} offsets up to {piece.last_offset} of partition {piece.partition}"
        )
    return digest.text, min(times), max(times)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches into row groups, limited in rows and bytes."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        while rows + batch.num_rows >= _GROUP_ROWS:
            head = batch.slice(0, _GROUP_ROWS - rows)
            yield pa.Table.from_batches([*waiting, head], LOG_SCHEMA).combine_chunks()
            waiting, rows, size, batch = [], 0, 0, batch.slice(head.num_rows)
        if batch.num_rows:
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
        if size >= _GROUP_BYTES:
            yield pa.Table.from_batches(waiting, LOG_SCHEMA).combine_chunks()
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting, LOG_SCHEMA).combine_chunks()


def _check_offsets(offsets: pa.ChunkedArray, piece: ArchiveRange, done: int) -> None:
    """Raise OffsetOutOfRange unless the offsets are consecutive."""
    expected = np.arange(len(offsets), dtype=np.int64) + piece.first_offset + done
    got = offsets.to_numpy()
    if not np.array_equal(got, expected) or expected[-1] > piece.last_offset:
        wrong = int(np.argmax(got != expected))
        raise OffsetOutOfRange(
            f"unexpected offset in partition {piece.partition}: expected {expected[wrong]}, got {got[wrong]}"
        )


def read_back(location: str, path: str, rows: int) -> str:
    """Return the checksum of a stored file. Raises `ArchiveDamaged` if it is missing or its row count differs."""
    digest = Digest()
    with opened(location, path) as file:
        if file.metadata.num_rows != rows:
            raise ArchiveDamaged(f"{join(location, path)} must have {rows} rows, got {file.metadata.num_rows}")
        for group in range(file.num_row_groups):
            digest.add(file.read_row_group(group))
    return digest.text


@contextmanager
def opened(location: str, path: str, size: int | None = None) -> Iterator[pq.ParquetFile]:
    """Open an archive file for reading. All failures are raised as `ArchiveDamaged` and name the file."""
    system, base = place(location)
    try:
        with system.open_input_file(f"{base}/{path}") as source:
            if size is not None and source.size() != size:
                raise ArchiveDamaged(
                    f"{join(location, path)} must have {size} bytes, got {source.size()}",
                    hint="Restore the file from a backup.",
                )
            yield pq.ParquetFile(source, pre_buffer=True, page_checksum_verification=True)
    except FileNotFoundError as exc:
        raise ArchiveDamaged(
            f"{join(location, path)} is missing", hint="Restore the file, or set the archive's location with move_archive."
        ) from exc
    except (pa.ArrowException, OSError, KeyError, UnicodeError) as exc:
        # A damaged footer may name other columns: KeyError, UnicodeError.
        cause = " ".join(str(exc).split())
        raise ArchiveDamaged(
            f"{join(location, path)} cannot be read: {cause}", hint="Restore the file from a backup."
        ) from exc


def read(
    location: str,
    path: str,
    file_first: int,
    lo: int,
    hi: int,
    columns: Sequence[str] | None = None,
    *,
    size: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield these columns of offsets `lo` <= offset < `hi`, in order. `file_first` is the first offset in the file."""
    names = list(LOG_SCHEMA.names if columns is None else columns)
    stored = list(dict.fromkeys("headers" if name in _HEADER_LISTS else name for name in names))
    seen = 0
    with opened(location, path, size) as file:
        at = file_first
        for group in range(file.num_row_groups):
            begin, at = at, at + file.metadata.row_group(group).num_rows
            if at <= lo or begin >= hi:
                continue
            for batch in file.iter_batches(65_536, row_groups=[group], columns=stored):
                end = begin + batch.num_rows
                part = batch.slice(max(lo - begin, 0), max(min(hi, end) - max(lo, begin), 0))
                begin = end
                if part.num_rows:
                    seen += part.num_rows
                    yield pa.RecordBatch.from_arrays([_column(part, name) for name in names], schema=schema_of(names))
    if seen != hi - lo:
        raise ArchiveDamaged(f"{join(location, path)} lacks {hi - lo - seen} of offsets {lo} to {hi - 1}")


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in _HEADER_LISTS:
        return batch.column(name)
    side = _HEADER_LISTS.index(name)
    # Parse each distinct text once.
    encoded = batch.column("headers").dictionary_encode()
    lists = [[pair[side] for pair in _header_pairs(text)] or None for text in encoded.dictionary.to_pylist()]
    return pa.array(lists, pa.list_(pa.string())).take(encoded.indices)


def _header_pairs(text: str) -> list[tuple[str, str | None]]:
    """Return names and values as Postgres renders them as text, with numbers as written."""
    parsed = json.loads(text)
    exact = json.loads(text, parse_float=str, parse_int=str)
    return [
        (name, value if value is None or isinstance(value, str) else json.dumps(parsed[name], ensure_ascii=False))
        for name, value in sorted(exact.items())
    ]


def check_writable(location: str) -> None:
    """Raise `InvalidArgument` if this machine cannot write to the location."""
    system, base = place(location)
    probe = f"{base}/.probe-{uuid.uuid4().hex}"
    with _writable(location):
        system.create_dir(base, recursive=True)
        with system.open_output_stream(probe) as sink:
            sink.write(b"probe")
    _remove(system, probe)


@contextmanager
def _writable(location: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        cause = os.strerror(exc.errno) if exc.errno else str(exc)
        raise InvalidArgument(
            f"archive {location} cannot be written: {cause}", hint="Give a folder that all tasks can write to."
        ) from exc


def _flush(path: str, base: str) -> None:
    """Flush the file and its folders to disk. Retention may remove the log's copy once the file is listed."""
    folder = os.path.dirname(path)
    for each in (path, folder, os.path.dirname(folder), base, os.path.dirname(base)):
        try:
            descriptor = os.open(each, os.O_RDONLY)
        except PermissionError:
            continue  # A parent folder without read permission. It existed before, so it need not be flushed.
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(system: Any, path: str) -> None:
    try:
        system.delete_file(path)
    except OSError:
        return


def remove(location: str, path: str) -> None:
    """Remove a file that is not listed."""
    remove_whole(location, f"{place(location)[1]}/{path}")


def remove_run(location: str, topic: str, partitions: Iterable[int], run: str) -> None:
    """Remove the files that the tasks of a run have written; none of them may be listed."""
    system, base = place(location)
    for partition in partitions:
        folder = fs.FileSelector(f"{base}/{topic}/{partition}", allow_not_found=True)
        for file in system.get_file_info(folder):
            if re.search(f"-{run}[0-9a-f]{{4}}[.]parquet$", file.path):
                _remove(system, file.path)


def remove_whole(location: str, path: str) -> None:
    """Remove a file by its full path in the location's file system."""
    _remove(place(location)[0], path)
