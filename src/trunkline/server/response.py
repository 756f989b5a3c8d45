"""Responses: lighter than those of the framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from litestar.types import Receive, Scope, Send

JSON = "application/json"
SAFE = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
"""Headers of every response."""


class Response:
    """A response ready to send. Litestar's own costs more than most of our routes do."""

    __slots__ = ("_body", "_headers", "_status")

    def __init__(
        self, body: bytes, status: int = 200, media_type: str | None = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        self._body = body
        self._status = status
        self._headers: list[tuple[bytes, bytes]]
        if media_type is None:
            self._headers = [*SAFE]
        else:
            self._headers = [*SAFE, (b"content-type", media_type.encode()), (b"content-length", b"%d" % len(body))]
        if headers:
            self._headers += [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self._status, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._body, "more_body": False})


def respond(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(msgspec.json.encode(value), status, JSON, headers)


def nothing(headers: Mapping[str, str] | None = None) -> Response:
    """Return a 204 response."""
    return Response(b"", 204, None, headers)
