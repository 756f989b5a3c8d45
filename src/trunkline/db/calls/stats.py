"""Typed calls of stats.sql."""

from __future__ import annotations

from collections.abc import Sequence

from trunkline.db.pool import Connection
from trunkline.db.query import fetch_rows
from trunkline.types import (
    GroupStats,
    QueueStats,
    TopicStats,
)


async def topic_stats(conn: Connection, topic: str | None = None) -> list[TopicStats]:
    return [TopicStats(*row) for row in await fetch_rows(conn, "select * from trunkline.topic_stats(%b::text)", (topic,))]


async def group_stats(conn: Connection, topic: str | None = None, group: str | None = None) -> list[GroupStats]:
    rows = await fetch_rows(conn, "select * from trunkline.group_stats(%b::text, %b::text)", (topic, group))
    return [GroupStats(*row) for row in rows]


async def queue_stats(conn: Connection, queue: str | None = None, *, names: Sequence[str] | None = None) -> list[QueueStats]:
    query = "select * from trunkline.queue_stats(%b::text, %b::text[])"
    rows = await fetch_rows(conn, query, (queue, None if names is None else list(names)))
    return [QueueStats(*row) for row in rows]
