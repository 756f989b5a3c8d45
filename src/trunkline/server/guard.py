"""The guard around every request: limits, counters, the access log."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import msgspec
from litestar import Litestar
from litestar.types import Message, Receive, Scope, Send

from trunkline import telemetry
from trunkline.hints import Interface
from trunkline.server.browsers import foreign
from trunkline.server.compat import psqlqueue
from trunkline.server.config import Config
from trunkline.server.problems import MEDIA_TYPE, Problem, busy
from trunkline.server.request import ClientGone, Request
from trunkline.server.response import Response

log = logging.getLogger("trunkline.server")
_MAX_HEADERS = 64
_MAX_HEADER = 8192
_MAX_TARGET = 8192
_MAX_DRAIN = 65536
_MAX_DRAIN_TOO_LARGE = 1024**3
"""Bytes to discard of a body that is too large, so that clients that write before they read get the response."""
_MAX_DRAIN_CHUNKED = 64 * 1024 * 1024
_MAX_DISCARD = 8 * 1024 * 1024
_DISCARD_SECONDS = 30.0
_DISCARD_IDLE_SECONDS = 0.5
"""A client that sends nothing for this long may be waiting for the response."""
_CLOSE = (b"connection", b"close")


def problem_body(scope: Any, problem: Problem, words: Interface = "route") -> bytes:
    """Encode a problem in the form of the API that was called."""
    psql = scope["path"].startswith(f"{psqlqueue.PREFIX}/")
    return msgspec.json.encode(psqlqueue.details(problem, words) if psql else problem.details(words))


class _HeadSent(BaseException):
    """Ends a HEAD request after the response head. Not an Exception, so that no handler responds to it."""


class RequestGuard:
    """ASGI middleware around every request: limits, counters, access log."""

    def __init__(self, app: Litestar, config: Config) -> None:
        self.app = app
        self._config = config
        self._apis = {str(port): name for name, port in config.compat_ports.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if str(scope["type"]) == "http":
            await self._http(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _http(self, scope: Any, receive: Receive, send: Send) -> None:
        service = scope["trunkline_service"] = self.app.state.service
        api = self._apis.get(str(scope["server"][1]))
        if api is not None:
            # on its own port an API is at the root
            scope["trunkline_port"] = api
            scope["path"] = f"/compat/{api}{scope['path']}"
        start = time.perf_counter()
        status, size = 0, 0
        head = scope["method"] == "HEAD"
        if head:
            scope["method"], scope["trunkline_head"] = "GET", True

        async def tell(event: Message) -> None:
            nonlocal status, size
            if event["type"] == "http.response.start":
                status = event["status"]
                too_large, closes = status == 413, _CLOSE in event["headers"]
                drained = bool(scope.get("trunkline_body_read"))
                if not drained and "trunkline_stream" in scope:
                    drained = await _discard_stream(receive, _MAX_DISCARD)
                # after a body timeout (which also closes), do not wait for the body again
                elif not drained and (not closes or (too_large and not _awaits_consent(scope))):
                    drained = await _drained(scope, receive, _MAX_DRAIN_TOO_LARGE if too_large else _MAX_DRAIN)
                if not drained and not closes:
                    event = {**event, "headers": [*event["headers"], _CLOSE]}
                if head:
                    await send(event)
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    raise _HeadSent
            elif event["type"] == "http.response.body":
                size += len(event.get("body", b""))
            await send(event)

        service.under_way += 1
        try:
            refused = self._refusal(scope, service)
            if refused is not None:
                service.metrics.refused(refused.error)
                await _send(scope, receive, tell, refused)
                return
            tracer = telemetry.tracer()
            if tracer is None:
                await self.app(scope, receive, tell)
            else:
                with telemetry.request(tracer, scope["method"], _trace(scope["headers"])) as span:
                    await self.app(scope, receive, tell)
                    telemetry.responded(span, scope["method"], scope.get("trunkline_begun"), status)
        except _HeadSent:
            pass
        finally:
            service.under_way -= 1
            took = time.perf_counter() - start
            template = scope.get("trunkline_begun")
            if template is not None:
                service.metrics.ended(template)
            service.metrics.observed(template or "none", scope["method"], status or 499, took, size)
            if self._config.access_log:
                fields = {"method": scope["method"], "path": scope["path"], "status": status, "seconds": round(took, 6)}
                log.info("request", extra={"fields": fields})

    def _refusal(self, scope: Any, service: Any) -> Problem | None:
        headers = scope["headers"]
        if len(headers) > _MAX_HEADERS or max([len(name) + len(value) for name, value in headers], default=0) > _MAX_HEADER:
            return Problem(
                431, "headers_too_large", f"more than {_MAX_HEADERS} headers, or a header longer than {_MAX_HEADER} bytes"
            )
        if len(scope["path"]) + len(scope["query_string"]) > _MAX_TARGET:
            return Problem(414, "uri_too_long", f"the request target is longer than {_MAX_TARGET} bytes")
        if "\x00" in scope["path"] or "//" in scope["path"] or "\ufffd" in scope["path"] or _hides_a_slash(scope):
            return Problem(400, "bad_path", "the path is not valid")
        if service.auth.open and (refused := foreign(headers, self._config.host)) is not None:
            return refused
        if service.under_way > self._config.max_requests:
            return busy("too many concurrent requests")
        return None


def _awaits_consent(scope: Any) -> bool:
    """Return whether the client sends its body only after a 100 Continue, which reading would send."""
    return any(name == b"expect" for name, _ in scope["headers"])


async def _drained(scope: Any, receive: Receive, limit: int) -> bool:
    """Read an unused body, unless it is large. Return whether the connection can be reused.

    The HTTP server silently closes a connection with an unread body, so the next request on it would fail.
    """
    length = 0
    for name, value in scope["headers"]:
        if name == b"transfer-encoding":
            if limit <= _MAX_DRAIN:
                return False
            # of unknown length, and perhaps without an end
            length = limit = _MAX_DRAIN_CHUNKED
        if name == b"content-length":
            length = int(value)
    if length == 0:
        return True
    if length > limit:
        return False
    try:
        # with the usual size and time limits
        async for _ in Request(scope, receive).parts(limit):
            pass
    except (Problem, ClientGone):
        return False
    return True


async def _discard_stream(receive: Receive, limit: int) -> bool:
    """Discard the rest of a failed stream while it keeps arriving: its client may not read before it has written.

    Return whether the connection can be reused.
    """
    end = time.monotonic() + _DISCARD_SECONDS
    size = 0
    while size < limit and time.monotonic() < end:
        try:
            async with asyncio.timeout(_DISCARD_IDLE_SECONDS):
                event: Any = await receive()
        except TimeoutError:
            return False
        size += len(event.get("body", b""))
        if not event.get("more_body", False):
            return bool(event["type"] != "http.disconnect")
    return False


def _trace(headers: Any) -> dict[str, str]:
    return {name.decode(): value.decode("latin-1") for name, value in headers if name in (b"traceparent", b"tracestate")}


def _hides_a_slash(scope: Any) -> bool:
    """Detect an encoded slash: a proxy that authorises by path would see a different one."""
    raw = scope.get("raw_path") or b""
    return b"%" in raw and b"%2f" in raw.lower()


async def _send(scope: Any, receive: Receive, send: Send, problem: Problem) -> None:
    response = Response(problem_body(scope, problem), problem.status, MEDIA_TYPE, problem.headers)
    await response(scope, receive, send)
