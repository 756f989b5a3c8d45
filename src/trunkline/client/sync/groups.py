# Written by tools/unasync.py from src/trunkline/client/groups.py; change that file, not this one.
"""Consumer groups: create, seek and inspect them."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from trunkline.client.sync.resource import Resource
from trunkline.codec import position_text
from trunkline.db.sync import calls
from trunkline.db.sync.calls import inspection
from trunkline.types import Group, GroupStats, Headers, Member, Position


class Groups(Resource):
    """`client.groups`"""

    def create(
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
        return self._make(topic, group, start, pattern, headers, ensure=False)

    def ensure(
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
        return self._make(topic, group, start, pattern, headers, ensure=True)

    def _make(
        self, topic: str, group: str, start: Position, pattern: str | None, headers: Headers | None, *, ensure: bool
    ) -> Group:
        self._session().sequence_before(topic, start)
        with self._writing() as conn:
            return calls.create_group(
                conn, topic, group, start=position_text(start), pattern=pattern, headers=headers, ensure=ensure
            )

    def list(
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
        with self._reading() as conn:
            return calls.list_groups(conn, topic, after=after, limit=limit, names=names)

    def members(self, topic: str, group: str) -> builtins.list[Member]:
        """Return the active members of a group, each with the partitions that it has leased."""
        with self._reading() as conn:
            return inspection.list_members(conn, topic, group)

    def delete(self, topic: str, group: str) -> None:
        """Delete the group and its position."""
        with self._writing() as conn:
            calls.delete_group(conn, topic, group)

    def seek(self, topic: str, group: str, to: Position, *, partition: int | None = None) -> dict[int, int]:
        """Move the group's position, in one partition or in all. Members lose their current batches.

        Returns the next offset of each partition.
        """
        self._session().sequence_before(topic, to)
        with self._writing() as conn:
            return calls.seek(conn, topic, group, position_text(to), partition=partition)

    def stats(self, topic: str | None = None, group: str | None = None) -> builtins.list[GroupStats]:
        """Return one row per group and partition: position, lag, owner."""
        with self._session().reading(topic=topic) as conn:
            return calls.group_stats(conn, topic, group)

    def position(self, topic: str, group: str) -> dict[int, int]:
        """Return the next offset to be delivered in each partition."""
        return {row.partition: row.next_offset for row in self.stats(topic, group)}
