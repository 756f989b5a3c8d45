"""Encodes messages for the server, in batches within its limits."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import msgspec

from trunkline.codec import JSON, encode_message
from trunkline.http_client.transport import given
from trunkline.types import NewMessage

NDJSON = "application/x-ndjson"
MAX_MESSAGES = 1000
# the server's limit is 8 MiB
MAX_BYTES = 7 * 1024 * 1024


def envelope(message: NewMessage) -> bytes:
    """Encode a message as JSON. A JSON payload is embedded unchanged, any other in base64."""
    encoded = encode_message(message)
    fields = given(
        content_type=encoded.content_type,
        key=encoded.key,
        routing_key=encoded.routing_key,
        label=encoded.label,
        headers=message.headers,
        id=encoded.id,
        occurred_at=encoded.occurred_at,
        idempotency_key=encoded.idempotency_key,
        delay_seconds=None if encoded.delay is None else encoded.delay.total_seconds(),
        deliver_at=encoded.deliver_at,
        priority=encoded.priority,
    )
    if encoded.content_type == JSON and _goes_as_it_is(message.body, encoded.payload):
        return msgspec.json.encode({"payload": msgspec.Raw(encoded.payload), **fields})
    return msgspec.json.encode({"payload_base64": base64.b64encode(encoded.payload).decode(), **fields})


def _goes_as_it_is(body: Any, payload: bytes) -> bool:
    """Return whether the payload can be embedded as JSON. A body of bytes must arrive unchanged, valid JSON or not."""
    if not isinstance(body, bytes | bytearray | memoryview):
        return True
    try:
        msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return payload == payload.strip()


def batches(messages: Iterable[NewMessage]) -> Iterator[list[bytes]]:
    """Yield encoded messages in batches within the server's limits of an array."""
    batch: list[bytes] = []
    size = 0
    for message in messages:
        text = envelope(message)
        if batch and (len(batch) == MAX_MESSAGES or size + len(text) > MAX_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text) + 1
    if batch:
        yield batch


def array(batch: list[bytes]) -> bytes:
    return b"[" + b",".join(batch) + b"]"


async def lines(batches: Iterable[list[bytes]]) -> AsyncIterator[bytes]:
    """Yield messages as lines of JSON, a batch at a time."""
    for batch in batches:
        yield b"\n".join(batch) + b"\n"
