"""Publishing through the pool: concurrent calls share a statement, and long lists are split into batches."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from trunkline import telemetry
from trunkline.codec import EncodedMessage, encode_message
from trunkline.concurrency.aio import Coalescer
from trunkline.db import calls
from trunkline.db.binary_copy import fits
from trunkline.db.pool import Connection
from trunkline.errors import InvalidType, NotFound, OutcomeUnknown, PermissionDenied, Unavailable
from trunkline.types import Headers, NewMessage, PerBody, Published

if TYPE_CHECKING:
    from trunkline.runtime.session import Session

B = TypeVar("B")

MAX_MESSAGES = 1000
MAX_BYTES = 8 * 1024 * 1024
COPY_FROM = 200
"""Batch size from which COPY is worth its extra round trips."""


def new_messages(
    items: Iterable[Any],
    *,
    key: PerBody = None,
    routing_key: PerBody = None,
    label: PerBody = None,
    headers: Headers | None = None,
    content_type: str | None = None,
) -> Iterator[NewMessage]:
    """Yield a message for each body. A `NewMessage` is yielded unchanged."""
    for item in items:
        if isinstance(item, NewMessage):
            yield item
        else:
            yield NewMessage(
                body=item,
                key=key(item) if callable(key) else key,
                routing_key=routing_key(item) if callable(routing_key) else routing_key,
                label=label(item) if callable(label) else label,
                headers=headers,
                content_type=content_type,
            )


def batches(messages: Iterable[NewMessage]) -> Iterator[list[EncodedMessage]]:
    """Yield encoded messages in batches within the message and byte limits of one statement."""
    batch: list[EncodedMessage] = []
    size = 0
    for message in messages:
        encoded = encode_message(message)
        if batch and (len(batch) == MAX_MESSAGES or size + len(encoded.payload) > MAX_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(encoded)
        size += len(encoded.payload)
    if batch:
        yield batch


async def send(conn: Connection, kind: str, name: str, messages: Iterable[NewMessage]) -> list[Published]:
    """Publish all batches in the transaction that the caller has opened."""
    published: list[Published] = []
    with telemetry.publishing(name, messages) as traced:
        for batch in batches(traced):
            published += await calls.publish_many(conn, kind, name, batch)
    return published


class Publisher:
    """Publishes to topics and queues. Each target has one flush in progress at a time; targets flush in parallel."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._coalescers: dict[tuple[str, str], Coalescer[EncodedMessage, Published]] = {}
        self._numbers: dict[str, int] = {}
        """Numbers of topics, by name."""

    async def publish(self, kind: str, name: str, message: NewMessage) -> Published:
        with telemetry.publishing(name, (message,)) as (traced,):
            encoded = encode_message(traced)
            if encoded.priority is not None and kind == "topic":
                raise InvalidType("priority is only supported by queues, not by topics")
            coalescer = self._coalescers.get((kind, name))
            if coalescer is None:
                # setdefault is atomic, also between threads: all callers use the same one
                coalescer = self._coalescers.setdefault(
                    (kind, name),
                    Coalescer(partial(self._flush, kind, name), max_items=MAX_MESSAGES, max_size=MAX_BYTES),
                )
            try:
                return await coalescer.submit(encoded, len(encoded.payload))
            except NotFound:
                # drop it, or unknown names would accumulate
                self._coalescers.pop((kind, name), None)
                raise

    async def publish_many(self, kind: str, name: str, messages: Iterable[NewMessage]) -> list[Published]:
        with telemetry.publishing(name, messages) as traced:
            return await self._publish_batches(kind, name, batches(traced))

    async def _publish_batches(self, kind: str, name: str, remaining: Iterator[list[EncodedMessage]]) -> list[Published]:
        first = next(remaining, None)
        if first is None:
            return []
        second = next(remaining, None)
        async with self._session.connection(writing=True) as conn:
            if second is None and len(first) < COPY_FROM:
                published = await calls.publish_many(conn, kind, name, first)
            else:
                async with conn.transaction():
                    target = await calls.copy_target(conn, kind, name)
                    published = await self._one_of_many(conn, kind, name, target, first)
                    for batch in chain(() if second is None else (second,), remaining):
                        published += await self._one_of_many(conn, kind, name, target, batch)
        self._session.wakeup.published(kind, name)
        return published

    @staticmethod
    async def _one_of_many(
        conn: Connection, kind: str, name: str, target: calls.CopyTarget | None, batch: list[EncodedMessage]
    ) -> list[Published]:
        """Publish a batch with COPY if possible: it costs the server a third of what a statement does."""
        if target is not None and all(message.plain and fits(message, target.max_payload) for message in batch):
            return await calls.copy_many(conn, target, batch)
        return await calls.publish_many(conn, kind, name, batch)

    async def drain(self) -> None:
        """Wait until all publishes in progress have finished."""
        for coalescer in tuple(self._coalescers.values()):
            await coalescer.drain()

    async def _flush(self, kind: str, name: str, batch: list[EncodedMessage]) -> list[Published | BaseException]:
        """Publish a batch in one statement.

        If it is rejected, nothing was stored: bisect to isolate the invalid message.
        """
        try:
            async with self._session.connection(writing=True) as conn:
                results: list[Published | BaseException]
                if len(batch) == 1 and batch[0].plain:
                    results = [await calls.publish_one(conn, kind, name, batch[0], self._numbers)]
                else:
                    results = list(await calls.publish_many(conn, kind, name, batch))
        except (NotFound, Unavailable, OutcomeUnknown, PermissionDenied) as exc:
            return [_own(exc) for _ in batch]
        except Exception as exc:
            if len(batch) == 1:
                return [exc]
            middle = len(batch) // 2
            return await self._flush(kind, name, batch[:middle]) + await self._flush(kind, name, batch[middle:])
        self._session.wakeup.published(kind, name)
        return results


def _own(exc: Exception) -> Exception:
    """Copy an exception for one caller: a shared one would collect the tracebacks of all callers."""
    twin = copy.copy(exc)
    twin.__cause__ = exc.__cause__
    return twin
