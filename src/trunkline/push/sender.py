"""Sends requests to endpoints, signed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from functools import lru_cache
from time import monotonic

import aiohttp

from trunkline.push.egress import Blocked, Guard, NotAllowed, connecting
from trunkline.push.http1 import Http1, NotHttp
from trunkline.push.outcomes import Reply
from trunkline.push.request import READ_LIMIT, Prepared
from trunkline.push.signing import sign_all

# Defaults that an endpoint's own headers override.
_OURS = {"user-agent": "trunkline", "accept": "*/*", "accept-encoding": "identity"}


@lru_cache(maxsize=256)
def _fixed(headers: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return the headers common to all requests to an endpoint: its own, over our defaults."""
    set_there = {name.lower() for name, _ in headers}
    return {**{name: value for name, value in _OURS.items() if name not in set_there}, **dict(headers)}


class Sender:
    """Sends requests: no redirects, proxies, cookies or compression, and only to addresses the guard allows."""

    def __init__(self, guard: Guard, *, resolver: aiohttp.abc.AbstractResolver | None = None) -> None:
        self._guard = guard
        self._connector = aiohttp.TCPConnector(
            limit=0,
            ttl_dns_cache=10,
            # below the idle timeout of common receivers: a request on a connection they are closing is lost
            keepalive_timeout=3,
            socket_factory=guard.open_socket,
            resolver=resolver,
        )
        self._http1 = Http1(self._connector)

    async def close(self) -> None:
        await self._connector.close()

    async def send(
        self,
        url: str,
        prepared: Prepared,
        *,
        secrets: Sequence[str],
        headers: dict[str, str],
        timeout: float,
        stamp: int,
        limit: int = READ_LIMIT,
    ) -> Reply:
        """Send a POST request. Failures are returned as an `Reply`, not raised."""
        start = monotonic()
        sent = {
            **(_fixed(tuple(headers.items())) if headers else _OURS),
            **prepared.headers,
            "webhook-id": prepared.id,
            "webhook-timestamp": str(stamp),
            "webhook-signature": sign_all(secrets, prepared.id, stamp, prepared.body),
        }
        status: int | None = None
        found: Mapping[str, str] = {}
        body = b""
        error: str | None = None
        refused = False
        tried = connecting()
        try:
            self._guard.check_url(url)
            async with asyncio.timeout(timeout):
                reply = await self._http1.post(url, sent, prepared.body)
                status = reply.status
                found = reply.headers
                body = await reply.read(limit)
        except TimeoutError:
            error = f"no complete response in {timeout:g} s"
        except asyncio.CancelledError:
            raise
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            cause = tried.refusal or exc
            refused = isinstance(cause, NotAllowed)
            error = _words(cause)
        return Reply(status, found, body, error, monotonic() - start, refused)


def _words(exc: BaseException) -> str:
    """Describe a failure without addresses and ports, which would let an endpoint's owner scan the network."""
    if isinstance(exc, Blocked):
        return str(exc)
    if isinstance(exc, aiohttp.ClientConnectorDNSError):
        return "the host name could not be resolved"
    if isinstance(exc, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError | ssl.SSLError):
        return "the TLS handshake failed: certificate or protocol rejected"
    if isinstance(exc, aiohttp.ClientConnectorError):
        return "could not connect"
    if isinstance(exc, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError | ConnectionError):
        return "the connection was lost"
    if isinstance(exc, aiohttp.ClientPayloadError):
        return "the response was incomplete"
    if isinstance(exc, NotHttp):
        return "the response is not valid HTTP"
    if isinstance(exc, aiohttp.InvalidURL):
        return "the url is not valid"
    return f"the request failed ({type(exc).__name__})"
