"""Byte budgets for pages of messages. They bound a worker's memory, whatever the page's limit and payload sizes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from trunkline import Client
from trunkline.db import calls
from trunkline.types import DeadLetter, Message, ReadyMessage


class Sized(Protocol):
    @property
    def payload(self) -> bytes: ...


def fitting(rows: Iterable[Sized], max_bytes: int) -> int:
    """Return how many of the first rows fit into the byte budget, at least one if there is any."""
    count = size = 0
    for row in rows:
        size += len(row.payload)
        if count and size > max_bytes:
            break
        count += 1
    return count


async def read_topic(
    mq: Client, topic: str, partition: int, *, start: int, limit: int, max_bytes: int
) -> list[Message[Any]]:
    """Read messages of a topic from an offset."""
    async with mq.session.reading(topic=topic) as conn:
        return await calls.read(conn, topic, partition, start=start, limit=limit, max_bytes=max_bytes)


async def peek_queue(mq: Client, queue: str, *, limit: int, max_bytes: int) -> list[ReadyMessage[Any]]:
    """Return the next messages of a queue without claiming them."""
    async with mq.session.reading(queue=queue) as conn:
        return await calls.peek_queue(conn, queue, limit=limit, max_bytes=max_bytes)


async def dead_letters(
    mq: Client, queue: str, *, after: int, limit: int, max_bytes: int
) -> tuple[list[DeadLetter[Any]], bool]:
    """Return a page of dead letters, and whether there are more."""
    async with mq.connection() as conn:
        rows = await calls.list_dead_letters(conn, queue, after=after, limit=limit, max_bytes=max_bytes)
        if not rows or len(rows) == limit:
            return rows, bool(rows)
        # either cut by the byte budget or the last page
        return rows, bool(await calls.list_dead_letters(conn, queue, after=rows[-1].dead_id, limit=1))
