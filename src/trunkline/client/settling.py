"""Settling by receipt: acks of the same moment share a statement, long lists are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from trunkline.client.runtime import Runtime
from trunkline.db import calls
from trunkline.db.codec import duration
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
        answers: list[Result] = []
        for part in _parts(receipts):
            async with self.runtime.connection(writing=True) as conn:
                answers += await calls.ack(conn, part)
            self.forget(part)
        return answers

    async def nack(
        self, receipts: Sequence[str], *, delay: Duration | None = None, error: str | None = None
    ) -> list[Result]:
        answers: list[Result] = []
        for part in _parts(receipts):
            async with self.runtime.connection(writing=True) as conn:
                answers += await calls.nack(conn, part, delay=duration(delay), error=error)
            self.forget(part)
        return answers

    async def bury(self, receipts: Sequence[str], *, error: str | None = None) -> list[Result]:
        answers: list[Result] = []
        for part in _parts(receipts):
            async with self.runtime.connection(writing=True) as conn:
                answers += await calls.bury(conn, part, error=error)
            self.forget(part)
        return answers

    async def release(self, receipts: Sequence[str]) -> list[Result]:
        answers: list[Result] = []
        for part in _parts(receipts):
            async with self.runtime.connection(writing=True) as conn:
                answers += await calls.release(conn, part)
            self.forget(part)
        return answers

    async def extend(self, receipts: Sequence[str], *, lease: Duration) -> list[Result]:
        span = duration(lease)
        if span is None:
            raise TypeError("lease is None; give a duration such as '30s'")
        answers: list[Result] = []
        for part in _parts(receipts):
            async with self.runtime.connection(writing=True) as conn:
                answers += await calls.extend(conn, part, lease=span)
        return answers

    async def drain(self) -> None:
        await self._acks.drain()

    async def _flush(self, receipts: list[str]) -> list[Result | BaseException]:
        return list(await self.ack_many(receipts))


def _parts(receipts: Sequence[str]) -> list[Sequence[str]]:
    if isinstance(receipts, str):
        raise TypeError("receipts are a list of texts, not one text")
    return [receipts[start : start + MAX_RECEIPTS] for start in range(0, len(receipts), MAX_RECEIPTS)]
