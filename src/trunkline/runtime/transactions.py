"""Exactly-once processing: the handler's writes and the ack or commit share one transaction."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

from trunkline.db import calls
from trunkline.db.pool import Connection
from trunkline.errors import LeaseLost, OffsetAhead, TransactionMisuse, from_psycopg
from trunkline.types import Result

if TYPE_CHECKING:
    from trunkline.runtime.session import Session


class BorrowedConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A pool connection lent for one transaction. Using it afterwards, or in a forked child, raises."""

    def __init__(self, owner: Connection) -> None:
        super().__init__(owner.pgconn)
        # the owner numbers the session's prepared statements; a second counter would collide
        self.prepare_threshold = None
        self._pid = os.getpid()
        self._returned = False

    def give_back(self) -> None:
        self._returned = True

    async def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Check that the connection is still lent. Every query passes through this method."""
        if self._returned or self._pid != os.getpid():
            raise TransactionMisuse(
                "cannot use this connection after its transaction ended or in a forked process",
                hint="Use it only inside the `async with` block, in the process that opened it.",
            )
        return await super().wait(*args, **kwargs)

    def __del__(self, *_: Any) -> None:
        """Do not close the connection: its session belongs to the pool."""


class CommitMark:
    """Marks messages whose transaction reached its commit: repeating it could apply their effects twice."""

    __slots__ = ("spent",)

    def __init__(self) -> None:
        self.spent = False


@asynccontextmanager
async def settled(
    session: Session, settle: Callable[[Connection], Awaitable[tuple[Result, str]]], *, once: Sequence[CommitMark]
) -> AsyncIterator[Connection]:
    """Run a transaction that ends with `settle`, which returns its result and the id of the transaction it ran in.

    Commits if the block succeeds and the result is `done`; otherwise rolls back. After a commit, or a commit whose
    outcome is unknown, it cannot be entered again for the same messages.
    """
    if any(mark.spent for mark in once):
        raise TransactionMisuse(
            "cannot repeat a transaction for these messages: the first one was committed, or its outcome is unknown",
            hint="Do not repeat it. If it was not committed, the messages are redelivered when their lease ends.",
        )
    async with session.connection(writing=True) as owner:
        lent = BorrowedConnection(owner)
        try:
            async with lent.transaction():
                number = await calls.transaction_number(lent)
                yield lent
                if lent.info.transaction_status == TransactionStatus.IDLE:
                    raise _misuse()
                try:
                    result, at_the_end = await settle(lent)
                except psycopg.Error as exc:
                    # the server crashed before it saved this fetch: the messages will be fetched again
                    if isinstance(from_psycopg(exc), OffsetAhead):
                        result, at_the_end = "lost", number
                    else:
                        raise
                if at_the_end != number:
                    raise _misuse()
                if result != "done":
                    raise LeaseLost(
                        f"the lease is {result}, so the transaction was rolled back: another consumer may own the messages",
                        hint="Use a lease longer than the work, or let the client renew it.",
                    )
                for mark in once:
                    mark.spent = True
        finally:
            lent.give_back()


def _misuse() -> TransactionMisuse:
    return TransactionMisuse(
        "the transaction ended inside its block; nothing was settled, and the messages will be redelivered",
        hint="Do not commit or roll back inside the block.",
    )
