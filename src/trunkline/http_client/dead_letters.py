"""Dead letters over HTTP."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from trunkline.http_client.queues import queue_path
from trunkline.http_client.resource import HttpResource
from trunkline.types import (
    DeadLetter,
)
from trunkline.wire import DeadLetterView

_STEP = 1000


class _DeadLetters(msgspec.Struct):
    data: list[DeadLetterView]


class HttpDeadLetters(HttpResource):
    """`client.dead`"""

    async def list(
        self, queue: str, *, after: int = 0, limit: int = 100, type: Any = None
    ) -> builtins.list[DeadLetter[Any]]:
        """List dead letters, oldest first. For the next page pass the last `dead_id` as `after`."""
        query = {"after": after, "limit": limit}
        body = await self._transport.ask("GET", f"{queue_path(queue)}/dead-letters", query=query, kind=_DeadLetters)
        return [row.dead_letter(type) for row in body.data]

    async def get(self, queue: str, id: UUID) -> DeadLetter[Any]:
        """Return a dead letter by its message id. Raises `DeadLetterNotFound`."""
        return (
            await self._transport.ask("GET", f"{queue_path(queue)}/dead-letters/{id}", kind=DeadLetterView)
        ).dead_letter()

    async def redrive(
        self,
        queue: str,
        *,
        ids: Sequence[UUID] | None = None,
        to: str | None = None,
        limit: int | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """Move dead letters back to the queue: all of them, those in `ids`, or the oldest `limit`.

        Attempts start again from 1. `to` moves the messages to another queue. Returns the number of messages moved.
        """
        return await self._in_steps(queue, "redrive", "redriven", ids, limit, on_progress, to=to)

    async def purge(
        self,
        queue: str,
        *,
        ids: Sequence[UUID] | None = None,
        limit: int | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """Delete dead letters: all of them, those in `ids`, or the oldest `limit`. Returns their number."""
        return await self._in_steps(queue, "purge", "purged", ids, limit, on_progress)

    async def _in_steps(
        self,
        queue: str,
        verb: str,
        counted: str,
        ids: Sequence[UUID] | None,
        limit: int | None,
        on_progress: Callable[[int], None] | None,
        **more: Any,
    ) -> int:
        """Repeat bounded requests until all dead letters are processed. Returns their number."""
        total = 0
        named = list(ids) if ids is not None else None
        while (limit is None or total < limit) and named != []:
            request: dict[str, Any] = {"limit": _STEP if limit is None else min(_STEP, limit - total), **more}
            if named is not None:
                request["ids"], named = named[:_STEP], named[_STEP:]
            step: int = (await self._transport.ask("POST", f"{queue_path(queue)}/dead-letters/{verb}", request))[counted]
            total += step
            if on_progress is not None and step:
                on_progress(total)
            if step == 0 and named is None:
                break
        return total
