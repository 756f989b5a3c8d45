# Written by tools/unasync.py from src/trunkline/runtime/settler.py; change that file, not this one.
"""Settling by receipt: concurrent acks share a statement, and long lists are split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from trunkline.codec import duration
from trunkline.concurrency.threads import Coalescer
from trunkline.db.sync import calls
from trunkline.db.sync.pool import Connection
from trunkline.errors import InvalidType
from trunkline.runtime.sync.transactions import CommitMark, settled
from trunkline.types import Duration, Result

if TYPE_CHECKING:
    from trunkline.runtime.sync.session import Session

MAX_RECEIPTS = 10_000


class Settler:
    """Settles and extends deliveries. `on_settled` is called with receipts that need no further renewal."""

    def __init__(self, session: Session, on_settled: Callable[[Iterable[str]], None] | None = None) -> None:
        self.session = session
        self._on_settled = on_settled
        self._acks: Coalescer[str, Result] = Coalescer(self._flush, max_items=1000, max_size=1000)

    def forget(self, receipts: Iterable[str]) -> None:
        if self._on_settled is not None:
            self._on_settled(receipts)

    def ack_one(self, receipt: str) -> Result:
        """Acknowledge a delivery. Concurrent calls share a statement."""
        return self._acks.submit(receipt)

    def ack(self, receipts: Sequence[str]) -> list[Result]:
        return self._settle(receipts, calls.ack)

    def nack(self, receipts: Sequence[str], *, delay: Duration | None = None, error: str | None = None) -> list[Result]:
        results = self._settle(receipts, partial(calls.nack, delay=duration(delay), error=error))
        # a sequencer pass returns the messages when they are due: poll, so that waiting consumers learn the due time
        self.session.wakeup.poll_now()
        return results

    def bury(self, receipts: Sequence[str], *, error: str | None = None) -> list[Result]:
        return self._settle(receipts, partial(calls.bury, error=error))

    def release(self, receipts: Sequence[str]) -> list[Result]:
        results = self._settle(receipts, calls.release)
        self.session.wakeup.poll_now()
        return results

    def extend(self, receipts: Sequence[str], *, lease: Duration) -> list[Result]:
        span = duration(lease)
        if span is None:
            raise InvalidType("lease must be a duration such as '30s', got None")
        return self._settle(receipts, partial(calls.extend, lease=span), ends=False)

    def _settle(
        self,
        receipts: Sequence[str],
        verb: Callable[[Connection, Sequence[str]], list[Result]],
        *,
        ends: bool = True,
    ) -> list[Result]:
        """Call `verb` with at most 10,000 receipts at a time. `ends`: the deliveries are settled afterwards."""
        results: list[Result] = []
        for chunk in _chunks(receipts):
            with self.session.connection(writing=True) as conn:
                results += verb(conn, chunk)
            if ends:
                self.forget(chunk)
        return results

    @contextmanager
    def transaction(self, receipts: Sequence[str], marks: Sequence[CommitMark]) -> Iterator[Connection]:
        """Run the caller's transaction, which ends with the acks. Rolls back and raises `LeaseLost` if a lease has ended."""

        def ack(conn: Connection) -> tuple[Result, str]:
            results = calls.ack(conn, receipts) if receipts else []
            worst: Result = next((result for result in results if result != "done"), "done")
            return worst, calls.transaction_number(conn)

        with settled(self.session, ack, once=marks) as conn:
            yield conn
        self.forget(receipts)

    def drain(self) -> None:
        self._acks.drain()

    def _flush(self, receipts: list[str]) -> list[Result | BaseException]:
        return list(self.ack(receipts))


def _chunks(receipts: Sequence[str]) -> list[Sequence[str]]:
    if isinstance(receipts, str):
        raise InvalidType("receipts must be a list of strings, got one string")
    return [receipts[start : start + MAX_RECEIPTS] for start in range(0, len(receipts), MAX_RECEIPTS)]
