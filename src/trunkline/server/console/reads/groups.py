"""Reads of the pages of groups."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from trunkline.db.calls import groups, inspection, messages, runs, stats
from trunkline.db.pool import Connection
from trunkline.errors import NotFound
from trunkline.types import Group, GroupStats, Member, RetentionDeadline, Run, SeriesPoint

RATES, DEADLINES = "group rates", "deadlines"
_SINCE, _STEP = timedelta(hours=1), timedelta(minutes=2)
_DAY, _DAY_STEP = timedelta(hours=24), timedelta(minutes=10)
_RUNS = 200


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """A group with its position in each partition."""

    group: Group
    positions: list[GroupStats]
    members: list[Member]


async def detail(conn: Connection, topic: str, name: str) -> Detail:
    found = next((group for group in await groups.list_groups(conn, topic) if group.name == name), None)
    if found is None:
        raise NotFound(f'group "{name}" of topic "{topic}" does not exist')
    return Detail(
        group=found,
        positions=await stats.group_stats(conn, topic, name),
        members=await inspection.list_members(conn, topic, name),
    )


async def rates(conn: Connection) -> dict[str, list[SeriesPoint]]:
    """Return the lines of the last hour of all groups, by "topic/group"."""
    found: dict[str, list[SeriesPoint]] = {}
    for point in await inspection.rollup_lines(conn, "group", None, since=_SINCE, step=_STEP):
        found.setdefault(point.name, []).append(point)
    return found


async def history(conn: Connection, topic: str, name: str) -> list[SeriesPoint]:
    return await inspection.rollup_lines(conn, "group", [f"{topic}/{name}"], since=_DAY, step=_DAY_STEP)


async def deadlines(conn: Connection, topic: str | None = None) -> list[RetentionDeadline]:
    return await inspection.retention_deadlines(conn, topic)


async def seeks(conn: Connection, topic: str, name: str) -> list[Run]:
    """Return the newest seeks of a group, of the newest runs."""
    found = await runs.list_runs(conn, None, limit=_RUNS)
    return [
        run
        for run in found
        if run.kind == "seek" and run.selector.get("topic") == topic and run.selector.get("group") == name
    ]


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """The change that a seek makes in one partition: its position now and then."""

    partition: int
    now: int
    then: int
    head: int
    member: str | None


async def preview(conn: Connection, topic: str, name: str, to: str, partition: int | None) -> list[Move]:
    """Return what a seek would do."""
    return [
        Move(
            partition=row.partition,
            now=row.next_offset,
            then=await messages.offset_of(conn, topic, row.partition, to),
            head=row.head,
            member=row.member,
        )
        for row in await stats.group_stats(conn, topic, name)
        if partition is None or row.partition == partition
    ]


async def seek(conn: Connection, topic: str, name: str, to: str, partition: int | None) -> int | None:
    """Move a group. Return the number of the seek, which undoes it."""
    await groups.seek(conn, topic, name, to, partition=partition)
    done = await seeks(conn, topic, name)
    return done[0].run_id if done else None


async def undo(conn: Connection, run_id: int) -> int:
    return await runs.undo_run(conn, run_id)


async def delete(conn: Connection, topic: str, name: str) -> None:
    await groups.delete_group(conn, topic, name)
