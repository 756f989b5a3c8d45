"""`on(conn)`, shared by both clients: the connection decides whether calls are awaited."""

from __future__ import annotations

from typing import Any, overload

from trunkline.client.borrowed import AsyncBorrowed, SyncBorrowed, is_async
from trunkline.client.bound import Bound
from trunkline.client.sync.bound import Bound as SyncBound


class Lender:
    """Base of clients that publish and settle on a caller's connection."""

    @overload
    def on(self, conn: AsyncBorrowed) -> Bound: ...
    @overload
    def on(self, conn: SyncBorrowed) -> SyncBound: ...
    def on(self, conn: Any) -> Bound | SyncBound:
        """Publish and settle on your connection, inside your transaction. Nothing is committed here.

        Takes a psycopg 3 connection (async or sync), a SQLAlchemy 2 Connection, Session, AsyncConnection or
        AsyncSession over psycopg, or a Django connection. On an async connection the methods must be awaited; on others
        they are plain calls.
        """
        return Bound(conn) if is_async(conn) else SyncBound(conn)
