"""Connections that belong to the caller, and the driver's inside. Imports nothing that the caller does not use."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import psycopg

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
    """A database connection of Django."""

    def ensure_connection(self) -> Any: ...


AsyncBorrowed = AsyncDriver | AsyncAlchemySession | AsyncAlchemyConnection
SyncBorrowed = SyncDriver | AlchemySession | AlchemyConnection | DjangoConnection


def is_async(conn: object) -> bool:
    """Whether calls on this connection are to be awaited; TypeError for what is no connection that we know."""
    if isinstance(conn, psycopg.AsyncConnection):
        return True
    if isinstance(conn, psycopg.Connection):
        return False
    if _is(conn, "sqlalchemy.", "AsyncSession", "AsyncConnection", "async_scoped_session"):
        return True
    if _is(conn, "sqlalchemy.", "Session", "Connection", "scoped_session") or hasattr(conn, "ensure_connection"):
        return False
    raise TypeError(
        f"on() takes a connection of psycopg 3, SQLAlchemy or Django, or a session of SQLAlchemy, not {type(conn).__name__}"
    )


async def async_driver(conn: Any) -> AsyncDriver:
    """The psycopg connection inside. A session of SQLAlchemy begins its transaction here, as with any other statement."""
    if isinstance(conn, psycopg.AsyncConnection):
        return conn
    if _is(conn, "sqlalchemy.", "AsyncSession", "async_scoped_session"):
        conn = await conn.connection()
    raw = await conn.get_raw_connection()
    driver = raw.driver_connection
    if not isinstance(driver, psycopg.AsyncConnection):
        raise _not_psycopg(driver)
    # as for its own statements: SQLAlchemy shows a transaction from the first use on
    if not conn.in_transaction():
        await conn.begin()
    return driver


def sync_driver(conn: Any) -> SyncDriver:
    """The psycopg connection inside. A session of SQLAlchemy begins its transaction here, as with any other statement."""
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
    """Whether it is of one of these classes, or of one made from them."""
    return any(cls.__name__ in names and cls.__module__.startswith(module) for cls in type(conn).__mro__)


def _not_psycopg(driver: object) -> TypeError:
    kind = type(driver)
    return TypeError(
        f"on() needs a connection over psycopg 3, not {kind.__module__}.{kind.__qualname__}; use postgresql+psycopg:// with"
        " SQLAlchemy, and psycopg 3 with Django"
    )
