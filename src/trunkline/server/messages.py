"""Parses messages in requests: one, a JSON array, NDJSON, or raw bytes."""

from __future__ import annotations

import base64
import binascii
import math
import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from trunkline.server.bodies import check_depth, check_json, check_value, too_large
from trunkline.server.problems import Problem, invalid, malformed
from trunkline.server.query import Param
from trunkline.server.request import Request
from trunkline.types import NewMessage

MAX_MESSAGES = 1000
JSON = "application/json"
NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")
_TEXT = "text/plain"
_ENVELOPES = (JSON, "", "application/x-www-form-urlencoded", _TEXT)
"""Content types of JSON messages. Without an explicit one, curl sends a form and fetch sends text."""
_LONGEST_DELAY = 365 * 86400


class Envelope(msgspec.Struct, kw_only=True, frozen=True):
    """A message with `payload` (any JSON) or `payload_base64` (bytes)."""

    payload: Raw | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET
    content_type: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    label: Annotated[str, Meta(max_length=200)] | None = None
    headers: dict[str, Any] | None = None
    key: Annotated[str, Meta(max_length=1000)] | None = None
    routing_key: Annotated[str, Meta(max_length=1000)] | None = None
    id: UUID | None = None
    occurred_at: Annotated[datetime, Meta(tz=True)] | None = None
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    delay_seconds: Annotated[float, Meta(ge=0, le=_LONGEST_DELAY)] | None = None
    deliver_at: Annotated[datetime, Meta(tz=True)] | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None


_FIELDS = frozenset(Envelope.__struct_fields__)
_decoder = msgspec.json.Decoder(Envelope)
_PAYLOAD = re.compile(rb'"payload"\s*:\s*')
_lines = msgspec.json.Decoder(list[Raw])

RAW_PARAMS = (
    Param(name="raw", kind=bool, default=False, words="Treat the body as the payload, regardless of its content type."),
    Param(name="key", words="Key, for raw bodies."),
    Param(name="routing_key", words="Routing key, for raw bodies."),
    Param(name="label", words="Label, for raw bodies."),
    Param(name="delay_seconds", kind=float, low=0, high=_LONGEST_DELAY, words="Delay in seconds, for raw bodies."),
    Param(name="deliver_at", kind=datetime, words="Earliest delivery time, for raw bodies."),
)
PRIORITY = Param(name="priority", kind=int, low=0, high=9, words="Priority from 0 (lowest), for raw bodies.")


class Sent(msgspec.Struct, frozen=True):
    """The parsed content of a publish request."""

    messages: list[NewMessage]
    single: bool


def media_type(request: Request) -> str:
    return _media_type(request.header("content-type") or "")


@lru_cache(maxsize=64)
def _media_type(text: str) -> str:
    return text.partition(";")[0].strip().lower()


def idempotency_key(request: Request) -> str | None:
    key = request.header("idempotency-key")
    if key is not None and not 1 <= len(key) <= 255:
        raise invalid(f"header idempotency-key must have 1 to 255 characters, got {len(key)}", "bad_idempotency_key")
    return key


async def read_messages(request: Request, query: dict[str, Any]) -> Sent:
    """Read the messages of a publish request that is not a stream."""
    kind = media_type(request)
    key = idempotency_key(request)
    trace = request.trace()
    limits = request.service.config
    if query["raw"] or (kind not in _ENVELOPES and not kind.endswith("+json")):
        body = await request.bytes()
        message = _raw(request, body, query, key, trace)
        return Sent([message], True)
    body = await request.bytes(limits.max_batch_body)
    first = body.lstrip()[:1]
    if not first:
        raise malformed("the body is empty", "missing_body")
    if kind == _TEXT and first not in (b"[", b"{"):
        if len(body) > limits.max_body:
            raise too_large(limits.max_body)
        return Sent([_raw(request, body, query, key, trace)], True)
    if first == b"[":
        check_depth(body, limits.max_depth)
        try:
            parts = _lines.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            check_json(body)
            raise malformed("the body is not a JSON array", "bad_json") from None
        return Sent(_batch([bytes(part) for part in parts], limits.max_depth, limits.max_body, key, trace), False)
    if len(body) > limits.max_body:
        raise too_large(limits.max_body)
    return Sent([message_of(body, limits.max_depth, key, trace)], True)


