"""Writing to topics: tasks stage, the driver publishes once. See `staging` for why a repeat changes nothing."""

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
from trunkline.spark.staging import Staged, commit, discard, header_lists, stage

_TEXT = (StringType, BinaryType)
# column: (as it is staged, types it may have)
_TAKEN: dict[str, tuple[str, tuple[type[DataType], ...]]] = {
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
# What a message gets anew: a DataFrame that was read from a topic can be written as it is.
_LEFT_OUT = ("offset", "timestamp", "timestampType")


@dataclass
class Message(WriterCommitMessage):
    """From a task to the driver. `query` is the id of the streaming query that the task is part of, or empty."""

    task: int
    query: str
    staged: Staged


def checked(schema: StructType, options: WriteOptions) -> None:
    """Refuse on the driver what cannot be written."""
    names = schema.fieldNames()
    if "value" not in names:
        raise InvalidOption("the rows have no column value", hint="rename the column that holds the payload to value")
    for field in schema.fields:
        if field.name in _LEFT_OUT:
            continue
        if field.name not in _TAKEN:
            raise InvalidOption(
                f"the rows have a column {field.name}, which messages do not have", hint="select " + ", ".join(_TAKEN)
            )
        if not isinstance(field.dataType, _TAKEN[field.name][1]):
            wanted = " or ".join(kind.typeName() for kind in _TAKEN[field.name][1])
            raise InvalidOption(f"the column {field.name} is {field.dataType.simpleString()}", hint=f"cast it to {wanted}")
    if options.target is None and "topic" not in names:
        raise InvalidOption("nothing says where the rows go", hint="give the option topic, or rows with a column topic")


def staged_form(batches: Iterator[pa.RecordBatch], target: str | None) -> Iterator[pa.RecordBatch]:
    """Batches with the columns that `staging` takes."""
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
                columns[_TAKEN[name][0]] = column
        rows += batch.num_rows
        yield pa.record_batch(columns)


def _entries(column: pa.Array) -> pa.Array:
    """A map is a list of keys and values."""
    if not pa.types.is_map(column.type):
        return column
    return column.cast(pa.list_(pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])))


def _staged(options: WriteOptions, batches: Iterator[pa.RecordBatch], writer: str = "", version: int = 0) -> Message:
    """What a task does. A stream has its query and batch instead of a writer and a version."""
    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    query = "" if context is None else context.getLocalProperty("sql.streaming.queryId") or ""
    batch = "" if context is None else context.getLocalProperty("streaming.sql.batchId") or ""
    job = f"{writer} {version} {query} {batch}"
    staged = stage(options.url.reveal(), staged_form(batches, options.target), topic=options.target, job=job)
    return Message(task, query, staged)


def _found(messages: Sequence[WriterCommitMessage | None]) -> list[Message]:
    """In the order of the tasks, which is the order of the rows."""
    return sorted((message for message in messages if isinstance(message, Message)), key=lambda message: message.task)


class BatchSink(DataSourceArrowWriter):
    """`df.write`: all rows or none. With txnAppId and txnVersion a repeat of the same job publishes nothing.

    In foreachBatch the number of the batch is the version, and another query (a new checkpoint) counts from 0 again. So the
    query is part of the writer's name there: its batches are not taken for those of the other query.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOption("the mode is overwrite", hint="messages are only ever added: use append")
        checked(schema, options)
        self._options = options
        # a name of its own for a write that has none; options refuse this prefix
        self._writer, self._version = f"once:{uuid.uuid4()}", 0
        if options.app_id is not None and options.version is not None:
            self._writer, self._version = options.app_id, options.version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        return _staged(self._options, iterator, self._writer, self._version)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        found = _found(messages)
        url, staged = self._options.url.reveal(), [message.staged for message in found]
        query = found[0].query if found and self._options.app_id is not None else ""
        if not commit(url, f"{self._writer}@{query}" if query else self._writer, self._version, staged).done:
            discard(url, staged)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        # it may come after a commit that succeeded: what has got its offsets is out of reach
        discard(self._options.url.reveal(), [message.staged for message in _found(messages)])


class StreamSink(DataSourceStreamArrowWriter):
    """`df.writeStream`: each micro-batch once, whatever is repeated. The query's id is the writer, the batch its version."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        if options.app_id is not None:
            raise InvalidOption(
                "txnAppId is for batch writes", hint="a stream has its query and batch for that; leave it out"
            )
        checked(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        return _staged(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        found = _found(messages)
        if any(message.staged.rows for message in found):
            url, staged = self._options.url.reveal(), [message.staged for message in found]
            if not commit(url, f"query:{found[0].query}", batchId, staged).done:
                discard(url, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        discard(self._options.url.reveal(), [message.staged for message in _found(messages)])
