# Written by tools/unasync.py from src/trunkline/client/subscriptions.py; change that file, not this one.
"""Subscriptions: which topics feed which queues."""

from __future__ import annotations

import builtins

from trunkline.client.sync.noun import Noun
from trunkline.db.codec import place
from trunkline.db.sync import calls
from trunkline.types import Headers, Place, Reader, Subscription


class Subscriptions(Noun):
    """`client.subscriptions`"""

    def add(
        self,
        queue: str,
        topic: str,
        *,
        pattern: str = "#",
        headers: Headers | None = None,
        start: Place = "latest",
        name: str | None = None,
    ) -> Subscription:
        """Feed the queue from the topic too: what matches the pattern on the routing key and the filter on headers.

        `name` is the topic's name unless given; a queue may have several subscriptions to one topic.
        """
        self._runtime().sequence_before(topic, start)
        with self._writing() as conn:
            calls.subscribe(conn, queue, topic, pattern=pattern, headers=headers, start=place(start), name=name)
            rows = calls.list_subscriptions(conn, queue, topic)
        return next(row for row in rows if row.name == (name or topic))

    def list(self, queue: str | None = None, topic: str | None = None) -> builtins.list[Subscription]:
        """All subscriptions, or those of a queue, of a topic, or of both."""
        with self._reading() as conn:
            return calls.list_subscriptions(conn, queue, topic)

    def remove(self, queue: str, name: str) -> None:
        """Stop feeding; `name` is the topic's unless another was given. What is not settled of it is forgotten."""
        with self._writing() as conn:
            calls.unsubscribe(conn, queue, name)

    def test(self, topic: str, routing_key: str | None = None, headers: Headers | None = None) -> builtins.list[Reader]:
        """All readers of the topic, and for each whether such a message would be for it. Publishes nothing."""
        with self._reading() as conn:
            return calls.readers(conn, topic, routing_key=routing_key, headers=headers)
