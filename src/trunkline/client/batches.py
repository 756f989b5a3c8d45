"""Batches: messages of one partition, fetched for a group, with methods to commit them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from trunkline.db import calls
from trunkline.db.pool import Connection
from trunkline.errors import OffsetAhead
from trunkline.runtime.session import Session
from trunkline.runtime.transactions import CommitMark, settled
from trunkline.types import Message, Result

T = TypeVar("T")


class CommitsBatches(Protocol):
    """Commits the batches of either client: over a database connection, or over HTTP."""

    async def commit(self, batch: Batch[Any], offset: int) -> Result: ...
    def transaction(self, batch: Batch[Any], mark: CommitMark) -> AbstractAsyncContextManager[Connection]: ...


class DatabaseCommits:
    """Commits batches over the connections of a client."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def commit(self, batch: Batch[Any], offset: int) -> Result:
        async with self._session.connection(writing=True) as conn:
            return (await batch.commit_on(conn, offset))[0]

    def transaction(self, batch: Batch[Any], mark: CommitMark) -> AbstractAsyncContextManager[Connection]:
        return settled(self._session, batch.commit_on, once=[mark])


class Batch(Generic[T]):
    """Messages of one partition in offset order, leased to a member until `deadline` by the database's clock.

    Commit the batch after you have processed its messages. Uncommitted messages are redelivered.
    """

    def __init__(
        self,
        commits: CommitsBatches,
        topic: str,
        group: str,
        *,
        member: str,
        generation: UUID,
        deadline: datetime,
        messages: list[Message[Any]],
        lease: timedelta,
    ) -> None:
        self.topic = topic
        self.group = group
        self.member = member
        self.generation = generation
        self.deadline = deadline
        self.messages: list[Message[T]] = messages
        self.committed = False
        """True if the whole batch was committed through this object."""
        self._commits = commits
        self._fetched_at = deadline - lease
        self._once = CommitMark()

    @property
    def partition(self) -> int:
        return self.messages[0].partition

    @property
    def first_offset(self) -> int:
        return self.messages[0].offset

    @property
    def last_offset(self) -> int:
        return self.messages[-1].offset

    @property
    def lag(self) -> timedelta:
        """Age of the last message when the batch was fetched, by the database's clock."""
        return self._fetched_at - self.messages[-1].created_at

    def __iter__(self) -> Iterator[Message[T]]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        return f"Batch({self.topic}[{self.partition}] {self.first_offset}..{self.last_offset} for {self.group})"

    async def commit(self, offset: int | None = None) -> Result:
        """Commit the group's position after `offset` (default: the whole batch).

        Returns `lost` if another member has the partition.
        """
        upto = self.last_offset if offset is None else offset
        try:
            result = await self._commits.commit(self, upto)
        except OffsetAhead:
            if offset is not None and offset > self.last_offset:
                raise
            # the server crashed before it saved this fetch: the messages will be fetched again
            return "lost"
        self.committed = self.committed or (result == "done" and upto >= self.last_offset)
        return result

    async def commit_on(self, conn: Connection, offset: int | None = None) -> tuple[Result, str]:
        """Commit on the caller's connection. Also returns the id of its transaction."""
        upto = self.last_offset if offset is None else offset
        result, number = await calls.commit(
            conn, self.topic, self.group, partition=self.partition, generation=self.generation, offset=upto
        )
        self.committed = self.committed or (result == "done" and upto >= self.last_offset)
        return result, number

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Commit the group's position in a transaction with your own writes, for exactly-once processing.

        Raises `LeaseLost` if another member took over the partition; everything is then rolled back. Do not repeat the
        block after `OutcomeUnknown`: if it was not committed, the messages are redelivered.
        """
        try:
            async with self._commits.transaction(self, self._once) as conn:
                yield conn
        except BaseException:
            self.committed = False
            raise
