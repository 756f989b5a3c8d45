"""Claimed jobs, running or not, until they are settled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from trunkline.client.transactions import Once
from trunkline.db.job_records import Ending
from trunkline.jobs.job import TRACK, UNIQUE, Job
from trunkline.types import Delivery


class Lease:
    """The lease of one claim. `open` holds unsettled items by position.

    `since` and `until` are by this process's clock.
    """

    __slots__ = ("_on_close", "open", "since", "span", "text", "until")

    def __init__(self, text: str, span: float, since: float, on_close: Callable[[], None]) -> None:
        self.text = text
        self.span = span
        self.since = since
        self.until = since + span
        self.open: dict[int, Item] = {}
        self._on_close = on_close

    def close(self, item: Item) -> None:
        """Remove an item that was settled or lost."""
        self.open.pop(item.position, None)
        self._on_close()


class Item:
    """A delivery with its job and processing state."""

    __slots__ = (
        "_once",
        "abandoned",
        "began",
        "calling",
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
        self.calling = False
        """True while its async handler is called: if its task blocks the loop, the handler does."""
        self.reason: str | None = None
        """The reason for the cancellation."""
        self.result: bytes | None = None
        self.unique: str | None = None if delivery.headers is None else delivery.headers.get(UNIQUE)
        self.began = 0.0
        self.cut_at: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.slot: asyncio.Task[None] | None = None
        self.stop: Callable[[], None] | None = None
        """Stops a handler that runs in a thread or process."""
        self._once: Once | None = None

    @property
    def receipt(self) -> str:
        return self.delivery.receipt

    @property
    def position(self) -> int:
        """The first part of the receipt, which identifies the message within its lease."""
        return int(self.delivery.receipt.partition(".")[0])

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
        """True if a plain ack settles it: no result, no unique key."""
        return self.unique is None and not self.tracked

    def ending(self) -> Ending:
        return Ending(self.receipt, self.delivery.id, self.result, self.tracked, self.unique)
