"""Reads and changes of the tabs of a topic: routing, settings, publishing."""

from __future__ import annotations

from typing import Any

from trunkline.codec import EncodedMessage
from trunkline.db.calls import groups, messages, subscriptions, topics
from trunkline.db.pool import Connection
from trunkline.types import Group, Headers, Published, Reader, Subscription, Topic


async def topic(conn: Connection, name: str) -> Topic:
    return await topics.get_topic(conn, name)


async def routing(conn: Connection, name: str, routing_key: str | None, headers: Headers | None) -> list[Reader]:
    """Return the readers of a topic, and whether each gets a message with this routing key and these headers."""
    return await subscriptions.readers(conn, name, routing_key=routing_key, headers=headers)


async def dependents(conn: Connection, name: str) -> tuple[list[Group], list[Subscription]]:
    """Return what ends with a topic."""
    return await groups.list_groups(conn, name), await subscriptions.list_subscriptions(conn, None, name)


async def alter(conn: Connection, name: str, settings: dict[str, Any]) -> Topic:
    return await topics.alter_topic(conn, name, **settings)


async def delete(conn: Connection, name: str) -> None:
    await topics.delete_topic(conn, name, force=True)


async def publish(conn: Connection, name: str, message: EncodedMessage) -> Published:
    return (await messages.publish_many(conn, "topic", name, [message]))[0]
