"""Server configuration. Passed to the worker processes in one environment variable."""

from __future__ import annotations

import os
import signal

import msgspec

VARIABLE = "TRUNKLINE_SERVER"
COMPAT_APIS = ("psqlqueue", "pubsub-queue", "pg-messaging")
"""APIs of other systems: NAME is served below `/compat/NAME`, and at the root of its own port if it has one."""
STOP_SIGNAL = signal.SIGUSR1
"""Sent to workers before they are stopped."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Listen address, database and limits."""

    database_url: str
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    """Processes per port."""
    compat_ports: dict[str, int] = {}
    """Ports at whose root an API of another system is served, by name."""
    upkeep_seconds: float | None = 0.5
    """Upkeep interval; None: another process runs upkeep."""
    max_connections: int = 10
    """Database connections per worker."""
    connection_seconds: float = 30.0
    """Maximum wait for a database connection."""
    lock_seconds: float = 10.0
    """Maximum wait for earlier requests on the same resource, and of a settings change for a lock."""
    statement_seconds: float = 30.0
    """Maximum use of a database connection per request."""
    admin_seconds: float = 120.0
    """The same for routes with the scope admin, such as seek, purge and delete."""
    max_body: int = 1024 * 1024
    max_batch_body: int = 8 * 1024 * 1024
    max_stream: int = 100_000
    """Maximum messages of an NDJSON stream, which is one transaction."""
    max_stream_body: int = 256 * 1024 * 1024
    stream_seconds: float = 60.0
    """Maximum duration of a stream of more than one batch."""
    max_response_bytes: int = 8 * 1024 * 1024
    """Payload bytes of a response with messages, and of the cached end of a followed topic. A response is cut short to
    fit, but has at least one message."""
    max_depth: int = 64
    body_seconds: float = 10.0
    """Maximum wait for the next part of a body."""
    whole_body_seconds: float = 120.0
    """Maximum duration of a whole body."""
    max_pull: int = 10
    """Maximum messages of a pull by psqlqueue's API."""
    max_wait: float = 30.0
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    """A separate port for metrics."""
    max_publishing: int = 2000
    """Concurrent publishes per worker; more get 503 with Retry-After."""
    max_publishing_bytes: int = 64 * 1024 * 1024
    max_requests: int = 10_000
    """Concurrent requests per worker, including those waiting for messages."""
    rate: float | None = None
    """Requests per second per worker and token (without tokens: per address); more get 429."""
    require_token: bool | None = None
    """Reject requests without a token. None: once a token exists. Without tokens every request has all rights, so the
    server listens on loopback only."""
    console: bool = True
    """Serve the web console at /console."""
    console_url: str | None = None
    """Address of the server as browsers see it behind a proxy, such as https://ops.example/queue: links begin with its
    path."""
    tls: bool = False
    """The server has a certificate, so cookies are sent over TLS only."""
    access_log: bool = False
    drain_seconds: float = 10.0

    def to_environment(self) -> None:
        os.environ[VARIABLE] = msgspec.json.encode(self).decode()

    @classmethod
    def from_environment(cls) -> Config:
        return msgspec.json.decode(os.environ[VARIABLE].encode(), type=cls)
