# Written by tools/unasync.py from src/trunkline/db/calls.py; change that file, not this one.
"""One typed call per SQL function. Apart from COPY, no statement here changes rows except through a function.

Every call takes the connection to use and never commits: the code that opened the transaction ends it. Calls do not
depend on connection settings (row factory, cursor class, adapters), because the connection may belong to the caller.
Psycopg prepares a statement after a few uses; behind a transaction pooler set `prepare_threshold=None` on the
connection.

Only numbers, function names, and lists of columns or settings from this module are formatted into statements (marked
S608 and B608). Values from callers are always parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import psycopg
from psycopg.rows import tuple_row

from trunkline.db.codec import Encoded, decoder, error_text, headers_json
from trunkline.db.copying import COLUMNS, new_ids
from trunkline.db.copying import rows as copy_rows
from trunkline.db.sync.pool import Connection
from trunkline.db.sync.querying import Row, fetch_records, fetch_rows, fetch_value
from trunkline.errors import InvalidType
from trunkline.types import (
    DeadLetter,
    Explanation,
    Group,
    GroupStats,
    Headers,
    Message,
    Published,
    Queue,
    QueueStats,
    Range,
    Reader,
    Result,
    Schedule,
    Subscription,
    Topic,
    TopicStats,
    Waiting,
)

S = TypeVar("S")
_FIELDS = "partition, log_offset, id, key, routing_key, label, headers, payload, content_type, occurred_at, created_at"


def _named(settings: Mapping[str, Any], types: Mapping[str, str]) -> tuple[str, list[Any]]:
    """Return `, p_name => %b::type` and the value for each setting that is not None; others keep their SQL defaults."""
    used = [(name, value) for name, value in settings.items() if value is not None]
    return "".join(f", p_{name} => %b::{types[name]}" for name, _ in used), [value for _, value in used]


def message_fields(row: Row) -> dict[str, Any]:
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


# Topics

_TOPIC_SETTINGS = {
    "partitions": "int",
    "retention": "interval",
    "retention_bytes": "bigint",
    "hard_retention": "interval",
    "max_payload": "int",
    "segment_rows": "int",
}


def create_topic(conn: Connection, name: str, **settings: Any) -> Topic:
    named, values = _named(settings, _TOPIC_SETTINGS)
    return (fetch_records(conn, Topic, f"select * from trunkline.create_topic(%b{named})", (name, *values)))[0]  # noqa: S608


def alter_topic(conn: Connection, name: str, **settings: Any) -> Topic:
    named, values = _named(settings, _TOPIC_SETTINGS)
    return (fetch_records(conn, Topic, f"select * from trunkline.alter_topic(%b{named})", (name, *values)))[0]  # noqa: S608


def get_topic(conn: Connection, name: str) -> Topic:
    return (fetch_records(conn, Topic, "select * from trunkline.get_topic(%b)", (name,)))[0]


def ensure_topic(conn: Connection, name: str, **settings: Any) -> Topic:
    named, values = _named(settings, _TOPIC_SETTINGS)
    return (fetch_records(conn, Topic, f"select * from trunkline.ensure_topic(%b{named})", (name, *values)))[0]  # noqa: S608


def list_topics(conn: Connection, *, after: str | None = None, limit: int | None = None) -> list[Topic]:
    return fetch_records(conn, Topic, "select * from trunkline.list_topics(%b::text, %b::int)", (after, limit))


def delete_topic(conn: Connection, name: str, *, force: bool = False) -> None:
    fetch_rows(conn, "select trunkline.delete_topic(%b, %b)", (name, force))


def topic_number(conn: Connection, kind: str, name: str) -> int:
    """Return the topic's number, which is part of the name of its generated publish function."""
    return int(fetch_value(conn, "select trunkline.topic_number(%b, %b)", (kind, name)))


# Publishing


