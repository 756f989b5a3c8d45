# Written by tools/unasync.py from src/trunkline/db/calls/messages.py; change that file, not this one.
"""Typed calls that publish and read messages, and explain what happened to them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg.rows import tuple_row

from trunkline.codec import EncodedMessage, decoder
from trunkline.db.binary_copy import COLUMNS, new_ids
from trunkline.db.binary_copy import rows as copy_rows
from trunkline.db.sync.calls.queues import get_queue
from trunkline.db.sync.calls.statements import FIELDS, message_fields, within_bytes
from trunkline.db.sync.calls.topics import get_topic
from trunkline.db.sync.pool import Connection
from trunkline.db.sync.query import fetch_rows, fetch_value
from trunkline.errors import InvalidType
from trunkline.types import (
    Explanation,
    Message,
    Published,
)

_DELETED = ("42883", "TL010", "TL011")
"""Errors from the publish function of a deleted topic: first it raises TL010 or TL011, later it no longer exists."""


def topic_number(conn: Connection, kind: str, name: str) -> int:
    """Return the topic's number, which is part of the name of its generated publish function."""
    return int(fetch_value(conn, "select trunkline.topic_number(%b, %b)", (kind, name)))


def publish_one(conn: Connection, kind: str, name: str, message: EncodedMessage, numbers: dict[str, int]) -> Published:
    """Publish one plain message, the fast path.

    A topic has a generated function, whose insert has a cached plan. `numbers` keeps the topic numbers in their names.
    """
    if kind == "inbox":
        rows = fetch_rows(
            conn,
            "select id from trunkline.enqueue_bytes(%b, %b, %b, %b, %b, %b, %b::jsonb, null, %b)",
            (
                name,
                message.payload,
                message.content_type,
                message.key,
                message.routing_key,
                message.label,
                message.headers,
                message.occurred_at,
            ),
        )
        return Published(rows[0][0], False)
    arguments = (
        message.payload,
        message.key,
        message.routing_key,
        message.label,
        message.headers,
        message.content_type,
        message.occurred_at,
    )
    number = numbers.get(name)
    if number is not None:
        try:
            rows = fetch_rows(conn, _publish_function(number), arguments)
            return Published(rows[0][0], False)
        except psycopg.Error as exc:
            if exc.sqlstate not in _DELETED:
                raise
            # the name may belong to a new topic, with another number
    number = numbers[name] = topic_number(conn, kind, name)
    rows = fetch_rows(conn, _publish_function(number), arguments)
    return Published(rows[0][0], False)


def _publish_function(number: int) -> str:
    return f"select trunkline.topic_{int(number)}_publish(%b, %b, %b, %b, %b::jsonb, %b, null, %b)"


def publish_many(conn: Connection, kind: str, name: str, messages: Sequence[EncodedMessage]) -> list[Published]:
    """Publish messages to a topic or directly to a queue, all or none. Results are in input order."""

    def column(attribute: str) -> list[Any] | None:
        """Return the values of one field, or None if no message has one, which saves sending them."""
        values = [getattr(message, attribute) for message in messages]
        return values if any(value is not None for value in values) else None

    kinds = {message.content_type for message in messages}
    priorities = column("priority")
    if priorities is not None and kind == "topic":
        raise InvalidType("priority is only supported by queues, not by topics")
    priority_argument = "" if priorities is None else ", p_priorities => %b::int[]"
    rows = fetch_rows(
        conn,
        f"select id, duplicate from trunkline.{'publish' if kind == 'topic' else 'enqueue'}_many(%b, %b::bytea[],"  # noqa: S608
        " %b::uuid[], %b::text[], %b::text[], %b::text[], %b::text[]::jsonb[], %b::text[], %b, %b::timestamptz[],"
        f" %b::text[], %b::interval[], %b::timestamptz[]{priority_argument})",
        (
            name,
            [message.payload for message in messages],
            column("id"),
            column("key"),
            column("routing_key"),
            column("label"),
            column("headers"),
            [message.content_type for message in messages] if len(kinds) > 1 else None,
            next(iter(kinds), "application/json"),
            column("occurred_at"),
            column("idempotency_key"),
            column("delay"),
            column("deliver_at"),
            *([] if priorities is None else [priorities]),
        ),
    )
    return [Published(*row) for row in rows]


class CopyTarget(NamedTuple):
    """A topic or queue whose table this connection may write to, and its maximum payload size."""

    kind: str
    name: str
    max_payload: int


def copy_target(conn: Connection, kind: str, name: str) -> CopyTarget | None:
    # a role that may write to this table may also write to topic tables
    if not fetch_value(conn, "select has_table_privilege('trunkline.store', 'insert')"):
        return None
    return CopyTarget(kind, name, (get_topic(conn, name) if kind == "topic" else get_queue(conn, name)).max_payload)


def copy_many(conn: Connection, target: CopyTarget, messages: Sequence[EncodedMessage]) -> list[Published]:
    """Stream plain messages into a table with COPY. Requires a transaction: ids are drawn in a separate statement."""
    keys = [message.key for message in messages]
    table, column, places, row_ids, at = (
        fetch_rows(
            conn,
            "select table_name, place_column, places, ids, at from trunkline.draw_ids(%b, %b, %b::int, %b::text[])",
            (target.kind, target.name, len(messages), keys if any(key is not None for key in keys) else None),
        )
    )[0]
    ids = new_ids(len(messages), at)
    cursor = psycopg.Cursor(conn, row_factory=tuple_row)
    statement = f"copy trunkline.{table} ({column}, {COLUMNS}) from stdin (format binary)"
    with cursor.copy(statement.encode()) as copy:
        copy.write(copy_rows(messages, places, row_ids, ids, at))
    return [Published(id, False) for id in ids]


def head(conn: Connection, topic: str, partition: int) -> int:
    return int(fetch_value(conn, "select trunkline.head(%b, %b::int)", (topic, partition)))


def read(
    conn: Connection,
    topic: str,
    partition: int,
    *,
    start: int,
    limit: int = 100,
    max_bytes: int | None = None,
    type: Any = None,
) -> list[Message[Any]]:
    function, args = "read(%b, %b::int, %b::bigint, %b::int)", (topic, partition, start, limit)
    if max_bytes is None:
        rows = fetch_rows(conn, f"select {FIELDS} from trunkline.{function}", args)  # noqa: S608
    else:
        rows = fetch_rows(conn, within_bytes(FIELDS, function), (*args, max_bytes))
    decode = decoder(type)
    return [Message(**message_fields(row), _decode=decode) for row in rows]


def offset_at(conn: Connection, topic: str, partition: int, at: datetime) -> int:
    return int(fetch_value(conn, "select trunkline.offset_at(%b, %b::int, %b)", (topic, partition, at)))


def offset_of(conn: Connection, topic: str, partition: int, position: str) -> int:
    """Return the next offset to read from a position: 'earliest', 'latest', an offset or a time."""
    return int(fetch_value(conn, "select trunkline.offset_of(%b, %b::int, %b)", (topic, partition, position)))


def explain_message(conn: Connection, id: UUID) -> Explanation:
    return Explanation(fetch_value(conn, "select trunkline.explain_message(%b)", (id,)))


def explain_offset(conn: Connection, topic: str, partition: int, offset: int) -> Explanation:
    return Explanation(
        fetch_value(conn, "select trunkline.explain_offset(%b, %b::int, %b::bigint)", (topic, partition, offset))
    )
