"""What became of deliveries, told to the database in batches: settling and the record of the request are one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import NamedTuple

from trunkline.client.runtime import Runtime
from trunkline.db import calls, push
from trunkline.db.push import Settlement
from trunkline.db.tasks import log
from trunkline.errors import OutcomeUnknown, TrunklineError, Unavailable

_RETRY_SECONDS = 0.5
_GIVE_UP_SECONDS = 60.0
_MOST = 1000
_MOST_RENEWED = 10_000
_TURN_SECONDS = 0.25


class Held:
    """The receipts this dispatcher has, each with the length of its lease; renewed together until they are settled."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._leases: dict[str, tuple[float, float]] = {}
        """The length of the lease, and when it is to be renewed."""

    def add(self, receipts: Sequence[str], lease: float) -> None:
        due = monotonic() + lease / 3
        for receipt in receipts:
            self._leases[receipt] = (lease, due)

    def drop(self, receipts: Sequence[str]) -> None:
        for receipt in receipts:
            self._leases.pop(receipt, None)

    async def renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_TURN_SECONDS)
            now = monotonic()
            due: dict[float, list[str]] = {}
            for receipt, (lease, at) in self._leases.items():
                if at <= now:
                    due.setdefault(lease, []).append(receipt)
            try:
                for lease, receipts in due.items():
                    await self._renew(receipts[:_MOST_RENEWED], lease)
            except (Unavailable, OutcomeUnknown) as exc:
                log.warning("leases could not be renewed: %s", exc)

    async def _renew(self, receipts: list[str], lease: float) -> None:
        async with self._runtime.connection(writing=True) as conn:
            await calls.extend(conn, receipts, lease=timedelta(seconds=lease))
        self.add([receipt for receipt in receipts if receipt in self._leases], lease)


class Settlements:
    """Collects settlements; the next statement starts when the last one is done. Nobody waits for it but who drains."""

    def __init__(self, runtime: Runtime, dispatcher: str, held: Held) -> None:
        self._runtime = runtime
        self._dispatcher = dispatcher
        self._held = held
        self._waiting: list[_Entry] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, items: Sequence[Settlement], settled: Callable[[], None] | None = None) -> None:
        """`settled` is called when these need no more care: they are settled, or given up and come again."""
        self._waiting.append(_Entry(monotonic(), items, settled))
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="trunkline push settling")

    async def drain(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                part, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
                try:
                    await self._flush(part)
                except TrunklineError as exc:
                    log.warning("deliveries were not settled and come again: %s", exc)
                finally:
                    self._held.drop([item.receipt for each in part for item in each.items if item.receipt is not None])
                    for each in part:
                        if each.settled is not None:
                            each.settled()
        finally:
            self._task = None

    async def _flush(self, part: list[_Entry]) -> None:
        until = monotonic() + _GIVE_UP_SECONDS
        while True:
            now = monotonic()
            aged = [item._replace(age=item.age + now - each.since) for each in part for item in each.items]
            try:
                async with self._runtime.connection(writing=True) as conn:
                    answers = await push.settle_attempts(conn, self._dispatcher, aged)
                break
            except (Unavailable, OutcomeUnknown) as exc:
                # a repeat is harmless: what was settled stays as it is
                if monotonic() > until:
                    raise
                log.warning("%s deliveries could not be settled: %s; trying again", len(aged), exc)
                await asyncio.sleep(_RETRY_SECONDS)
        lost = sum(answer != "done" for answer in answers)
        if lost:
            log.warning("%s deliveries had lost their lease when they were settled; they come again", lost)


class _Entry(NamedTuple):
    since: float
    items: Sequence[Settlement]
    settled: Callable[[], None] | None