def publish_one(conn: Connection, topic_number: int, message: Encoded) -> Published:
    """Publish one plain message through the topic's generated function, whose insert has a cached plan."""
    value = fetch_value(
        conn,
        f"select trunkline.topic_{int(topic_number)}_publish(%b, %b, %b, %b, %b::jsonb, %b, %b, %b)",
        (
            message.payload,
            message.key,
            message.routing_key,
            message.label,
            message.headers,
            message.content_type,
            message.id,
            message.occurred_at,
        ),
    )
    return Published(value, False)


def enqueue_one(conn: Connection, queue: str, message: Encoded) -> Published:
    """Publish one plain message to a queue, the fast path."""
    value = fetch_value(
        conn,
        "select id from trunkline.enqueue_bytes(%b, %b, %b, %b, %b, %b, %b::jsonb, %b, %b)",
        (
            queue,
            message.payload,
            message.content_type,
            message.key,
            message.routing_key,
            message.label,
            message.headers,
            message.id,
            message.occurred_at,
        ),
    )
    return Published(value, False)


def publish_many(conn: Connection, kind: str, name: str, messages: Sequence[Encoded]) -> list[Published]:
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


def copy_many(conn: Connection, target: CopyTarget, messages: Sequence[Encoded]) -> list[Published]:
    """Stream plain messages into a table with COPY. Requires a transaction: ids are drawn in a separate statement."""
    keys = [message.key for message in messages]
    table, column, places, row_ids, at = (
        fetch_rows(
            conn,
            "select table_name, place_column, places, ids, at from trunkline.draw_ids(%b, %b, %b::int, %b::text[])",
            (target.kind, target.name, len(messages), keys if any(key is not None for key in keys) else None),
        )
    )[0]
    generated = iter(new_ids(sum(message.id is None for message in messages), at))
    ids = [next(generated) if message.id is None else message.id for message in messages]
    cursor = psycopg.Cursor(conn, row_factory=tuple_row)
    statement = f"copy trunkline.{table} ({column}, {COLUMNS}) from stdin (format binary)"
    with cursor.copy(statement.encode()) as copy:
        copy.write(copy_rows(messages, places, row_ids, ids, at))
    return [Published(id, False) for id in ids]


# The log


def head(conn: Connection, topic: str, partition: int) -> int:
    return int(fetch_value(conn, "select trunkline.head(%b, %b::int)", (topic, partition)))


def _within(fields: str, function: str) -> str:
    """Return a statement for the rows of a function whose payloads fit into a number of bytes, its last argument.

    The first row is always returned. The others stay in the database, so that large payloads do not fill our memory.
    """
    return (
        f"select {fields} from (select r.*, sum(octet_length(payload)) over (order by ordinality) as bytes"  # noqa: S608
        f" from trunkline.{function} with ordinality r) r where ordinality = 1 or bytes <= %b::bigint"
    )


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
        rows = fetch_rows(conn, f"select {_FIELDS} from trunkline.{function}", args)  # noqa: S608
    else:
        rows = fetch_rows(conn, _within(_FIELDS, function), (*args, max_bytes))
    decode = decoder(type)
    return [Message(**message_fields(row), _decode=decode) for row in rows]


def offset_at(conn: Connection, topic: str, partition: int, at: datetime) -> int:
    return int(fetch_value(conn, "select trunkline.offset_at(%b, %b::int, %b)", (topic, partition, at)))


def offset_of(conn: Connection, topic: str, partition: int, place: str) -> int:
    """Return the next offset to read from a position: 'earliest', 'latest', an offset or a time."""
    return int(fetch_value(conn, "select trunkline.offset_of(%b, %b::int, %b)", (topic, partition, place)))


# Groups


