"""One POST over aiohttp's connection pool, bypassing its session, which costs more than the rest of a delivery.

aiohttp provides the connector (DNS, TLS, keep-alive), the protocol and the parser. There are no cookies, redirects,
proxies, compression or retries.
"""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import Mapping
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader
from yarl import URL

_AT_ONCE = 64 * 1024
"""Bodies up to this size are sent in one write with the head."""
_MOST_TARGETS = 1000
_MOST_INTERIM = 8
"""Limit of interim responses (1xx). An endless stream of them would keep the event loop busy."""
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f]")
# the caller limits the time of the whole exchange
_NO_TIMEOUT = aiohttp.ClientTimeout()


class NotHttp(aiohttp.ClientError):
    """The response is not valid HTTP."""


class Http1Reply:
    """The head of a response. Read its body to release the connection."""

    __slots__ = ("_connection", "_content", "_protocol", "headers", "status")

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str],
        content: StreamReader,
        connection: Connection,
        protocol: ResponseHandler,
    ) -> None:
        self.status = status
        self.headers = headers
        self._content = content
        self._connection = connection
        self._protocol = protocol

    async def read(self, limit: int) -> bytes:
        """Read up to `limit` bytes of the body. If more remains, close the connection."""
        parts: list[bytes] = []
        size = 0
        try:
            while size < limit and not self._content.at_eof():
                parts.append(await self._content.readany())
                size += len(parts[-1])
        except HttpProcessingError as exc:
            _give_up(self._connection, self._protocol)
            raise NotHttp from exc
        except BaseException:
            _give_up(self._connection, self._protocol)
            raise
        transport = self._protocol.transport
        if transport is None or transport.get_write_buffer_size():
            # the receiver replied before reading the whole request
            _give_up(self._connection, self._protocol)
        else:
            # keep-alive, unless unread data remains
            self._connection.release()
        return b"".join(parts)[:limit] if parts else b""


class Http1:
    """Sends requests over a connector's connections."""

    def __init__(self, connector: aiohttp.TCPConnector) -> None:
        self._connector = connector
        self._targets: dict[str, tuple[aiohttp.ClientRequest, str]] = {}
        self._used: WeakSet[ResponseHandler] = WeakSet()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Http1Reply:
        """Send a request and return the head of the response."""
        request, start = self._targets.get(url) or self._read(url)
        values = "".join(headers.values())
        if _FORBIDDEN.search(values) is not None:
            raise ValueError("a header value contains control characters")
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        head = f"{start}{lines}content-length: {len(body)}\r\n\r\n".encode()
        connection, protocol = await self._connect(request)
        try:
            protocol.set_response_params(read_until_eof=True, auto_decompress=False)
            _write(protocol.transport, head, body)
            for _ in range(1 + _MOST_INTERIM):
                message, content = await protocol.read()
                # skip interim responses
                if not 100 <= message.code < 200 or message.code == 101:
                    return Http1Reply(message.code, message.headers, content, connection, protocol)
            raise NotHttp(f"more than {_MOST_INTERIM} interim responses")
        except HttpProcessingError as exc:
            _give_up(connection, protocol)
            raise NotHttp from exc
        except BaseException:
            _give_up(connection, protocol)
            raise

    async def _connect(self, request: aiohttp.ClientRequest) -> tuple[Connection, ResponseHandler]:
        """Return a connection without unread data, which would be taken for the response to the next request."""
        while True:
            connection = await self._connector.connect(request, [], _NO_TIMEOUT)
            protocol = connection.protocol
            assert protocol is not None  # noqa: S101
            if protocol not in self._used:
                self._used.add(protocol)
                return connection, protocol
            if not _has_unread(protocol):
                return connection, protocol
            connection.close()

    def _read(self, url: str) -> tuple[aiohttp.ClientRequest, str]:
        """Prepare the parts common to all requests to this url."""
        try:
            request = aiohttp.ClientRequest("POST", URL(url), loop=asyncio.get_running_loop())
        except ValueError:
            raise aiohttp.InvalidURL(url) from None
        if len(self._targets) >= _MOST_TARGETS:
            self._targets.clear()
        start = f"POST {request.url.raw_path_qs} HTTP/1.1\r\nhost: {request.headers['host']}\r\n"
        self._targets[url] = request, start
        return request, start


def _has_unread(protocol: ResponseHandler) -> bool:
    """Check a kept connection for unread data or a close, in the protocol or the socket."""
    transport = protocol.transport
    if protocol.should_close or transport is None:
        return True
    poller = select.poll()
    poller.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poller.poll(0))


def _write(transport: asyncio.Transport | None, head: bytes, body: bytes) -> None:
    if transport is None or transport.is_closing():
        raise aiohttp.ClientConnectionResetError("the connection was closed before the request was sent")
    if len(body) <= _AT_ONCE:
        transport.write(head + body)
    else:
        transport.write(head)
        transport.write(body)


def _give_up(connection: Connection, protocol: ResponseHandler) -> None:
    transport = protocol.transport
    if transport is not None and transport.get_write_buffer_size():
        # otherwise it would stay open until the receiver reads the rest
        transport.abort()
    connection.close()
