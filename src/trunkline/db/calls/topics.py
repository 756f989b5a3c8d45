"""Typed calls of topics.sql: settings and names of topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trunkline.db.calls.statements import named_arguments
from trunkline.db.pool import Connection
from trunkline.db.query import fetch_records, fetch_rows
from trunkline.resources import TopicSettings, sql_types
from trunkline.types import Topic


async def create_topic(conn: Connection, name: str, **settings: Any) -> Topic:
    named, values = named_arguments(settings, sql_types(TopicSettings))
    return (await fetch_records(conn, Topic, f"select * from trunkline.create_topic(%b{named})", (name, *values)))[0]  # noqa: S608


async def alter_topic(conn: Connection, name: str, **settings: Any) -> Topic:
    named, values = named_arguments(settings, sql_types(TopicSettings))
    return (await fetch_records(conn, Topic, f"select * from trunkline.alter_topic(%b{named})", (name, *values)))[0]  # noqa: S608


async def get_topic(conn: Connection, name: str) -> Topic:
    return (await fetch_records(conn, Topic, "select * from trunkline.get_topic(%b)", (name,)))[0]


async def ensure_topic(conn: Connection, name: str, **settings: Any) -> Topic:
    named, values = named_arguments(settings, sql_types(TopicSettings))
    return (await fetch_records(conn, Topic, f"select * from trunkline.ensure_topic(%b{named})", (name, *values)))[0]  # noqa: S608


async def list_topics(
    conn: Connection, *, after: str | None = None, limit: int | None = None, names: Sequence[str] | None = None
) -> list[Topic]:
    query = "select * from trunkline.list_topics(%b::text, %b::int, %b::text[])"
    return await fetch_records(conn, Topic, query, (after, limit, None if names is None else list(names)))


async def delete_topic(conn: Connection, name: str, *, force: bool = False) -> None:
    await fetch_rows(conn, "select trunkline.delete_topic(%b, %b)", (name, force))
