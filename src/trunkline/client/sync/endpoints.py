# Written by tools/unasync.py from src/trunkline/client/endpoints.py; change that file, not this one.
"""Endpoints: HTTP receivers of webhooks, and the queues bound to them."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from trunkline.client.sync.resource import Resource
from trunkline.codec import duration
from trunkline.concurrency.threads import sleep
from trunkline.db.sync.calls import push
from trunkline.types import Attempt, Duration, Endpoint, NewEndpoint

_POLL_SECONDS = 0.1


class Endpoints(Resource):
    """`client.endpoints`"""

    def create(
        self,
        name: str,
        url: str,
        *,
        rate: float | None = None,
        burst: int | None = None,
        max_in_flight: int | None = None,
        timeout: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        mode: Literal["single", "batch"] | None = None,
        batch_size: int | None = None,
        secret: str | None = None,
    ) -> NewEndpoint:
        """Create an endpoint. The result contains the secret that signs its requests.

        Across all dispatchers, at most `rate` x w + `burst` requests start in any window of w seconds. Without `rate`
        there is no limit. With `mode="batch"`, up to `batch_size` messages are sent as one JSON array.
        """
        with self._writing() as conn:
            return push.create_endpoint(
                conn,
                name,
                url=url,
                rate=rate,
                burst=burst,
                max_in_flight=max_in_flight,
                timeout=duration(timeout),
                headers=None if headers is None else dict(headers),
                mode=mode,
                batch_size=batch_size,
                secret=secret,
            )

    def alter(
        self,
        name: str,
        *,
        url: str | None = None,
        rate: float | None = None,
        burst: int | None = None,
        max_in_flight: int | None = None,
        timeout: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        mode: Literal["single", "batch"] | None = None,
        batch_size: int | None = None,
    ) -> Endpoint:
        """Change the given settings and keep the others.

        A `rate` of 0 removes the limit; `headers` replaces all headers.
        """
        with self._writing() as conn:
            push.alter_endpoint(
                conn,
                name,
                url=url,
                rate=rate,
                burst=burst,
                max_in_flight=max_in_flight,
                timeout=duration(timeout),
                headers=None if headers is None else dict(headers),
                mode=mode,
                batch_size=batch_size,
            )
            return push.get_endpoint(conn, name)

    def get(self, name: str) -> Endpoint:
        """Return an endpoint. Raises `EndpointNotFound`."""
        with self._reading() as conn:
            return push.get_endpoint(conn, name)

    def list(self) -> builtins.list[Endpoint]:
        """List all endpoints by name."""
        with self._reading() as conn:
            return push.list_endpoints(conn)

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete an endpoint. Fails if queues are bound to it, unless `force` is set; the queues are kept."""
        with self._writing() as conn:
            push.delete_endpoint(conn, name, force=force)

    def pause(self, name: str, *, reason: str | None = None) -> None:
        """Stop sending until `resume`. Its queues continue to receive messages."""
        with self._writing() as conn:
            push.pause_endpoint(conn, name, reason=reason)

    def resume(self, name: str) -> None:
        """Send again after a pause, a 410 response or an open circuit breaker."""
        with self._writing() as conn:
            push.resume_endpoint(conn, name)

    def bind(self, queue: str, endpoint: str) -> None:
        """Send the messages of this queue to the endpoint from now on."""
        with self._writing() as conn:
            push.bind_queue(conn, queue, endpoint)

    def unbind(self, queue: str) -> None:
        """Stop sending the messages of this queue to its endpoint."""
        with self._writing() as conn:
            push.unbind_queue(conn, queue)

    def secrets(self, name: str) -> builtins.list[str]:
        """Return the signing secrets in use, newest first."""
        with self._reading() as conn:
            return push.endpoint_secrets(conn, name)

    def rotate(self, name: str, *, secret: str | None = None, keep: bool = True) -> str:
        """Set a new signing secret and return it.

        The previous secret also signs requests until the next rotation, unless `keep` is false.
        """
        with self._writing() as conn:
            return push.rotate_secret(conn, name, secret=secret, keep=keep)

    def test(self, name: str, *, timeout: Duration = "30s") -> Attempt | None:
        """Send a test request through a dispatcher and return its outcome, or None if no dispatcher sent it in time."""
        with self._writing() as conn:
            id = push.test_endpoint(conn, name)
        left = (duration(timeout) or timedelta(0)).total_seconds()
        while left > 0:
            attempts = self.attempts(name, id=id, limit=1)
            if attempts:
                return attempts[0]
            sleep(_POLL_SECONDS)
            left -= _POLL_SECONDS
        return None

    def attempts(
        self, name: str | None = None, *, id: UUID | None = None, since: Duration = "1d", limit: int = 100
    ) -> builtins.list[Attempt]:
        """List the requests to an endpoint or for one message, newest first."""
        with self._reading() as conn:
            return push.list_attempts(conn, name, id=id, since=duration(since) or timedelta(days=1), limit=limit)

    def replay(
        self,
        queue: str,
        *,
        ids: Sequence[UUID] | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int = 1000,
    ) -> int:
        """Redeliver messages: those in `ids`, or those acked from `start` to `end`. Returns the number of messages."""
        with self._writing() as conn:
            count = push.replay(conn, queue, ids=ids, start=start, end=end, limit=limit)
        self._session().wakeup.published("inbox", queue)
        return count
