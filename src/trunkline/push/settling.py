"""Settles deliveries in batches. Settling and recording the attempt are one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import NamedTuple

from trunkline.client.runtime import Runtime
from trunkline.client.settling import Settler
from trunkline.concurrency.aio import log
from trunkline.db.calls import push
from trunkline.db.calls.push import Settlement
from trunkline.errors import OutcomeUnknown, TrunklineError, Unavailable

_RETRY_SECONDS = 0.5
_GIVE_UP_SECONDS = 60.0
_MOST = 1000


class Held:
    """The receipts of this dispatcher. Renews them until they are settled, together per lease duration."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._settler = Settler(runtime)
        self._receipts: dict[float, dict[str, None]] = {}

    def add(self, receipts: Sequence[str], lease: float) -> None:
        if lease not in self._receipts:
            self._receipts[lease] = {}
            self._runtime.renewals.add(lease / 3, partial(self._renew, lease))
        self._receipts[lease].update(dict.fromkeys(receipts))

    def drop(self, receipts: Sequence[str]) -> None:
        for held in self._receipts.values():
            for receipt in receipts:
                held.pop(receipt, None)

    async def _renew(self, lease: float) -> None:
        held = list(self._receipts[lease])
        if held:
            await self._settler.extend(held, lease=timedelta(seconds=lease))


class Settlements:
    """Collects settlements. One statement runs at a time; callers do not wait, except in `drain`."""

    def __init__(self, runtime: Runtime, dispatcher: str, held: Held) -> None:
        self._runtime = runtime
        self._dispatcher = dispatcher
        self._held = held
        self._waiting: list[_Entry] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, items: Sequence[Settlement], settled: Callable[[int], None] | None = None) -> None:
        """Queue settlements. `settled` is called with their count when they are settled or abandoned."""
        self._waiting.append(_Entry(items, settled))
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="trunkline push settling")

    async def drain(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                part = self._next()
                items = [item for each in part for item in each.items]
                try:
                    await self._flush(items)
                except TrunklineError as exc:
                    log.warning("could not settle deliveries; they will be redelivered: %s", exc)
                finally:
                    self._held.drop([item.receipt for item in items if item.receipt is not None])
                    for each in part:
                        if each.settled is not None:
                            each.settled(len(each.items))
        finally:
            self._task = None

    def _next(self) -> list[_Entry]:
        """Take as many entries as fit one statement; a batch has many items."""
        count = size = 0
        while count < len(self._waiting) and size < _MOST:
            size += len(self._waiting[count].items)
            count += 1
        part, self._waiting = self._waiting[:count], self._waiting[count:]
        return part

    async def _flush(self, items: list[Settlement]) -> None:
        until = monotonic() + _GIVE_UP_SECONDS
        while True:
            try:
                async with self._runtime.connection(writing=True) as conn:
                    answers = await push.settle_attempts(conn, self._dispatcher, items, now=monotonic())
                break
            except (Unavailable, OutcomeUnknown) as exc:
                # repeating is safe: settled deliveries stay settled
                if monotonic() > until:
                    raise
                log.warning("could not settle %s deliveries; retrying in %s s: %s", len(items), _RETRY_SECONDS, exc)
                await asyncio.sleep(_RETRY_SECONDS)
        lost = len(answers) - answers.count("done")
        if lost:
            log.warning("lease expired before settling; they will be redelivered deliveries=%s", lost)


class _Entry(NamedTuple):
    items: Sequence[Settlement]
    settled: Callable[[int], None] | None
