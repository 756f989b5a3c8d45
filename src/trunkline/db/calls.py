"""One typed call per SQL function. The only SQL text of the Python side; nothing here changes a row by itself.

Every call takes the connection to use and never commits: who opened the transaction ends it. Psycopg prepares a
statement after a few uses by itself; behind a transaction pooler set `prepare_threshold=None` on the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from trunkline.db.pool import Connection
from trunkline.types import (
    Batch,
    DeadLetter,
    Delivery,
    GroupStats,
    Headers,
    Message,
    NewMessage,
    Published,
    QueueStats,
    Range,
    Result,
    TopicStats,
)

_MESSAGE = "partition, log_offset, id, key, routing_key, label, headers, payload, content_type, occurred_at, created_at"


async def _rows(conn: Connection, query: str, args: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    async with conn.cursor(binary=True) as cursor:
        await cursor.execute(query.encode(), args)
        return await cursor.fetchall()


async def _value(conn: Connection, query: str, args: Sequence[Any] = ()) -> Any:
    return (await _rows(conn, query, args))[0][0]


def _jsonb(headers: Headers | None) -> Jsonb | None:
    return None if headers is None else Jsonb(headers)


def _message(row: Sequence[Any]) -> Message:
    return Message(
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
    )


# Topics


async def create_topic(
    conn: Connection, name: str, *, partitions: int = 1, retention: timedelta = timedelta(days=7)
) -> None:
    await _rows(
        conn,
        "select from trunkline.create_topic(%b, p_partitions => %b::int, p_retention => %b)",
        (name, partitions, retention),
    )


async def ensure_topic(conn: Connection, name: str, *, partitions: int | None = None) -> None:
    await _rows(conn, "select from trunkline.ensure_topic(%b, p_partitions => %b::int)", (name, partitions))


async def delete_topic(conn: Connection, name: str, *, force: bool = False) -> None:
    await _rows(conn, "select trunkline.delete_topic(%b, %b)", (name, force))


async def topic_number(conn: Connection, kind: str, name: str) -> int:
    """The number that the topic's own publish functions carry in their names."""
    return int(await _value(conn, "select topic_id from trunkline._topic(%b, %b)", (kind, name)))


# Publishing


async def publish_one(conn: Connection, topic_number: int, message: NewMessage) -> UUID:
    """The fast path for one message: the topic's own function, whose insert is a cached plan."""
    value = await _value(
        conn,
        f"select trunkline.topic_{int(topic_number)}_publish(%b, %b, %b, %b, %b, %b, %b, %b)",
        (
            message.payload,
            message.key,
            message.routing_key,
            message.label,
            _jsonb(message.headers),
            message.content_type,
            message.id,
            message.occurred_at,
        ),
    )
    return UUID(str(value))


async def publish_many(conn: Connection, topic: str, messages: Sequence[NewMessage]) -> list[Published]:
    return await _publish(conn, "publish_many", topic, messages)


async def enqueue_many(conn: Connection, queue: str, messages: Sequence[NewMessage]) -> list[Published]:
    return await _publish(conn, "enqueue_many", queue, messages)


async def _publish(conn: Connection, function: str, name: str, messages: Sequence[NewMessage]) -> list[Published]:
    def column(attribute: str) -> list[Any] | None:
        """The values of one field, or nothing when no message has one: then it costs nothing."""
        values = [getattr(message, attribute) for message in messages]
        return values if any(value is not None for value in values) else None

    headers = column("headers")
    kinds = {message.content_type for message in messages}
    rows = await _rows(
        conn,
        f"select id, duplicate from trunkline.{function}(%b, %b::bytea[], %b::uuid[], %b::text[], %b::text[], %b::text[],"  # noqa: S608
        " %b::jsonb[], %b::text[], %b, %b::timestamptz[], %b::text[], %b::interval[], %b::timestamptz[])",
        (
            name,
            [message.payload for message in messages],
            column("id"),
            column("key"),
            column("routing_key"),
            column("label"),
            None if headers is None else [_jsonb(value) for value in headers],
            [message.content_type for message in messages] if len(kinds) > 1 else None,
            next(iter(kinds), "application/json"),
            column("occurred_at"),
            column("idempotency_key"),
            column("delay"),
            column("deliver_at"),
        ),
    )
    return [Published(id=row[0], duplicate=row[1]) for row in rows]


# The log


async def head(conn: Connection, topic: str, partition: int) -> int:
    return int(await _value(conn, "select trunkline.head(%b, %b::int)", (topic, partition)))


