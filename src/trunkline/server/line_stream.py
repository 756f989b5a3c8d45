"""NDJSON streams: published while they arrive, in one transaction that commits when the stream ends.

A stream that fails anywhere (an invalid line, a lost client or server, a limit) therefore stores nothing, and a long one
is never in memory as a whole. The open transaction delays no reader but holds a connection, so streams are few and short.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from trunkline.db.pool import Connection
from trunkline.runtime.publisher import MAX_BYTES, MAX_MESSAGES, send
from trunkline.server.limits import Limits, limited
from trunkline.server.messages import message_of
from trunkline.server.problems import Problem, body_timeout, invalid
from trunkline.server.request import Request
from trunkline.server.views import PublishedView
from trunkline.types import NewMessage, Published

_encode = msgspec.json.Encoder().encode


class Splitter:
    """Splits a body into lines while it arrives. Each byte is copied once, however small the parts."""

    def __init__(self) -> None:
        self.rest = bytearray()
        """The incomplete last line."""

    def feed(self, part: bytes) -> list[bytes]:
        """Return the lines that this part completes, without blank ones."""
        self.rest += part
        if b"\n" not in part:
            return []
        *whole, self.rest = self.rest.split(b"\n")
        return [bytes(line) for line in whole if line.strip()]


async def lines(request: Request) -> AsyncIterator[bytes]:
    """Yield the lines of a body as they arrive, without blank ones."""
    config = request.service.config
    splitter = Splitter()
    async for part in request.parts(config.max_stream_body):
        for line in splitter.feed(part):
            yield line
        if len(splitter.rest) > config.max_body:
            break
    if splitter.rest.strip():
        yield bytes(splitter.rest)


class LineStream:
    """A request that publishes an NDJSON stream."""

    def __init__(self, request: Request, kind: str, name: str, key: str | None, trace: str | None) -> None:
        self._request = request
        self._kind = kind
        self._name = name
        self._key = key
        self._trace = trace
        self._batch: list[NewMessage] = []
        self._size = 0
        self.count = 0
        self.views: list[bytes] = []
        """The stored messages, encoded for the response."""

    async def publish(self) -> None:
        """Read and store all lines. On any error nothing is stored."""
        self._request.scope["trunkline_stream"] = True  # type: ignore[typeddict-unknown-key]
        async with AsyncExitStack() as stack:
            conn: Connection | None = None
            async for line in lines(self._request):
                message = self._read(line)
                if len(self._batch) == MAX_MESSAGES or self._size + len(message.body) > MAX_BYTES:
                    if conn is None:
                        # hold a connection only once the first batch is full
                        conn = await stack.enter_async_context(self._transaction())
                    await self._flush(conn)
                self._batch.append(message)
                self._size += len(message.body)
            if not self.count:
                raise invalid("the batch is empty", "empty_batch")
            if conn is None:
                await self._store_at_once()
            else:
                await self._flush(conn)
        if conn is not None:
            self._request.mq.session.wakeup.published(self._kind, self._name)

    def _read(self, line: bytes) -> NewMessage:
        config = self._request.service.config
        number, self.count = self.count, self.count + 1
        try:
            if number == config.max_stream:
                raise Problem(413, "batch_too_large", f"a stream must have at most {config.max_stream} messages")
            if len(line) > config.max_body:
                raise Problem(413, "body_too_large", f"larger than {config.max_body} bytes")
            return message_of(line, config.max_depth, None if self._key is None else f"{self._key}:{number}", self._trace)
        except Problem as exc:
            exc.detail = f"message {number}: {exc.detail}"
            # the rest of the stream is not read
            exc.headers = {**exc.headers, "connection": "close"}
            raise

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Connection]:
        service = self._request.service
        try:
            with service.streaming(), limited(Limits(seconds=service.config.stream_seconds + 1)):
                async with (
                    asyncio.timeout(service.config.stream_seconds),
                    self._request.writing() as conn,
                    conn.transaction(),
                ):
                    yield conn
        except TimeoutError:
            raise body_timeout("the stream took too long; nothing was stored") from None

    async def _flush(self, conn: Connection) -> None:
        with self._request.service.publishing(self._size):
            self._keep(await send(conn, self._kind, self._name, self._batch))

    async def _store_at_once(self) -> None:
        mq = self._request.mq
        many = mq.publish_many if self._kind == "topic" else mq.enqueue_many
        with self._request.service.publishing(self._size):
            self._keep(await many(self._name, self._batch))

    def _keep(self, stored: list[Published]) -> None:
        self.views += [_encode(PublishedView(row.id, row.duplicate)) for row in stored]
        self._batch, self._size = [], 0
