"""JSON of messages and lists in responses. Other records: trunkline.wire."""

from __future__ import annotations

import base64
from typing import Any
from uuid import UUID

import msgspec

from trunkline.cron import in_words
from trunkline.server.bodies import check_value
from trunkline.server.problems import Problem
from trunkline.types import DeadLetter, Delivery, GroupStats, Message, QueueStats, ReadyMessage, Schedule, TopicStats
from trunkline.wire import DeadLetterView, DeliveryView, MessageView, ReadyMessageView, ScheduleView

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


# Messages


class PublishedView(msgspec.Struct, frozen=True):
    id: UUID
    duplicate: bool


def _raw(shown: Rendered) -> msgspec.Raw:
    return shown.payload if shown.encoding == "json" else msgspec.Raw(msgspec.json.encode(shown.payload))


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
        "payload": _raw(shown),
        "encoding": shown.encoding,
        "occurred_at": message.occurred_at,
        "created_at": message.created_at,
    }


def message_view(message: Message[Any]) -> MessageView:
    return MessageView(**_common(message))


def delivery_view(queue: str, delivery: Delivery[Any]) -> DeliveryView:
    return DeliveryView(
        **_common(delivery),
        queue=queue,
        topic=delivery.topic,
        receipt=delivery.receipt,
        attempt=delivery.attempt,
        deadline=delivery.deadline,
    )


def ready_message_view(message: ReadyMessage[Any]) -> ReadyMessageView:
    return ReadyMessageView(
        **_common(message), topic=message.topic, attempt=message.attempt, due_at=message.due_at, error=message.error
    )


def schedule_view(row: Schedule) -> ScheduleView:
    shown = render(row.payload, row.content_type)
    same = {
        name: getattr(row, name) for name in ScheduleView.__struct_fields__ if name not in ("payload", "encoding", "words")
    }
    return ScheduleView(**same, payload=_raw(shown), encoding=shown.encoding, words=in_words(row.cron))


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