def create_group(
    conn: Connection,
    topic: str,
    group: str,
    *,
    start: str,
    pattern: str | None = None,
    headers: Headers | None = None,
    ensure: bool = False,
) -> Group:
    named, values = _named({"pattern": pattern, "filter": headers_json(headers)}, {"pattern": "text", "filter": "jsonb"})
    verb = "ensure_group" if ensure else "create_group"
    query = f"select g.name, g.pattern, g.filter, g.created_at from trunkline.{verb}(%b, %b, %b{named}) g"  # noqa: S608
    name, pattern, filter, created_at = (fetch_rows(conn, query, (topic, group, start, *values)))[0]
    return Group(topic=topic, name=name, pattern=pattern, headers=filter, created_at=created_at)


def list_groups(
    conn: Connection, topic: str | None = None, *, after: str | None = None, limit: int | None = None
) -> list[Group]:
    return fetch_records(
        conn,
        Group,
        "select topic, name, pattern, filter as headers, created_at from trunkline.list_groups(%b::text, %b::text, %b::int)",
        (topic, after, limit),
    )


def delete_group(conn: Connection, topic: str, group: str) -> None:
    fetch_rows(conn, "select trunkline.delete_group(%b, %b)", (topic, group))


def fetch(
    conn: Connection,
    make: Callable[..., S],
    topic: str,
    group: str,
    *,
    member: str,
    limit: int,
    lease: timedelta,
    generation: UUID | None = None,
    max_bytes: int | None = None,
    type: Any = None,
) -> S | None:
    """Fetch the next messages of one partition as a batch, or None if there is nothing for this member.

    Uses a relaxed commit, because it is always a separate transaction.
    """
    rows = fetch_rows(
        conn,
        f"select {_FIELDS}, generation, deadline"  # noqa: S608
        " from trunkline.fetch(%b, %b, %b, %b::int, %b, p_relaxed => true, p_generation => %b::uuid,"
        " p_max_bytes => %b::bigint)",
        (topic, group, member, limit, lease, generation, max_bytes),
    )
    if not rows:
        return None
    decode = decoder(type)
    messages: list[Message[Any]] = [Message(**message_fields(row), _decode=decode) for row in rows]
    return make(generation=rows[0][11], deadline=rows[0][12], messages=messages)


def commit(conn: Connection, topic: str, group: str, *, partition: int, generation: UUID, offset: int) -> tuple[Result, str]:
    """Commit a position. Return the result and the id of its transaction."""
    row = (
        fetch_rows(
            conn,
            "select trunkline.commit(%b, %b, %b::int, %b, %b::bigint), pg_current_xact_id()::text",
            (topic, group, partition, generation, offset),
        )
    )[0]
    return row[0], row[1]


def leave(conn: Connection, topic: str, group: str, *, member: str) -> int:
    return int(fetch_value(conn, "select trunkline.leave(%b, %b, %b)", (topic, group, member)))


def heartbeat(conn: Connection, topic: str, group: str, *, member: str, lease: timedelta) -> int:
    return int(fetch_value(conn, "select trunkline.heartbeat(%b, %b, %b, %b)", (topic, group, member, lease)))


def claim_range(conn: Connection, topic: str, group: str, *, limit: int = 100) -> Range | None:
    rows = fetch_rows(
        conn,
        "select partition, first_offset, last_offset from trunkline.claim_range(%b, %b, %b::bigint)",
        (topic, group, limit),
    )
    return Range(*rows[0]) if rows else None


def seek(conn: Connection, topic: str, group: str, to: str, *, partition: int | None = None) -> dict[int, int]:
    """Move a group. Return the next offset of each partition moved."""
    rows = fetch_rows(
        conn,
        "select partition, next_offset from trunkline.seek(%b, %b, %b, %b::int)",
        (topic, group, to, partition),
    )
    return {row[0]: row[1] for row in rows}


# Queues

_QUEUE_SETTINGS = {
    "lease": "interval",
    "max_attempts": "int",
    "backoff_base": "interval",
    "backoff_factor": "float8",
    "backoff_cap": "interval",
    "backoff_jitter": "float8",
    "ttl": "interval",
    "delivery_delay": "interval",
    "ordered": "boolean",
    "partitions": "int",
    "priorities": "int",
    "history": "interval",
    "retention": "interval",
    "max_payload": "int",
    "segment_rows": "int",
}


