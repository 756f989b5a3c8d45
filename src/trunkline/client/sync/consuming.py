# Written by tools/unasync.py from src/trunkline/client/consuming.py; change that file, not this one.
"""Consumer loops: a group's batches and a queue's deliveries, as they come."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Self, TypeVar
from uuid import uuid4

from trunkline import telemetry
from trunkline.client.sync.batches import Batch
from trunkline.client.sync.deliveries import Deliveries, Delivery
from trunkline.client.sync.renewals import Renewal
from trunkline.client.sync.runtime import Runtime
from trunkline.client.sync.settling import Settler
from trunkline.db.sync import calls
from trunkline.db.sync.wakeup import Watch
from trunkline.db.threads import Bell, log
from trunkline.errors import PermissionDenied, Unavailable

T = TypeVar("T")
_RETRY_SECONDS = 0.5
_LEASE = timedelta(seconds=30)


def consumer_name() -> str:
    """A name for a consumer of this process that nobody had before."""
    host = "".join(c if c.isalnum() or c in "-._" else "-" for c in socket.gethostname())[:100]
    return f"{host}-{os.getpid()}-{uuid4().hex[:12]}"


def claim(
    runtime: Runtime,
    settler: Settler,
    queue: str,
    *,
    limit: int,
    lease: timedelta | None,
    labels: Sequence[str] | None,
    consumer: str | None,
    type: Any,
    fresh: bool = True,
) -> Deliveries[Any]:
    """Up to so many messages of a queue; empty when there are none.

    `fresh`: when there are none, sequence what was committed and try again, for callers that do not wait.
    """
    tracer, began = telemetry.tracer(), time.time_ns()
    with runtime.connection() as conn:
        take = partial(
            calls.claim,
            conn,
            partial(Delivery, _settler=settler),
            queue,
            limit=limit,
            lease=lease,
            labels=labels,
            consumer=consumer,
            type=type,
        )
        rows = take()
        if fresh and not rows:
            runtime.wakeup.sequence("queue", queue)
            rows = take()
        taken = Deliveries.of(rows, settler)
    if tracer is not None and taken:
        telemetry.claimed(tracer, queue, taken, began)
    return taken


class GroupReader(Generic[T]):
    """A member of a group: `with` joins and leaves, `for` gives batches and waits while there are none.

    The lease is renewed while a batch is worked on. A batch that was not committed when the loop asks for the next is
    delivered again.
    """

    def __init__(
        self,
        runtime: Runtime,
        topic: str,
        group: str,
        *,
        start: str,
        batch: int,
        lease: timedelta,
        member: str | None,
        type: Any,
    ) -> None:
        self.topic = topic
        self.group = group
        self.member = member or consumer_name()
        self._runtime = runtime
        self._start = start
        self._size = batch
        self._lease = lease
        self._type = type
        self._watch: Watch | None = None
        self._renewal: Renewal | None = None
        self._batch: Batch[T] | None = None
        self._stopped = False

    def __enter__(self) -> Self:
        with self._runtime.connection(writing=True) as conn:
            calls.create_group(conn, self.topic, self.group, start=self._start, ensure=True)
        self._watch = self._runtime.wakeup.watch("group", self.topic, group=self.group, member=self.member)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._put_down()
        if self._watch is not None:
            self._runtime.wakeup.unwatch(self._watch)
        try:
            with self._runtime.connection(writing=True) as conn:
                calls.leave(conn, self.topic, self.group, member=self.member)
        except Unavailable as exc:
            log.warning("%s could not leave group %s: %s", self.member, self.group, exc)

    def stop(self) -> None:
        """End the loop when it asks for the next batch, also while it waits. Callable from anywhere in the process."""
        self._stopped = True
        if self._watch is not None:
            self._watch.ring()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch[T]:
        if self._watch is None:
            raise RuntimeError("enter the subscription with `with` before iterating over it")
        last = self._put_down()
        while True:
            self._watch.hush()
            if self._stopped:
                raise StopIteration
            try:
                with self._runtime.connection() as conn:
                    found = calls.fetch(
                        conn,
                        partial(Batch, self._runtime, self.topic, self.group, lease=self._lease),
                        self.topic,
                        self.group,
                        member=self.member,
                        limit=self._size,
                        lease=self._lease,
                        generation=None if last is None else last.generation,
                        type=self._type,
                    )
            except Unavailable as exc:
                log.warning("group %s of topic %s: %s; trying again", self.group, self.topic, exc)
                self._watch.wait(_RETRY_SECONDS)
                continue
            if found is not None:
                self._watch.found()
                self._batch = found
                self._renewal = self._runtime.renewals.add(self._lease.total_seconds() / 3, self._renew)
                return found
            self._watch.wait()

    def _put_down(self) -> Batch[T] | None:
        """Stop caring for the batch at hand; answers it if it was not committed."""
        if self._renewal is not None:
            self._runtime.renewals.drop(self._renewal)
        batch, self._batch, self._renewal = self._batch, None, None
        return batch if batch is not None and not batch.committed else None

    def _renew(self) -> None:
        with self._runtime.connection(writing=True) as conn:
            calls.heartbeat(conn, self.topic, self.group, member=self.member, lease=self._lease)


class Claims(Generic[T]):
    """Deliveries of a queue, one by one: `with` opens, `for` gives them and waits while there are none.

    At most `slots` are held at once: those given out and not settled, and those fetched ahead. All held ones are renewed
    until they are settled. On exit what was not given out goes back at once, without an attempt; what was given out and not
    settled comes again when its lease ends.
    """

    def __init__(
        self,
        runtime: Runtime,
        queue: str,
        *,
        slots: int,
        lease: timedelta | None,
        labels: Sequence[str] | None,
        consumer: str | None,
        type: Any,
    ) -> None:
        if slots < 1:
            raise ValueError("slots is less than 1")
        self.queue = queue
        self.consumer = consumer or consumer_name()
        self._runtime = runtime
        self._slots = slots
        self._lease = lease
        self._labels = labels
        self._type = type
        self._settler = Settler(runtime, self._settled)
        self._ready: deque[Delivery[T]] = deque()
        self._held: dict[str, None] = {}
        self._free = Bell()
        self._watch: Watch | None = None
        self._renewal: Renewal | None = None
        self._span = timedelta(0)
        self._stopped = False

    def __enter__(self) -> Self:
        sources: frozenset[str] | None = None
        try:
            with self._runtime.connection() as conn:
                self._span = self._lease or (calls.get_queue(conn, self.queue)).lease
                sources = frozenset(row.topic for row in calls.list_subscriptions(conn, self.queue, None))
        except PermissionDenied:
            # a role that may claim and no more: then the lease is ours to say
            self._span = self._lease = self._lease or _LEASE
        self._watch = self._runtime.wakeup.watch("queue", self.queue)
        self._watch.sources = sources
        self._renewal = self._runtime.renewals.add(self._span.total_seconds() / 3, self._renew)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._renewal is not None:
            self._runtime.renewals.drop(self._renewal)
        if self._watch is not None:
            self._runtime.wakeup.unwatch(self._watch)
        unused = [delivery.receipt for delivery in self._ready]
        self._ready.clear()
        try:
            self._settler.drain()
            if unused:
                self._settler.release(unused)
        except Unavailable as exc:
            log.warning("%s could not give back messages of queue %s: %s", self.consumer, self.queue, exc)

    def stop(self) -> None:
        """End the loop when it asks for the next delivery, also while it waits. Callable from anywhere in the process."""
        self._stopped = True
        self._free.ring()
        if self._watch is not None:
            self._watch.ring()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery[T]:
        if self._watch is None:
            raise RuntimeError("enter the claims with `with` before iterating over them")
        while True:
            self._free.hush()
            self._watch.hush(self._labels)
            if self._stopped:
                raise StopIteration
            if self._ready:
                return self._ready.popleft()
            free = self._slots - len(self._held)
            if free <= 0:
                if not self._free.wait(self._span.total_seconds()):
                    log.warning("all %s slots on queue %s hold deliveries that nobody settled", self._slots, self.queue)
                continue
            try:
                taken = claim(
                    self._runtime,
                    self._settler,
                    self.queue,
                    limit=min(free, 1000),
                    lease=self._lease,
                    labels=self._labels,
                    consumer=self.consumer,
                    type=self._type,
                    fresh=False,
                )
            except Unavailable as exc:
                log.warning("queue %s: %s; trying again", self.queue, exc)
                self._watch.wait(_RETRY_SECONDS)
                continue
            self._held.update(dict.fromkeys(taken.receipts))
            self._ready.extend(taken)
            if taken:
                self._watch.found()
            else:
                self._watch.wait()

    def _settled(self, receipts: Iterable[str]) -> None:
        for receipt in receipts:
            self._held.pop(receipt, None)
        self._free.ring()

    def _renew(self) -> None:
        held = list(self._held)
        if not held:
            return
        answers = self._settler.extend(held, lease=self._span)
        # a lost one can no longer be settled: it only takes a slot
        self._settled([receipt for receipt, answer in zip(held, answers, strict=True) if answer != "done"])