async def read(conn: Connection, topic: str, partition: int, *, start: int, limit: int = 100) -> list[Message]:
    rows = await _rows(
        conn,
        f"select {_MESSAGE} from trunkline.read(%b, %b::int, %b::bigint, %b::int)",  # noqa: S608
        (topic, partition, start, limit),
    )
    return [_message(row) for row in rows]


async def offset_at(conn: Connection, topic: str, partition: int, at: datetime) -> int:
    return int(await _value(conn, "select trunkline.offset_at(%b, %b::int, %b)", (topic, partition, at)))


# Groups


async def ensure_group(conn: Connection, topic: str, group: str, *, start: str = "earliest") -> None:
    await _rows(conn, "select from trunkline.ensure_group(%b, %b, %b)", (topic, group, start))


async def fetch(
    conn: Connection,
    topic: str,
    group: str,
    *,
    member: str,
    max_messages: int = 100,
    lease: timedelta = timedelta(seconds=30),
    relaxed: bool = False,
) -> Batch | None:
    """The next messages of one partition, or None when there is nothing for this member."""
    rows = await _rows(
        conn,
        f"select generation, deadline, {_MESSAGE}"  # noqa: S608
        " from trunkline.fetch(%b, %b, %b, %b::int, %b, p_relaxed => %b)",
        (topic, group, member, max_messages, lease, relaxed),
    )
    if not rows:
        return None
    return Batch(
        partition=rows[0][2],
        generation=rows[0][0],
        deadline=rows[0][1],
        messages=[_message(row[2:]) for row in rows],
    )


async def commit(conn: Connection, topic: str, group: str, *, partition: int, generation: UUID, offset: int) -> Result:
    answer: Result = await _value(
        conn,
        "select trunkline.commit(%b, %b, %b::int, %b, %b::bigint)",
        (topic, group, partition, generation, offset),
    )
    return answer


async def leave(conn: Connection, topic: str, group: str, *, member: str) -> int:
    return int(await _value(conn, "select trunkline.leave(%b, %b, %b)", (topic, group, member)))


async def heartbeat(
    conn: Connection, topic: str, group: str, *, member: str, lease: timedelta = timedelta(seconds=30)
) -> int:
    return int(await _value(conn, "select trunkline.heartbeat(%b, %b, %b, %b)", (topic, group, member, lease)))


async def claim_range(conn: Connection, topic: str, group: str, *, max_messages: int = 100) -> Range | None:
    rows = await _rows(
        conn,
        "select partition, first_offset, last_offset from trunkline.claim_range(%b, %b, %b::bigint)",
        (topic, group, max_messages),
    )
    return Range(*rows[0]) if rows else None


async def seek(conn: Connection, topic: str, group: str, to: str, *, partition: int | None = None) -> dict[int, int]:
    """The next offset of each partition moved."""
    rows = await _rows(
        conn,
        "select partition, next_offset from trunkline.seek(%b, %b, %b, %b::int)",
        (topic, group, to, partition),
    )
    return {row[0]: row[1] for row in rows}


# Queues


async def ensure_queue(conn: Connection, name: str) -> None:
    await _rows(conn, "select from trunkline.ensure_queue(%b)", (name,))


async def delete_queue(conn: Connection, name: str, *, force: bool = False) -> None:
    await _rows(conn, "select trunkline.delete_queue(%b, %b)", (name, force))


async def pause_queue(conn: Connection, name: str, *, paused: bool) -> None:
    verb = "pause_queue" if paused else "resume_queue"
    await _rows(conn, f"select trunkline.{verb}(%b)", (name,))


async def purge_queue(conn: Connection, name: str) -> int:
    return int(await _value(conn, "select trunkline.purge_queue(%b)", (name,)))


async def subscribe(
    conn: Connection,
    queue: str,
    topic: str,
    *,
    pattern: str = "#",
    headers: dict[str, Any] | None = None,
    start: str = "latest",
    name: str | None = None,
) -> None:
    await _rows(
        conn,
        "select from trunkline.subscribe(%b, %b, %b, %b, %b, %b)",
        (queue, topic, pattern, _jsonb(headers), start, name),
    )


async def unsubscribe(conn: Connection, queue: str, name: str) -> None:
    await _rows(conn, "select trunkline.unsubscribe(%b, %b)", (queue, name))


async def queue_number(conn: Connection, queue: str) -> int:
    """The number that the queue's own claim function carries in its name."""
    return int(await _value(conn, "select queue_id from trunkline._queue(%b)", (queue,)))


