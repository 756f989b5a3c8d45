"""Dead letters over HTTP."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from trunkline.codec import encode
from trunkline.errors import InvalidArgument
from trunkline.http_client.queues import queue_path
from trunkline.http_client.resource import HttpResource
from trunkline.http_client.transport import given, quoted
from trunkline.types import (
    DeadGroup,
    DeadLetter,
    DeadShare,
    Duration,
    Headers,
)
from trunkline.wire import DeadLetterView, seconds

_STEP = 1000


class _DeadLetters(msgspec.Struct):
    data: list[DeadLetterView]


class _Groups(msgspec.Struct):
    data: list[DeadGroup]


class _Shares(msgspec.Struct):
    data: list[DeadShare]


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

    async def groups(
        self, queue: str | None = None, *, since: Duration | None = None, limit: int = 100
    ) -> builtins.list[DeadGroup]:
        """Group the dead letters of a queue, or of all, by label and masked error, the largest group first.

        The rows add up to all dead letters: those with `rest` count what is in no group.
        """
        query = given(queue=queue, since=seconds(since), limit=limit)
        return (await self._transport.ask("GET", "/v1/dead-groups", query=query, kind=_Groups)).data

    async def spread(self, queue: str, fingerprint: str, *, limit: int = 10) -> builtins.list[DeadShare]:
        """Return the most frequent consumers, keys, topics, hours, attempts and errors of a group."""
        path = f"{queue_path(queue)}/dead-groups/{quoted(fingerprint)}"
        return (await self._transport.ask("GET", path, query={"limit": limit}, kind=_Shares)).data

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

    async def redrive_edited(
        self, queue: str, id: UUID, body: Any, *, headers: Headers | None = None, content_type: str | None = None
    ) -> None:
        """Move one dead letter back to its queue with another JSON body, and with other headers unless they are None.

        It keeps its id, key and label; attempts start again from 1. Raises `DeadLetterNotFound`.
        """
        payload, kind = encode(body, content_type)
        if not kind.endswith("json"):
            raise InvalidArgument(f"over HTTP an edited body must be JSON, got {kind}", hint="Use the database client.")
        request = {"payload": msgspec.Raw(payload), "headers": headers, "content_type": content_type}
        await self._transport.ask("POST", f"{queue_path(queue)}/dead-letters/{id}/redrive", request)

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
