"""Builds the bytes of a binary COPY into a topic's table, without driver overhead per row."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from uuid import UUID

from trunkline.codec import EncodedMessage

COLUMNS = "id, message_id, key, routing_key, label, headers, payload, content_type, occurred_at, created_at"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_START = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
_END = struct.pack("!h", -1)
_NULL = struct.pack("!i", -1)
_LENGTH = struct.Struct("!i")
# column count; partition or log number and row id, each with its length; length of the message id
_ROW = struct.Struct("!hiiiqi")
_MOMENT = struct.Struct("!iq")


def new_ids(count: int, at: datetime) -> list[UUID]:
    """Return version 7 UUIDs of this time, in sort order."""
    milliseconds = int(at.timestamp() * 1000)
    stamp = (milliseconds & 0xFFFFFFFFFFFF) << 80 | 0x7 << 76 | 0x2 << 62
    noise = struct.unpack(f"!{count}Q", os.urandom(count * 8))
    # the 12 bits after the version count up, so that up to 4,096 ids sort in the order of the batch
    return [UUID(int=stamp | (number & 0xFFF) << 64 | bits >> 2) for number, bits in enumerate(noise)]


def rows(
    messages: Sequence[EncodedMessage],
    places: Sequence[int] | None,
    row_ids: Sequence[int],
    ids: Sequence[UUID],
    at: datetime,
) -> bytes:
    """Return the complete stream for `copy ... (place, COLUMNS) from stdin (format binary)`."""
    created = _moment(at)
    parts = [_START]
    add = parts.append
    for number, message in enumerate(messages):
        add(_ROW.pack(11, 4, 0 if places is None else places[number], 8, row_ids[number], 16))
        add(ids[number].bytes)
        add(_NULL if message.key is None else _text(message.key))
        add(_NULL if message.routing_key is None else _text(message.routing_key))
        add(_NULL if message.label is None else _repeated(message.label))
        # jsonb is sent as a version byte followed by text
        add(_NULL if message.headers is None else _sized(b"\x01" + message.headers.encode()))
        add(_LENGTH.pack(len(message.payload)))
        add(message.payload)
        add(_repeated(message.content_type))
        add(_NULL if message.occurred_at is None else _moment(message.occurred_at))
        add(created)
    add(_END)
    return b"".join(parts)


def fits(message: EncodedMessage, max_payload: int) -> bool:
    """Return whether the message is within the limits of the publish functions, which report what exceeds them."""
    return (
        len(message.payload) <= max_payload
        and len(message.content_type) <= 200
        and (message.key is None or len(message.key) <= 1000)
        and (message.routing_key is None or len(message.routing_key) <= 1000)
        and (message.label is None or len(message.label) <= 200)
    )


def _text(value: str) -> bytes:
    return _sized(value.encode())


_repeated = lru_cache(maxsize=256)(_text)
"""Cached, because labels and content types have few distinct values."""


def _sized(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value


def _moment(value: datetime) -> bytes:
    elapsed = value - _EPOCH
    return _MOMENT.pack(8, (elapsed.days * 86400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds)
