"""Claims ahead of the work, in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from trunkline.concurrency.aio import log
from trunkline.errors import OutcomeUnknown, Unavailable


class ClaimLoop:
    """Calls `turn` until it is stopped. A turn claims what there is room for, or waits for a change.

    `wake` ends such a wait. After an error the next turn starts after `retry_seconds`.
    """

    def __init__(
        self,
        turn: Callable[[], Awaitable[None]],
        wake: Callable[[], None],
        *,
        name: str,
        retry_seconds: float = 0.5,
    ) -> None:
        self._turn = turn
        self._wake = wake
        self._name = name
        self._retry_seconds = retry_seconds
        self._stopping = False
        self._task = asyncio.create_task(self._run(), name=f"trunkline claims of {name}")

    def stop(self) -> None:
        """Start no more turns. A claim in flight continues, so that its deliveries can be released."""
        self._stopping = True
        self._wake()

    async def end(self, timeout: float = 0.0) -> None:
        """Stop, wait at most `timeout` seconds for a turn in flight, then cancel it."""
        self.stop()
        if timeout > 0:
            await asyncio.wait([self._task], timeout=timeout)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while not self._stopping:
            try:
                await self._turn()
            except (Unavailable, OutcomeUnknown) as exc:
                log.warning("claim failed; retrying in %s s of=%s error=%s", self._retry_seconds, self._name, exc)
            except (Exception, asyncio.CancelledError) as exc:
                # a turn may have awaited something that was cancelled
                if isinstance(exc, asyncio.CancelledError) and self._task.cancelling():
                    raise
                log.error(
                    "claim failed; retrying in %s s of=%s error=%s: %s",
                    self._retry_seconds,
                    self._name,
                    type(exc).__name__,
                    exc,
                )
            else:
                continue
            await asyncio.sleep(self._retry_seconds)
