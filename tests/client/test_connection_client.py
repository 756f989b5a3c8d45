"""`on(conn)`: part of the caller's transaction on every kind of connection, and nothing of the connection is changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from trunkline import Client, NewMessage, SyncClient
from trunkline.errors import PayloadTooLarge, TopicNotFound

SyncOpen = Callable[[str], Any]


def alchemy_url(db: str, driver: str = "psycopg") -> sqlalchemy.URL:
    parts = {name: str(value) for name, value in conninfo_to_dict(db).items()}
    return sqlalchemy.URL.create(
        f"postgresql+{driver}",
        username=parts["user"],
        password=parts.get("password"),
        database=parts["dbname"],
        query={"host": parts["host"], "port": parts["port"]},
    )


# Each opens a connection and gives it with a function that begins a transaction: left well it commits, with an error not.


@contextmanager
def plain(db: str) -> Iterator[tuple[Any, Any]]:
    with psycopg.connect(db) as conn:
        yield conn, conn.transaction


@contextmanager
def odd(db: str) -> Iterator[tuple[Any, Any]]:
    """With another row factory and client-side cursors: what others set must not matter."""
    with psycopg.connect(db, row_factory=dict_row, cursor_factory=psycopg.ClientCursor, autocommit=True) as conn:
        yield conn, conn.transaction


@contextmanager
def alchemy_connection(db: str) -> Iterator[tuple[Any, Any]]:
    engine = sqlalchemy.create_engine(alchemy_url(db))
    with engine.connect() as conn:
        yield conn, conn.begin
    engine.dispose()


@contextmanager
def alchemy_session(db: str) -> Iterator[tuple[Any, Any]]:
    engine = sqlalchemy.create_engine(alchemy_url(db))
    with Session(engine) as session:
        yield session, session.begin
    engine.dispose()


@contextmanager
def django(db: str) -> Iterator[tuple[Any, Any]]:
    from django.conf import settings
    from django.db import ConnectionHandler, transaction

    if not settings.configured:
        settings.configure(USE_TZ=True)
    parts = conninfo_to_dict(db)
    handler = ConnectionHandler(
        {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts["dbname"],
                "USER": parts["user"],
                "PASSWORD": parts.get("password", ""),
                "HOST": parts["host"],
                "PORT": parts["port"],
            }
        }
    )
    conn = handler["default"]

    @contextmanager
    def atomic() -> Iterator[None]:
        block = transaction.Atomic(using=None, savepoint=True, durable=False)
        real, transaction.get_connection = transaction.get_connection, lambda using=None: conn
        try:
            with block:
                yield
        finally:
            transaction.get_connection = real

    yield conn, atomic
    conn.close()


SYNC: list[SyncOpen] = [plain, odd, alchemy_connection, alchemy_session, django]


@pytest.mark.parametrize("open_it", SYNC)
def test_it_happens_with_the_callers_transaction_or_not_at_all(open_it: SyncOpen, db: str) -> None:
    with SyncClient(db) as mq, open_it(db) as (conn, begin):
        mq.topics.create("t")
        mq.queues.create("q")
        mq.enqueue_many("q", range(3))
        mq.publish_many("t", ["first"])
        taken = mq.claim("q", limit=3)
        batch = mq.fetch("t", "g", member="me")
        assert batch is not None

        def work() -> None:
            bound = mq.on(conn)
            bound.publish("t", {"n": 1}, key="k", headers={"a": [1]}, idempotency_key="once")
            bound.publish_many("t", [{"n": 2}, NewMessage(body=b"raw", label="l")])
            bound.enqueue("q", {"n": 3}, delay="1h")
            bound.enqueue_many("q", [4])
            assert bound.ack([taken[0].receipt]) == ["done"]
            assert bound.nack([taken[1].receipt], delay="0s") == ["done"]
            assert bound.bury([taken[2].receipt], error="bad") == ["done"]
            assert bound.commit(batch) == "done"

        with pytest.raises(ZeroDivisionError), begin():
            work()
            raise ZeroDivisionError
        assert mq.topics.head("t") == 1
        stats = mq.queues.stats("q")[0]
        assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 3, 0)
        assert mq.groups.position("t", "g") == {0: 1}

        with begin():
            work()
            # not before the caller commits
            assert mq.topics.head("t") == 1
        assert [m.body for m in mq.topics.read("t")] == ["first", {"n": 1}, {"n": 2}, b"raw"]
        stats = mq.queues.stats("q")[0]
        assert (stats.ready, stats.delayed, stats.leased, stats.acked, stats.dead) == (2, 1, 0, 1, 1)
        assert mq.groups.position("t", "g") == {0: 2}


@pytest.mark.parametrize("open_it", SYNC)
def test_an_error_is_ours_and_the_caller_rolls_back(open_it: SyncOpen, db: str) -> None:
    with SyncClient(db) as mq, open_it(db) as (conn, begin):
        mq.topics.create("t", max_payload=10)
        with pytest.raises(TopicNotFound), begin():
            mq.on(conn).publish("nowhere", 1)
        with pytest.raises(PayloadTooLarge), begin():
            mq.on(conn).publish("t", 1)
            mq.on(conn).publish("t", "x" * 100)
        with pytest.raises(TypeError, match=r"set at \$"), begin():
            mq.on(conn).publish("t", 1)
            mq.on(conn).publish("t", {1})
        assert mq.topics.head("t") == 0
        with begin():
            mq.on(conn).publish("t", 1)
        assert mq.topics.head("t") == 1


@asynccontextmanager
async def async_plain(db: str) -> AsyncIterator[tuple[Any, Any]]:
    async with await psycopg.AsyncConnection.connect(db) as conn:
        yield conn, conn.transaction


@asynccontextmanager
async def async_alchemy_connection(db: str) -> AsyncIterator[tuple[Any, Any]]:
    pytest.importorskip("greenlet")
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(alchemy_url(db))
    async with engine.connect() as conn:
        yield conn, conn.begin
    await engine.dispose()


@asynccontextmanager
async def async_alchemy_session(db: str) -> AsyncIterator[tuple[Any, Any]]:
    pytest.importorskip("greenlet")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(alchemy_url(db))
    async with AsyncSession(engine) as session:
        yield session, session.begin
    await engine.dispose()


@pytest.mark.parametrize("open_it", [async_plain, async_alchemy_connection, async_alchemy_session])
async def test_the_same_awaited(open_it: Any, db: str) -> None:
    async with Client(db) as mq, open_it(db) as (conn, begin):
        await mq.topics.create("t")
        await mq.queues.create("q")
        await mq.enqueue("q", 1)
        await mq.publish("t", "first")
        [taken] = await mq.claim("q")
        batch = await mq.fetch("t", "g", member="me")
        assert batch is not None

        async def work() -> None:
            bound = mq.on(conn)
            await bound.publish("t", {"n": 1}, headers={"a": 1})
            await bound.publish_many("t", range(1200))
            await bound.enqueue("q", 2)
            assert await bound.ack([taken.receipt]) == ["done"]
            assert await bound.commit(batch) == "done"

        with pytest.raises(ZeroDivisionError):
            async with begin():
                await work()
                raise ZeroDivisionError
        assert await mq.topics.head("t") == 1
        assert await mq.groups.position("t", "g") == {0: 1}
        async with begin():
            await work()
            assert await mq.topics.head("t") == 1
        assert await mq.topics.head("t") == 1202
        assert await mq.groups.position("t", "g") == {0: 2}
        stats = (await mq.queues.stats("q"))[0]
        assert (stats.ready, stats.acked) == (1, 1)


def test_a_session_of_sqlalchemy_that_began_by_itself_is_not_committed(db: str) -> None:
    with SyncClient(db) as mq, alchemy_session(db) as (session, _):
        mq.topics.create("t")
        mq.on(session).publish("t", 1)
        assert session.in_transaction()
        session.rollback()
        assert mq.topics.head("t") == 0
        mq.on(session).publish("t", 2)
        session.commit()
        assert [m.body for m in mq.topics.read("t")] == [2]


def test_the_connection_stays_as_it_was(db: str) -> None:
    with SyncClient(db) as mq, psycopg.connect(db, row_factory=dict_row) as conn:
        mq.topics.create("t")
        conn.execute("set synchronous_commit = remote_write; set lock_timeout = '3s'; set search_path = public")
        conn.commit()
        shown = "select current_setting(n) as v from unnest(array['synchronous_commit', 'lock_timeout', 'search_path']) n"
        mq.on(conn).publish("t", 1)
        mq.on(conn).publish_many("t", [1, 2])
        assert [row["v"] for row in conn.execute(shown)] == ["remote_write", "3s", "public"]
        assert (conn.autocommit, conn.row_factory, conn.prepare_threshold) == (False, dict_row, 5)
        conn.rollback()


async def test_a_sync_connection_can_be_used_from_the_async_client(db: str) -> None:
    async with Client(db) as mq:
        await mq.topics.create("t")
        with psycopg.connect(db) as conn:
            mq.on(conn).publish("t", 1)
        assert await mq.topics.head("t") == 1


@pytest.mark.parametrize("thing", [None, "postgresql:///x", object(), 5])
def test_what_is_no_connection_is_refused(thing: Any) -> None:
    with pytest.raises(TypeError, match="psycopg 3"):
        SyncClient("postgresql:///x").on(thing)


def test_another_driver_is_refused() -> None:
    with sqlalchemy.create_engine("sqlite://").connect() as conn, pytest.raises(TypeError, match="psycopg 3"):
        SyncClient("postgresql:///x").on(conn).publish("t", 1)
