"""Builds HTTP requests from deliveries."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import UUID

import msgspec

from trunkline.types import Delivery

# Characters that header values keep as they are. % is escaped, so that values can be decoded.
_PLAIN = "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~ "
_ALL_PLAIN = re.compile(r"[\x20-\x24\x26-\x7e]*")
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_MEDIA = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,198}")
_MAX_HEADERS = 8000
SNIPPET = 1000
READ_LIMIT = 64 * 1024
BATCH_READ_LIMIT = 1024 * 1024


class Prepared(NamedTuple):
    """A request without its timestamp and signature."""

    id: str
    body: bytes
    headers: dict[str, str]


def single(queue: str, delivery: Delivery[Any]) -> Prepared:
    """Prepare one message: the payload is the body."""
    headers = {
        "content-type": _media(delivery.content_type),
        "trunkline-queue": queue,
        "trunkline-attempt": str(delivery.attempt),
        "trunkline-created-at": delivery.created_at.isoformat(),
    }
    if delivery.topic is not None:
        headers["trunkline-topic"] = _quoted(delivery.topic)
    if delivery.routing_key is not None:
        headers["trunkline-routing-key"] = _quoted(delivery.routing_key)
    if delivery.key is not None:
        headers["trunkline-key"] = _quoted(delivery.key)
    if delivery.label is not None:
        headers["trunkline-label"] = _quoted(delivery.label)
    if delivery.occurred_at is not None:
        headers["trunkline-occurred-at"] = delivery.occurred_at.isoformat()
    if delivery.headers:
        text = _ascii_json(delivery.headers)
        if len(text) <= _MAX_HEADERS:
            headers["trunkline-headers"] = text
        trace = delivery.headers.get("traceparent")
        if isinstance(trace, str) and _TRACE.fullmatch(trace):
            headers["traceparent"] = trace
    return Prepared(str(delivery.id), delivery.payload, headers)


@lru_cache(maxsize=256)
def _media(content_type: str) -> str:
    return content_type if _MEDIA.fullmatch(content_type) else "application/octet-stream"


def _quoted(value: str) -> str:
    return value if _ALL_PLAIN.fullmatch(value) else quote(value, safe=_PLAIN)


def batch(items: Sequence[tuple[str, Delivery[Any]]]) -> Prepared:
    """Prepare several messages as a JSON array. The request id is derived from the message ids and attempts."""
    parts = []
    for queue, delivery in items:
        part: dict[str, Any] = {
            "id": delivery.id,
            "queue": queue,
            "topic": delivery.topic,
            "routing_key": delivery.routing_key,
            "key": delivery.key,
            "label": delivery.label,
            "headers": delivery.headers,
            "attempt": delivery.attempt,
            "created_at": delivery.created_at,
            "occurred_at": delivery.occurred_at,
            "content_type": delivery.content_type,
        }
        if delivery.content_type == "application/json" and _is_json(delivery.payload):
            part["body"] = msgspec.Raw(delivery.payload)
        else:
            part["body_base64"] = base64.b64encode(delivery.payload).decode()
        parts.append(part)
    digest = hashlib.sha256("".join(f"{delivery.id}.{delivery.attempt} " for _, delivery in items).encode())
    headers = {"content-type": "application/json", "trunkline-batch": str(len(items))}
    return Prepared(f"batch_{digest.hexdigest()[:32]}", msgspec.json.encode(parts), headers)


def trial(id: UUID) -> Prepared:
    """Prepare a test request."""
    body = msgspec.json.encode({"type": "trunkline.test", "id": str(id)})
    return Prepared(str(id), body, {"content-type": "application/json", "trunkline-test": "true", "trunkline-attempt": "1"})


def _is_json(payload: bytes) -> bool:
    """Check the payload before embedding it: invalid JSON would break the array."""
    try:
        msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def _ascii_json(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if _is_plain(text) else "".join(c if _is_plain(c) else _escaped(c) for c in text)


def _is_plain(text: str) -> bool:
    """JSON leaves DEL unescaped, but headers must not contain it."""
    return text.isascii() and text.isprintable()


def _escaped(char: str) -> str:
    """Return the JSON escape of a character."""
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[n] << 8 | units[n + 1]:04x}" for n in range(0, len(units), 2))
