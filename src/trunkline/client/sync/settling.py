# Written by tools/unasync.py from src/trunkline/client/settling.py; change that file, not this one.
"""Settling by receipt: acks of the same moment share a statement, long lists are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from trunkline.client.sync.runtime import Runtime
from trunkline.db.codec import duration
from trunkline.db.sync import calls
from trunkline.db.sync.pool import Connection
from trunkline.db.threads import Coalescer
from trunkline.types import Duration, Result

MAX_RECEIPTS = 10_000


class Settler:
    """The verbs on receipts. `on_settled` hears of each receipt that needs no more care."""

    def __init__(self, runtime: Runtime, on_settled: Callable[[Iterable[str]], None] | None = None) -> None:
        self.runtime = runtime
        self._on_settled = on_settled
        self._acks: Coalescer[str, Result] = Coalescer(self._flush, max_items=1000, max_size=1000)

    def forget(self, receipts: Iterable[str]) -> None:
        if self._on_settled is not None:
            self._on_settled(receipts)

    def ack(self, receipt: str) -> Result:
        return self._acks.submit(receipt)

    def ack_many(self, receipts: Sequence[str]) -> list[Result]:
        return self._settle(receipts, calls.ack)

    def nack(self, receipts: Sequence[str], *, delay: Duration | None = None, error: str | None = None) -> list[Result]:
        answers = self._settle(receipts, partial(calls.nack, delay=duration(delay), error=error))
        # a pass returns it, now or when its delay is over: our consumers that wait must know when
        self.runtime.wakeup.poke()
        return answers

    def bury(self, receipts: Sequence[str], *, error: str | None = None) -> list[Result]:
        return self._settle(receipts, partial(calls.bury, error=error))

    def release(self, receipts: Sequence[str]) -> list[Result]:
        answers = self._settle(receipts, calls.release)
        self.runtime.wakeup.poke()
        return answers

    def extend(self, receipts: Sequence[str], *, lease: Duration) -> list[Result]:
        span = duration(lease)
        if span is None:
            raise TypeError("lease is None; give a duration such as '30s'")
        return self._settle(receipts, partial(calls.extend, lease=span), ends=False)

    def _settle(
        self,
        receipts: Sequence[str],
        verb: Callable[[Connection, Sequence[str]], list[Result]],
        *,
        ends: bool = True,
    ) -> list[Result]:
        """A verb on receipts, in parts; `ends` when they need no more care afterwards."""
        answers: list[Result] = []
        for part in _parts(receipts):
            with self.runtime.connection(writing=True) as conn:
                answers += verb(conn, part)
            if ends:
                self.forget(part)
        return answers

    def drain(self) -> None:
        self._acks.drain()

    def _flush(self, receipts: list[str]) -> list[Result | BaseException]:
        return list(self.ack_many(receipts))


def _parts(receipts: Sequence[str]) -> list[Sequence[str]]:
    if isinstance(receipts, str):
        raise TypeError("receipts are a list of texts, not one text")
    return [receipts[start : start + MAX_RECEIPTS] for start in range(0, len(receipts), MAX_RECEIPTS)]
