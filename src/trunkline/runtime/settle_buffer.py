"""Settles messages in the background, in batches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Generic, TypeVar

from trunkline.concurrency.aio import log
from trunkline.errors import OutcomeUnknown, Unavailable
from trunkline.types import Result

T = TypeVar("T")


class SettleBuffer(Generic[T]):
    """Settles what is added. Items that are added during a flush are settled by the next one.

    `flush` settles a batch and returns one result per item, which `on_result` receives. `group` assigns an item to one
    of the groups, which flush in turn; `limits` has the largest batch of each group.

    While the database is unavailable, the buffer keeps its items and retries, for one batch at most `give_up_seconds`.
    A repeat is harmless: settling by the same lease returns the same result. After any other error the results are
    `unknown`, and the messages are redelivered when their leases end.
    """

    def __init__(
        self,
        flush: Callable[[list[T]], Awaitable[Sequence[Result]]],
        on_result: Callable[[T, Result], None],
        *,
        name: str,
        group: Callable[[T], int] = lambda _: 0,
        limits: Sequence[int] = (1000,),
        retry_seconds: float = 0.2,
        give_up_seconds: float | None = None,
    ) -> None:
        self._flush = flush
        self._on_result = on_result
        self._name = name
        self._group = group
        self._limits = limits
        self._retry_seconds = retry_seconds
        self._give_up_seconds = give_up_seconds
        self._groups: list[deque[T]] = [deque() for _ in limits]
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    def add(self, item: T) -> None:
        self._groups[self._group(item)].append(item)
        if self._task is None and not self._ended:
            self._task = asyncio.create_task(self._run(), name=f"trunkline settling of {self._name}")

    @property
    def busy(self) -> bool:
        """True if an item is still to be settled."""
        return self._task is not None

    async def drain(self, timeout: float | None = None) -> bool:
        """Wait until all items are settled, at most `timeout` seconds. Returns whether they are."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout)
        return self._task is None

    async def end(self) -> None:
        """Stop, without settling what is left."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while any(self._groups):
                for group, limit in zip(self._groups, self._limits, strict=True):
                    if group:
                        await self._settle([group.popleft() for _ in range(min(limit, len(group)))])
        finally:
            self._task = None

    async def _settle(self, batch: list[T]) -> None:
        results = await self._results(batch)
        for item, result in zip(batch, results, strict=True):
            self._on_result(item, result)

    async def _results(self, batch: list[T]) -> Sequence[Result]:
        end = None if self._give_up_seconds is None else monotonic() + self._give_up_seconds
        while True:
            try:
                return await self._flush(batch)
            except (Unavailable, OutcomeUnknown) as exc:
                if end is not None and monotonic() > end:
                    return self._give_up(batch, exc)
                log.warning(
                    "could not settle; retrying in %s s of=%s count=%s error=%s",
                    self._retry_seconds,
                    self._name,
                    len(batch),
                    exc,
                )
                await asyncio.sleep(self._retry_seconds)
            except Exception as exc:
                # a retry would fail too
                return self._give_up(batch, exc)

    def _give_up(self, batch: list[T], exc: Exception) -> Sequence[Result]:
        log.error(
            "could not settle; messages are redelivered when their leases end of=%s count=%s error=%s: %s",
            self._name,
            len(batch),
            type(exc).__name__,
            exc,
        )
        return ["unknown"] * len(batch)
