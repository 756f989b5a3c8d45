"""What a server is told when it starts. Workers are processes of their own: they read it from one variable."""

from __future__ import annotations

import os
import signal

import msgspec

VARIABLE = "TRUNKLINE_SERVER"
STOP_SIGNAL = signal.SIGUSR1
"""What a worker gets before it is stopped."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server listens, which database it serves, and its limits."""

    database_url: str
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    upkeep_seconds: float | None = 0.5
    """How often upkeep runs; None: another process runs it."""
    max_connections: int = 10
    """Database connections of each worker."""
    connection_seconds: float = 30.0
    """How long a request may wait for a database connection."""
    lock_seconds: float = 10.0
    """How long a request may wait for earlier requests on the same resource, and a change of settings for a lock."""
    statement_seconds: float = 30.0
    """How long a request may use a database connection."""
    admin_seconds: float = 120.0
    """The same for routes that need the scope admin, such as seek, purge and delete."""
    max_body: int = 1024 * 1024
    max_batch_body: int = 8 * 1024 * 1024
    max_stream: int = 100_000
    """Most messages of a stream of lines, which is one transaction."""
    max_stream_body: int = 256 * 1024 * 1024
    stream_seconds: float = 60.0
    """How long a stream of more than one batch may take."""
    max_response_bytes: int = 8 * 1024 * 1024
    """Payload bytes of a response with messages, and of what is kept of a topic that clients follow. A response has fewer
    messages than its limit then, but at least one."""
    max_depth: int = 64
    body_seconds: float = 10.0
    """How long the next part of a body may take."""
    whole_body_seconds: float = 120.0
    """How long a whole body may take."""
    max_pull: int = 10
    """Most messages of `GET /v1/queues/{id}/messages`."""
    max_wait: float = 30.0
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    """A port for metrics alone."""
    max_publishing: int = 2000
    """Publishes under way in a worker; more get 503 with Retry-After."""
    max_publishing_bytes: int = 64 * 1024 * 1024
    max_requests: int = 10_000
    """Requests under way in a worker, waiting ones included."""
    rate: float | None = None
    """Requests per second of one token (or of one address without tokens) and worker; more get 429."""
    require_token: bool | None = None
    """Refuse requests without a token; None: as soon as there is a token. Without tokens every request may do everything,
    so the server only listens on loopback."""
    access_log: bool = False
    drain_seconds: float = 10.0

    def to_environment(self) -> None:
        os.environ[VARIABLE] = msgspec.json.encode(self).decode()

    @classmethod
    def from_environment(cls) -> Config:
        return msgspec.json.decode(os.environ[VARIABLE].encode(), type=cls)
