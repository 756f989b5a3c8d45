"""Reads bodies from arguments, files and stdin. Large input is never read as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import msgspec

from trunkline.errors import InvalidArgument, NotFound
from trunkline.types import NewMessage

JSON = "application/json"
_CHUNK = 256 * 1024
# The largest payload a topic can allow. A longer line is not NDJSON.
_LONGEST_LINE = 64 * 1024 * 1024


class InvalidLine(InvalidArgument):
    """An input line is not a valid message."""

    code = "invalid_line"


class UnreadableFile(NotFound):
    """A file is missing, is not a regular file, or is not readable."""

    code = "unreadable_file"


class MessageLine(msgspec.Struct, forbid_unknown_fields=False, kw_only=True):
    """A line of `--envelope`, as written by `topic read -o jsonl` and `dead export`. Unknown fields are ignored."""

    body: msgspec.Raw = msgspec.Raw()
    payload_base64: bytes | None = None
    content_type: str = JSON
    key: str | None = None
    routing_key: str | None = None
    label: str | None = None
    headers: dict[str, Any] | None = None
    id: UUID | None = None
    occurred_at: datetime | None = None
    idempotency_key: str | None = None


_envelopes = msgspec.json.Decoder(MessageLine)


def check_body(payload: bytes, content_type: str) -> bytes:
    """Encode the payload, checking it against its content type."""
    if content_type != JSON:
        return payload
    try:
        payload.decode()
        # parses numbers without converting them, so any valid JSON passes
        msgspec.json.format(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidArgument(
            f"the body is not valid JSON: {exc}", hint="Quote it for the shell, or set --content-type text/plain."
        ) from None
    return payload


def whole_file(path: str, limit: int) -> bytes:
    """Read a file (or stdin for `-`) as one body of at most `limit` bytes."""
    content = bytearray()
    for chunk in _chunks(open_input(path)):
        content += chunk
        if len(content) > limit:
            raise InvalidArgument(f"{path} is larger than the payload limit of {limit} bytes")
    return bytes(content)


def open_input(path: str | None) -> int:
    """Open a file, or stdin for None and `-`, and return its descriptor."""
    if path is None or path == "-":
        if sys.stdin is None:
            raise click.UsageError("no input: stdin is closed; specify a body or --file")
        return os.dup(0)
    try:
        descriptor = os.open(Path(path), os.O_RDONLY)
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or str(exc)
        raise UnreadableFile(f"cannot read {path}: {reason}") from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode) or stat.S_ISBLK(mode):
        os.close(descriptor)
        raise UnreadableFile(f"{path} is a {'directory' if stat.S_ISDIR(mode) else 'device'}, not a file")
    return descriptor


def _chunks(descriptor: int) -> Iterator[bytes]:
    """Read available data. Unbuffered: a thread that blocks in a buffered reader would block the process exit."""
    try:
        while chunk := os.read(descriptor, _CHUNK):
            yield chunk
    except OSError as exc:
        raise UnreadableFile(f"cannot read the input: {exc.strerror}") from None
    finally:
        os.close(descriptor)


class InputLine(msgspec.Struct, frozen=True):
    """A non-empty line and its number, counted from 1."""

    number: int
    text: bytes


def _lines(descriptor: int) -> Iterator[list[InputLine]]:
    """Yield lines in groups as they arrive. The last line needs no newline."""
    rest, number = bytearray(), 0
    for chunk in _chunks(descriptor):
        rest += chunk
        if b"\n" in chunk:
            *complete, tail = rest.split(b"\n")
            rest = bytearray(tail)
            yield [InputLine(number + place, bytes(text)) for place, text in enumerate(complete, 1) if text.strip()]
            number += len(complete)
        if len(rest) > _LONGEST_LINE:
            raise InvalidLine(
                f"line {number + 1} is longer than {_LONGEST_LINE} bytes", hint="Write one JSON value per line."
            )
    if rest.strip():
        yield [InputLine(number + 1, bytes(rest))]


async def lines(descriptor: int) -> AsyncIterator[list[InputLine]]:
    """Yield lines without blocking the event loop. A thread reads, and waits while the consumer is busy."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Queue[list[InputLine] | BaseException | None] = asyncio.Queue(2)

    def read() -> None:
        last: BaseException | None = None
        try:
            for some in _lines(descriptor):
                if some:
                    asyncio.run_coroutine_threadsafe(ready.put(some), loop).result()
        except BaseException as exc:
            last = exc
        with contextlib.suppress(RuntimeError):  # the event loop has been closed
            loop.call_soon_threadsafe(lambda: asyncio.ensure_future(ready.put(last)))

    # a daemon, because a blocked read must not keep the process alive
    threading.Thread(target=read, daemon=True, name="input").start()
    while True:
        some = await ready.get()
        if some is None:
            return
        if isinstance(some, BaseException):
            raise some
        yield some


def message_of(line: InputLine, *, envelope: bool, content_type: str = JSON, **fields: Any) -> NewMessage:
    """Parse a line as a message, or raise `InvalidLine` with its number."""
    try:
        if not envelope:
            payload = check_body(line.text.strip() if content_type == JSON else line.text, content_type)
            return NewMessage(body=payload, content_type=content_type, **fields)
        decoded = _envelopes.decode(line.text)
        own = {
            name: getattr(decoded, name)
            for name in ("key", "routing_key", "label", "headers", "id", "occurred_at", "idempotency_key")
        }
        fields |= {name: value for name, value in own.items() if value is not None}
        return NewMessage(body=_envelope_payload(decoded), content_type=decoded.content_type, **fields)
    except (InvalidArgument, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        words = exc.message if isinstance(exc, InvalidArgument) else str(exc)
        raise InvalidLine(
            f"line {line.number}: {words}", hint="Use --continue-on-error to skip and count such lines."
        ) from None


def _envelope_payload(envelope: MessageLine) -> bytes:
    if envelope.payload_base64 is not None:
        return envelope.payload_base64
    if not bytes(envelope.body):
        raise InvalidArgument("body or payload_base64 is required")
    if envelope.content_type.startswith("text/"):
        return str(msgspec.json.decode(envelope.body, type=str)).encode()
    return bytes(envelope.body)


def parse_headers(pairs: tuple[str, ...]) -> dict[str, Any] | None:
    """Parse `name=value` pairs."""
    headers: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"must be NAME=VALUE, got {pair!r}", param_hint="'-H'")
        if name in headers:
            raise click.BadParameter(f"{name!r} must be given only once", param_hint="'-H'")
        headers[name] = value
    return headers or None
