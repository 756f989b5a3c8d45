"""`on(conn)`: the same for both clients, because the connection says whether its calls are awaited."""

from __future__ import annotations

from typing import Any, overload

from trunkline.client.borrowed import AsyncBorrowed, SyncBorrowed, is_async
from trunkline.client.bound import Bound
from trunkline.client.sync.bound import Bound as SyncBound


class Lender:
    """What takes a caller's connection."""

    @overload
    def on(self, conn: AsyncBorrowed) -> Bound: ...
    @overload
    def on(self, conn: SyncBorrowed) -> SyncBound: ...
    def on(self, conn: Any) -> Bound | SyncBound:
        """Publish and settle on your connection, in your transaction: nothing is committed here.

        Takes a connection of psycopg 3 (async or sync), a Connection, Session, AsyncConnection or AsyncSession of
        SQLAlchemy 2 over psycopg, or a connection of Django. What is async is awaited; what is not is called plainly.
        """
        return Bound(conn) if is_async(conn) else SyncBound(conn)
