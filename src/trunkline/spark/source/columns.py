"""Convert log batches to the columns of a Spark schema: Kafka's names and types first, then ours. All in Arrow.

The schema decides which columns are read. Text columns can be read as binary, and binary columns as text if the bytes
are valid UTF-8.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trunkline.errors import InvalidArgument, InvalidOption
from trunkline.spark.options import Selection
from trunkline.spark.source.ranges import OffsetRange

# Kafka's LogAppendTime: the database's clock stamps messages, not the publisher's.
_LOG_APPEND_TIME = 1
_TIME = pa.timestamp("us", "UTC")
_TEXT = (pa.string(), pa.binary())
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])

# column: (log columns it is built from, allowed Arrow types)
_KNOWN: dict[str, tuple[tuple[str, ...], tuple[pa.DataType, ...]]] = {
    "key": (("key",), _TEXT),
    "value": (("payload",), _TEXT),
    "topic": ((), _TEXT),
    "partition": ((), (pa.int32(), pa.int64())),
    "offset": (("offset",), (pa.int64(),)),
    "timestamp": (("created_at",), (_TIME,)),
    "timestampType": ((), (pa.int32(),)),
    "headers": (("headers",), (pa.string(), pa.list_(_HEADER))),
    "id": (("id",), _TEXT),
    "routing_key": (("routing_key",), _TEXT),
    "label": (("label",), _TEXT),
    "content_type": (("content_type",), _TEXT),
    "occurred_at": (("occurred_at",), (_TIME,)),
}


class Shape:
    """Mapping from log batches to a Spark schema. `asked` lists the log columns to read."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.asked = _asked(schema)

    def made(self, batch: pa.RecordBatch, range_: OffsetRange) -> pa.RecordBatch:
        arrays = [self._column(field, batch, range_) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, field: pa.Field, batch: pa.RecordBatch, range_: OffsetRange) -> pa.Array:
        rows = batch.num_rows
        if field.name == "topic":
            return pa.repeat(
                pa.scalar(range_.topic if field.type == pa.string() else range_.topic.encode(), field.type), rows
            )
        if field.name == "partition":
            return pa.array(np.full(rows, range_.partition), field.type)
        if field.name == "timestampType":
            return pa.array(np.full(rows, _LOG_APPEND_TIME), field.type)
        if field.name == "headers" and pa.types.is_list(field.type):
            return _header_structs(batch, field.type)
        column = batch.column(_KNOWN[field.name][0][0])
        if column.type == field.type:
            return column
        try:
            return column.cast(field.type)
        except pa.ArrowInvalid as exc:
            raise InvalidArgument(
                f"{field.name} of a message in offsets {range_.lo} to {range_.hi - 1} of partition {range_.partition}"
                f" of topic {range_.topic} is not UTF-8 text",
                hint=f"Read {field.name} as binary.",
            ) from exc


def _asked(schema: pa.Schema) -> list[str]:
    names: list[str] = []
    for field in schema:
        entry = _KNOWN.get(field.name)
        if entry is None:
            near = difflib.get_close_matches(field.name, _KNOWN, n=1)
            raise InvalidOption(
                f"messages have no column {field.name}, which the schema names",
                hint=f"Did you mean {near[0]}?" if near else f"Choose from {', '.join(_KNOWN)}.",
            )
        if not any(field.type.equals(kind) or _same_list(field.type, kind) for kind in entry[1]):
            raise InvalidOption(
                f"column {field.name} cannot be read as {field.type}",
                hint=f"Declare it as {' or '.join(str(kind) for kind in entry[1])}.",
            )
        # The database returns headers as two lists, names and values.
        needed = ("header_keys", "header_values") if field.name == "headers" and pa.types.is_list(field.type) else entry[0]
        names += [name for name in needed if name not in names]
    return names or ["offset"]


def _same_list(one: pa.DataType, other: pa.DataType) -> bool:
    """Compare list types and ignore the names of their elements."""
    return bool(pa.types.is_list(one) and pa.types.is_list(other) and one.value_type.equals(other.value_type))


def _header_structs(batch: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
    keys, values = batch.column("header_keys"), batch.column("header_values")
    structs = pa.StructArray.from_arrays([keys.flatten(), values.flatten().cast(pa.binary())], fields=list(kind.value_type))
    lengths = pc.fill_null(pc.list_value_length(keys), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, structs, type=kind, mask=keys.is_null())


def selected(batch: pa.RecordBatch, selection: Selection | None) -> pa.RecordBatch:
    """Apply a selection to a batch read from a file, which the database has not filtered.

    The batch must contain the columns of `selection_columns`.
    """
    if not selection:
        return batch
    if selection.routing_regex is not None:
        # Treat a missing routing key as empty, as subscriptions and groups do.
        keys = pc.fill_null(batch.column("routing_key"), "")
        batch = batch.filter(pc.match_substring_regex(keys, selection.routing_regex))
    if selection.label is not None:
        batch = batch.filter(pc.equal(batch.column("label"), selection.label))
    if selection.key is not None:
        batch = batch.filter(pc.equal(batch.column("key"), selection.key))
    return batch


def selection_columns(selection: Selection | None) -> Sequence[str]:
    if not selection:
        return ()
    names = {"routing_key": selection.routing_key, "label": selection.label, "key": selection.key}
    return [name for name, value in names.items() if value is not None]
