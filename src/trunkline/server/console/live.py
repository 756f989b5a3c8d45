"""Tells browsers which fragments are stale. One watcher per process, which runs only while a browser listens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trunkline.server.auth import Caller

if TYPE_CHECKING:
    from trunkline.server.console.reading import Reads

log = logging.getLogger("trunkline.server")
Source = Callable[["Reads"], Awaitable[Mapping[str, Hashable] | None]]
"""Returns the present state of each key, such as {"queue:mail": (3, 1)}; None if it could not be read."""
_EVERY_SECONDS = 2.0
_POLLED_SECONDS = 15.0
"""The watcher continues for this long after the last poll."""


def name_of(key: str) -> str | None:
    """Return the topic or queue of a key such as "queue:mail" or "group:orders/audit"; None if it belongs to none."""
    _, colon, name = key.partition(":")
    return name.partition("/")[0] if colon else None


class Live:
    """Versions of the keys. A key changes its version when the state of its subject changes."""

    def __init__(self, reads: Reads, sources: list[Source]) -> None:
        self._reads = reads
        self._sources = sources
        self.number = 0
        self._versions: dict[str, int] = {}
        self._seen: dict[str, Hashable] = {}
        self._listeners = 0
        self._polled = float("-inf")
        self._changed = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    @property
    def watching(self) -> bool:
        return self._watcher is not None

    def since(self, number: int, caller: Caller) -> list[str]:
        """Return the keys that changed after this number, without those of names that the caller may not see."""
        changed = [key for key, version in self._versions.items() if version > number]
        return sorted(key for key in changed if (name := name_of(key)) is None or caller.may("view", name))

    def poll(self) -> None:
        """Keep the watcher running for a moment, for browsers that cannot hold a stream."""
        self._polled = time.monotonic()
        self._start()

    @contextmanager
    def listening(self) -> Iterator[None]:
        self._listeners += 1
        self._start()
        try:
            yield
        finally:
            self._listeners -= 1

    async def wait(self, number: int, seconds: float) -> None:
        """Return when something changed after this number, or after some seconds."""
        changed = self._changed
        if self.number <= number:
            try:
                async with asyncio.timeout(seconds):
                    await changed.wait()
            except TimeoutError:
                return

    def touch(self, *keys: str) -> None:
        """Report changes that this server made itself, so that their pages follow at once."""
        self.number += 1
        for key in keys:
            self._versions[key] = self.number
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        self._changed.set()

    def _start(self) -> None:
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name="trunkline console watcher")

    async def _watch(self) -> None:
        try:
            while self._listeners or time.monotonic() - self._polled < _POLLED_SECONDS:
                await self._look()
                await asyncio.sleep(_EVERY_SECONDS)
        finally:
            self._watcher = None

    async def _look(self) -> None:
        for source in self._sources:
            try:
                found = await source(self._reads)
            except Exception:
                log.exception("the console cannot tell what changed")
                continue
            if found is None:
                continue
            dirty = [key for key, state in found.items() if self._seen.get(key) != state]
            dirty += [key for key in self._seen if key.partition(":")[0] in _kinds(found) and key not in found]
            for key in dirty:
                if key in found:
                    self._seen[key] = found[key]
                else:
                    del self._seen[key]
                    self._versions.pop(key, None)
            if dirty:
                self.touch(
                    *(key for key in dirty if key in found), *{f"{key.partition(':')[0]}s" for key in dirty if ":" in key}
                )


def _kinds(found: Mapping[str, Hashable]) -> set[str]:
    return {key.partition(":")[0] for key in found}