def create_queue(conn: Connection, name: str, **settings: Any) -> Queue:
    named, values = _named(settings, _QUEUE_SETTINGS)
    fetch_rows(conn, f"select from trunkline.create_queue(%b{named})", (name, *values))
    return get_queue(conn, name)


def alter_queue(conn: Connection, name: str, **settings: Any) -> Queue:
    named, values = _named(settings, _QUEUE_SETTINGS)
    fetch_rows(conn, f"select from trunkline.alter_queue(%b{named})", (name, *values))
    return get_queue(conn, name)


def ensure_queue(conn: Connection, name: str, **settings: Any) -> Queue:
    named, values = _named(settings, _QUEUE_SETTINGS)
    fetch_rows(conn, f"select from trunkline.ensure_queue(%b{named})", (name, *values))
    return get_queue(conn, name)


def get_queue(conn: Connection, name: str) -> Queue:
    return (fetch_records(conn, Queue, "select * from trunkline.get_queue(%b)", (name,)))[0]


def list_queues(conn: Connection, *, after: str | None = None, limit: int | None = None) -> list[Queue]:
    return fetch_records(conn, Queue, "select * from trunkline.list_queues(%b::text, %b::int)", (after, limit))


def delete_queue(conn: Connection, name: str, *, force: bool = False) -> None:
    fetch_rows(conn, "select trunkline.delete_queue(%b, %b)", (name, force))


def pause_queue(conn: Connection, name: str, *, paused: bool) -> None:
    verb = "pause_queue" if paused else "resume_queue"
    fetch_rows(conn, f"select trunkline.{verb}(%b)", (name,))


def purge_queue(conn: Connection, name: str) -> int:
    """Drop one bounded step of undelivered messages. Return their number."""
    return int(fetch_value(conn, "select trunkline.purge_queue(%b)", (name,)))


def cleanup_queue(conn: Connection, name: str) -> int:
    """Remove finished messages. Return the number of segments and shared-store partitions emptied."""
    return int(fetch_value(conn, "select trunkline.cleanup_queue(%b)", (name,)))


def peek_queue(
    conn: Connection, queue: str, *, limit: int = 10, max_bytes: int | None = None, type: Any = None
) -> list[Waiting[Any]]:
    """Return the next messages: retries by due time, then new ones. Claims nothing and counts no attempt."""
    fields, function = f"{_FIELDS}, topic, attempt, due_at, error", "peek_queue(%b, %b::int)"
    if max_bytes is None:
        rows = fetch_rows(conn, f"select {fields} from trunkline.{function}", (queue, limit))  # noqa: S608
    else:
        rows = fetch_rows(conn, _within(fields, function), (queue, limit, max_bytes))
    decode = decoder(type)
    return [
        Waiting(**message_fields(row), topic=row[11], attempt=row[12], due_at=row[13], error=row[14], _decode=decode)
        for row in rows
    ]


def sequence(conn: Connection, *, queues: Sequence[str] = (), topics: Sequence[str] = ()) -> None:
    """Sequence committed messages of these queues and topics, and return messages that are due.

    Runs in a separate transaction. A claim or fetch that found nothing may find messages afterwards.
    """
    conn.execute("call trunkline.sequence(%b::text[], %b::text[])", (list(queues), list(topics)))


def sequence_before_reading(conn: Connection, *, queue: str | None = None, topic: str | None = None) -> None:
    """Sequence a queue or topic (neither: some hundred of all) before reading, in case no process runs upkeep.

    Reads do not assign offsets themselves. Skipped inside a transaction, or if this role may not sequence.
    """
    if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        return
    names = (None, None) if queue is None and topic is None else ([queue] if queue else [], [topic] if topic else [])
    with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable):
        conn.execute("call trunkline.sequence(%b::text[], %b::text[])", names)


