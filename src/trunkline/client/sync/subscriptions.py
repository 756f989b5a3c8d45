# Written by tools/unasync.py from src/trunkline/client/subscriptions.py; change that file, not this one.
"""Subscriptions: topics that feed queues."""

from __future__ import annotations

import builtins

from trunkline.client.sync.resource import Resource
from trunkline.codec import position_text
from trunkline.db.sync import calls
from trunkline.types import Headers, Position, Reader, Subscription


class Subscriptions(Resource):
    """`client.subscriptions`"""

    def add(
        self,
        queue: str,
        topic: str,
        *,
        pattern: str = "#",
        headers: Headers | None = None,
        start: Position = "latest",
        name: str | None = None,
    ) -> Subscription:
        """Subscribe the queue to a topic, for messages that match `pattern` (on the routing key) and `headers`.

        `name` defaults to the topic's name. A queue may have several subscriptions to one topic under different names.
        """
        self._session().sequence_before(topic, start)
        with self._writing() as conn:
            calls.subscribe(conn, queue, topic, pattern=pattern, headers=headers, start=position_text(start), name=name)
            rows = calls.list_subscriptions(conn, queue, topic)
        return next(row for row in rows if row.name == (name or topic))

    def list(self, queue: str | None = None, topic: str | None = None) -> builtins.list[Subscription]:
        """List all subscriptions, or those of a queue, of a topic, or of both."""
        with self._reading() as conn:
            return calls.list_subscriptions(conn, queue, topic)

    def remove(self, queue: str, name: str) -> None:
        """Remove a subscription. Its unsettled messages are dropped from the queue."""
        with self._writing() as conn:
            calls.unsubscribe(conn, queue, name)

    def test(self, topic: str, routing_key: str | None = None, headers: Headers | None = None) -> builtins.list[Reader]:
        """List all readers of the topic, each with whether it would receive such a message. Publishes nothing."""
        with self._reading() as conn:
            return calls.readers(conn, topic, routing_key=routing_key, headers=headers)
