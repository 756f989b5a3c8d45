"""Queues: create, configure and inspect them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, Unpack, overload

from trunkline.client.resource import Resource
from trunkline.codec import duration, position_text
from trunkline.db import calls
from trunkline.db.calls import inspection
from trunkline.resources import NewQueueSettings, QueueSettings, checked
from trunkline.types import Duration, Message, Position, Queue, QueueStats, ReadyMessage, Search, SearchRange, Selection

T = TypeVar("T")


class Queues(Resource):
    """`client.queues`"""

    async def create(self, name: str, **settings: Unpack[NewQueueSettings]) -> Queue:
        """Create a queue. Raises `AlreadyExists` if the name is taken.

        `ordered`: only one lease per partition at a time, so that messages with the same key are processed in order.
        `priorities`: number of priority levels; 0 is the lowest level. `history`: how long to keep delivery history;
        `"0s"` disables it.
        """
        async with self._writing() as conn, conn.transaction():
            return await calls.create_queue(
                conn,
                name,
                **checked(NewQueueSettings, settings),
            )

    async def ensure(self, name: str, **settings: Unpack[NewQueueSettings]) -> Queue:
        """Create the queue, or update the given settings if it exists.

        Raises `AlreadyExists` if `ordered`, `partitions` or `priorities` differ: these cannot be changed.
        """
        async with self._writing() as conn, conn.transaction():
            return await calls.ensure_queue(
                conn,
                name,
                **checked(NewQueueSettings, settings),
            )

    async def alter(self, name: str, **settings: Unpack[QueueSettings]) -> Queue:
        """Change the given settings and keep the others. A `ttl` or `history` of `"0s"` disables it."""
        async with self._writing() as conn, conn.transaction():
            return await calls.alter_queue(
                conn,
                name,
                **checked(QueueSettings, settings),
            )

    async def get(self, name: str) -> Queue:
        """Return a queue. Raises `QueueNotFound`."""
        async with self._reading() as conn:
            return await calls.get_queue(conn, name)

    async def list(
        self, *, after: str | None = None, limit: int | None = None, names: Sequence[str] | None = None
    ) -> builtins.list[Queue]:
        """List queues by name. `after` and `limit` page through the list.

        `names`: only these; `*` stands for any characters.
        """
        async with self._reading() as conn:
            return await calls.list_queues(conn, after=after, limit=limit, names=names)

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Delete the queue with its messages and subscriptions.

        Raises `InUse` if it has dead letters, if jobs wait to be enqueued there or if a schedule publishes to it,
        unless `force` is set.
        """
        async with self._writing() as conn:
            await calls.delete_queue(conn, name, force=force)

    async def pause(self, name: str) -> None:
        """Stop deliveries until `resume`. Publishing and settling continue."""
        async with self._writing() as conn:
            await calls.pause_queue(conn, name, paused=True)

    async def resume(self, name: str) -> None:
        """Deliver messages again after `pause`."""
        async with self._writing() as conn:
            await calls.pause_queue(conn, name, paused=False)
        self._session().wakeup.published("inbox", name)

    async def purge(self, name: str, *, on_progress: Callable[[int], None] | None = None) -> int:
        """Drop all undelivered messages. Messages that are leased at this moment are kept.

        Runs in bounded steps. Returns the number of messages dropped.
        """
        total = 0
        await self._session().wakeup.sequence("queue", name)
        while True:
            async with self._writing() as conn:
                step = await calls.purge_queue(conn, name)
            total += step
            if on_progress is not None and step:
                on_progress(total)
            if step == 0:
                return total

    async def trim(self, name: str) -> int:
        """Remove finished messages now instead of waiting for retention.

        Returns the number of segments and shared-store partitions that were emptied.
        """
        async with self._writing() as conn:
            return await calls.trim_queue(conn, name)

    async def stats(self, name: str | None = None, *, names: Sequence[str] | None = None) -> builtins.list[QueueStats]:
        """Return one row per queue, of one queue or of all.

        `names`: only these, without those that do not exist; `*` stands for any characters.
        """
        async with self._session().reading(queue=name) as conn:
            return await calls.queue_stats(conn, name, names=names)

    async def read(
        self, queue: str, partition: int = 0, *, start: int = 1, limit: int = 100, type: Any = None
    ) -> builtins.list[Message[Any]]:
        """Read messages that were sent to the queue directly, from offset `start`, whether or not they were consumed.

        In a queue with priorities, the partition is the priority. Raises `OffsetOutOfRange` if retention has removed
        `start`.
        """
        async with self._session().reading(queue=queue) as conn:
            return await inspection.read_queue(conn, queue, partition, start=start, limit=limit, type=type)

    async def estimate_search(
        self,
        queue: str,
        selection: Selection | None = None,
        *,
        partitions: Sequence[int] | None = None,
        start: Position = "earliest",
        end: Position = "latest",
    ) -> builtins.list[SearchRange]:
        """Return what `search` would read at most: offsets, messages and about how many bytes, per partition."""
        async with self._session().reading(queue=queue) as conn:
            return await inspection.estimate_search(
                conn,
                "queue",
                queue,
                selection or {},
                partitions=partitions,
                start=position_text(start),
                end=position_text(end),
            )

    async def search(
        self,
        queue: str,
        selection: Selection | None = None,
        *,
        partitions: Sequence[int] | None = None,
        start: Position = "earliest",
        end: Position = "latest",
        limit: int = 50,
        backwards: bool = True,
        max_rows: int = 1_000_000,
        budget: Duration = "5s",
        after: dict[str, int] | None = None,
        type: Any = None,
    ) -> Search[Any]:
        """Search messages that were sent to a queue directly, whether or not they were consumed.

        The newest first, or forwards. Stops after `limit` matches (at most 1,000), `max_rows` messages read, or
        `budget` (at most one minute). To continue, pass `next` of the result as `after`. `end` is inclusive if it is an
        offset.
        """
        async with self._session().reading(queue=queue) as conn:
            return await inspection.search_log(
                conn,
                "queue",
                queue,
                selection or {},
                partitions=partitions,
                start=position_text(start),
                end=position_text(end),
                limit=limit,
                backwards=backwards,
                max_rows=max_rows,
                budget=duration(budget) or timedelta(seconds=5),
                after=after,
                type=type,
            )

    @overload
    async def peek(self, queue: str, *, limit: int = 10, type: None = None) -> builtins.list[ReadyMessage[Any]]: ...
    @overload
    async def peek(self, queue: str, *, limit: int = 10, type: type[T]) -> builtins.list[ReadyMessage[T]]: ...
    async def peek(self, queue: str, *, limit: int = 10, type: Any = None) -> builtins.list[ReadyMessage[Any]]:
        """List the next messages to be delivered, retries first, without claiming them or counting an attempt."""
        async with self._session().reading(queue=queue) as conn:
            return await calls.peek_queue(conn, queue, limit=limit, type=type)
