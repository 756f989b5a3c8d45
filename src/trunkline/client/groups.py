"""Groups: make them, move them, see how far they are."""

from __future__ import annotations

import builtins

from trunkline.client.noun import Noun
from trunkline.db import calls
from trunkline.db.codec import place
from trunkline.types import Group, GroupStats, Headers, Place


class Groups(Noun):
    """`client.groups`"""

    async def create(
        self,
        topic: str,
        group: str,
        *,
        start: Place = "earliest",
        pattern: str | None = None,
        headers: Headers | None = None,
    ) -> Group:
        """A new group that reads from a place on; `AlreadyExists` if the topic has one of this name.

        With a pattern on the routing key or header values, it reads only what matches; the rest is passed by.
        """
        return await self._make(topic, group, start, pattern, headers, ensure=False)

    async def ensure(
        self,
        topic: str,
        group: str,
        *,
        start: Place = "earliest",
        pattern: str | None = None,
        headers: Headers | None = None,
    ) -> Group:
        """The group is there; one that exists stays where it is. `AlreadyExists` if it reads by other rules."""
        return await self._make(topic, group, start, pattern, headers, ensure=True)

    async def _make(
        self, topic: str, group: str, start: Place, pattern: str | None, headers: Headers | None, *, ensure: bool
    ) -> Group:
        await self._runtime().sequence_before(topic, start)
        async with self._writing() as conn:
            return await calls.create_group(
                conn, topic, group, start=place(start), pattern=pattern, headers=headers, ensure=ensure
            )

    async def list(
        self, topic: str | None = None, *, after: str | None = None, limit: int | None = None
    ) -> builtins.list[Group]:
        """The groups of a topic, or all, by name; or `limit` of them after one (without a topic: `"topic/group"`)."""
        async with self._reading() as conn:
            return await calls.list_groups(conn, topic, after=after, limit=limit)

    async def delete(self, topic: str, group: str) -> None:
        """The group and its position are gone."""
        async with self._writing() as conn:
            await calls.delete_group(conn, topic, group)

    async def seek(self, topic: str, group: str, to: Place, *, partition: int | None = None) -> dict[int, int]:
        """Move the group, in one partition or in all; members lose what they hold. Answers the next offset by partition."""
        await self._runtime().sequence_before(topic, to)
        async with self._writing() as conn:
            return await calls.seek(conn, topic, group, place(to), partition=partition)

    async def stats(self, topic: str | None = None, group: str | None = None) -> builtins.list[GroupStats]:
        """One row per group and partition: position, lag, owner."""
        async with self._runtime().reading(topic=topic) as conn:
            return await calls.group_stats(conn, topic, group)

    async def position(self, topic: str, group: str) -> dict[int, int]:
        """The next offset to be delivered, by partition."""
        return {row.partition: row.next_offset for row in await self.stats(topic, group)}