async def claim(
    conn: Connection,
    queue_number: int,
    *,
    max_messages: int = 1,
    lease: timedelta | None = None,
    labels: Sequence[str] | None = None,
    consumer: str | None = None,
    relaxed: bool = False,
) -> list[Delivery]:
    rows = await _rows(
        conn,
        f"select receipt, attempt, deadline, topic, {_MESSAGE}"  # noqa: S608
        f" from trunkline.queue_{int(queue_number)}_claim(%b::int, %b::interval, %b::text[], %b::text, %b)",
        (max_messages, lease, None if labels is None else list(labels), consumer, relaxed),
    )
    return [
        Delivery(
            receipt=row[0],
            attempt=row[1],
            deadline=row[2],
            topic=row[3],
            partition=row[4],
            offset=row[5],
            id=row[6],
            key=row[7],
            routing_key=row[8],
            label=row[9],
            headers=row[10],
            payload=row[11],
            content_type=row[12],
            occurred_at=row[13],
            created_at=row[14],
        )
        for row in rows
    ]


async def ack(conn: Connection, receipts: Sequence[str]) -> list[Result]:
    rows = await _rows(conn, "select result from trunkline.ack(%b::text[])", (list(receipts),))
    return [row[0] for row in rows]


async def nack(
    conn: Connection, receipts: Sequence[str], *, delay: timedelta | None = None, error: str | None = None
) -> list[Result]:
    rows = await _rows(
        conn,
        "select result from trunkline.nack(%b::text[], %b::interval, %b::text)",
        (list(receipts), delay, error),
    )
    return [row[0] for row in rows]


async def bury(conn: Connection, receipts: Sequence[str], *, error: str | None = None) -> list[Result]:
    rows = await _rows(conn, "select result from trunkline.bury(%b::text[], %b::text)", (list(receipts), error))
    return [row[0] for row in rows]


async def release(conn: Connection, receipts: Sequence[str]) -> list[Result]:
    rows = await _rows(conn, "select result from trunkline.release(%b::text[])", (list(receipts),))
    return [row[0] for row in rows]


async def extend(conn: Connection, receipts: Sequence[str], *, lease: timedelta) -> list[Result]:
    rows = await _rows(conn, "select result from trunkline.extend(%b::text[], %b)", (list(receipts), lease))
    return [row[0] for row in rows]


# Dead letters


async def list_dead_letters(conn: Connection, queue: str, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
    rows = await _rows(
        conn,
        "select dead_id, id, topic, partition, log_offset, key, routing_key, label, headers, payload, content_type,"
        " occurred_at, created_at, attempts, error, reason, dead_at"
        " from trunkline.list_dead_letters(%b, %b::bigint, %b::int)",
        (queue, after, limit),
    )
    fields = DeadLetter.__struct_fields__
    return [DeadLetter(**dict(zip(fields, row, strict=True))) for row in rows]


async def redrive(
    conn: Connection,
    queue: str,
    *,
    ids: Sequence[UUID] | None = None,
    to: str | None = None,
    limit: int = 1000,
) -> int:
    """One bounded step: how many went back."""
    return int(
        await _value(
            conn,
            "select trunkline.redrive(%b, %b::uuid[], %b::text, %b::int)",
            (queue, None if ids is None else list(ids), to, limit),
        )
    )


async def purge_dead_letters(conn: Connection, queue: str, *, ids: Sequence[UUID] | None = None, limit: int = 1000) -> int:
    return int(
        await _value(
            conn,
            "select trunkline.purge_dead_letters(%b, %b::uuid[], %b::int)",
            (queue, None if ids is None else list(ids), limit),
        )
    )


# Stats and upkeep


async def topic_stats(conn: Connection, topic: str | None = None) -> list[TopicStats]:
    return [TopicStats(*row) for row in await _rows(conn, "select * from trunkline.topic_stats(%b::text)", (topic,))]


async def group_stats(conn: Connection, topic: str | None = None, group: str | None = None) -> list[GroupStats]:
    rows = await _rows(conn, "select * from trunkline.group_stats(%b::text, %b::text)", (topic, group))
    return [GroupStats(*row) for row in rows]


async def queue_stats(conn: Connection, queue: str | None = None) -> list[QueueStats]:
    return [QueueStats(*row) for row in await _rows(conn, "select * from trunkline.queue_stats(%b::text)", (queue,))]


async def upkeep(conn: Connection) -> None:
    """Run the duties that are due. Not inside a transaction: each duty commits by itself."""
    await conn.execute("call trunkline.upkeep()")
