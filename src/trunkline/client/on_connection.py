"""`on(conn)`, shared by both clients: the connection decides whether calls are awaited."""

from __future__ import annotations

from typing import Any, overload

from trunkline.client.connection_client import ConnectionClient
from trunkline.client.foreign_connections import AsyncForeignConnection, SyncForeignConnection, is_async
from trunkline.client.sync.connection_client import ConnectionClient as SyncConnectionClient


class OnConnection:
    """Base of clients that publish and settle on a caller's connection."""

    @overload
    def on(self, conn: AsyncForeignConnection) -> ConnectionClient: ...
    @overload
    def on(self, conn: SyncForeignConnection) -> SyncConnectionClient: ...
    def on(self, conn: Any) -> ConnectionClient | SyncConnectionClient:
        """Publish and settle on your connection, inside your transaction. Nothing is committed here.

        Takes a psycopg 3 connection (async or sync), a SQLAlchemy 2 Connection, Session, AsyncConnection or
        AsyncSession over psycopg, or a Django connection. On an async connection the methods must be awaited; on others
        they are plain calls.
        """
        return ConnectionClient(conn) if is_async(conn) else SyncConnectionClient(conn)
