"""Consumer groups over HTTP."""

from __future__ import annotations

import builtins

import msgspec

from trunkline.codec import position_text
from trunkline.http_client.resource import HttpResource
from trunkline.http_client.topics import topic_path
from trunkline.http_client.transport import given, quoted
from trunkline.types import (
    Group,
    GroupStats,
    Headers,
    Member,
    Position,
    Topic,
)


class _Members(msgspec.Struct):
    data: list[Member]


class HttpGroups(HttpResource):
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
        """Create a group that reads from position `start`. Raises `AlreadyExists` if the name is taken."""
        return await self._make(topic, group, start, pattern, headers, {})

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
        return await self._make(topic, group, start, pattern, headers, {"ensure": "true"})

    async def _make(
        self, topic: str, group: str, start: Position, pattern: str | None, headers: Headers | None, query: dict[str, str]
    ) -> Group:
        request = given(name=group, start=position_text(start), pattern=pattern, headers=headers)
        return await self._transport.record("POST", f"{topic_path(topic)}/groups", Group, request, query=query)

    async def list(
        self, topic: str | None = None, *, after: str | None = None, limit: int | None = None
    ) -> builtins.list[Group]:
        """List the groups of a topic, or of all topics, by name.

        `after` and `limit` page through the list. Without a topic, `after` is `"topic/group"`.
        """
        if topic is not None:
            return await self._transport.records(f"{topic_path(topic)}/groups", Group, after=after, limit=limit)
        groups: builtins.list[Group] = []
        if after is not None:
            first, _, group = after.partition("/")
            groups += await self.list(first, after=group, limit=limit)
            after = first
        for row in await self._transport.records("/v1/topics", Topic, after=after):
            if limit is None or len(groups) < limit:
                groups += await self.list(row.name, limit=None if limit is None else limit - len(groups))
        return groups

    async def members(self, topic: str, group: str) -> builtins.list[Member]:
        """Return the active members of a group, each with the partitions that it has leased."""
        return (await self._transport.ask("GET", f"{group_path(topic, group)}/members", kind=_Members)).data

    async def delete(self, topic: str, group: str) -> None:
        """Delete the group and its position."""
        await self._transport.ask("DELETE", group_path(topic, group))

    async def seek(self, topic: str, group: str, to: Position, *, partition: int | None = None) -> dict[int, int]:
        """Move the group's position, in one partition or in all. Members lose their current batches.

        Returns the next offset of each partition.
        """
        body = await self._transport.ask(
            "POST", f"{group_path(topic, group)}/seek", {"to": position_text(to), "partition": partition}
        )
        return {int(number): offset for number, offset in body["next_offsets"].items()}

    async def stats(self, topic: str | None = None, group: str | None = None) -> builtins.list[GroupStats]:
        """Return one row per group and partition: position, lag, owner."""
        if topic is not None and group is not None:
            rows = (await self._transport.ask("GET", group_path(topic, group)))["partitions"]
        else:
            rows = (await self._transport.ask("GET", "/v1/stats"))["groups"]
        stats = msgspec.convert(rows, builtins.list[GroupStats])
        return [row for row in stats if topic in (None, row.topic) and group in (None, row.group)]

    async def position(self, topic: str, group: str) -> dict[int, int]:
        """Return the next offset to be delivered in each partition."""
        return {row.partition: row.next_offset for row in await self.stats(topic, group)}


def group_path(topic: str, group: str) -> str:
    return f"{topic_path(topic)}/groups/{quoted(group)}"
