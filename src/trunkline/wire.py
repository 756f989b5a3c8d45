"""Records as JSON: one set of names and units for the server that writes it and the HTTP client that reads it.

A duration `lease` is a number of seconds, `lease_seconds`. Everything else has the name and value that it has in
Python.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cache
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, overload
from uuid import UUID

import msgspec

from trunkline.codec import JSON, decoder, duration
from trunkline.resources import Field, checked, fields
from trunkline.types import CatchUp, DeadLetter, Duration, Headers, Message, ReadyMessage, Schedule

R = TypeVar("R", bound=msgspec.Struct)
Span = Annotated[float, msgspec.Meta(ge=0, le=1e10)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)]
Large = Annotated[int, msgspec.Meta(ge=0, le=9_000_000_000_000_000)]


@overload
def seconds(value: Duration) -> int | float: ...
@overload
def seconds(value: Duration | None) -> int | float | None: ...
def seconds(value: Duration | None) -> int | float | None:
    """Convert a duration to seconds, as an integer if whole."""
    span = duration(value)
    if span is None:
        return None
    number = span.total_seconds()
    return int(number) if number.is_integer() else number


def _span(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


# Topics, queues, groups, subscriptions


def _is_duration(kind: Any) -> bool:
    return kind is timedelta or timedelta in get_args(kind)


def _json_name(name: str, kind: Any) -> str:
    return f"{name}_seconds" if _is_duration(kind) else name


def _json_type(kind: Any) -> Any:
    if not _is_duration(kind):
        return kind
    return float | None if NoneType in get_args(kind) else float


class _Column(msgspec.Struct, frozen=True):
    """A field of a record and of its JSON form."""

    name: str
    json_name: str
    is_duration: bool


@cache
def _columns(record: type[msgspec.Struct]) -> tuple[_Column, ...]:
    return tuple(
        _Column(field.name, _json_name(field.name, field.type), _is_duration(field.type))
        for field in msgspec.structs.fields(record)
    )


@cache
def view(record: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return the JSON form of a record: what responses contain."""
    shape = [(_json_name(field.name, field.type), _json_type(field.type)) for field in msgspec.structs.fields(record)]
    return msgspec.defstruct(f"{record.__name__}View", shape, module=__name__, kw_only=True, frozen=True)


def to_view(record: msgspec.Struct) -> msgspec.Struct:
    """Return a record in its JSON form, ready to be encoded."""
    return view(type(record))(
        **{
            column.json_name: seconds(getattr(record, column.name)) if column.is_duration else getattr(record, column.name)
            for column in _columns(type(record))
        }
    )


def from_view(record: type[R], row: Any) -> R:
    """Return a record from its decoded JSON form."""
    return record(
        **{
            column.name: _span(getattr(row, column.json_name)) if column.is_duration else getattr(row, column.json_name)
            for column in _columns(record)
        }
    )


# Settings


def _setting_type(field: Field) -> Any:
    if field.type is timedelta:
        return Span
    if field.type is int:
        return Large if field.sql == "bigint" else Count
    return field.type


@cache
def settings_type(settings: type, name: str, *, named: bool = False) -> type[msgspec.Struct]:
    """Return the JSON form of settings: what requests contain. All are optional. `named`: with the resource's name."""
    shape: list[tuple[str, Any, Any]] = [
        (_json_name(field.name, field.type), Annotated[_setting_type(field) | None, _described(field)], None)
        for field in fields(settings)
    ]
    if named:
        shape.append(("name", str | None, None))
    return msgspec.defstruct(
        name, shape, module=__name__, kw_only=True, forbid_unknown_fields=True, namespace={"__doc__": settings.__doc__}
    )


def _described(field: Field) -> msgspec.Meta:
    default = f" Default: {field.setting.default}." if field.setting.default else ""
    return msgspec.Meta(description=field.setting.help + default)


def to_settings(settings: type, body: Any) -> dict[str, Any]:
    """Return the settings that a request contains, as the client's keywords."""
    values = {field: getattr(body, _json_name(field.name, field.type)) for field in fields(settings)}
    return {
        field.name: _span(value) if field.type is timedelta else value
        for field, value in values.items()
        if value is not None
    }


def from_settings(settings: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as the fields of a request."""
    types = {field.name: field.type for field in fields(settings)}
    return {
        _json_name(name, types[name]): seconds(value) if types[name] is timedelta else value
        for name, value in checked(settings, values).items()
    }


# Messages


def payload_bytes(payload: msgspec.Raw, encoding: str) -> bytes:
    """Return the payload as it was published. JSON contains JSON payloads unchanged."""
    if encoding == "json":
        return bytes(payload)
    text = msgspec.json.decode(payload, type=str)
    return base64.b64decode(text) if encoding == "base64" else text.encode()


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
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
    """Encoding of `payload`: json, text or base64."""
    occurred_at: datetime | None
    created_at: datetime

    def fields(self, kind: Any = None) -> dict[str, Any]:
        """Return the fields that all message records share."""
        return {
            **{name: getattr(self, name) for name in _SHARED},
            "payload": payload_bytes(self.payload, self.encoding),
            "_decode": decoder(kind),
        }

    def message(self, kind: Any = None) -> Message[Any]:
        return Message(**self.fields(kind))


_SHARED = tuple(name for name in MessageView.__struct_fields__ if name not in ("payload", "encoding"))


class DeliveryView(MessageView, frozen=True, kw_only=True):
    queue: str
    topic: str | None
    receipt: str
    attempt: int
    deadline: datetime


class ReadyMessageView(MessageView, frozen=True, kw_only=True):
    topic: str | None
    attempt: int
    due_at: datetime | None
    error: str | None

    def ready(self, kind: Any = None) -> ReadyMessage[Any]:
        return ReadyMessage(
            **self.fields(kind), topic=self.topic, attempt=self.attempt, due_at=self.due_at, error=self.error
        )


class DeadLetterView(MessageView, frozen=True, kw_only=True):
    dead_id: int
    queue: str
    topic: str | None
    attempts: int
    error: str | None
    reason: str
    dead_at: datetime

    def dead_letter(self, kind: Any = None) -> DeadLetter[Any]:
        return DeadLetter(
            **self.fields(kind),
            topic=self.topic or "",
            dead_id=self.dead_id,
            attempts=self.attempts,
            error=self.error,
            reason=self.reason,
            dead_at=self.dead_at,
        )


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
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
    words: str
    """The cron expression in words."""
    next_at: datetime | None
    last_at: datetime | None
    last_id: UUID | None
    created_at: datetime

    def schedule(self) -> Schedule:
        same = {name: getattr(self, name) for name in self.__struct_fields__ if name not in ("payload", "encoding", "words")}
        return Schedule(**same, payload=payload_bytes(self.payload, self.encoding), content_type=JSON)
