"""Reads of the pages: each with its own time limit, shared by all viewers, and with its last result when it fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec

from trunkline import Client
from trunkline.db.pool import Connection
from trunkline.errors import NotFound, TrunklineError
from trunkline.server.limits import Limits, limited

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[T]]
log = logging.getLogger("trunkline.server")
FRESH_SECONDS = 2.0
"""Viewers share a result of at most this age."""
_KEPT = 2000
_PATIENCE_SECONDS = 0.5
"""Time beyond the limit for a connection and its three more round trips."""


class Read(msgspec.Struct, Generic[T], frozen=True):
    """The result of a read. `value` is None if there never was one."""

    value: T | None
    at: datetime | None
    late: str | None = None
    """The reason why the value is old or missing: "timed out", "failed" or "the database does not respond"."""


class _Kept:
    """The last result of a read, and the read in progress."""

    __slots__ = ("at", "moment", "task", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.at: datetime | None = None
        self.moment = float("-inf")
        self.task: asyncio.Task[None] | None = None


class Reads:
    """Reads for the console of a worker."""

    def __init__(self, mq: Client) -> None:
        self._mq = mq
        self._kept: dict[Hashable, _Kept] = {}

    async def read(self, key: Hashable, work: Work[T], *, seconds: float = 1.0, fresh: float = FRESH_SECONDS) -> Read[T]:
        """Run `work` on a connection with a time limit, or share a recent result. Raises only `NotFound`.

        `key` names the read and its arguments, but not the caller: what a caller may see is decided afterwards.
        """
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= _KEPT:
                self._forget()
            kept = self._kept[key] = _Kept()
        if time.monotonic() - kept.moment < fresh:
            return Read(kept.value, kept.at)
        if kept.task is None or kept.task.done():
            kept.task = asyncio.create_task(self._run(kept, key, work, seconds), name="trunkline console read")
        task = kept.task
        try:
            await asyncio.shield(task)
        except TimeoutError:
            return Read(kept.value, kept.at, "timed out")
        except NotFound:
            raise
        except TrunklineError as exc:
            if exc.code == "timeout":
                return Read(kept.value, kept.at, "timed out")
            unavailable = exc.status == 503
            return Read(kept.value, kept.at, "could not be read: the database does not respond" if unavailable else "failed")
        return Read(kept.value, kept.at)

    async def _run(self, kept: _Kept, key: Hashable, work: Work[Any], seconds: float) -> None:
        name = key[0] if isinstance(key, tuple) else key
        limits = Limits(resource=("console", str(name)), reads=True, seconds=seconds, in_database=True)
        with limited(limits):
            async with asyncio.timeout(seconds + _PATIENCE_SECONDS), self._mq.connection() as conn:
                value = await work(conn)
        if kept.task is asyncio.current_task():
            kept.value, kept.at, kept.moment = value, datetime.now(UTC), time.monotonic()

    def expire(self) -> None:
        """Let the next reads ask the database: something was changed. Reads in progress may be older than the change."""
        for kept in self._kept.values():
            kept.moment, kept.task = float("-inf"), None

    def _forget(self) -> None:
        """Drop the older half of the results."""
        old = sorted(self._kept.items(), key=lambda item: item[1].moment)[: _KEPT // 2]
        for key, kept in old:
            if kept.task is None or kept.task.done():
                del self._kept[key]
