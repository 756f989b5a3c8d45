"""Queues and their dead letters over HTTP."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, Unpack
from uuid import UUID

import msgspec

from trunkline.http_client.nouns import Noun
from trunkline.http_client.rows import DeadRow, QueueRow, WaitingRow, seconds
from trunkline.http_client.searching import MessagesPage, estimate, search
from trunkline.http_client.transport import quoted
from trunkline.messaging import NewQueueSettings, QueueSettings, RangeOptions, SearchOptions
from trunkline.types import (
    DeadLetter,
    Duration,
    Message,
    Queue,
    QueueStats,
    Search,
    SearchRange,
    Selection,
    Waiting,
)

_STEP = 1000


class _StatsPage(msgspec.Struct):
    data: list[QueueStats]


class _Waiting(msgspec.Struct):
    data: list[WaitingRow]


class HttpQueues(Noun):
    """`client.queues`"""

    async def create(self, name: str, **settings: Unpack[NewQueueSettings]) -> Queue:
        """Create a queue. Raises `AlreadyExists` if the name is taken."""
        request = {"name": name, **_settings(**settings)}
        return (await self._transport.ask("POST", "/v1/queues", request, kind=QueueRow)).record()

    async def ensure(self, name: str, **settings: Unpack[NewQueueSettings]) -> Queue:
        """Create the queue, or update the given settings if it exists.

        Raises `AlreadyExists` if `ordered`, `partitions` or `priorities` differ: these cannot be changed.
        """
        request = {"name": name, **_settings(**settings)}
        return (await self._transport.ask("POST", "/v1/queues", request, query={"ensure": "true"}, kind=QueueRow)).record()

    async def alter(self, name: str, **settings: Unpack[QueueSettings]) -> Queue:
        """Change the given settings and keep the others."""
        return (await self._transport.ask("PATCH", _queue(name), _settings(**settings), kind=QueueRow)).record()

    async def get(self, name: str) -> Queue:
        return (await self._transport.ask("GET", _queue(name), kind=QueueRow)).record()

    async def list(
        self, *, after: str | None = None, limit: int | None = None, names: Sequence[str] | None = None
    ) -> builtins.list[Queue]:
        """List queues by name. `after` and `limit` page through the list. `names`: only these, with `*`."""
        rows = await self._transport.every("/v1/queues", QueueRow, after=after, limit=limit, name=names)
        return [row.record() for row in rows]

    async def read(
        self, queue: str, partition: int = 0, *, start: int = 1, limit: int = 100, type: Any = None
    ) -> builtins.list[Message[Any]]:
        """Read messages that were sent to the queue directly, from offset `start`, whether or not they were consumed."""
        query = {"partition": partition, "start": start, "limit": limit}
        body = await self._transport.ask("GET", f"{_queue(queue)}/log", query=query, kind=MessagesPage)
        return [row.message(type) for row in body.data]

    async def estimate_search(
        self, queue: str, selection: Selection | None = None, **options: Unpack[RangeOptions]
    ) -> builtins.list[SearchRange]:
        """Return what `search` would read at most: offsets, messages and about how many bytes, per partition."""
        return await estimate(self._transport, _queue(queue), selection, **options)

    async def search(
        self, queue: str, selection: Selection | None = None, *, type: Any = None, **options: Unpack[SearchOptions]
    ) -> Search[Any]:
        """Search messages that were sent to a queue directly, whether or not they were consumed."""
        return await search(self._transport, _queue(queue), selection, type=type, **options)

    async def delete(self, name: str, *, force: bool = False) -> None:
        await self._transport.ask("DELETE", _queue(name), query={"force": str(force).lower()})

    async def pause(self, name: str) -> None:
        """Stop deliveries until `resume`. Publishing and settling continue."""
        await self._transport.ask("PUT", f"{_queue(name)}/pause")

    async def resume(self, name: str) -> None:
        await self._transport.ask("PUT", f"{_queue(name)}/resume")

    async def purge(self, name: str, *, on_progress: Callable[[int], None] | None = None) -> int:
        """Drop all undelivered messages. Messages that are leased at this moment are kept.

        Returns the number of messages dropped.
        """
        purged: int = (await self._transport.ask("PUT", f"{_queue(name)}/purge"))["purged"]
        if on_progress is not None and purged:
            on_progress(purged)
        return purged

    async def cleanup(self, name: str) -> int:
        """Remove finished messages now instead of waiting for retention.

        Returns the number of segments and shared-store partitions that were emptied.
        """
        emptied: int = (await self._transport.ask("PUT", f"{_queue(name)}/cleanup"))["emptied"]
        return emptied

    async def stats(self, name: str | None = None, *, names: Sequence[str] | None = None) -> builtins.list[QueueStats]:
        """Return one row per queue, of one queue or of all. `names`: only these, with `*`."""
        if names is not None:
            query = {"name": list(names)}
            return (await self._transport.ask("GET", "/v1/queue-stats", query=query, kind=_StatsPage)).data
        if name is None:
            return msgspec.convert((await self._transport.ask("GET", "/v1/stats"))["queues"], builtins.list[QueueStats])
        return [await self._transport.ask("GET", f"{_queue(name)}/stats", kind=QueueStats)]

    async def peek(self, queue: str, *, limit: int = 10, type: Any = None) -> builtins.list[Waiting[Any]]:
        """List the next messages to be delivered, retries first, without claiming them or counting an attempt."""
        body = await self._transport.ask("GET", f"{_queue(queue)}/peek", query={"limit": limit}, kind=_Waiting)
        return [row.waiting(type) for row in body.data]


def _queue(name: str) -> str:
    return f"/v1/queues/{quoted(name)}"


def _settings(
    *,
    lease: Duration | None = None,
    max_attempts: int | None = None,
    backoff_base: Duration | None = None,
    backoff_factor: float | None = None,
    backoff_cap: Duration | None = None,
    backoff_jitter: float | None = None,
    ttl: Duration | None = None,
    delivery_delay: Duration | None = None,
    ordered: bool | None = None,
    partitions: int | None = None,
    priorities: int | None = None,
    history: Duration | None = None,
    retention: Duration | None = None,
    max_payload: int | None = None,
) -> dict[str, Any]:
    return {
        "lease_seconds": seconds(lease),
        "max_attempts": max_attempts,
        "backoff_base_seconds": seconds(backoff_base),
        "backoff_factor": backoff_factor,
        "backoff_cap_seconds": seconds(backoff_cap),
        "backoff_jitter": backoff_jitter,
        "ttl_seconds": seconds(ttl),
        "delivery_delay_seconds": seconds(delivery_delay),
        "ordered": ordered,
        "partitions": partitions,
        "priorities": priorities,
        "history_seconds": seconds(history),
        "retention_seconds": seconds(retention),
        "max_payload": max_payload,
    }


class _DeadLetters(msgspec.Struct):
    data: list[DeadRow]


class HttpDeadLetters(Noun):
    """`client.dead`"""

    async def list(
        self, queue: str, *, after: int = 0, limit: int = 100, type: Any = None
    ) -> builtins.list[DeadLetter[Any]]:
        """List dead letters, oldest first. For the next page pass the last `dead_id` as `after`."""
        query = {"after": after, "limit": limit}
        body = await self._transport.ask("GET", f"{_queue(queue)}/dead-letters", query=query, kind=_DeadLetters)
        return [row.letter(type) for row in body.data]

    async def get(self, queue: str, id: UUID) -> DeadLetter[Any]:
        """Return a dead letter by its message id. Raises `DeadLetterNotFound`."""
        return (await self._transport.ask("GET", f"{_queue(queue)}/dead-letters/{id}", kind=DeadRow)).letter()

    async def redrive(
        self,
        queue: str,
        *,
        ids: Sequence[UUID] | None = None,
        to: str | None = None,
        limit: int | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """Move dead letters back to the queue: all of them, those in `ids`, or the oldest `limit`.

        Attempts start again from 1. `to` moves the messages to another queue. Returns the number of messages moved.
        """
        return await self._in_steps(queue, "redrive", "redriven", ids, limit, on_progress, to=to)

    async def purge(
        self,
        queue: str,
        *,
        ids: Sequence[UUID] | None = None,
        limit: int | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """Delete dead letters: all of them, those in `ids`, or the oldest `limit`. Returns their number."""
        return await self._in_steps(queue, "purge", "purged", ids, limit, on_progress)

    async def _in_steps(
        self,
        queue: str,
        verb: str,
        counted: str,
        ids: Sequence[UUID] | None,
        limit: int | None,
        on_progress: Callable[[int], None] | None,
        **more: Any,
    ) -> int:
        """Repeat bounded requests until all dead letters are processed. Returns their number."""
        total = 0
        named = list(ids) if ids is not None else None
        while (limit is None or total < limit) and named != []:
            request: dict[str, Any] = {"limit": _STEP if limit is None else min(_STEP, limit - total), **more}
            if named is not None:
                request["ids"], named = named[:_STEP], named[_STEP:]
            step: int = (await self._transport.ask("POST", f"{_queue(queue)}/dead-letters/{verb}", request))[counted]
            total += step
            if on_progress is not None and step:
                on_progress(total)
            if step == 0 and named is None:
                break
        return total
