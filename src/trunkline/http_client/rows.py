"""Converts the server's JSON to the records of this package."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from trunkline.codec import JSON, decoder, duration
from trunkline.types import (
    CatchUp,
    DeadLetter,
    Duration,
    Group,
    Headers,
    Message,
    Queue,
    Schedule,
    Subscription,
    Topic,
    Waiting,
)


def seconds(value: Duration | None) -> float | None:
    span = duration(value)
    return None if span is None else span.total_seconds()


def _span(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def payload_bytes(payload: msgspec.Raw, encoding: str) -> bytes:
    """Return the payload as it was published. The response contains JSON payloads unchanged."""
    if encoding == "json":
        return bytes(payload)
    text = msgspec.json.decode(payload, type=str)
    return base64.b64decode(text) if encoding == "base64" else text.encode()


class MessageRow(msgspec.Struct, kw_only=True):
    id: UUID
    partition: int
    offset: int
    key: str | None
    routing_key: str | None
    label: str | None
    headers: Headers | None
    content_type: str
    payload: msgspec.Raw
    encoding: str
    occurred_at: datetime | None
    created_at: datetime

    def fields(self, kind: Any = None) -> dict[str, Any]:
        """Return the fields that all message records share."""
        shared = (name for name in MessageRow.__struct_fields__ if name not in ("payload", "encoding"))
        return {
            **{name: getattr(self, name) for name in shared},
            "payload": payload_bytes(self.payload, self.encoding),
            "_decode": decoder(kind),
        }

    def message(self, kind: Any = None) -> Message[Any]:
        return Message(**self.fields(kind))


class DeliveryRow(MessageRow, kw_only=True):
    topic: str | None
    receipt: str
    attempt: int
    deadline: datetime


class WaitingRow(MessageRow, kw_only=True):
    topic: str | None
    attempt: int
    due_at: datetime | None
    error: str | None

    def waiting(self, kind: Any = None) -> Waiting[Any]:
        return Waiting(**self.fields(kind), topic=self.topic, attempt=self.attempt, due_at=self.due_at, error=self.error)


class DeadRow(MessageRow, kw_only=True):
    topic: str | None
    dead_id: int
    attempts: int
    error: str | None
    reason: str
    dead_at: datetime

    def letter(self, kind: Any = None) -> DeadLetter[Any]:
        return DeadLetter(
            **self.fields(kind),
            topic=self.topic or "",
            dead_id=self.dead_id,
            attempts=self.attempts,
            error=self.error,
            reason=self.reason,
            dead_at=self.dead_at,
        )


class TopicRow(msgspec.Struct, kw_only=True):
    name: str
    partitions: int
    retention_seconds: float
    retention_bytes: int | None
    hard_retention_seconds: float | None
    max_payload: int
    created_at: datetime

    def record(self) -> Topic:
        return Topic(
            name=self.name,
            partitions=self.partitions,
            retention=timedelta(seconds=self.retention_seconds),
            retention_bytes=self.retention_bytes,
            hard_retention=_span(self.hard_retention_seconds),
            max_payload=self.max_payload,
            created_at=self.created_at,
        )


class QueueRow(msgspec.Struct, kw_only=True):
    name: str
    lease_seconds: float
    ttl_seconds: float | None
    delivery_delay_seconds: float
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
    created_at: datetime
    updated_at: datetime

    def record(self) -> Queue:
        return Queue(
            name=self.name,
            lease=timedelta(seconds=self.lease_seconds),
            max_attempts=self.max_attempts,
            backoff_base=timedelta(seconds=self.backoff_base_seconds),
            backoff_factor=self.backoff_factor,
            backoff_cap=timedelta(seconds=self.backoff_cap_seconds),
            backoff_jitter=self.backoff_jitter,
            ttl=_span(self.ttl_seconds),
            delivery_delay=timedelta(seconds=self.delivery_delay_seconds),
            ordered=self.ordered,
            paused=self.paused,
            partitions=self.partitions,
            retention=timedelta(seconds=self.retention_seconds),
            max_payload=self.max_payload,
            created_at=self.created_at,
            updated_at=self.updated_at,
            priorities=self.priorities,
            history=_span(self.history_seconds),
        )


class GroupRow(msgspec.Struct, kw_only=True):
    name: str
    topic: str
    pattern: str | None
    headers: Headers | None
    created_at: datetime

    def record(self) -> Group:
        return Group(
            topic=self.topic,
            name=self.name,
            pattern=self.pattern,
            headers=self.headers,
            created_at=self.created_at,
        )


class SubscriptionRow(msgspec.Struct, kw_only=True):
    name: str
    topic: str
    queue: str
    pattern: str
    headers: Headers | None
    created_at: datetime

    def record(self) -> Subscription:
        return Subscription(
            queue=self.queue,
            name=self.name,
            topic=self.topic,
            pattern=self.pattern,
            headers=self.headers,
            created_at=self.created_at,
        )


class ScheduleRow(msgspec.Struct, kw_only=True):
    name: str
    cron: str
    timezone: str
    catch_up: CatchUp
    topic: str | None
    queue: str | None
    payload: msgspec.Raw
    encoding: str
    key: str | None
    routing_key: str | None
    label: str | None
    headers: Headers | None
    paused: bool
    next_at: datetime | None
    last_at: datetime | None
    last_id: UUID | None
    created_at: datetime

    def record(self) -> Schedule:
        return Schedule(
            name=self.name,
            topic=self.topic,
            queue=self.queue,
            cron=self.cron,
            timezone=self.timezone,
            catch_up=self.catch_up,
            payload=payload_bytes(self.payload, self.encoding),
            content_type=JSON,
            key=self.key,
            routing_key=self.routing_key,
            label=self.label,
            headers=self.headers,
            paused=self.paused,
            next_at=self.next_at,
            last_at=self.last_at,
            last_id=self.last_id,
            created_at=self.created_at,
        )
