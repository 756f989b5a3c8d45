"""One POST on a connection of aiohttp's pool, without its session: that costs more than all the rest of a delivery.

Of aiohttp are the connector (names, TLS, connections that are kept), its protocol and its parser. Cookies, redirects,
proxies, compression and retries do not exist here.
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
"""Bodies up to this size go out together with their head."""
_MOST_TARGETS = 1000
_MOST_INTERIM = 8
"""Interim responses (1xx) before the response. A receiver that sends them without end would keep the event loop busy."""
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f]")
# the whole exchange has a time limit, so that its parts need none
_NO_TIMEOUT = aiohttp.ClientTimeout()


class NotHttp(aiohttp.ClientError):
    """What came back cannot be read."""


class Reply:
    """The head of an answer. Its body must be read: that ends the use of the connection."""

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
        """The start of the body; of a longer one the rest is not read and its connection is given up."""
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
            # it answered without reading all of the request
            _give_up(self._connection, self._protocol)
        else:
            # kept for the next request, unless there is more of the answer
            self._connection.release()
        return b"".join(parts)[:limit] if parts else b""


class Wire:
    """Makes requests with the connections of a connector."""

    def __init__(self, connector: aiohttp.TCPConnector) -> None:
        self._connector = connector
        self._targets: dict[str, tuple[aiohttp.ClientRequest, str]] = {}
        self._used: WeakSet[ResponseHandler] = WeakSet()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Send it and answer the head of what comes back."""
        request, start = self._targets.get(url) or self._read(url)
        values = "".join(headers.values())
        if _FORBIDDEN.search(values) is not None:
            raise ValueError("a header has characters that do not belong there")
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        head = f"{start}{lines}content-length: {len(body)}\r\n\r\n".encode()
        connection, protocol = await self._connect(request)
        try:
            protocol.set_response_params(read_until_eof=True, auto_decompress=False)
            _write(protocol.transport, head, body)
            for _ in range(1 + _MOST_INTERIM):
                message, content = await protocol.read()
                # before the response there may be others that only say that it takes a while
                if not 100 <= message.code < 200 or message.code == 101:
                    return Reply(message.code, message.headers, content, connection, protocol)
            raise NotHttp(f"more than {_MOST_INTERIM} interim responses")
        except HttpProcessingError as exc:
            _give_up(connection, protocol)
            raise NotHttp from exc
        except BaseException:
            _give_up(connection, protocol)
            raise

    async def _connect(self, request: aiohttp.ClientRequest) -> tuple[Connection, ResponseHandler]:
        """A connection on which nothing has arrived: what did would be taken for the response to the next request."""
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
        """What all requests to this url have in common."""
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
    """Whether something has arrived on a kept connection, or its end: in the protocol, or in the socket."""
    transport = protocol.transport
    if protocol.should_close or transport is None:
        return True
    poller = select.poll()
    poller.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poller.poll(0))


def _write(transport: asyncio.Transport | None, head: bytes, body: bytes) -> None:
    if transport is None or transport.is_closing():
        raise aiohttp.ClientConnectionResetError("the connection was closed meanwhile")
    if len(body) <= _AT_ONCE:
        transport.write(head + body)
    else:
        transport.write(head)
        transport.write(body)


def _give_up(connection: Connection, protocol: ResponseHandler) -> None:
    transport = protocol.transport
    if transport is not None and transport.get_write_buffer_size():
        # else it would stay open until the receiver takes the rest
        transport.abort()
    connection.close()
