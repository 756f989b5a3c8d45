"""Consumer groups: create, seek and inspect them."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from trunkline.client.resource import Resource
from trunkline.codec import position_text
from trunkline.db import calls
from trunkline.db.calls import inspection
from trunkline.types import Group, GroupStats, Headers, Member, Position


class Groups(Resource):
    """`client.groups`"""

    async def create(
        self,
        topic: str,
        group: str,
        *,
        start: Position = "earliest",
        pattern: str | None = None,
        headers: Headers | None = None,
    ) -> Group:
        """Create a group that reads from position `start`.

        Raises `AlreadyExists` if the topic has a group of this name. With `pattern` (on the routing key) or `headers`,
        the group reads only matching messages and skips the others.
        """
        return await self._make(topic, group, start, pattern, headers, ensure=False)

    async def ensure(
        self,
        topic: str,
        group: str,
        *,
        start: Position = "earliest",
        pattern: str | None = None,
        headers: Headers | None = None,
    ) -> Group:
        """Create the group if it does not exist. An existing group keeps its position.

        Raises `AlreadyExists` if it exists with another pattern or other headers.
        """
        return await self._make(topic, group, start, pattern, headers, ensure=True)

    async def _make(
        self, topic: str, group: str, start: Position, pattern: str | None, headers: Headers | None, *, ensure: bool
    ) -> Group:
        await self._session().sequence_before(topic, start)
        async with self._writing() as conn:
            return await calls.create_group(
                conn, topic, group, start=position_text(start), pattern=pattern, headers=headers, ensure=ensure
            )

    async def list(
        self,
        topic: str | None = None,
        *,
        after: str | None = None,
        limit: int | None = None,
        names: Sequence[str] | None = None,
    ) -> builtins.list[Group]:
        """List the groups of a topic, or of all topics, by name.

        `after` and `limit` page through the list. `names`: only these; `*` stands for any characters. Without a topic,
        names are `"topic/group"`.
        """
        async with self._reading() as conn:
            return await calls.list_groups(conn, topic, after=after, limit=limit, names=names)

    async def members(self, topic: str, group: str) -> builtins.list[Member]:
        """Return the active members of a group, each with the partitions that it has leased."""
        async with self._reading() as conn:
            return await inspection.list_members(conn, topic, group)

    async def delete(self, topic: str, group: str) -> None:
        """Delete the group and its position."""
        async with self._writing() as conn:
            await calls.delete_group(conn, topic, group)

    async def seek(self, topic: str, group: str, to: Position, *, partition: int | None = None) -> dict[int, int]:
        """Move the group's position, in one partition or in all. Members lose their current batches.

        Returns the next offset of each partition.
        """
        await self._session().sequence_before(topic, to)
        async with self._writing() as conn:
            return await calls.seek(conn, topic, group, position_text(to), partition=partition)

    async def stats(self, topic: str | None = None, group: str | None = None) -> builtins.list[GroupStats]:
        """Return one row per group and partition: position, lag, owner."""
        async with self._session().reading(topic=topic) as conn:
            return await calls.group_stats(conn, topic, group)

    async def position(self, topic: str, group: str) -> dict[int, int]:
        """Return the next offset to be delivered in each partition."""
        return {row.partition: row.next_offset for row in await self.stats(topic, group)}
