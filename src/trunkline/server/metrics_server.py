"""Metrics on a separate port, at every path, for scrapers without a token."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from trunkline.errors import TrunklineError
from trunkline.server.browsers import foreign

if TYPE_CHECKING:
    from trunkline.server.service import Service

log = logging.getLogger("trunkline.server")
_PATIENCE_SECONDS = 10.0
_LONGEST_HEAD = 16 * 1024


async def serve_metrics(service: Service) -> asyncio.Server | None:
    """Listen on the metrics port. Return None if another worker of this server has it."""
    assert service.config.metrics_port is not None  # noqa: S101

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await _answer(service, head))
                await writer.drain()
        writer.close()

    try:
        return await asyncio.start_server(
            respond, service.config.metrics_host, service.config.metrics_port, limit=_LONGEST_HEAD
        )
    except OSError as exc:
        log.info("metrics port is in use, probably by another worker: %s", exc)
        return None


async def _answer(service: Service, head: bytes) -> bytes:
    status = "200 OK"
    refused = foreign(_headers(head), service.config.metrics_host)
    try:
        if refused is not None:
            status, content, kind = f"{refused.status} {refused.error}", refused.detail.encode(), "text/plain"
        else:
            content, kind = await service.metrics.render(service.mq)
    except TrunklineError as exc:
        status, content, kind = "503 Service Unavailable", str(exc.message).encode(), "text/plain"
    start = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\nconnection: close\r\n\r\n"
    return start.encode() + content


def _headers(head: bytes) -> list[tuple[bytes, bytes]]:
    """Parse the headers of a request, skipping invalid lines."""
    pairs = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return [(name.strip().lower(), value.strip()) for name, colon, value in pairs if colon]
