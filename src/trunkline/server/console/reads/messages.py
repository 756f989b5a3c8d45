"""Reads of the message page and the message browser."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from trunkline.db.calls import inspection, messages, push, topics
from trunkline.db.pool import Connection
from trunkline.errors import TrunklineError
from trunkline.server.console.searching import Wanted
from trunkline.types import Attempt, Explanation, Message, Search, SearchRange

_ATTEMPTS, _ATTEMPTS_SINCE = 50, timedelta(days=7)
PAGE = 50
SEARCH_SECONDS = 5.0


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A message with its explanation. `message` is None if it is in no log (any more)."""

    explanation: Explanation
    message: Message[Any] | None
    attempts: list[Attempt]


async def by_id(conn: Connection, id: UUID) -> Found:
    return await _found(conn, await messages.explain_message(conn, id))


async def by_place(conn: Connection, topic: str, partition: int, offset: int) -> Found:
    return await _found(conn, await messages.explain_offset(conn, topic, partition, offset))


async def _found(conn: Connection, explanation: Explanation) -> Found:
    message, attempts = None, []
    partition, offset = explanation.get("partition"), explanation.get("offset")
    if explanation.get("state") == "in_log" and partition is not None and offset is not None:
        name, is_queue = str(explanation.get("topic") or explanation.get("queue")), explanation.get("topic") is None
        try:
            if is_queue:
                rows = await inspection.read_queue(conn, name, partition, start=offset, limit=1)
            else:
                rows = await messages.read(conn, name, partition, start=offset, limit=1)
        except TrunklineError:
            # retention removed it between the two reads
            rows = []
        message = rows[0] if rows and rows[0].offset == offset else None
    if explanation.get("state") in ("in_log", "dead") and explanation.get("id"):
        attempts = await push.list_attempts(
            conn, None, id=UUID(str(explanation["id"])), since=_ATTEMPTS_SINCE, limit=_ATTEMPTS
        )
    return Found(explanation=explanation, message=message, attempts=attempts)


async def estimate(conn: Connection, topic: str, wanted: Wanted) -> list[SearchRange]:
    return await inspection.estimate_search(
        conn, "topic", topic, wanted.selection, partitions=wanted.partitions, start=wanted.start, end=wanted.end
    )


async def search(
    conn: Connection, topic: str, wanted: Wanted, *, after: dict[str, int] | None, backwards: bool, limit: int = PAGE
) -> Search[Any]:
    return await inspection.search_log(
        conn,
        "topic",
        topic,
        wanted.selection,
        partitions=wanted.partitions,
        start=wanted.start,
        end=wanted.end,
        limit=limit,
        backwards=backwards,
        budget=timedelta(seconds=SEARCH_SECONDS),
        after=after,
    )


async def partitions(conn: Connection, topic: str) -> int:
    return (await topics.get_topic(conn, topic)).partitions
