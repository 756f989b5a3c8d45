"""One delivery of a job, from its claim until it is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import Any, Literal, NamedTuple

from trunkline.db.calls.job_records import JobEnd
from trunkline.jobs.job import TRACK, UNIQUE, Job
from trunkline.receipt import Receipt
from trunkline.runtime.transactions import CommitMark
from trunkline.types import Delivery


class StopReason(Enum):
    """Reasons for which a running handler must end."""

    TIMEOUT = "timeout"
    LEASE_LOST = "lease lost"
    CANCELLED = "cancelled"
    SHUTDOWN = "shutdown"


class Stop(NamedTuple):
    """A request to end a handler. Only the first one for an attempt counts."""

    reason: StopReason
    detail: str

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}"


class Settlement(NamedTuple):
    """How to settle an attempt."""

    verb: Literal["ack", "nack", "bury", "snooze", "release"]
    delay: timedelta | None = None
    error: str | None = None

    @property
    def redelivers(self) -> bool:
        """True if the message will be delivered again."""
        return self.verb in ("nack", "snooze", "release")


ACK = Settlement("ack")
RELEASE = Settlement("release")


class Attempt:
    """A delivery with its job and processing state."""

    __slots__ = (
        "_once",
        "abandoned",
        "calling",
        "claimed_at",
        "deadline",
        "delivery",
        "job",
        "lost",
        "max_attempts",
        "on_close",
        "result",
        "settled",
        "started_at",
        "stop",
        "task",
        "timer",
        "unique",
    )

    def __init__(
        self,
        delivery: Delivery[Any],
        job: Job[..., Any],
        *,
        claimed_at: float,
        max_attempts: int,
        on_close: Callable[[], None],
    ) -> None:
        self.delivery = delivery
        self.job = job
        self.claimed_at = claimed_at
        self.max_attempts = max_attempts
        self.on_close = on_close
        """Called when it is settled or lost."""
        self.unique: str | None = None if delivery.headers is None else delivery.headers.get(UNIQUE)
        self.result: bytes | None = None
        self.lost = False
        self.settled: Settlement | None = None
        """The settlement that is written or being written."""
        self.abandoned = False
        self.calling = False
        """True while its async handler is called: if its task blocks the loop, the handler does."""
        self.stop: Stop | None = None
        self.started_at = 0.0
        self.deadline: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        """The worker task that runs the handler."""
        self._once: CommitMark | None = None

    @property
    def receipt(self) -> str:
        return self.delivery.receipt

    @property
    def receipt_parts(self) -> Receipt:
        parts = Receipt.parse(self.delivery.receipt)
        assert parts is not None  # noqa: S101  # it is from a claim
        return parts

    @property
    def once(self) -> CommitMark:
        if self._once is None:
            self._once = CommitMark()
        return self._once

    @property
    def tracked(self) -> bool:
        """True if the result is stored."""
        headers = self.delivery.headers
        return self.job.definition.result if headers is None else bool(headers.get(TRACK, self.job.definition.result))

    @property
    def plain(self) -> bool:
        """True if a plain ack settles it: no result, no unique key."""
        return self.unique is None and not self.tracked

    def ending(self) -> JobEnd:
        return JobEnd(self.receipt, self.delivery.id, self.result, self.tracked, self.unique)
