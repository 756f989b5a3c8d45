"""Dead letters: list, redrive and purge them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload
from uuid import UUID

from trunkline.client.resource import Resource
from trunkline.codec import duration, encode, headers_json
from trunkline.db import calls
from trunkline.types import DeadGroup, DeadLetter, DeadShare, Duration, Headers

T = TypeVar("T")
_STEP = 1000


class DeadLetters(Resource):
    """`client.dead`"""

    @overload
    async def list(
        self, queue: str, *, after: int = 0, limit: int = 100, type: None = None
    ) -> builtins.list[DeadLetter[Any]]: ...
    @overload
    async def list(self, queue: str, *, after: int = 0, limit: int = 100, type: type[T]) -> builtins.list[DeadLetter[T]]: ...
    async def list(
        self, queue: str, *, after: int = 0, limit: int = 100, type: Any = None
    ) -> builtins.list[DeadLetter[Any]]:
        """List dead letters, oldest first. For the next page pass the last `dead_id` as `after`."""
        async with self._reading() as conn:
            return await calls.list_dead_letters(conn, queue, after=after, limit=limit, type=type)

    async def get(self, queue: str, id: UUID) -> DeadLetter[Any]:
        """Return a dead letter by its message id. Raises `DeadLetterNotFound`."""
        async with self._reading() as conn:
            return await calls.get_dead_letter(conn, queue, id)

    async def groups(
        self, queue: str | None = None, *, since: Duration | None = None, limit: int = 100
    ) -> builtins.list[DeadGroup]:
        """Group the dead letters of a queue, or of all, by label and masked error, the largest group first.

        The rows add up to all dead letters: those with `rest` count what is in no group.
        """
        async with self._reading() as conn:
            return await calls.dead_groups(conn, queue, since=duration(since), limit=limit)

    async def spread(self, queue: str, fingerprint: str, *, limit: int = 10) -> builtins.list[DeadShare]:
        """Return the most frequent consumers, keys, topics, hours, attempts and errors of a group."""
        async with self._reading() as conn:
            return await calls.dead_spread(conn, queue, fingerprint, limit=limit)

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

        Attempts start again from 1. `to` moves the messages to another queue. Runs in atomic steps of at most 1,000
        messages, so it is safe to interrupt and repeat. Returns the number of messages moved.
        """
        total = 0
        while limit is None or total < limit:
            async with self._writing() as conn:
                step = await calls.redrive(
                    conn, queue, ids=ids, to=to, limit=_STEP if limit is None else min(_STEP, limit - total)
                )
            if step == 0:
                break
            total += step
            if on_progress is not None:
                on_progress(total)
        if total:
            self._session().wakeup.published("inbox", to or queue)
        return total

    async def redrive_edited(
        self, queue: str, id: UUID, body: Any, *, headers: Headers | None = None, content_type: str | None = None
    ) -> None:
        """Move one dead letter back to its queue with another body, and with other headers unless they are None.

        It keeps its id, key and label; attempts start again from 1. Raises `DeadLetterNotFound`.
        """
        payload, kind = encode(body, content_type)
        async with self._writing() as conn:
            await calls.redrive_edited(conn, queue, id, payload, headers=headers_json(headers), content_type=kind)
        self._session().wakeup.published("inbox", queue)

    async def purge(
        self,
        queue: str,
        *,
        ids: Sequence[UUID] | None = None,
        limit: int | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """Delete dead letters: all of them, those in `ids`, or the oldest `limit`.

        Runs in steps of at most 1,000 messages. Returns the number of messages deleted.
        """
        total = 0
        while limit is None or total < limit:
            async with self._writing() as conn:
                step = await calls.purge_dead_letters(
                    conn, queue, ids=ids, limit=_STEP if limit is None else min(_STEP, limit - total)
                )
            if step == 0:
                break
            total += step
            if on_progress is not None:
                on_progress(total)
        return total
