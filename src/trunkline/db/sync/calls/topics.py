# Written by tools/unasync.py from src/trunkline/db/calls/topics.py; change that file, not this one.
"""Typed calls of topics.sql: settings and names of topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trunkline.db.sync.calls.statements import named_arguments
from trunkline.db.sync.pool import Connection
from trunkline.db.sync.query import fetch_records, fetch_rows
from trunkline.resources import TopicSettings, sql_types
from trunkline.types import Topic


def create_topic(conn: Connection, name: str, **settings: Any) -> Topic:
    named, values = named_arguments(settings, sql_types(TopicSettings))
    return (fetch_records(conn, Topic, f"select * from trunkline.create_topic(%b{named})", (name, *values)))[0]  # noqa: S608


def alter_topic(conn: Connection, name: str, **settings: Any) -> Topic:
    named, values = named_arguments(settings, sql_types(TopicSettings))
    return (fetch_records(conn, Topic, f"select * from trunkline.alter_topic(%b{named})", (name, *values)))[0]  # noqa: S608


def get_topic(conn: Connection, name: str) -> Topic:
    return (fetch_records(conn, Topic, "select * from trunkline.get_topic(%b)", (name,)))[0]


def ensure_topic(conn: Connection, name: str, **settings: Any) -> Topic:
    named, values = named_arguments(settings, sql_types(TopicSettings))
    return (fetch_records(conn, Topic, f"select * from trunkline.ensure_topic(%b{named})", (name, *values)))[0]  # noqa: S608


def list_topics(
    conn: Connection, *, after: str | None = None, limit: int | None = None, names: Sequence[str] | None = None
) -> list[Topic]:
    query = "select * from trunkline.list_topics(%b::text, %b::int, %b::text[])"
    return fetch_records(conn, Topic, query, (after, limit, None if names is None else list(names)))


def delete_topic(conn: Connection, name: str, *, force: bool = False) -> None:
    fetch_rows(conn, "select trunkline.delete_topic(%b, %b)", (name, force))
