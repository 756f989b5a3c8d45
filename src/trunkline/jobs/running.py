"""A job at hand: claimed, perhaps running, until it is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from trunkline.client.transactions import Once
from trunkline.db.job_records import Ending
from trunkline.jobs.job import TRACK, UNIQUE, Job
from trunkline.types import Delivery


class Lease:
    """One claim of many messages. `open` are those not settled yet, by offset; `until` is by this process's own clock."""

    __slots__ = ("open", "ordered", "span", "text", "until")

    def __init__(self, text: str, span: float, until: float) -> None:
        self.text = text
        self.span = span
        self.until = until
        self.open: dict[int, Item] = {}


class Item:
    """A delivery with its job and what became of it."""

    __slots__ = (
        "_once",
        "abandoned",
        "cut_at",
        "delivery",
        "job",
        "lease",
        "lost",
        "max_attempts",
        "reason",
        "result",
        "settled",
        "slot",
        "stop",
        "timer",
        "unique",
    )

    def __init__(self, delivery: Delivery[Any], job: Job[..., Any], lease: Lease, max_attempts: int) -> None:
        self.delivery = delivery
        self.job = job
        self.lease = lease
        self.max_attempts = max_attempts
        self.lost = False
        self.settled = False
        self.abandoned = False
        self.reason: str | None = None
        """Why the handler was told to end."""
        self.result: bytes | None = None
        self.unique: str | None = None if delivery.headers is None else delivery.headers.get(UNIQUE)
        self.cut_at: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.slot: asyncio.Task[None] | None = None
        self.stop: Callable[[], None] | None = None
        """Ends what runs elsewhere, in a thread or process."""
        self._once: Once | None = None

    @property
    def receipt(self) -> str:
        return f"{self.delivery.offset}.{self.lease.text}"

    @property
    def once(self) -> Once:
        if self._once is None:
            self._once = Once()
        return self._once

    @property
    def tracked(self) -> bool:
        headers = self.delivery.headers
        return self.job.definition.result if headers is None else bool(headers.get(TRACK, self.job.definition.result))

    @property
    def plain(self) -> bool:
        """Whether its end is an ack and nothing else."""
        return self.unique is None and not self.tracked

    def ending(self) -> Ending:
        return Ending(self.receipt, self.delivery.id, self.result, self.tracked, self.unique)
