# Written by tools/unasync.py from src/trunkline/db/calls/statements.py; change that file, not this one.
"""Parts of statements and rows that several families of calls share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FIELDS = "partition, log_offset, id, key, routing_key, label, headers, payload, content_type, occurred_at, created_at"


def named_arguments(settings: Mapping[str, Any], types: Mapping[str, str]) -> tuple[str, list[Any]]:
    """Return `, p_name => %b::type` and the value for each setting that is not None; others keep their SQL defaults."""
    used = [(name, value) for name, value in settings.items() if value is not None]
    return "".join(f", p_{name} => %b::{types[name]}" for name, _ in used), [value for _, value in used]


def message_fields(row: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of a `Message` from the first columns of a row."""
    return {
        "partition": row[0],
        "offset": row[1],
        "id": row[2],
        "key": row[3],
        "routing_key": row[4],
        "label": row[5],
        "headers": row[6],
        "payload": row[7],
        "content_type": row[8],
        "occurred_at": row[9],
        "created_at": row[10],
    }


def within_bytes(fields: str, function: str) -> str:
    """Return a statement for the rows of a function whose payloads fit into a number of bytes, its last argument.

    The first row is always returned. The others stay in the database, so that large payloads do not fill our memory.
    """
    return (
        f"select {fields} from (select r.*, sum(octet_length(payload)) over (order by ordinality) as bytes"  # noqa: S608
        f" from trunkline.{function} with ordinality r) r where ordinality = 1 or bytes <= %b::bigint"
    )
