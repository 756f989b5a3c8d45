"""Reads of the pages of topics."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from trunkline.db.calls import groups, health, inspection, stats, subscriptions, topics
from trunkline.db.pool import Connection
from trunkline.types import Group, GroupStats, PartitionMap, Subscription, Topic, TopicStats

TOPICS = "topics"
RATES = "topic rates"
_MOST = 2000
_SINCE, _STEP = timedelta(hours=1), timedelta(minutes=2)


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with its partitions and readers."""

    topic: Topic
    partitions: list[TopicStats]
    groups: list[Group]
    positions: list[GroupStats]
    subscriptions: list[Subscription]


async def all_topics(conn: Connection) -> list[Topic]:
    return await topics.list_topics(conn, limit=_MOST)


async def rates(conn: Connection) -> dict[str, list[float | None]]:
    """Return the rates of the last hour by topic."""
    found: dict[str, list[float | None]] = {}
    for name, _, rate in await health.topic_rates(conn, _SINCE, _STEP):
        found.setdefault(name, []).append(rate)
    return found


async def detail(conn: Connection, name: str) -> Detail:
    return Detail(
        topic=await topics.get_topic(conn, name),
        partitions=await stats.topic_stats(conn, name),
        groups=await groups.list_groups(conn, name),
        positions=await stats.group_stats(conn, name),
        subscriptions=await subscriptions.list_subscriptions(conn, None, name),
    )


async def history(conn: Connection, name: str, since: timedelta, step: timedelta) -> list[tuple[datetime, float | None]]:
    """Return the rates of one topic."""
    return [(at, rate) for topic, at, rate in await health.topic_rates(conn, since, step) if topic == name]


async def map_of(conn: Connection, name: str) -> list[PartitionMap]:
    """Return what the log of a topic looks like, by partition."""
    return await inspection.topic_map(conn, name)
