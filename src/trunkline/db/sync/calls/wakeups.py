# Written by tools/unasync.py from src/trunkline/db/calls/wakeups.py; change that file, not this one.
"""Typed calls that wake consumers: LISTEN, NOTIFY and the poll that all consumers of a process share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trunkline.db.sync.pool import Connection
from trunkline.db.sync.query import fetch_rows, fetch_value

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
