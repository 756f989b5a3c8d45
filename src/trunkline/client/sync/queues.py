# Written by tools/unasync.py from src/trunkline/client/queues.py; change that file, not this one.
"""Queues: make them, change their policy, look into them."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, TypeVar, overload

from trunkline.client.sync.noun import Noun, settings
from trunkline.db.sync import calls
from trunkline.types import Duration, Queue, QueueStats, Waiting

T = TypeVar("T")


class Queues(Noun):
    """`client.queues`"""

    def create(
        self,
        name: str,
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
    ) -> Queue:
        """A new queue; `AlreadyExists` if the name is taken.

        `ordered`: one lease per partition at a time, so that messages with the same key are done in order. `priorities`: so
        many levels, 0 the lowest. `history`: how long it is kept who had which message; `"0s"` for not at all.
        """
        with self._writing() as conn, conn.transaction():
            return calls.create_queue(
                conn,
                name,
                **settings(
                    lease=lease,
                    max_attempts=max_attempts,
                    backoff_base=backoff_base,
                    backoff_factor=backoff_factor,
                    backoff_cap=backoff_cap,
                    backoff_jitter=backoff_jitter,
                    ttl=ttl,
                    delivery_delay=delivery_delay,
                    ordered=ordered,
                    partitions=partitions,
                    priorities=priorities,
                    history=history,
                    retention=retention,
                    max_payload=max_payload,
                ),
            )

    def ensure(
        self,
        name: str,
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
    ) -> Queue:
        """Make the queue so: create it, or change of the settings that are given those that differ.

        `AlreadyExists` if order, partitions or priorities differ: these cannot be changed.
        """
        with self._writing() as conn, conn.transaction():
            return calls.ensure_queue(
                conn,
                name,
                **settings(
                    lease=lease,
                    max_attempts=max_attempts,
                    backoff_base=backoff_base,
                    backoff_factor=backoff_factor,
                    backoff_cap=backoff_cap,
                    backoff_jitter=backoff_jitter,
                    ttl=ttl,
                    delivery_delay=delivery_delay,
                    ordered=ordered,
                    partitions=partitions,
                    priorities=priorities,
                    history=history,
                    retention=retention,
                    max_payload=max_payload,
                ),
            )

    def alter(
        self,
        name: str,
        *,
        lease: Duration | None = None,
        max_attempts: int | None = None,
        backoff_base: Duration | None = None,
        backoff_factor: float | None = None,
        backoff_cap: Duration | None = None,
        backoff_jitter: float | None = None,
        ttl: Duration | None = None,
        delivery_delay: Duration | None = None,
        history: Duration | None = None,
        retention: Duration | None = None,
        max_payload: int | None = None,
    ) -> Queue:
        """Change what is given and keep the rest. A `ttl` of `"0s"` removes it, a `history` of `"0s"` turns it off."""
        with self._writing() as conn, conn.transaction():
            return calls.alter_queue(
                conn,
                name,
                **settings(
                    lease=lease,
                    max_attempts=max_attempts,
                    backoff_base=backoff_base,
                    backoff_factor=backoff_factor,
                    backoff_cap=backoff_cap,
                    backoff_jitter=backoff_jitter,
                    ttl=ttl,
                    delivery_delay=delivery_delay,
                    history=history,
                    retention=retention,
                    max_payload=max_payload,
                ),
            )

    def get(self, name: str) -> Queue:
        """The queue, or `QueueNotFound`."""
        with self._reading() as conn:
            return calls.get_queue(conn, name)

    def list(self, *, after: str | None = None, limit: int | None = None) -> builtins.list[Queue]:
        """All queues by name, or `limit` of them after a name."""
        with self._reading() as conn:
            return calls.list_queues(conn, after=after, limit=limit)

    def delete(self, name: str, *, force: bool = False) -> None:
        """The queue with its messages, subscriptions and schedules is gone.

        `InUse` while it has dead letters or a schedule publishes to it, unless forced.
        """
        with self._writing() as conn:
            calls.delete_queue(conn, name, force=force)

    def pause(self, name: str) -> None:
        """Nothing is given out until `resume`; publishing and settling go on."""
        with self._writing() as conn:
            calls.pause_queue(conn, name, paused=True)

    def resume(self, name: str) -> None:
        with self._writing() as conn:
            calls.pause_queue(conn, name, paused=False)
        self._runtime().wakeup.published("inbox", name)

    def purge(self, name: str, *, on_progress: Callable[[int], None] | None = None) -> int:
        """Everything that is not leased at this moment is removed, in bounded steps; answers how many."""
        total = 0
        self._runtime().wakeup.sequence("queue", name)
        while True:
            with self._writing() as conn:
                step = calls.purge_queue(conn, name)
            total += step
            if on_progress is not None and step:
                on_progress(total)
            if step == 0:
                return total

    def cleanup(self, name: str) -> int:
        """Remove finished messages now; returns how many segments, and parts of the shared store, they were in."""
        with self._writing() as conn:
            return calls.cleanup_queue(conn, name)

    def stats(self, name: str | None = None) -> builtins.list[QueueStats]:
        """One row per queue, of one or of all."""
        with self._runtime().reading(queue=name) as conn:
            return calls.queue_stats(conn, name)

    @overload
    def peek(self, queue: str, *, limit: int = 10, type: None = None) -> builtins.list[Waiting[Any]]: ...
    @overload
    def peek(self, queue: str, *, limit: int = 10, type: type[T]) -> builtins.list[Waiting[T]]: ...
    def peek(self, queue: str, *, limit: int = 10, type: Any = None) -> builtins.list[Waiting[Any]]:
        """What waits, without claiming it or counting an attempt: first what came back, then what is new."""
        with self._runtime().reading(queue=queue) as conn:
            return calls.peek_queue(conn, queue, limit=limit, type=type)