def claim(
    conn: Connection,
    make: Callable[..., S],
    queue: str,
    *,
    limit: int = 1,
    lease: timedelta | None = None,
    labels: Sequence[str] | None = None,
    consumer: str | None = None,
    type: Any = None,
) -> list[S]:
    """Claim messages of a queue with a relaxed commit, because it is always a separate transaction."""
    rows = fetch_rows(
        conn,
        f"select {_FIELDS}, receipt, attempt, deadline, topic"  # noqa: S608
        " from trunkline.claim(%b, %b::int, %b::interval, %b::text[], %b::text, true)",
        (queue, limit, lease, None if labels is None else list(labels), consumer),
    )
    decode = decoder(type)
    return [
        make(
            partition=row[0],
            offset=row[1],
            id=row[2],
            key=row[3],
            routing_key=row[4],
            label=row[5],
            headers=row[6],
            payload=row[7],
            content_type=row[8],
            occurred_at=row[9],
            created_at=row[10],
            receipt=row[11],
            attempt=row[12],
            deadline=row[13],
            topic=row[14],
            _decode=decode,
        )
        for row in rows
    ]


def ack(conn: Connection, receipts: Sequence[str]) -> list[Result]:
    position, _, lease = receipts[0].partition(".") if receipts else ("", "", "")
    # fast path for receipts of one lease; malformed receipts take the slow path, which rejects them
    if position.isdecimal() and all(receipt.partition(".")[2] == lease for receipt in receipts):
        positions = [receipt.partition(".")[0] for receipt in receipts]
        if all(text.isdecimal() and text.isascii() and len(text) < 19 for text in positions):
            results = fetch_value(
                conn, "select trunkline.ack_lease(%b, %b::bigint[])", (lease, [int(text) for text in positions])
            )
            return ["done"] * len(receipts) if results is None else results
    rows = fetch_rows(conn, "select result from trunkline.ack(%b::text[])", (list(receipts),))
    return [row[0] for row in rows]


def nack(
    conn: Connection, receipts: Sequence[str], *, delay: timedelta | None = None, error: str | None = None
) -> list[Result]:
    rows = fetch_rows(
        conn,
        "select result from trunkline.nack(%b::text[], %b::interval, %b::text)",
        (list(receipts), delay, error_text(error)),
    )
    return [row[0] for row in rows]


def bury(conn: Connection, receipts: Sequence[str], *, error: str | None = None) -> list[Result]:
    values = (list(receipts), error_text(error))
    rows = fetch_rows(conn, "select result from trunkline.bury(%b::text[], %b::text)", values)
    return [row[0] for row in rows]


def release(conn: Connection, receipts: Sequence[str]) -> list[Result]:
    rows = fetch_rows(conn, "select result from trunkline.release(%b::text[])", (list(receipts),))
    return [row[0] for row in rows]


def extend(conn: Connection, receipts: Sequence[str], *, lease: timedelta) -> list[Result]:
    rows = fetch_rows(conn, "select result from trunkline.extend(%b::text[], %b)", (list(receipts), lease))
    return [row[0] for row in rows]


def transaction_number(conn: Connection) -> str:
    """Return the id of the current transaction, to detect later whether it is still the same one."""
    return str(fetch_value(conn, "select pg_current_xact_id()::text"))


# Subscriptions


def subscribe(
    conn: Connection,
    queue: str,
    topic: str,
    *,
    pattern: str = "#",
    headers: Headers | None = None,
    start: str = "latest",
    name: str | None = None,
) -> None:
    fetch_rows(
        conn,
        "select from trunkline.subscribe(%b, %b, %b, %b::jsonb, %b, %b)",
        (queue, topic, pattern, headers_json(headers), start, name),
    )


def unsubscribe(conn: Connection, queue: str, name: str) -> None:
    fetch_rows(conn, "select trunkline.unsubscribe(%b, %b)", (queue, name))


