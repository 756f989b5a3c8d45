# Written by tools/unasync.py from src/trunkline/client/queues.py; change that file, not this one.
"""Queues: create, configure and inspect them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, Unpack, overload

from trunkline.client.sync.resource import Resource
from trunkline.codec import duration, position_text
from trunkline.db.sync import calls
from trunkline.db.sync.calls import inspection
from trunkline.resources import NewQueueSettings, QueueSettings, checked
from trunkline.types import Duration, Message, Position, Queue, QueueStats, ReadyMessage, Search, SearchRange, Selection

T = TypeVar("T")


class Queues(Resource):
    """`client.queues`"""

    def create(self, name: str, **settings: Unpack[NewQueueSettings]) -> Queue:
        """Create a queue. Raises `AlreadyExists` if the name is taken.

        `ordered`: only one lease per partition at a time, so that messages with the same key are processed in order.
        `priorities`: number of priority levels; 0 is the lowest level. `history`: how long to keep delivery history;
        `"0s"` disables it.
        """
        with self._writing() as conn, conn.transaction():
            return calls.create_queue(
                conn,
                name,
                **checked(NewQueueSettings, settings),
            )

    def ensure(self, name: str, **settings: Unpack[NewQueueSettings]) -> Queue:
        """Create the queue, or update the given settings if it exists.

        Raises `AlreadyExists` if `ordered`, `partitions` or `priorities` differ: these cannot be changed.
        """
        with self._writing() as conn, conn.transaction():
            return calls.ensure_queue(
                conn,
                name,
                **checked(NewQueueSettings, settings),
            )

    def alter(self, name: str, **settings: Unpack[QueueSettings]) -> Queue:
        """Change the given settings and keep the others. A `ttl` or `history` of `"0s"` disables it."""
        with self._writing() as conn, conn.transaction():
            return calls.alter_queue(
                conn,
                name,
                **checked(QueueSettings, settings),
            )

    def get(self, name: str) -> Queue:
        """Return a queue. Raises `QueueNotFound`."""
        with self._reading() as conn:
            return calls.get_queue(conn, name)

    def list(
        self, *, after: str | None = None, limit: int | None = None, names: Sequence[str] | None = None
    ) -> builtins.list[Queue]:
        """List queues by name. `after` and `limit` page through the list.

        `names`: only these; `*` stands for any characters.
        """
        with self._reading() as conn:
            return calls.list_queues(conn, after=after, limit=limit, names=names)

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete the queue with its messages and subscriptions.

        Raises `InUse` if it has dead letters, if jobs wait to be enqueued there or if a schedule publishes to it,
        unless `force` is set.
        """
        with self._writing() as conn:
            calls.delete_queue(conn, name, force=force)

    def pause(self, name: str) -> None:
        """Stop deliveries until `resume`. Publishing and settling continue."""
        with self._writing() as conn:
            calls.pause_queue(conn, name, paused=True)

    def resume(self, name: str) -> None:
        """Deliver messages again after `pause`."""
        with self._writing() as conn:
            calls.pause_queue(conn, name, paused=False)
        self._session().wakeup.published("inbox", name)

    def purge(self, name: str, *, on_progress: Callable[[int], None] | None = None) -> int:
        """Drop all undelivered messages. Messages that are leased at this moment are kept.

        Runs in bounded steps. Returns the number of messages dropped.
        """
        total = 0
        self._session().wakeup.sequence("queue", name)
        while True:
            with self._writing() as conn:
                step = calls.purge_queue(conn, name)
            total += step
            if on_progress is not None and step:
                on_progress(total)
            if step == 0:
                return total

    def trim(self, name: str) -> int:
        """Remove finished messages now instead of waiting for retention.

        Returns the number of segments and shared-store partitions that were emptied.
        """
        with self._writing() as conn:
            return calls.trim_queue(conn, name)

    def stats(self, name: str | None = None, *, names: Sequence[str] | None = None) -> builtins.list[QueueStats]:
        """Return one row per queue, of one queue or of all.

        `names`: only these, without those that do not exist; `*` stands for any characters.
        """
        with self._session().reading(queue=name) as conn:
            return calls.queue_stats(conn, name, names=names)

    def read(
        self, queue: str, partition: int = 0, *, start: int = 1, limit: int = 100, type: Any = None
    ) -> builtins.list[Message[Any]]:
        """Read messages that were sent to the queue directly, from offset `start`, whether or not they were consumed.

        In a queue with priorities, the partition is the priority. Raises `OffsetOutOfRange` if retention has removed
        `start`.
        """
        with self._session().reading(queue=queue) as conn:
            return inspection.read_queue(conn, queue, partition, start=start, limit=limit, type=type)

    def estimate_search(
        self,
        queue: str,
        selection: Selection | None = None,
        *,
        partitions: Sequence[int] | None = None,
        start: Position = "earliest",
        end: Position = "latest",
    ) -> builtins.list[SearchRange]:
        """Return what `search` would read at most: offsets, messages and about how many bytes, per partition."""
        with self._session().reading(queue=queue) as conn:
            return inspection.estimate_search(
                conn,
                "queue",
                queue,
                selection or {},
                partitions=partitions,
                start=position_text(start),
                end=position_text(end),
            )

    def search(
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
        with self._session().reading(queue=queue) as conn:
            return inspection.search_log(
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
    def peek(self, queue: str, *, limit: int = 10, type: None = None) -> builtins.list[ReadyMessage[Any]]: ...
    @overload
    def peek(self, queue: str, *, limit: int = 10, type: type[T]) -> builtins.list[ReadyMessage[T]]: ...
    def peek(self, queue: str, *, limit: int = 10, type: Any = None) -> builtins.list[ReadyMessage[Any]]:
        """List the next messages to be delivered, retries first, without claiming them or counting an attempt."""
        with self._session().reading(queue=queue) as conn:
            return calls.peek_queue(conn, queue, limit=limit, type=type)
