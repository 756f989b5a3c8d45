"""Encoding of message bodies: bytes are sent unchanged, everything else as JSON.

Values that JSON would change silently are rejected, with their path. Plain containers may hold values that JSON can
represent: text, finite numbers, true, false and null, and also UUIDs, dates, times with a zone and enums, which become
text. Records (dataclasses, msgspec Structs, Pydantic models) declare the types of their fields, so they may also hold
sets, Decimals and bytes, which decode to their original types.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import re
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from typing import Any
from uuid import UUID

import msgspec

from trunkline.errors import InvalidArgument, InvalidType, InvalidValue
from trunkline.settings import parse_duration
from trunkline.types import Duration, NewMessage, Position

JSON = "application/json"
BYTES = "application/octet-stream"
_DEEPEST = 200
_LONGEST_ERROR = 10_000
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN = frozenset((str, int, bool, type(None)))
_BINARY = (bytes, bytearray, memoryview)


def error_text(text: str | None) -> str | None:
    """Return the text of an error as Postgres can store it.

    A message must not stay unsettled because of what its handler's exception says.
    """
    return None if text is None else _NOT_TEXT.sub("\ufffd", text[:_LONGEST_ERROR])


class InvalidBody(InvalidValue):
    """A payload is not JSON, or cannot be decoded into the requested type."""

    code = "invalid_body"


def encode(body: Any, content_type: str | None = None) -> tuple[bytes, str]:
    """Return a body's bytes and content type. Raises `InvalidArgument` with the path of an invalid value."""
    if content_type is not None and "pickle" in content_type:
        raise InvalidValue(f"content type {content_type} is not allowed: unpickling can run arbitrary code")
    # a tuple: a union would be created in each call
    if isinstance(body, _BINARY):
        return bytes(body), content_type or BYTES
    if content_type is not None and not _is_json(content_type):
        raise InvalidType(
            f"a body of type {type(body).__name__} cannot be sent as {content_type}, only as JSON; encode it to bytes first"
        )
    return to_json(body), content_type or JSON


def to_json(value: Any) -> bytes:
    """Encode a value as JSON. Raises `InvalidArgument` with the path of a value that JSON would change."""
    try:
        _check(value, (), False)
        return _encoder.encode(value)
    except RecursionError:
        raise InvalidValue("the body is nested too deeply, or contains itself") from None
    except UnicodeEncodeError:
        raise InvalidValue(f"the body has text that is not valid Unicode at {_place(_bad_text(value, ()) or ())}") from None
    except (TypeError, ValueError) as exc:
        if isinstance(exc, InvalidArgument):
            raise
        raise InvalidValue(f"the body cannot be encoded as JSON: {exc}") from exc


def headers_json(headers: Mapping[str, Any] | None) -> str | None:
    """Headers as JSON text."""
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise InvalidType(f"headers must be a mapping of names to values, got {type(headers).__name__}")
    return to_json(headers).decode()


@cache
def decoder(kind: Any) -> Callable[[bytes, str], Any]:
    """Return a function that decodes a payload with its content type into a body of this type.

    Without a type, JSON becomes Python objects and other payloads stay bytes. `bytes` leaves every payload unchanged.
    """
    if kind is bytes:
        return lambda payload, content_type: payload
    if kind is None:
        return _decode_untyped
    typed: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind, dec_hook=_dec_hook)

    def decode(payload: bytes, content_type: str) -> Any:
        try:
            return typed.decode(payload)
        except ValueError as exc:
            name = getattr(kind, "__name__", kind)
            raise InvalidBody(f"the payload is not a {name}: {exc}", hint="Bury the message, or read it as bytes.") from exc

    return decode


def _decode_untyped(payload: bytes, content_type: str) -> Any:
    if not _is_json(content_type):
        return payload
    try:
        return msgspec.json.decode(payload)
    except ValueError as exc:
        raise InvalidBody(f"the payload is not JSON: {exc}", hint="Bury the message, or read its payload.") from exc


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind.endswith(("/json", "+json"))


# Pydantic is optional: a model can only occur if the application has loaded the module.


def _is_model(value: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.BaseModel)


def _enc_hook(value: Any) -> Any:
    if _is_model(value):
        return value.model_dump(mode="json")
    raise InvalidType(f"{type(value).__name__} cannot be sent as JSON")


def _dec_hook(kind: Any, value: Any) -> Any:
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        validate: Callable[[Any], Any] = kind.model_validate  # type: ignore[attr-defined]
        return validate(value)
    raise InvalidType(f"{getattr(kind, '__name__', kind)} is not a type that JSON can be decoded into")


_encoder = msgspec.json.Encoder(enc_hook=_enc_hook)


# Checks for values that JSON would change: msgspec silently writes NaN as null and sets as lists.


def _check(value: Any, path: tuple[Any, ...], typed: bool) -> None:
    kind = type(value)
    if kind in _PLAIN:
        return
    if len(path) > _DEEPEST:
        raise InvalidValue(f"the body is nested more than {_DEEPEST} levels deep, or contains itself")
    if kind is dict or isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str | int | UUID | enum.Enum) or isinstance(key, bool):
                raise InvalidType(f"the body has a key of type {type(key).__name__} at {_place(path)}; JSON keys are text")
            if type(inner) not in _PLAIN:
                _check(inner, (*path, key), typed)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            if type(inner) not in _PLAIN:
                _check(inner, (*path, number), typed)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidValue(f"the body has {value} at {_place(path)}; JSON has no such number")
    else:
        _check_rare(value, path, typed)