def _batch(parts: list[bytes], max_depth: int, max_body: int, key: str | None, trace: str | None) -> list[NewMessage]:
    if not parts:
        raise invalid("the batch is empty", "empty_batch")
    if len(parts) > MAX_MESSAGES:
        raise Problem(413, "batch_too_large", f"a batch must have at most {MAX_MESSAGES} messages, got {len(parts)}")
    messages = []
    for number, part in enumerate(parts):
        try:
            if len(part) > max_body:
                raise Problem(413, "body_too_large", f"larger than {max_body} bytes")
            messages.append(message_of(part, max_depth, None if key is None else f"{key}:{number}", trace))
        except Problem as exc:
            exc.detail = f"message {number}: {exc.detail}"
            raise
    return messages


def message_of(body: bytes, max_depth: int, key: str | None, trace: str | None) -> NewMessage:
    """Parse a message from an envelope."""
    check_depth(body, max_depth)
    try:
        envelope = _decoder.decode(body)
    except msgspec.ValidationError as exc:
        check_json(body)
        raise malformed(str(exc).replace("`", "'")) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        check_json(body)
        raise malformed(f"the body is not JSON: {exc}", "bad_json") from None
    payload = envelope.payload
    # the payload is opaque: only the envelope must be unambiguous
    around = body
    if not isinstance(payload, UnsetType):
        value = bytes(payload)
        check_value(value)
        around = _without(body, value)
    # a single key cannot be repeated
    alone = around is not body and around.count(b'"') == 2
    keys = ["payload"] if alone else check_json(around)
    unknown = [name for name in keys if name not in _FIELDS]
    if unknown:
        raise malformed(f"unknown message field {unknown[0][:50]!r}", "unknown_field")
    if envelope.payload is not UNSET and envelope.payload_base64 is not UNSET:
        raise invalid("a message must have either payload or payload_base64, got both")
    content, content_type = _content(envelope)
    if envelope.delay_seconds is not None and envelope.deliver_at is not None:
        raise invalid("specify either delay_seconds or deliver_at, got both")
    return NewMessage(
        body=content,
        content_type=content_type,
        key=envelope.key,
        routing_key=envelope.routing_key,
        label=envelope.label,
        headers=traced(envelope.headers, trace),
        id=envelope.id,
        occurred_at=envelope.occurred_at,
        idempotency_key=envelope.idempotency_key or key,
        delay=_delay(envelope.delay_seconds),
        deliver_at=envelope.deliver_at,
        priority=envelope.priority,
    )


def _without(body: bytes, value: bytes) -> bytes:
    """Return the body with its payload replaced by null."""
    for match in _PAYLOAD.finditer(body):
        if body.startswith(value, match.end()):
            return body[: match.end()] + b"null" + body[match.end() + len(value) :]
    return body


def _content(envelope: Envelope) -> tuple[bytes, str]:
    if not isinstance(envelope.payload, UnsetType):
        return bytes(envelope.payload), envelope.content_type or JSON
    if not isinstance(envelope.payload_base64, UnsetType):
        try:
            return base64.b64decode(
                envelope.payload_base64, validate=True
            ), envelope.content_type or "application/octet-stream"
        except (binascii.Error, ValueError):
            raise invalid("payload_base64 is not base64") from None
    raise invalid("payload: cannot be blank.")


def _raw(request: Request, body: bytes, query: dict[str, Any], key: str | None, trace: str | None) -> NewMessage:
    headers = {
        name[len(b"trunkline-header-") :].decode("latin-1"): value.decode("latin-1")
        for name, value in request.scope["headers"]
        if name.startswith(b"trunkline-header-")
    }
    if query["delay_seconds"] is not None and query["deliver_at"] is not None:
        raise invalid("specify either delay_seconds or deliver_at, got both")
    return NewMessage(
        body=body,
        content_type=request.header("content-type") or "application/octet-stream",
        key=query["key"],
        routing_key=query["routing_key"],
        label=query["label"],
        headers=traced(headers or None, trace),
        idempotency_key=key,
        delay=_delay(query["delay_seconds"]),
        deliver_at=query["deliver_at"],
        priority=query.get("priority"),
    )


def _delay(value: float | None) -> timedelta | None:
    return None if value is None or not math.isfinite(value) else timedelta(seconds=value)


def traced(headers: dict[str, Any] | None, trace: str | None) -> dict[str, Any] | None:
    """Add the request's W3C trace context to the headers, unless they have one."""
    if trace is None or len(trace) > 100 or (headers is not None and "traceparent" in headers):
        return headers
    return {**(headers or {}), "traceparent": trace}
