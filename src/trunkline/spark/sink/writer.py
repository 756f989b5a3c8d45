"""Write to topics: tasks stage rows, the driver publishes them once. `staging` explains why repeats have no effect."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from trunkline.errors import InvalidOption
from trunkline.spark.options import WriteOptions
from trunkline.spark.sink.staging import Staged, commit, discard, header_lists, stage

_TEXT = (StringType, BinaryType)
# column: (name in the staged batch, allowed types)
_COLUMNS: dict[str, tuple[str, tuple[type[DataType], ...]]] = {
    "value": ("payload", _TEXT),
    "key": ("key", _TEXT),
    "topic": ("topic", (StringType,)),
    "partition": ("partition", (IntegerType, LongType)),
    "headers": ("headers", (StringType, ArrayType, MapType)),
    "routing_key": ("routing_key", _TEXT),
    "label": ("label", _TEXT),
    "content_type": ("content_type", _TEXT),
    "id": ("id", _TEXT),
    "occurred_at": ("occurred_at", (TimestampType,)),
}
# Assigned at publish. Ignored here, so that a DataFrame read from a topic can be written unchanged.
_LEFT_OUT = ("offset", "timestamp", "timestampType")


@dataclass
class WriterMessage(WriterCommitMessage):
    """A task's result, sent to the driver. `query` is the id of its streaming query, or empty."""

    task: int
    query: str
    staged: Staged


def checked(schema: StructType, options: WriteOptions) -> None:
    """Reject invalid columns on the driver."""
    names = schema.fieldNames()
    if "value" not in names:
        raise InvalidOption("the rows have no column value", hint="Rename the payload column to value.")
    for field in schema.fields:
        if field.name in _LEFT_OUT:
            continue
        if field.name not in _COLUMNS:
            raise InvalidOption(
                f"messages have no column {field.name}, which the rows contain",
                hint=f"Select only columns of {', '.join(_COLUMNS)}.",
            )
        if not isinstance(field.dataType, _COLUMNS[field.name][1]):
            expected = " or ".join(kind.typeName() for kind in _COLUMNS[field.name][1])
            raise InvalidOption(
                f"column {field.name} must be {expected}, got {field.dataType.simpleString()}", hint="Cast the column."
            )
    if options.target is None and "topic" not in names:
        raise InvalidOption("no topic for the rows", hint="Set the option topic, or add a column topic.")


def staged_form(batches: Iterator[pa.RecordBatch], target: str | None) -> Iterator[pa.RecordBatch]:
    """Convert batches to the columns that `staging` expects."""
    rows = 0
    for batch in batches:
        columns: dict[str, Any] = {}
        for name in batch.schema.names:
            column = batch.column(name)
            if name in _LEFT_OUT or (name == "topic" and target is not None):
                continue
            if name == "headers" and not pa.types.is_string(column.type):
                columns["header_keys"], columns["header_values"] = header_lists(_entries(column), rows)
            else:
                columns[_COLUMNS[name][0]] = column
        rows += batch.num_rows
        yield pa.record_batch(columns)


def _entries(column: pa.Array) -> pa.Array:
    """Convert a map column to a list of keys and values; return other columns unchanged."""
    if not pa.types.is_map(column.type):
        return column
    return column.cast(pa.list_(pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])))


def _staged(options: WriteOptions, batches: Iterator[pa.RecordBatch], writer: str = "", version: int = 0) -> WriterMessage:
    """Stage the rows of a task. In a stream, query and batch identify the job instead of writer and version."""
    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    query = "" if context is None else context.getLocalProperty("sql.streaming.queryId") or ""
    batch = "" if context is None else context.getLocalProperty("streaming.sql.batchId") or ""
    job = f"{writer} {version} {query} {batch}"
    staged = stage(options.url.reveal(), staged_form(batches, options.target), topic=options.target, job=job)
    return WriterMessage(task, query, staged)


def _found(messages: Sequence[WriterCommitMessage | None]) -> list[WriterMessage]:
    """Return the messages in task order, which is row order."""
    return sorted((message for message in messages if isinstance(message, WriterMessage)), key=lambda message: message.task)


class BatchSink(DataSourceArrowWriter):
    """`df.write`: publishes all rows or none. With txnAppId and txnVersion, repeating a job publishes nothing.

    In foreachBatch the version is the batch number, which restarts at 0 with a new checkpoint. The query id is
    therefore part of the writer's name, so that a new query's batches are not mistaken for repeats.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOption("overwrite mode is not supported", hint="Use append.")
        checked(schema, options)
        self._options = options
        # A unique name for a write without txnAppId. WriteOptions reserves the prefix.
        self._writer, self._version = f"once:{uuid.uuid4()}", 0
        if options.app_id is not None and options.version is not None:
            self._writer, self._version = options.app_id, options.version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterMessage:
        return _staged(self._options, iterator, self._writer, self._version)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        found = _found(messages)
        url, staged = self._options.url.reveal(), [message.staged for message in found]
        query = found[0].query if found and self._options.app_id is not None else ""
        if not commit(url, f"{self._writer}@{query}" if query else self._writer, self._version, staged).done:
            discard(url, staged)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        # Spark may call this after a successful commit; rows that have offsets are not discarded.
        discard(self._options.url.reveal(), [message.staged for message in _found(messages)])


class StreamSink(DataSourceStreamArrowWriter):
    """`df.writeStream`: publishes each micro-batch exactly once.

    The query id is the writer, the batch id the version.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        if options.app_id is not None:
            raise InvalidOption(
                "txnAppId is not supported by streaming writes",
                hint="Omit it: a stream is identified by its query and batch.",
            )
        checked(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterMessage:
        return _staged(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        found = _found(messages)
        if any(message.staged.rows for message in found):
            url, staged = self._options.url.reveal(), [message.staged for message in found]
            if not commit(url, f"query:{found[0].query}", batchId, staged).done:
                discard(url, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        discard(self._options.url.reveal(), [message.staged for message in _found(messages)])
