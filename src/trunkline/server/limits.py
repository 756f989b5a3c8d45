"""Limits on database work: a share of the connections per resource, and a time limit per statement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec

from trunkline.db import calls
from trunkline.db.pool import Connection, Pool
from trunkline.errors import Busy, OutcomeUnknown, Timeout
from trunkline.server.config import Config
from trunkline.server.routing import Doc

_GRACE_SECONDS = 5.0
"""Extra time for the database to enforce the limit itself."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for the statements of the current task."""

    resource: tuple[str, ...] = ()
    """Statements of the same resource share half of the connections. Empty: no such limit."""
    reads: bool = False
    """Reads, claims or counts messages, so an open transaction elsewhere can block it. Such statements leave a quarter
    of the connections free."""
    seconds: float | None = None
    """Maximum use of a connection; the default is the configured `statement_seconds`."""
    in_database: bool = False
    """Let the database enforce the limits, in a transaction: a timed-out request has no effect. Three more round trips."""


_current: ContextVar[Limits] = ContextVar("trunkline_limits", default=Limits())  # noqa: B039  frozen


def enter_route(doc: Doc, scope: Any, config: Config) -> None:
    """Set the limits of a request. Called once, in the request's task."""
    params = scope["path_params"]
    names = (str(params[name]) for name in (doc.object, "group") if name in params)
    _current.set(
        Limits(
            resource=(scope["method"], scope["path_template"], *names),
            reads=doc.reads,
            seconds=config.admin_seconds if doc.scope == "admin" else None,
            in_database=doc.scope == "admin",
        )
    )


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Apply other limits to the statements of a block."""
    token = _current.set(limits)
    try:
        yield
    finally:
        _current.reset(token)


class Shares:
    """Concurrency limits. A blocked resource exhausts only its own share of the connections.

    Waiting is first come, first served, holds no connection, and times out with `Busy`.
    """

    def __init__(self, connections: int, seconds: float) -> None:
        self._size = max(1, connections // 2)
        self._seconds = seconds
        self._readers = asyncio.Semaphore(max(1, connections * 3 // 4))
        self._places: dict[tuple[str, ...], asyncio.Semaphore] = {}
        self._users: dict[tuple[str, ...], int] = {}

    @asynccontextmanager
    async def place(self, limits: Limits) -> AsyncIterator[None]:
        resource = limits.resource
        if not resource:
            yield
            return
        places = self._places.setdefault(resource, asyncio.Semaphore(self._size))
        self._users[resource] = self._users.get(resource, 0) + 1
        try:
            await self._acquire(places, resource)
            try:
                if not limits.reads:
                    yield
                else:
                    await self._acquire(self._readers, resource)
                    try:
                        yield
                    finally:
                        self._readers.release()
            finally:
                places.release()
        finally:
            self._users[resource] -= 1
            if not self._users[resource]:
                del self._users[resource], self._places[resource]

    async def _acquire(self, places: asyncio.Semaphore, resource: tuple[str, ...]) -> None:
        if not places.locked():
            await places.acquire()
            return
        try:
            async with asyncio.timeout(self._seconds):
                await places.acquire()
        except TimeoutError:
            raise Busy(
                f"earlier requests for the same resource did not finish within {self._seconds:g} s: {' '.join(resource)}",
                hint="Retry. Run `trunkline doctor` to find long transactions.",
            ) from None


class LimitedPool(Pool):
    """A pool that applies the limits of the current task."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.database_url, max_size=config.max_connections, timeout=config.connection_seconds)
        self._config = config
        self._shares = Shares(config.max_connections, config.lock_seconds)

    @asynccontextmanager
    async def connection(self, *, writing: bool = False) -> AsyncIterator[Connection]:
        limits = _current.get()
        seconds = self._config.statement_seconds if limits.seconds is None else limits.seconds
        backstop = seconds + (_GRACE_SECONDS if limits.in_database else 0)
        async with self._shares.place(limits), super().connection(writing=writing) as conn:
            try:
                async with asyncio.timeout(backstop) as clock:
                    if not limits.in_database:
                        yield conn
                    else:
                        async with conn.transaction():
                            await calls.limit_transaction(
                                conn, lock_seconds=self._config.lock_seconds, statement_seconds=seconds
                            )
                            yield conn
            except TimeoutError as exc:
                if not clock.expired():
                    raise
                raise _ended(backstop, writing=writing) from exc


def _ended(seconds: float, *, writing: bool) -> Exception:
    if writing:
        return OutcomeUnknown(
            f"the database did not finish within {seconds:g} s",
            hint="Check whether the change was made, or retry with the same idempotency key.",
        )
    return Timeout(
        f"the database did not finish within {seconds:g} s", hint="Retry. Run `trunkline doctor` to find long transactions."
    )
