"""Connections that belong to the caller, and the psycopg connection inside.

Never imports SQLAlchemy or Django itself.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import psycopg

from trunkline.errors import InvalidType

AsyncDriver = psycopg.AsyncConnection[Any]
SyncDriver = psycopg.Connection[Any]


@runtime_checkable
class AsyncAlchemySession(Protocol):
    """SQLAlchemy's AsyncSession."""

    @property
    def sync_session(self) -> Any: ...


@runtime_checkable
class AsyncAlchemyConnection(Protocol):
    """SQLAlchemy's AsyncConnection."""

    @property
    def sync_connection(self) -> Any: ...


@runtime_checkable
class AlchemySession(Protocol):
    """SQLAlchemy's Session."""

    def get_bind(self) -> Any: ...


@runtime_checkable
class AlchemyConnection(Protocol):
    """SQLAlchemy's Connection."""

    def get_isolation_level(self) -> Any: ...


@runtime_checkable
class DjangoConnection(Protocol):
    """Django's database connection."""

    def ensure_connection(self) -> Any: ...


AsyncForeignConnection = AsyncDriver | AsyncAlchemySession | AsyncAlchemyConnection
SyncForeignConnection = SyncDriver | AlchemySession | AlchemyConnection | DjangoConnection


def is_async(conn: object) -> bool:
    """Return whether calls on this connection must be awaited. Raises TypeError for unsupported objects."""
    if isinstance(conn, psycopg.AsyncConnection):
        return True
    if isinstance(conn, psycopg.Connection):
        return False
    if _is(conn, "sqlalchemy.", "AsyncSession", "AsyncConnection", "async_scoped_session"):
        return True
    if _is(conn, "sqlalchemy.", "Session", "Connection", "scoped_session") or hasattr(conn, "ensure_connection"):
        return False
    raise InvalidType(
        f"on() takes a psycopg 3, SQLAlchemy or Django connection, or a SQLAlchemy session, got {type(conn).__name__}"
    )


async def async_driver(conn: Any) -> AsyncDriver:
    """Return the psycopg connection inside. A SQLAlchemy session begins its transaction, as with any statement."""
    if isinstance(conn, psycopg.AsyncConnection):
        return conn
    if _is(conn, "sqlalchemy.", "AsyncSession", "async_scoped_session"):
        conn = await conn.connection()
    raw = await conn.get_raw_connection()
    driver = raw.driver_connection
    if not isinstance(driver, psycopg.AsyncConnection):
        raise _not_psycopg(driver)
    # as SQLAlchemy does for its own statements: a transaction begins at the first use
    if not conn.in_transaction():
        await conn.begin()
    return driver


def sync_driver(conn: Any) -> SyncDriver:
    """Return the psycopg connection inside. A SQLAlchemy session begins its transaction, as with any statement."""
    if isinstance(conn, psycopg.Connection):
        return conn
    if hasattr(conn, "ensure_connection"):
        conn.ensure_connection()
        driver = conn.connection
    else:
        if _is(conn, "sqlalchemy.", "Session", "scoped_session"):
            conn = conn.connection()
        driver = conn.connection.driver_connection
        if isinstance(driver, psycopg.Connection) and not conn.in_transaction():
            conn.begin()
    if not isinstance(driver, psycopg.Connection):
        raise _not_psycopg(driver)
    return driver


def _is(conn: object, module: str, *names: str) -> bool:
    """Return whether the object's class is one of these classes of `module`, or a subclass."""
    return any(cls.__name__ in names and cls.__module__.startswith(module) for cls in type(conn).__mro__)


def _not_psycopg(driver: object) -> InvalidType:
    kind = type(driver)
    return InvalidType(
        f"on() requires a connection over psycopg 3, got {kind.__module__}.{kind.__qualname__}; use postgresql+psycopg://"
        " with SQLAlchemy, and psycopg 3 with Django"
    )
