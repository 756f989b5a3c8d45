# Written by tools/unasync.py from src/trunkline/client/transactions.py; change that file, not this one.
"""Exactly-once: the handler's rows and the ack or commit in one transaction."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from trunkline.client.refusals import LeaseLost, TransactionMisuse
from trunkline.client.sync.runtime import Runtime
from trunkline.db.sync import calls
from trunkline.db.sync.pool import Connection
from trunkline.types import Result


class LentConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection of the client's, lent for one transaction. Outside of it, and in a fork, it refuses to work."""

    def __init__(self, owner: Connection) -> None:
        super().__init__(owner.pgconn)
        # the owner keeps count of the session's prepared statements; two counts would collide
        self.prepare_threshold = None
        self._pid = os.getpid()
        self._returned = False

    def give_back(self) -> None:
        self._returned = True

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """All traffic goes through here."""
        if self._returned or self._pid != os.getpid():
            raise TransactionMisuse(
                "this connection was lent for one transaction, which is over", hint="use it inside its block, in its process"
            )
        return super().wait(*args, **kwargs)

    def __del__(self, *_: Any) -> None:
        """Not closed here: the session belongs to the pool."""


@contextmanager
def settled(runtime: Runtime, settle: Callable[[Connection], tuple[Result, str]]) -> Iterator[Connection]:
    """A transaction that ends with `settle`, which answers the result and the number of the transaction it ran in.

    Commits if the block ends well and the answer is `done`; else everything in it is rolled back.
    """
    with runtime.connection(writing=True) as owner:
        lent = LentConnection(owner)
        try:
            with lent.transaction():
                number = calls.transaction_number(lent)
                yield lent
                if lent.info.transaction_status == TransactionStatus.IDLE:
                    raise _misuse()
                result, at_the_end = settle(lent)
                if at_the_end != number:
                    raise _misuse()
                if result != "done":
                    raise LeaseLost(
                        f"the lease is {result}: someone else may have the messages, so this transaction was rolled back",
                        hint="make the lease longer than the work, or let the client renew it",
                    )
        finally:
            lent.give_back()


def _misuse() -> TransactionMisuse:
    return TransactionMisuse(
        "the transaction was ended inside its block; nothing was settled, the messages will come again",
        hint="leave commit and rollback to the block",
    )