def list_subscriptions(conn: Connection, queue: str | None, topic: str | None) -> list[Subscription]:
    return fetch_records(
        conn,
        Subscription,
        "select queue, name, topic, pattern, filter as headers, created_at from trunkline.list_subscriptions(%b::text)"
        " where %b::text is null or topic = %b::text",
        (queue, topic, topic),
    )


def readers(conn: Connection, topic: str, *, routing_key: str | None, headers: Headers | None) -> list[Reader]:
    """Return the topic's readers, and whether each matches a message with this routing key and these headers."""
    return fetch_records(
        conn,
        Reader,
        "select kind, name, subscription, pattern, filter as headers, matches"
        " from trunkline.test_subscriptions(%b, %b::text, %b::jsonb)",
        (topic, routing_key, headers_json(headers)),
    )


# Dead letters


def _dead_letter(row: Row, decode: Callable[[bytes, str], Any]) -> DeadLetter[Any]:
    return DeadLetter(
        **message_fields(row),
        dead_id=row[11],
        topic=row[12],
        attempts=row[13],
        error=row[14],
        reason=row[15],
        dead_at=row[16],
        _decode=decode,
    )


_DEAD = f"{_FIELDS}, dead_id, topic, attempts, error, reason, dead_at"


def list_dead_letters(
    conn: Connection, queue: str, *, after: int = 0, limit: int = 100, max_bytes: int | None = None, type: Any = None
) -> list[DeadLetter[Any]]:
    function, args = "list_dead_letters(%b, %b::bigint, %b::int)", (queue, after, limit)
    if max_bytes is None:
        rows = fetch_rows(conn, f"select {_DEAD} from trunkline.{function}", args)  # noqa: S608
    else:
        rows = fetch_rows(conn, _within(_DEAD, function), (*args, max_bytes))
    return [_dead_letter(row, decoder(type)) for row in rows]


def get_dead_letter(conn: Connection, queue: str, id: UUID, *, type: Any = None) -> DeadLetter[Any]:
    rows = fetch_rows(conn, f"select {_DEAD} from trunkline.get_dead_letter(%b, %b)", (queue, id))  # noqa: S608
    return _dead_letter(rows[0], decoder(type))


def redrive(
    conn: Connection, queue: str, *, ids: Sequence[UUID] | None = None, to: str | None = None, limit: int = 1000
) -> int:
    """Redrive one bounded step of dead letters. Return their number."""
    return int(
        fetch_value(
            conn,
            "select trunkline.redrive(%b, %b::uuid[], %b::text, %b::int)",
            (queue, None if ids is None else list(ids), to, limit),
        )
    )


def purge_dead_letters(conn: Connection, queue: str, *, ids: Sequence[UUID] | None = None, limit: int = 1000) -> int:
    return int(
        fetch_value(
            conn,
            "select trunkline.purge_dead_letters(%b, %b::uuid[], %b::int)",
            (queue, None if ids is None else list(ids), limit),
        )
    )


# Schedules

_SCHEDULE_SETTINGS = {
    "topic": "text",
    "queue": "text",
    "payload": "jsonb",
    "key": "text",
    "routing_key": "text",
    "label": "text",
    "headers": "jsonb",
    "timezone": "text",
    "catch_up": "text",
}


def create_schedule(conn: Connection, name: str, cron: str, *, ensure: bool = False, **settings: Any) -> Schedule:
    named, values = _named(settings, _SCHEDULE_SETTINGS)
    verb = "ensure_schedule" if ensure else "create_schedule"
    query = f"select * from trunkline.{verb}(%b, %b{named})"  # noqa: S608
    return (fetch_records(conn, Schedule, query, (name, cron, *values)))[0]


def list_schedules(conn: Connection) -> list[Schedule]:
    return fetch_records(conn, Schedule, "select * from trunkline.list_schedules()")


def pause_schedule(conn: Connection, name: str, *, paused: bool) -> None:
    verb = "pause_schedule" if paused else "resume_schedule"
    fetch_rows(conn, f"select trunkline.{verb}(%b)", (name,))


