"""Follows topics for many HTTP clients. Each topic is read once, for all its followers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from trunkline import Client
from trunkline.server.budget import read_topic
from trunkline.server.views import message_view
from trunkline.types import Message

_RECENT = 1000
_PAGE = 200
_RETRY_SECONDS = 0.5


class Event(msgspec.Struct, frozen=True):
    """A message encoded for followers, once for all of them."""

    partition: int
    offset: int
    data: bytes

    @classmethod
    def of(cls, message: Message[Any]) -> Event:
        return cls(message.partition, message.offset, msgspec.json.encode(message_view(message)))


class TopicTail:
    """The end of a topic: recent messages, and an event for new ones."""

    def __init__(self, mq: Client, topic: str, places: list[int], max_bytes: int) -> None:
        self.topic = topic
        self.next = places
        self.followers = 0
        self.failure: Exception | None = None
        self._mq = mq
        self._max_bytes = max_bytes
        self._recent: list[deque[Event]] = [deque(maxlen=_RECENT) for _ in places]
        self._sizes = [0 for _ in places]
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"trunkline tail {topic}")

    def close(self) -> None:
        self._task.cancel()

    def recent(self, partition: int, offset: int) -> list[Event] | None:
        """Return recent messages from an offset, or None if it is no longer in memory."""
        known = self._recent[partition]
        if not known or known[0].offset > offset:
            return None
        return list(known)[offset - known[0].offset :]

    @property
    def news(self) -> asyncio.Event:
        """An event set when messages arrive. Get it before checking for messages, so that none is missed."""
        return self._news

    async def wait(self, news: asyncio.Event, seconds: float) -> None:
        """Wait for messages, for at most this time."""
        try:
            async with asyncio.timeout(seconds):
                await news.wait()
        except TimeoutError:
            return

    async def _run(self) -> None:
        wakeup = self._mq.session.wakeup
        watch = wakeup.watch("topic", self.topic)
        # impossible length: makes the first poll ring even if the topic was deleted meanwhile
        watch.length = -1
        try:
            rung = False
            while True:
                watch.reset()
                more = await self._read()
                # woken but nothing read: a partition may have been added
                if more or (rung and await self._grow()):
                    continue
                rung = await watch.wait()
        except Exception as exc:
            self.failure = exc
        finally:
            wakeup.unwatch(watch)
            self.ring()

    async def _read(self) -> bool:
        """Read new messages. Return whether there were any."""
        found = False
        for partition, start in enumerate(self.next):
            page = await read_topic(self._mq, self.topic, partition, start=start, limit=_PAGE, max_bytes=self._max_bytes)
            for message in page:
                self._keep(partition, Event.of(message))
                self.next[partition] = message.offset + 1
                found = True
        if found:
            self.ring()
        return found

    def _keep(self, partition: int, event: Event) -> None:
        """Keep an event and drop the oldest beyond the limits; followers read dropped ones from the database."""
        known = self._recent[partition]
        self._sizes[partition] += len(event.data)
        if len(known) == _RECENT:
            self._sizes[partition] -= len(known[0].data)
        known.append(event)
        while len(known) > 1 and self._sizes[partition] > self._max_bytes:
            self._sizes[partition] -= len(known.popleft().data)

    async def _grow(self) -> bool:
        """Add new partitions. Return whether there are any."""
        added = (await self._mq.topics.get(self.topic)).partitions - len(self.next)
        for _ in range(added):
            self._recent.append(deque(maxlen=_RECENT))
            self._sizes.append(0)
            self.next.append(1)
        return added > 0

    def ring(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class TopicTails:
    """The tails of a worker. A tail exists while it has followers."""

    def __init__(self, mq: Client, max_bytes: int) -> None:
        self._mq = mq
        self._max_bytes = max_bytes
        self._tails: dict[str, TopicTail] = {}

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()
        self._tails.clear()

    def ring(self, topic: str | None = None) -> None:
        """Wake the followers of a topic, or all of them."""
        for tail in self._tails.values():
            if topic in (None, tail.topic):
                tail.ring()

    async def heads(self, topic: str) -> list[int]:
        """Return the next offset of each partition."""
        known = self._tails.get(topic)
        if known is not None and known.failure is None:
            return list(known.next)
        partitions = (await self._mq.topics.get(topic)).partitions
        # messages committed before the call do not count as new
        await self._mq.session.wakeup.sequence("topic", topic)
        return [await self._mq.topics.head(topic, partition) + 1 for partition in range(partitions)]

    async def follow(self, topic: str, places: list[int], quiet: float) -> AsyncIterator[list[Event]]:
        """Yield events from these offsets as they arrive, or an empty list after `quiet` seconds without any."""
        tail = self._tails.get(topic)
        if tail is None or tail.failure is not None:
            heads = await self.heads(topic)
            tail = self._tails.get(topic)
            if tail is None or tail.failure is not None:
                tail = self._tails[topic] = TopicTail(self._mq, topic, heads, self._max_bytes)
        tail.followers += 1
        try:
            while tail.failure is None:
                places += [1] * (len(tail.next) - len(places))
                news = tail.news
                events = await self._due(tail, places)
                if not events:
                    await tail.wait(news, quiet)
                    events = await self._due(tail, places)
                for event in events:
                    places[event.partition] = event.offset + 1
                yield events
            raise tail.failure
        finally:
            tail.followers -= 1
            if not tail.followers and self._tails.get(topic) is tail:
                del self._tails[topic]
                tail.close()

    async def _due(self, tail: TopicTail, places: list[int]) -> list[Event]:
        for partition, start in enumerate(places):
            if start < tail.next[partition]:
                known = tail.recent(partition, start)
                if known is None:
                    page = await read_topic(
                        self._mq, tail.topic, partition, start=start, limit=_PAGE, max_bytes=self._max_bytes
                    )
                    known = [Event.of(message) for message in page]
                if known:
                    return known
        return []
