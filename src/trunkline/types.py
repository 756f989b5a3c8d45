"""The records that cross the API. Frozen; field names are the words of the design."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec

Result = Literal["done", "lost", "unknown"]
Headers = dict[str, Any]


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to publish. `payload` is kept byte for byte."""

    payload: bytes
    content_type: str = "application/json"
    id: UUID | None = None
    key: str | None = None
    routing_key: str | None = None
    label: str | None = None
    headers: Headers | None = None
    occurred_at: datetime | None = None
    idempotency_key: str | None = None
    delay: timedelta | None = None
    deliver_at: datetime | None = None


class Published(msgspec.Struct, frozen=True):
    """The id a message has; `duplicate` when its idempotency key was used before and nothing was added."""

    id: UUID
    duplicate: bool


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it stands in a log."""

    partition: int
    offset: int
    id: UUID
    key: str | None
    routing_key: str | None
    label: str | None
    headers: Headers | None
    payload: bytes
    content_type: str
    occurred_at: datetime | None
    created_at: datetime


class Delivery(Message, frozen=True, kw_only=True):
    """A message claimed from a queue until `deadline` by the database's clock. `topic` is None for the queue's own inbox."""

    receipt: str
    attempt: int
    deadline: datetime
    topic: str | None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one partition, fetched for a group; commit the last offset with the generation."""

    partition: int
    generation: UUID
    deadline: datetime
    messages: list[Message]

    @property
    def last_offset(self) -> int:
        return self.messages[-1].offset


class Range(msgspec.Struct, frozen=True):
    """Offsets first to last (both included) of a partition."""

    partition: int
    first: int
    last: int


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that will not be delivered again by itself, with why."""

    dead_id: int
    id: UUID
    topic: str
    partition: int
    offset: int
    key: str | None
    routing_key: str | None
    label: str | None
    headers: Headers | None
    payload: bytes
    content_type: str
    occurred_at: datetime | None
    created_at: datetime
    attempts: int
    error: str | None
    reason: str
    dead_at: datetime


class TopicStats(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    lowest_offset: int
    head: int
    bytes: int
    segments: int
    rate_per_second: float
    scheduled: int


class GroupStats(msgspec.Struct, frozen=True):
    topic: str
    group: str
    partition: int
    next_offset: int
    fetched: int
    head: int
    lag: int
    lag_seconds: float
    member: str | None
    deadline: datetime | None


class QueueStats(msgspec.Struct, frozen=True):
    queue: str
    ready: int
    delayed: int
    leased: int
    dead: int
    acked: int
    expired: int
    purged: int
    oldest_age: float
    paused: bool
