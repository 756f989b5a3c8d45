# Written by tools/unasync.py from src/trunkline/db/calls/subscriptions.py; change that file, not this one.
"""Typed calls for subscriptions, which feed queues from topics."""

from __future__ import annotations

from trunkline.codec import headers_json
from trunkline.db.sync.pool import Connection
from trunkline.db.sync.query import fetch_records, fetch_rows
from trunkline.types import (
    Headers,
    Reader,
    Subscription,
)


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
