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

    __slots__ = ("at", "moment", "started", "task", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.at: datetime | None = None
        self.moment = float("-inf")
        """Start of the read that returned the value."""
        self.started = float("-inf")
        self.task: asyncio.Task[None] | None = None


class Reads:
    """Reads for the console of a worker."""

    def __init__(self, mq: Client) -> None:
        self._mq = mq
        self._kept: dict[Hashable, _Kept] = {}
        self._changed = float("-inf")

    def expire(self) -> None:
        """Share no result that was read before now: this server has changed something."""
        self._changed = time.monotonic()

    async def read(self, key: Hashable, work: Work[T], *, seconds: float = 1.0, fresh: float = FRESH_SECONDS) -> Read[T]:
        """Run `work` on a connection with a time limit, or share a recent result. Raises only `NotFound`.

        `key` names the read and its arguments, but not the caller: what a caller may see is decided afterwards.
        """
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= _KEPT:
                self._forget()
            kept = self._kept[key] = _Kept()
        if time.monotonic() - kept.moment < fresh and kept.moment > self._changed:
            return Read(kept.value, kept.at)
        if kept.task is not None and not kept.task.done() and kept.started <= self._changed:
            await asyncio.wait([kept.task])
        if kept.task is None or kept.task.done():
            kept.started = time.monotonic()
            kept.task = asyncio.create_task(self._run(kept, key, work, seconds), name="trunkline console read")
        try:
            await asyncio.shield(kept.task)
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
        started = kept.started
        limits = Limits(resource=("console", str(name)), reads=True, seconds=seconds, in_database=True)
        with limited(limits):
            async with asyncio.timeout(seconds + _PATIENCE_SECONDS), self._mq.connection() as conn:
                value = await work(conn)
        kept.value, kept.at, kept.moment = value, datetime.now(UTC), started

    def _forget(self) -> None:
        """Drop the older half of the results."""
        old = sorted(self._kept.items(), key=lambda item: item[1].moment)[: _KEPT // 2]
        for key, kept in old:
            if kept.task is None or kept.task.done():
                del self._kept[key]
