# Written by tools/unasync.py from src/trunkline/client/group_reader.py; change that file, not this one.
"""Reads a topic as a member of a group, batch by batch."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any, Generic, Self, TypeVar

from trunkline.client.sync.batches import Batch, DatabaseCommits
from trunkline.concurrency.threads import log
from trunkline.db.sync import calls
from trunkline.db.sync.wakeup import Watch
from trunkline.errors import Unavailable
from trunkline.runtime.names import consumer_name
from trunkline.runtime.sync.renewals import Renewal
from trunkline.runtime.sync.session import Session

T = TypeVar("T")
_RETRY_SECONDS = 0.5
_LEASE = timedelta(seconds=30)


class GroupReader(Generic[T]):
    """A member of a group. `with` joins and leaves the group; `for` yields batches and waits for new ones.

    The lease is renewed while you work on a batch. A batch that is not committed before the next iteration is
    redelivered.
    """

    def __init__(
        self,
        session: Session,
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
        self._session = session
        self._commits = DatabaseCommits(session)
        self._start = start
        self._size = batch
        self._lease = lease
        self._type = type
        self._watch: Watch | None = None
        self._renewal: Renewal | None = None
        self._batch: Batch[T] | None = None
        self._stopped = False

    def __enter__(self) -> Self:
        with self._session.connection(writing=True) as conn:
            calls.create_group(conn, self.topic, self.group, start=self._start, ensure=True)
        self._watch = self._session.wakeup.watch("group", self.topic, group=self.group, member=self.member)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._put_down()
        if self._watch is not None:
            self._session.wakeup.unwatch(self._watch)
        try:
            with self._session.connection(writing=True) as conn:
                calls.leave(conn, self.topic, self.group, member=self.member)
        except Unavailable as exc:
            log.warning("could not leave group group=%s member=%s error=%s", self.group, self.member, exc)

    def stop(self) -> None:
        """End the loop before its next batch, also while it waits. Callable from any task or thread of the process."""
        self._stopped = True
        if self._watch is not None:
            self._watch.wake()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch[T]:
        if self._watch is None:
            raise RuntimeError("enter the subscription with `with` before you iterate over it")
        uncommitted = self._put_down()
        while True:
            self._watch.reset()
            if self._stopped:
                raise StopIteration
            try:
                with self._session.connection() as conn:
                    batch = calls.fetch(
                        conn,
                        partial(Batch, self._commits, self.topic, self.group, member=self.member, lease=self._lease),
                        self.topic,
                        self.group,
                        member=self.member,
                        limit=self._size,
                        lease=self._lease,
                        generation=None if uncommitted is None else uncommitted.generation,
                        type=self._type,
                    )
            except Unavailable as exc:
                log.warning(
                    "fetch failed; retrying in %s s topic=%s group=%s error=%s", _RETRY_SECONDS, self.topic, self.group, exc
                )
                self._watch.wait(_RETRY_SECONDS)
                continue
            if batch is not None:
                self._watch.note_message()
                self._batch = batch
                self._renewal = self._session.renewals.add(self._lease.total_seconds() / 3, self._renew)
                return batch
            self._watch.wait()

    def _put_down(self) -> Batch[T] | None:
        """Stop renewing the current batch. Return it if it was not committed."""
        if self._renewal is not None:
            self._session.renewals.drop(self._renewal)
        batch, self._batch, self._renewal = self._batch, None, None
        return batch if batch is not None and not batch.committed else None

    def _renew(self) -> None:
        with self._session.connection(writing=True) as conn:
            calls.heartbeat(conn, self.topic, self.group, member=self.member, lease=self._lease)
