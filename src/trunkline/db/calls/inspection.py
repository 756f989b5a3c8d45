"""Typed calls of what shows the state of the system: series, attention, the map of a topic, search."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec

from trunkline.codec import decoder, to_json
from trunkline.db.calls.statements import FIELDS, message_fields
from trunkline.db.pool import Connection
from trunkline.db.query import fetch_records, fetch_rows
from trunkline.types import (
    Attention,
    Member,
    Message,
    PartitionMap,
    RetentionDeadline,
    Search,
    SearchRange,
    Selection,
    SeriesPoint,
)


async def rollup_lines(
    conn: Connection, kind: str, names: Sequence[str] | None, *, since: timedelta, step: timedelta
) -> list[SeriesPoint]:
    return await fetch_records(
        conn,
        SeriesPoint,
        "select * from trunkline.rollup_lines(%b::text, %b::text[], %b, %b)",
        (kind, None if names is None else list(names), since, step),
    )


async def attention(conn: Connection) -> list[Attention]:
    """Return what needs attention, first what loses data."""
    return await fetch_records(conn, Attention, "select * from trunkline.attention()")


async def topic_map(conn: Connection, topic: str) -> list[PartitionMap]:
    rows = await fetch_rows(
        conn,
        "select partition, earliest_offset, head, unsequenced, staged, segments, times, readers, archive, keeps"
        " from trunkline.topic_map(%b)",
        (topic,),
    )
    names = PartitionMap.__struct_fields__
    return [msgspec.convert(dict(zip(names, row, strict=True)), PartitionMap) for row in rows]


async def list_members(conn: Connection, topic: str, group: str) -> list[Member]:
    return await fetch_records(conn, Member, "select * from trunkline.list_members(%b, %b)", (topic, group))


async def retention_deadlines(conn: Connection, topic: str | None = None) -> list[RetentionDeadline]:
    return await fetch_records(conn, RetentionDeadline, "select * from trunkline.retention_deadlines(%b::text)", (topic,))


async def read_queue(
    conn: Connection, queue: str, partition: int, *, start: int, limit: int = 100, type: Any = None
) -> list[Message[Any]]:
    """Read messages of a queue's own log, whether or not they were consumed."""
    rows = await fetch_rows(
        conn,
        f"select {FIELDS} from trunkline.read_queue(%b, %b::int, %b::bigint, %b::int)",  # noqa: S608
        (queue, partition, start, limit),
    )
    decode = decoder(type)
    return [Message(**message_fields(row), _decode=decode) for row in rows]


async def estimate_search(
    conn: Connection,
    kind: str,
    name: str,
    selection: Selection,
    *,
    partitions: Sequence[int] | None = None,
    start: str = "earliest",
    end: str = "latest",
) -> list[SearchRange]:
    """Return what a search would read at most, per partition."""
    return await fetch_records(
        conn,
        SearchRange,
        "select * from trunkline.estimate_search(%b::text, %b::text::jsonb, %b::int[], %b::text, %b::text, %b::text)",
        (name, _json(selection), None if partitions is None else list(partitions), start, end, kind),
    )


async def search_log(
    conn: Connection,
    kind: str,
    name: str,
    selection: Selection,
    *,
    partitions: Sequence[int] | None = None,
    start: str = "earliest",
    end: str = "latest",
    limit: int = 50,
    backwards: bool = True,
    max_rows: int = 1_000_000,
    budget: timedelta = timedelta(seconds=5),
    after: dict[str, int] | None = None,
    type: Any = None,
) -> Search[Any]:
    """Search the messages of a topic or of a queue's own log."""
    rows = await fetch_rows(
        conn,
        f"select {FIELDS}, scanned, matched, stopped, next, seconds from trunkline.search_log("  # noqa: S608
        "%b::text, %b::text::jsonb, %b::int[], %b::text, %b::text, %b::int, %b, %b::bigint, %b, %b::text::jsonb, %b::text)",
        (
            name,
            _json(selection),
            None if partitions is None else list(partitions),
            start,
            end,
            limit,
            backwards,
            max_rows,
            budget,
            None if after is None else _json(after),
            kind,
        ),
    )
    decode = decoder(type)
    last = rows[-1]
    return Search(
        matches=[Message(**message_fields(row), _decode=decode) for row in rows[:-1]],
        scanned=last[11],
        matched=last[12],
        stopped=last[13],
        next=last[14],
        seconds=last[15],
    )


def _json(value: Any) -> str:
    return to_json(value).decode()
