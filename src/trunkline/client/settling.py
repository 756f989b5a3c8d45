"""Settling by receipt: acks of the same moment share a statement, long lists are cut."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from trunkline.client.runtime import Runtime
from trunkline.db import calls
from trunkline.db.codec import duration
from trunkline.db.pool import Connection
from trunkline.db.tasks import Coalescer
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

    async def ack(self, receipt: str) -> Result:
        return await self._acks.submit(receipt)

    async def ack_many(self, receipts: Sequence[str]) -> list[Result]:
        return await self._settle(receipts, calls.ack)

    async def nack(
        self, receipts: Sequence[str], *, delay: Duration | None = None, error: str | None = None
    ) -> list[Result]:
        answers = await self._settle(receipts, partial(calls.nack, delay=duration(delay), error=error))
        # a pass returns it, now or when its delay is over: our consumers that wait must know when
        self.runtime.wakeup.poke()
        return answers

    async def bury(self, receipts: Sequence[str], *, error: str | None = None) -> list[Result]:
        return await self._settle(receipts, partial(calls.bury, error=error))

    async def release(self, receipts: Sequence[str]) -> list[Result]:
        answers = await self._settle(receipts, calls.release)
        self.runtime.wakeup.poke()
        return answers

    async def extend(self, receipts: Sequence[str], *, lease: Duration) -> list[Result]:
        span = duration(lease)
        if span is None:
            raise TypeError("lease is None; give a duration such as '30s'")
        return await self._settle(receipts, partial(calls.extend, lease=span), ends=False)

    async def _settle(
        self,
        receipts: Sequence[str],
        verb: Callable[[Connection, Sequence[str]], Awaitable[list[Result]]],
        *,
        ends: bool = True,
    ) -> list[Result]:
        """A verb on receipts, in parts; `ends` when they need no more care afterwards."""
        answers: list[Result] = []
        for part in _parts(receipts):
            async with self.runtime.connection(writing=True) as conn:
                answers += await verb(conn, part)
            if ends:
                self.forget(part)
        return answers

    async def drain(self) -> None:
        await self._acks.drain()

    async def _flush(self, receipts: list[str]) -> list[Result | BaseException]:
        return list(await self.ack_many(receipts))


def _parts(receipts: Sequence[str]) -> list[Sequence[str]]:
    if isinstance(receipts, str):
        raise TypeError("receipts are a list of texts, not one text")
    return [receipts[start : start + MAX_RECEIPTS] for start in range(0, len(receipts), MAX_RECEIPTS)]
