"""Queues over HTTP."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import msgspec

from trunkline.http_client.resource import HttpResource
from trunkline.http_client.searching import MessagesPage, estimate, search
from trunkline.http_client.transport import quoted
from trunkline.messaging import RangeOptions, SearchOptions
from trunkline.resources import NewQueueSettings, QueueSettings
from trunkline.types import Message, Queue, QueueStats, ReadyMessage, Search, SearchRange, Selection
from trunkline.wire import ReadyMessageView, from_settings


class _StatsPage(msgspec.Struct):
    data: list[QueueStats]


class _ReadyMessages(msgspec.Struct):
    data: list[ReadyMessageView]


class HttpQueues(HttpResource):
    """`client.queues`"""

    async def create(self, name: str, **settings: Unpack[NewQueueSettings]) -> Queue:
        """Create a queue. Raises `AlreadyExists` if the name is taken."""
        request = {"name": name, **from_settings(NewQueueSettings, settings)}
        return await self._transport.record("POST", "/v1/queues", Queue, request)

    async def ensure(self, name: str, **settings: Unpack[NewQueueSettings]) -> Queue:
        """Create the queue, or update the given settings if it exists.

        Raises `AlreadyExists` if `ordered`, `partitions` or `priorities` differ: these cannot be changed.
        """
        request = {"name": name, **from_settings(NewQueueSettings, settings)}
        return await self._transport.record("POST", "/v1/queues", Queue, request, query={"ensure": "true"})

    async def alter(self, name: str, **settings: Unpack[QueueSettings]) -> Queue:
        """Change the given settings and keep the others."""
        return await self._transport.record("PATCH", queue_path(name), Queue, from_settings(QueueSettings, settings))

    async def get(self, name: str) -> Queue:
        return await self._transport.record("GET", queue_path(name), Queue)

    async def list(
        self, *, after: str | None = None, limit: int | None = None, names: Sequence[str] | None = None
    ) -> builtins.list[Queue]:
        """List queues by name. `after` and `limit` page through the list. `names`: only these, with `*`."""
        return await self._transport.records("/v1/queues", Queue, after=after, limit=limit, name=names)

    async def read(
        self, queue: str, partition: int = 0, *, start: int = 1, limit: int = 100, type: Any = None
    ) -> builtins.list[Message[Any]]:
        """Read messages that were sent to the queue directly, from offset `start`, whether or not they were consumed."""
        query = {"partition": partition, "start": start, "limit": limit}
        body = await self._transport.ask("GET", f"{queue_path(queue)}/log", query=query, kind=MessagesPage)
        return [row.message(type) for row in body.data]

    async def estimate_search(
        self, queue: str, selection: Selection | None = None, **options: Unpack[RangeOptions]
    ) -> builtins.list[SearchRange]:
        """Return what `search` would read at most: offsets, messages and about how many bytes, per partition."""
        return await estimate(self._transport, queue_path(queue), selection, **options)

    async def search(
        self, queue: str, selection: Selection | None = None, *, type: Any = None, **options: Unpack[SearchOptions]
    ) -> Search[Any]:
        """Search messages that were sent to a queue directly, whether or not they were consumed."""
        return await search(self._transport, queue_path(queue), selection, type=type, **options)

    async def delete(self, name: str, *, force: bool = False) -> None:
        await self._transport.ask("DELETE", queue_path(name), query={"force": str(force).lower()})

    async def pause(self, name: str) -> None:
        """Stop deliveries until `resume`. Publishing and settling continue."""
        await self._transport.ask("PUT", f"{queue_path(name)}/pause")

    async def resume(self, name: str) -> None:
        await self._transport.ask("PUT", f"{queue_path(name)}/resume")

    async def purge(self, name: str, *, on_progress: Callable[[int], None] | None = None) -> int:
        """Drop all undelivered messages. Messages that are leased at this moment are kept.

        Returns the number of messages dropped.
        """
        purged: int = (await self._transport.ask("PUT", f"{queue_path(name)}/purge"))["purged"]
        if on_progress is not None and purged:
            on_progress(purged)
        return purged

    async def trim(self, name: str) -> int:
        """Remove finished messages now instead of waiting for retention.

        Returns the number of segments and shared-store partitions that were emptied.
        """
        emptied: int = (await self._transport.ask("PUT", f"{queue_path(name)}/trim"))["emptied"]
        return emptied

    async def stats(self, name: str | None = None, *, names: Sequence[str] | None = None) -> builtins.list[QueueStats]:
        """Return one row per queue, of one queue or of all. `names`: only these, with `*`."""
        if names is not None:
            query = {"name": list(names)}
            return (await self._transport.ask("GET", "/v1/queue-stats", query=query, kind=_StatsPage)).data
        if name is None:
            return msgspec.convert((await self._transport.ask("GET", "/v1/stats"))["queues"], builtins.list[QueueStats])
        return [await self._transport.ask("GET", f"{queue_path(name)}/stats", kind=QueueStats)]

    async def peek(self, queue: str, *, limit: int = 10, type: Any = None) -> builtins.list[ReadyMessage[Any]]:
        """List the next messages to be delivered, retries first, without claiming them or counting an attempt."""
        body = await self._transport.ask("GET", f"{queue_path(queue)}/peek", query={"limit": limit}, kind=_ReadyMessages)
        return [row.ready(type) for row in body.data]


def queue_path(name: str) -> str:
    return f"/v1/queues/{quoted(name)}"
