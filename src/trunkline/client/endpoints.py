"""Endpoints: HTTP receivers of push deliveries, and the queues that are sent to them."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from trunkline.client.noun import Noun
from trunkline.db import push
from trunkline.db.codec import duration
from trunkline.db.tasks import sleep
from trunkline.types import Attempt, Duration, Endpoint, NewEndpoint

_LOOK_SECONDS = 0.1


class Endpoints(Noun):
    """`client.endpoints`"""

    async def create(
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
        """A new endpoint; answers the secret that signs its deliveries.

        In any window of w seconds at most `rate` x w + `burst` requests start, over all dispatchers; without a rate there is
        no limit. `mode` batch sends up to `batch_size` messages as a JSON array.
        """
        async with self._writing() as conn:
            return await push.create_endpoint(
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

    async def alter(
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
        """Change what is given; a rate of 0 takes the limit away, `headers` replaces all of them."""
        async with self._writing() as conn:
            await push.alter_endpoint(
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
            return await push.get_endpoint(conn, name)

    async def get(self, name: str) -> Endpoint:
        async with self._reading() as conn:
            return await push.get_endpoint(conn, name)

    async def list(self) -> builtins.list[Endpoint]:
        """All endpoints, by name."""
        async with self._reading() as conn:
            return await push.list_endpoints(conn)

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Refused while queues are bound to it, unless forced; the queues stay."""
        async with self._writing() as conn:
            await push.delete_endpoint(conn, name, force=force)

    async def pause(self, name: str, *, reason: str | None = None) -> None:
        """Nothing is sent until `resume`; its queues go on filling."""
        async with self._writing() as conn:
            await push.pause_endpoint(conn, name, reason=reason)

    async def resume(self, name: str) -> None:
        """Send again, whatever stopped it: a pause, an answer 410, the breaker."""
        async with self._writing() as conn:
            await push.resume_endpoint(conn, name)

    async def bind(self, queue: str, endpoint: str) -> None:
        """Everything of this queue is sent to the endpoint from now on."""
        async with self._writing() as conn:
            await push.bind_queue(conn, queue, endpoint)

    async def unbind(self, queue: str) -> None:
        async with self._writing() as conn:
            await push.unbind_queue(conn, queue)

    async def secrets(self, name: str) -> builtins.list[str]:
        """The secrets in use, the newest first."""
        async with self._reading() as conn:
            return await push.endpoint_secrets(conn, name)

    async def rotate(self, name: str, *, secret: str | None = None, keep: bool = True) -> str:
        """A new secret; the former one signs too until the next rotation, unless `keep` is false."""
        async with self._writing() as conn:
            return await push.rotate_secret(conn, name, secret=secret, keep=keep)

    async def test(self, name: str, *, timeout: Duration = "30s") -> Attempt | None:
        """Have a dispatcher send a test request; what came of it, or None when no dispatcher did so in time."""
        async with self._writing() as conn:
            id = await push.test_endpoint(conn, name)
        left = (duration(timeout) or timedelta(0)).total_seconds()
        while left > 0:
            found = await self.attempts(name, id=id, limit=1)
            if found:
                return found[0]
            await sleep(_LOOK_SECONDS)
            left -= _LOOK_SECONDS
        return None

    async def attempts(
        self, name: str | None = None, *, id: UUID | None = None, since: Duration = "1d", limit: int = 100
    ) -> builtins.list[Attempt]:
        """Requests of an endpoint, or for one message, newest first, with status, time and start of the answer."""
        async with self._reading() as conn:
            return await push.list_attempts(conn, name, id=id, since=duration(since) or timedelta(days=1), limit=limit)

    async def replay(
        self,
        queue: str,
        *,
        ids: Sequence[UUID] | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int = 1000,
    ) -> int:
        """Deliver again what was delivered: messages by id, or those acked from `start` to `end`. Answers how many."""
        async with self._writing() as conn:
            count = await push.replay(conn, queue, ids=ids, start=start, end=end, limit=limit)
        self._runtime().wakeup.published("inbox", queue)
        return count
