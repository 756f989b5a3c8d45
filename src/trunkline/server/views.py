"""JSON representations of resources."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from trunkline.cron import in_words
from trunkline.server.parsing import check_value
from trunkline.server.problems import Problem
from trunkline.types import (
    DeadLetter,
    Delivery,
    Group,
    GroupStats,
    Message,
    Queue,
    QueueStats,
    Schedule,
    Subscription,
    Topic,
    TopicStats,
)


def seconds(span: timedelta) -> int | float:
    """Convert a duration to seconds, as an integer if whole."""
    value = span.total_seconds()
    return int(value) if value.is_integer() else value


def maybe_seconds(span: timedelta | None) -> int | float | None:
    return None if span is None else seconds(span)


# Payloads


class Rendered(msgspec.Struct, frozen=True):
    """Represent a payload in JSON: as itself if it is JSON, as a string if it is text, else in base64."""

    payload: Any
    encoding: str


def render(payload: bytes, content_type: str) -> Rendered:
    kind = content_type.partition(";")[0].strip().lower()
    if kind.endswith(("/json", "+json")):
        try:
            payload.decode()
            check_value(payload)
            return Rendered(msgspec.Raw(payload), "json")
        except (Problem, UnicodeDecodeError):
            pass
    elif kind.startswith("text/"):
        try:
            return Rendered(payload.decode(), "text")
        except UnicodeDecodeError:
            pass
    return Rendered(base64.b64encode(payload).decode(), "base64")


# Topics and queues


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    created_at: datetime
    partitions: int
    retention_seconds: float
    retention_bytes: int | None
    hard_retention_seconds: float | None
    max_payload: int

    @classmethod
    def of(cls, topic: Topic) -> TopicView:
        return cls(
            name=topic.name,
            created_at=topic.created_at,
            partitions=topic.partitions,
            retention_seconds=seconds(topic.retention),
            retention_bytes=topic.retention_bytes,
            hard_retention_seconds=maybe_seconds(topic.hard_retention),
            max_payload=topic.max_payload,
        )


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    lease_seconds: float
    ttl_seconds: float | None
    delivery_delay_seconds: float
    created_at: datetime
    updated_at: datetime
    max_attempts: int
    backoff_base_seconds: float
    backoff_factor: float
    backoff_cap_seconds: float
    backoff_jitter: float
    ordered: bool
    paused: bool
    partitions: int
    priorities: int
    history_seconds: float | None
    retention_seconds: float
    max_payload: int

    @classmethod
    def of(cls, queue: Queue) -> QueueView:
        return cls(
            name=queue.name,
            lease_seconds=seconds(queue.lease),
            ttl_seconds=maybe_seconds(queue.ttl),
            delivery_delay_seconds=seconds(queue.delivery_delay),
            created_at=queue.created_at,
            updated_at=queue.updated_at,
            max_attempts=queue.max_attempts,
            backoff_base_seconds=seconds(queue.backoff_base),
            backoff_factor=queue.backoff_factor,
            backoff_cap_seconds=seconds(queue.backoff_cap),
            backoff_jitter=queue.backoff_jitter,
            ordered=queue.ordered,
            paused=queue.paused,
            partitions=queue.partitions,
            priorities=queue.priorities,
            history_seconds=maybe_seconds(queue.history),
            retention_seconds=seconds(queue.retention),
            max_payload=queue.max_payload,
        )


class SubscriptionView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic: str
    queue: str
    headers: dict[str, Any] | None
    created_at: datetime
    pattern: str

    @classmethod
    def of(cls, row: Subscription) -> SubscriptionView:
        return cls(
            name=row.name,
            topic=row.topic,
            queue=row.queue,
            headers=row.headers,
            created_at=row.created_at,
            pattern=row.pattern,
        )


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic: str
    pattern: str | None
    headers: dict[str, Any] | None
    created_at: datetime

    @classmethod
    def of(cls, row: Group) -> GroupView:
        return cls(name=row.name, topic=row.topic, pattern=row.pattern, headers=row.headers, created_at=row.created_at)


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cron: str
    timezone: str
    catch_up: str
    topic: str | None
    queue: str | None
    payload: Any
    encoding: str
    key: str | None
    routing_key: str | None
    label: str | None
    headers: dict[str, Any] | None
    paused: bool
    words: str
    """The cron expression in words."""
    next_at: datetime | None
    last_at: datetime | None
    last_id: UUID | None
    created_at: datetime

    @classmethod
    def of(cls, row: Schedule) -> ScheduleView:
        shown = render(row.payload, row.content_type)
        return cls(
            name=row.name,
            cron=row.cron,
            timezone=row.timezone,
            catch_up=row.catch_up,
            topic=row.topic,
            queue=row.queue,
            payload=shown.payload,
            encoding=shown.encoding,
            key=row.key,
            routing_key=row.routing_key,
            label=row.label,
            headers=row.headers,
            paused=row.paused,
            words=in_words(row.cron),
            next_at=row.next_at,
            last_at=row.last_at,
            last_id=row.last_id,
            created_at=row.created_at,
        )


# Messages


class PublishedView(msgspec.Struct, frozen=True):
    id: UUID
    duplicate: bool


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    partition: int
    offset: int
    key: str | None
    routing_key: str | None
    label: str | None
    headers: dict[str, Any] | None
    content_type: str
    payload: Any
    encoding: str
    """Encoding of `payload`: json, text or base64."""
    occurred_at: datetime | None
    created_at: datetime


def _common(message: Message[Any]) -> dict[str, Any]:
    shown = render(message.payload, message.content_type)
    return {
        "id": message.id,
        "partition": message.partition,
        "offset": message.offset,
        "key": message.key,
        "routing_key": message.routing_key,
        "label": message.label,
        "headers": message.headers,
        "content_type": message.content_type,
        "payload": shown.payload,
        "encoding": shown.encoding,
        "occurred_at": message.occurred_at,
        "created_at": message.created_at,
    }


def message_view(message: Message[Any]) -> MessageView:
    return MessageView(**_common(message))


class DeliveryView(MessageView, frozen=True, kw_only=True):
    queue: str
    topic: str | None
    receipt: str
    attempt: int
    deadline: datetime


def delivery_view(queue: str, delivery: Delivery[Any]) -> DeliveryView:
    return DeliveryView(
        **_common(delivery),
        queue=queue,
        topic=delivery.topic,
        receipt=delivery.receipt,
        attempt=delivery.attempt,
        deadline=delivery.deadline,
    )


class DeadLetterView(MessageView, frozen=True, kw_only=True):
    dead_id: int
    queue: str
    topic: str | None
    attempts: int
    error: str | None
    reason: str
    dead_at: datetime


def dead_view(queue: str, letter: DeadLetter[Any]) -> DeadLetterView:
    return DeadLetterView(
        **_common(letter),
        dead_id=letter.dead_id,
        queue=queue,
        topic=letter.topic or None,
        attempts=letter.attempts,
        error=letter.error,
        reason=letter.reason,
        dead_at=letter.dead_at,
    )


class Health(msgspec.Struct, frozen=True):
    success: bool


class StatsView(msgspec.Struct, frozen=True):
    topics: list[TopicStats]
    groups: list[GroupStats]
    queues: list[QueueStats]


# Lists


class Page(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of a list. `offset` is omitted when 0. `next` is the `offset` of the next page; omitted at the end."""

    data: list[Any]
    limit: int
    offset: int = 0
    next: int | None = None


def page(rows: list[Any], query: dict[str, Any]) -> Page:
    start, end = query["offset"], query["offset"] + query["limit"]
    return Page(rows[start:end], query["limit"], start, end if start < end < len(rows) else None)
