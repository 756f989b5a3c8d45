"""Publishing from the pool: calls made at the same time share a statement, long lists are cut into batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from trunkline.client.runtime import Runtime
from trunkline.db import calls
from trunkline.db.codec import Encoded, encode_message
from trunkline.db.copying import fits
from trunkline.db.pool import Connection
from trunkline.db.tasks import Coalescer
from trunkline.errors import NotFound, OutcomeUnknown, PermissionDenied, Unavailable
from trunkline.types import Headers, NewMessage, Published

B = TypeVar("B")
PerBody = str | Callable[[Any], str | None] | None
"""One value for all messages, or what tells it for each body."""

MAX_MESSAGES = 1000
MAX_BYTES = 8 * 1024 * 1024
COPY_FROM = 200
"""From so many messages on, COPY is worth its extra round trips."""


def new_messages(
    items: Iterable[Any],
    *,
    key: PerBody = None,
    routing_key: PerBody = None,
    label: PerBody = None,
    headers: Headers | None = None,
    content_type: str | None = None,
) -> Iterator[NewMessage]:
    """Messages for bodies; what is a message already stays as it is."""
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


def batches(messages: Iterable[NewMessage]) -> Iterator[list[Encoded]]:
    """Encoded messages, cut so that each batch keeps the limits on messages and bytes of one statement."""
    batch: list[Encoded] = []
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
    """All batches on one connection, in the transaction that the caller has opened."""
    answers: list[Published] = []
    for batch in batches(messages):
        answers += await calls.publish_many(conn, kind, name, batch)
    return answers


class Publisher:
    """Publishes to topics and queues. One flush at a time per target; different targets in parallel."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lanes: dict[tuple[str, str], Coalescer[Encoded, Published]] = {}

    async def publish(self, kind: str, name: str, message: NewMessage) -> Published:
        encoded = encode_message(message)
        if encoded.priority is not None and kind == "topic":
            raise TypeError("a topic has no priorities; queues have")
        lane = self._lanes.get((kind, name))
        if lane is None:
            # created by one and used by all: setdefault is atomic, also between threads
            lane = self._lanes.setdefault(
                (kind, name),
                Coalescer(partial(self._flush, kind, name), max_items=MAX_MESSAGES, max_size=MAX_BYTES),
            )
        try:
            return await lane.submit(encoded, len(encoded.payload))
        except NotFound:
            # names that do not exist must not pile up
            self._lanes.pop((kind, name), None)
            raise

    async def publish_many(self, kind: str, name: str, messages: Iterable[NewMessage]) -> list[Published]:
        cut = batches(messages)
        first = next(cut, None)
        if first is None:
            return []
        second = next(cut, None)
        async with self._runtime.connection(writing=True) as conn:
            if second is None and len(first) < COPY_FROM:
                answers = await calls.publish_many(conn, kind, name, first)
            else:
                async with conn.transaction():
                    target = await calls.copy_target(conn, kind, name)
                    answers = await self._one_of_many(conn, kind, name, target, first)
                    for batch in chain(() if second is None else (second,), cut):
                        answers += await self._one_of_many(conn, kind, name, target, batch)
        self._runtime.wakeup.published(kind, name)
        return answers

    @staticmethod
    async def _one_of_many(
        conn: Connection, kind: str, name: str, target: calls.CopyTarget | None, batch: list[Encoded]
    ) -> list[Published]:
        """By COPY where that is allowed and enough: it costs the server a third."""
        if target is not None and all(message.plain and fits(message, target.max_payload) for message in batch):
            return await calls.copy_many(conn, target, batch)
        return await calls.publish_many(conn, kind, name, batch)

    async def drain(self) -> None:
        """Until everything under way has its answer."""
        for lane in tuple(self._lanes.values()):
            await lane.drain()

    async def _flush(self, kind: str, name: str, batch: list[Encoded]) -> list[Published | BaseException]:
        """One statement for all. If it is refused nothing was stored, so halves are tried until the culprit stands alone."""
        try:
            answers: list[Published | BaseException] = list(await self._send(kind, name, batch))
        except (NotFound, Unavailable, OutcomeUnknown, PermissionDenied) as exc:
            return [_own(exc) for _ in batch]
        except Exception as exc:
            if len(batch) == 1:
                return [exc]
            middle = len(batch) // 2
            return await self._flush(kind, name, batch[:middle]) + await self._flush(kind, name, batch[middle:])
        self._runtime.wakeup.published(kind, name)
        return answers

    async def _send(self, kind: str, name: str, batch: list[Encoded]) -> list[Published]:
        async with self._runtime.connection(writing=True) as conn:
            if len(batch) == 1 and batch[0].plain:
                if kind == "inbox":
                    return [await calls.enqueue_one(conn, name, batch[0])]
                function = partial(calls.publish_one, conn, message=batch[0])
                return [await self._runtime.own_function(conn, kind, name, function)]
            return await calls.publish_many(conn, kind, name, batch)


def _own(exc: Exception) -> Exception:
    """An exception for each caller: a shared one would collect all their tracebacks."""
    twin = copy.copy(exc)
    twin.__cause__ = exc.__cause__
    return twin