def delete_schedule(conn: Connection, name: str) -> None:
    fetch_rows(conn, "select trunkline.delete_schedule(%b)", (name,))


def run_schedule(conn: Connection, name: str) -> UUID:
    return UUID(str(fetch_value(conn, "select trunkline.run_schedule(%b)", (name,))))


def next_runs(
    conn: Connection, cron: str, *, timezone: str = "UTC", n: int = 5, after: datetime | None = None
) -> list[datetime]:
    rows = fetch_rows(
        conn, "select * from trunkline.next_runs(%b, %b, %b::int, %b::timestamptz)", (cron, timezone, n, after)
    )
    return [row[0] for row in rows]


# Statistics, explanations and upkeep


def topic_stats(conn: Connection, topic: str | None = None) -> list[TopicStats]:
    return [TopicStats(*row) for row in fetch_rows(conn, "select * from trunkline.topic_stats(%b::text)", (topic,))]


def group_stats(conn: Connection, topic: str | None = None, group: str | None = None) -> list[GroupStats]:
    rows = fetch_rows(conn, "select * from trunkline.group_stats(%b::text, %b::text)", (topic, group))
    return [GroupStats(*row) for row in rows]


def queue_stats(conn: Connection, queue: str | None = None) -> list[QueueStats]:
    return [QueueStats(*row) for row in fetch_rows(conn, "select * from trunkline.queue_stats(%b::text)", (queue,))]


def explain_message(conn: Connection, id: UUID) -> Explanation:
    return Explanation(fetch_value(conn, "select trunkline.explain_message(%b)", (id,)))


def explain_offset(conn: Connection, topic: str, partition: int, offset: int) -> Explanation:
    return Explanation(
        fetch_value(conn, "select trunkline.explain_offset(%b, %b::int, %b::bigint)", (topic, partition, offset))
    )


def upkeep(conn: Connection) -> None:
    """Run the upkeep tasks that are due. Must not run inside a transaction: each task commits."""
    conn.execute("call trunkline.upkeep()")


# Waking up

CHANNEL = "trunkline"


def listen(conn: Connection) -> None:
    conn.execute(f"listen {CHANNEL}")


def notify(conn: Connection, payload: str = "") -> None:
    """Notify all listeners with a relaxed commit: a lost notification only delays a wake-up."""
    fetch_rows(conn, "select set_config('synchronous_commit', 'off', true), pg_notify(%b, %b)", (CHANNEL, payload))


class Poll(NamedTuple):
    """Readers with messages: queues (name, labels), groups (topic, group, member), and the sum of heads of each topic.

    `seconds`: until their next lease ends or delayed message is due; None if neither is expected.
    """

    queues: set[tuple[str, str | None]]
    groups: set[tuple[str, str, str]]
    topics: dict[str, int]
    seconds: float | None


def poll(
    conn: Connection,
    *,
    queues: Sequence[tuple[str, str | None]],
    groups: Sequence[tuple[str, str, str]],
    topics: Sequence[str],
) -> Poll:
    """Sequence and poll for all waiting consumers of a process in one statement.

    Queues are (name, labels): labels as a JSON array, or None for messages of any label.
    """
    rows = fetch_value(
        conn,
        "call trunkline.pass_and_poll(%b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::text[])",
        (
            [queue[0] for queue in queues],
            [group[0] for group in groups],
            [group[1] for group in groups],
            [group[2] for group in groups],
            list(topics),
            [queue[1] for queue in queues],
        ),
    )
    return Poll(
        queues={(row[1], row[3]) for row in rows if row[0] == "queue"},
        groups={(row[1], row[2], row[3]) for row in rows if row[0] == "group"},
        topics={row[1]: row[4] for row in rows if row[0] == "topic"},
        seconds=min((row[5] for row in rows if row[0] == "wait"), default=None),
    )
