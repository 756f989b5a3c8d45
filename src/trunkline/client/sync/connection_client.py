# Written by tools/unasync.py from src/trunkline/client/connection_client.py; change that file, not this one.
"""Publishing and settling on the caller's connection, as part of its transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

import psycopg

from trunkline import telemetry
from trunkline.client.foreign_connections import sync_driver
from trunkline.client.sync.batches import Batch
from trunkline.codec import duration, encode_message
from trunkline.db.sync import calls
from trunkline.db.sync.pool import Connection
from trunkline.errors import from_psycopg
from trunkline.messaging import ManyOptions, MessageOptions, QueueMessageOptions
from trunkline.runtime.sync.publisher import new_messages, send
from trunkline.types import Duration, NewMessage, Published, Result


class ConnectionClient:
    """Publishes and settles in the caller's transaction. The effects apply if and only if that transaction commits.

    Never commits, rolls back, reconfigures or retries. After an error, roll back your transaction. Consumers poll about
    once a second; call `client.wake()` after your commit to wake them immediately.
    """

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    def publish(self, topic: str, body: Any, **options: Unpack[MessageOptions]) -> Published:
        """Publish a message to a topic when the caller's transaction commits."""
        message = NewMessage(body=body, **options)
        return self._one("topic", topic, message)

    def enqueue(self, queue: str, body: Any, **options: Unpack[QueueMessageOptions]) -> Published:
        """Publish a message directly to a queue when the caller's transaction commits."""
        message = NewMessage(body=body, **options)
        return self._one("inbox", queue, message)

    def publish_many(self, topic: str, bodies: Iterable[Any], **options: Unpack[ManyOptions]) -> list[Published]:
        """Publish any number of bodies or `NewMessage`s. Results are in input order."""
        messages = new_messages(bodies, **options)
        with self._borrow() as conn:
            return send(conn, "topic", topic, messages)

    def enqueue_many(self, queue: str, bodies: Iterable[Any], **options: Unpack[ManyOptions]) -> list[Published]:
        """Publish any number of bodies or `NewMessage`s. Results are in input order."""
        messages = new_messages(bodies, **options)
        with self._borrow() as conn:
            return send(conn, "inbox", queue, messages)

    def ack(self, receipts: Sequence[str]) -> list[Result]:
        """Acknowledge deliveries when the caller's transaction commits.

        Check the results. If one is `lost`, another consumer may own the message: roll back.
        """
        with self._borrow() as conn:
            return calls.ack(conn, receipts)

    def nack(self, receipts: Sequence[str], *, delay: Duration | None = None, error: str | None = None) -> list[Result]:
        with self._borrow() as conn:
            return calls.nack(conn, receipts, delay=duration(delay), error=error)

    def bury(self, receipts: Sequence[str], *, error: str | None = None) -> list[Result]:
        with self._borrow() as conn:
            return calls.bury(conn, receipts, error=error)

    def commit(self, batch: Batch[Any], offset: int | None = None) -> Result:
        """Commit the group's position when the caller's transaction commits. If the result is `lost`, roll back."""
        with self._borrow() as conn:
            return (batch.commit_on(conn, offset))[0]

    def _one(self, kind: str, name: str, message: NewMessage) -> Published:
        with telemetry.publishing(name, (message,)) as traced:
            encoded = [encode_message(each) for each in traced]
            with self._borrow() as conn:
                return (calls.publish_many(conn, kind, name, encoded))[0]

    @contextmanager
    def _borrow(self) -> Iterator[Connection]:
        conn = sync_driver(self._conn)
        try:
            yield conn
        except psycopg.Error as exc:
            raise from_psycopg(exc, writing=True) from exc
