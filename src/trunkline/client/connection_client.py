"""Publishing and settling on the caller's connection, as part of its transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Unpack

import psycopg

from trunkline import telemetry
from trunkline.client.batches import Batch
from trunkline.client.foreign_connections import async_driver
from trunkline.codec import duration, encode_message
from trunkline.db import calls
from trunkline.db.pool import Connection
from trunkline.errors import from_psycopg
from trunkline.messaging import ManyOptions, MessageOptions, QueueMessageOptions
from trunkline.runtime.publisher import new_messages, send
from trunkline.types import Duration, NewMessage, Published, Result


class ConnectionClient:
    """Publishes and settles in the caller's transaction. The effects apply if and only if that transaction commits.

    Never commits, rolls back, reconfigures or retries. After an error, roll back your transaction. Consumers poll about
    once a second; call `client.wake()` after your commit to wake them immediately.
    """

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    async def publish(self, topic: str, body: Any, **options: Unpack[MessageOptions]) -> Published:
        """Publish a message to a topic when the caller's transaction commits."""
        message = NewMessage(body=body, **options)
        return await self._one("topic", topic, message)

    async def enqueue(self, queue: str, body: Any, **options: Unpack[QueueMessageOptions]) -> Published:
        """Publish a message directly to a queue when the caller's transaction commits."""
        message = NewMessage(body=body, **options)
        return await self._one("inbox", queue, message)

    async def publish_many(self, topic: str, bodies: Iterable[Any], **options: Unpack[ManyOptions]) -> list[Published]:
        """Publish any number of bodies or `NewMessage`s. Results are in input order."""
        messages = new_messages(bodies, **options)
        async with self._borrow() as conn:
            return await send(conn, "topic", topic, messages)

    async def enqueue_many(self, queue: str, bodies: Iterable[Any], **options: Unpack[ManyOptions]) -> list[Published]:
        """Publish any number of bodies or `NewMessage`s. Results are in input order."""
        messages = new_messages(bodies, **options)
        async with self._borrow() as conn:
            return await send(conn, "inbox", queue, messages)

    async def ack(self, receipts: Sequence[str]) -> list[Result]:
        """Acknowledge deliveries when the caller's transaction commits.

        Check the results. If one is `lost`, another consumer may own the message: roll back.
        """
        async with self._borrow() as conn:
            return await calls.ack(conn, receipts)

    async def nack(
        self, receipts: Sequence[str], *, delay: Duration | None = None, error: str | None = None
    ) -> list[Result]:
        async with self._borrow() as conn:
            return await calls.nack(conn, receipts, delay=duration(delay), error=error)

    async def bury(self, receipts: Sequence[str], *, error: str | None = None) -> list[Result]:
        async with self._borrow() as conn:
            return await calls.bury(conn, receipts, error=error)

    async def commit(self, batch: Batch[Any], offset: int | None = None) -> Result:
        """Commit the group's position when the caller's transaction commits. If the result is `lost`, roll back."""
        async with self._borrow() as conn:
            return (await batch.commit_on(conn, offset))[0]

    async def _one(self, kind: str, name: str, message: NewMessage) -> Published:
        with telemetry.publishing(name, (message,)) as traced:
            encoded = [encode_message(each) for each in traced]
            async with self._borrow() as conn:
                return (await calls.publish_many(conn, kind, name, encoded))[0]

    @asynccontextmanager
    async def _borrow(self) -> AsyncIterator[Connection]:
        conn = await async_driver(self._conn)
        try:
            yield conn
        except psycopg.Error as exc:
            raise from_psycopg(exc, writing=True) from exc