def _check_rare(value: Any, path: tuple[Any, ...], typed: bool) -> None:
    if isinstance(value, datetime.datetime | datetime.time):
        if value.tzinfo is None:
            raise InvalidValue(f"the body has a time without a zone at {_place(path)}; add one, such as datetime.UTC")
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _check(getattr(value, name), (*path, name), True)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _check(getattr(value, field.name), (*path, field.name), True)
    elif _is_model(value):
        _check(value.model_dump(mode="json"), path, True)
    elif isinstance(value, set | frozenset):
        if not typed:
            raise InvalidType(
                f"the body has a {type(value).__name__} at {_place(path)}; JSON has only lists: sort it into one"
            )
        for inner in value:
            _check(inner, (*path, inner), True)
    elif isinstance(value, bytes | bytearray | memoryview):
        if not typed:
            raise InvalidType(f"the body has bytes at {_place(path)}; send bytes as the whole body, or write them as text")
    elif isinstance(value, Decimal):
        if not typed:
            raise InvalidType(f"the body has a Decimal at {_place(path)}; send str(...) or float(...)")
        if not value.is_finite():
            raise InvalidValue(f"the body has {value} at {_place(path)}; JSON has no such number")
    elif not isinstance(value, str | int | UUID | datetime.date | datetime.timedelta | enum.Enum | msgspec.Raw):
        raise InvalidType(f"the body has a {type(value).__name__} at {_place(path)}, which cannot be sent as JSON")


def _bad_text(value: Any, path: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the path of text that is not valid Unicode, or None if it is not in a plain container."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return next((bad for step, inner in pairs if (bad := _bad_text(inner, (*path, step))) is not None), None)


def _place(path: tuple[Any, ...]) -> str:
    """Format a path in the body, such as `$.order.lines[2]`. Long paths are truncated."""
    text = "$"
    for step in path[:20]:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text + (" ..." if len(path) > 20 else "")


# Messages


class EncodedMessage(msgspec.Struct, frozen=True):
    """A message ready to be sent: validated and converted to database types."""

    payload: bytes
    content_type: str
    key: str | None = None
    routing_key: str | None = None
    label: str | None = None
    headers: str | None = None
    id: UUID | None = None
    occurred_at: datetime.datetime | None = None
    idempotency_key: str | None = None
    delay: datetime.timedelta | None = None
    deliver_at: datetime.datetime | None = None
    priority: int | None = None

    @property
    def plain(self) -> bool:
        """True if the fast path can take it: no idempotency key (which an id is too), delay or priority."""
        special = (self.idempotency_key, self.id, self.delay, self.deliver_at, self.priority)
        return all(value is None for value in special)


def encode_message(message: NewMessage) -> EncodedMessage:
    """Encode a message for the database. Raises `InvalidArgument` before anything is sent."""
    payload, content_type = encode(message.body, message.content_type)
    return EncodedMessage(
        payload,
        _text("content_type", content_type) or content_type,
        _text("key", message.key),
        _text("routing_key", message.routing_key),
        _text("label", message.label),
        headers_json(message.headers),
        _uuid(message.id),
        _moment("occurred_at", message.occurred_at),
        _text("idempotency_key", message.idempotency_key),
        duration(message.delay),
        _moment("deliver_at", message.deliver_at),
        message.priority,
    )


def duration(value: Duration | None) -> datetime.timedelta | None:
    """Convert a duration given as text or as a timedelta."""
    if isinstance(value, str):
        return parse_duration(value)
    if value is None or isinstance(value, datetime.timedelta):
        return value
    raise InvalidType(f"a duration must be a timedelta or text such as '30s', got {type(value).__name__}")


def position_text(value: Position) -> str:
    """Return a log position in the database's text form."""
    if isinstance(value, datetime.datetime):
        moment = _moment("a log position", value)
        assert moment is not None  # noqa: S101
        return moment.isoformat()
    return str(value)


def _text(field: str, value: str | None) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidType(f"{field} must be a string, got {type(value).__name__}")
    if value is not None and not value.isascii() and _LONE_SURROGATE.search(value):
        raise InvalidValue(f"{field} is not valid Unicode: {value!a}")
    return value


def _uuid(value: UUID | str | None) -> UUID | None:
    if not isinstance(value, str):
        return value
    try:
        return UUID(value)
    except ValueError:
        raise InvalidValue(f'id must be a UUID, got "{value}"') from None


def _moment(field: str, value: datetime.datetime | None) -> datetime.datetime | None:
    if value is not None and value.tzinfo is None:
        raise InvalidValue(f"{field} must have a time zone, such as datetime.UTC")
    if value is not None and value.year in (1, 9999):
        try:
            value.astimezone(datetime.UTC)
        except OverflowError:
            raise InvalidValue(f"{field} must be in the years 1 to 9999 (UTC), got {value.isoformat()}") from None
    return value
