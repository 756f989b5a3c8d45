"""Pools, forks, versions and clocks: bad inputs 105, 109, 110, 113 and 115."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support import both_clients
from trunkline import Client, SyncClient
from trunkline.client import TransactionMisuse
from trunkline.errors import DatabaseUnavailable, InvalidDuration, NotInstalled, SchemaVersion, SettingsError, TrunklineError
from trunkline.sql.migrate import latest_version


async def test_a_pool_of_one_connection_is_enough(kind: str, db: str) -> None:
    async with both_clients.client(kind, db, max_connections=1) as mq:
        await mq.topics.create("t")
        await mq.queues.create("q")
        await asyncio.gather(*(mq.publish("t", n) for n in range(50)), *(mq.enqueue("q", n) for n in range(50)))
        seen = 0
        async with mq.queue("q").claims(max_in_flight=10) as claims:
            async for delivery in claims:
                await delivery.ack()
                seen += 1
                if seen == 50:
                    break


async def test_an_exhausted_pool_says_so(kind: str, db: str) -> None:
    async with both_clients.client(kind, db, max_connections=1, pool_timeout="1s") as mq:
        await mq.topics.create("t")
        async with mq.connection():
            with pytest.raises(DatabaseUnavailable, match=r"client's 1 database connections became free in 1 s") as caught:
                await mq.topics.list()
        assert "max_connections or pool_timeout" in (caught.value.hint or "")
        assert len(await mq.topics.list()) == 1


@pytest.mark.parametrize("wait", ["0s", "-1s", timedelta(seconds=-1), "soon"])
def test_a_pool_that_cannot_wait_is_refused(wait: str | timedelta) -> None:
    with pytest.raises((SettingsError, InvalidDuration)):
        SyncClient("postgresql:///x", pool_timeout=wait)


async def test_without_prepared_statements(kind: str, db: str) -> None:
    """For transaction poolers that do not follow them."""
    async with both_clients.client(kind, db, max_connections=1, prepare=False) as mq:
        await mq.topics.create("t")
        for n in range(10):
            await mq.publish("t", n)
        async with mq.connection() as conn:
            cursor = await conn.execute("select count(*) from pg_prepared_statements")
            assert await cursor.fetchone() == (0,)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"host": "127.0.0.1", "port": 1}, "Connection refused"),
        ({"host": "db.invalid"}, "db.invalid"),
        ({"host": "/nowhere"}, "No such file"),
        ({"password": "wrong"}, "password authentication failed"),
        ({"dbname": "nothing"}, 'database "nothing" does not exist'),
    ],
)
async def test_a_database_that_cannot_be_used_is_the_error_of_the_first_call(
    kind: str, db: str, change: dict[str, Any], cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with both_clients.client(kind, make_conninfo(db, **change)) as mq:
        # the pool would retry for ever and say nothing
        with pytest.raises(DatabaseUnavailable, match=cause):
            await mq.publish("t", 1)
        assert both_clients.bare(mq).session.pool._pool.get_stats().get("connections_num", 0) == 0
    assert caplog.records == []


@pytest.mark.parametrize("url", ["nonsense", "mysql://a:secret@h/b", "hello world=3"])
async def test_a_url_that_cannot_be_read(kind: str, url: str) -> None:
    with pytest.raises(SettingsError, match="the database URL is invalid") as caught:
        async with both_clients.client(kind, url) as mq:
            await mq.publish("t", 1)
    assert "secret" not in str(caught.value)


def test_the_url_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRUNKLINE_DATABASE_URL", raising=False)
    with pytest.raises(SettingsError, match="no database URL"):
        Client()
    monkeypatch.setenv("TRUNKLINE_DATABASE_URL", "postgresql:///somewhere")
    assert Client().url == SyncClient().url == "postgresql:///somewhere"


def _child(mq: SyncClient, pipe: Any) -> None:
    try:
        for n in range(20):
            mq.publish("t", f"child {n}")
        with mq.connection() as conn:
            pipe.send(conn.info.backend_pid)
    except BaseException as exc:
        pipe.send(repr(exc))


def test_a_forked_child_opens_connections_of_its_own(db: str) -> None:
    with SyncClient(db) as mq:
        mq.topics.create("t")
        mq.publish("t", "before")
        with mq.connection() as conn:
            parents = conn.info.backend_pid
        fork = multiprocessing.get_context("fork")
        mine, theirs = fork.Pipe()
        children = [fork.Process(target=_child, args=(mq, theirs)) for _ in range(2)]
        for child in children:
            child.start()
        for n in range(20):
            mq.publish("t", f"parent {n}")
        for child in children:
            child.join(60)
            assert child.exitcode == 0
        answers = [mine.recv(), mine.recv()]
        assert all(isinstance(answer, int) for answer in answers), answers
        assert len({parents, *answers}) == 3
        mq.publish("t", "after")
        assert mq.topics.head("t") == 62


def _async_child(mq: Client, pipe: Any) -> None:
    async def work() -> None:
        for n in range(5):
            await mq.publish("t", n)
        await mq.close()

    try:
        asyncio.run(work())
        pipe.send("done")
    except BaseException as exc:
        pipe.send(repr(exc))


async def test_a_forked_child_of_an_async_client(db: str) -> None:
    async with Client(db) as mq:
        await mq.topics.create("t")
        await mq.publish("t", "before")
        fork = multiprocessing.get_context("fork")
        mine, theirs = fork.Pipe()
        child = fork.Process(target=_child_without_loop, args=(mq, theirs))
        child.start()
        await mq.publish("t", "parent")
        assert await asyncio.to_thread(mine.recv) == "done"
        await asyncio.to_thread(child.join, 60)
        await mq.publish("t", "after")
        assert await mq.topics.head("t") == 8


def _child_without_loop(mq: Client, pipe: Any) -> None:
    # The child has a copy of the parent's running loop, so its own loop needs a separate thread.
    import threading

    thread = threading.Thread(target=_async_child, args=(mq, pipe))
    thread.start()
    thread.join()


def test_a_lent_connection_is_of_no_use_in_a_fork(db: str) -> None:
    with SyncClient(db) as mq:
        mq.queues.create("q")
        mq.enqueue("q", 1)
        [delivery] = mq.claim("q")
        with delivery.transaction() as conn:
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    conn.execute("select 1")
                    os.write(writing, b"worked")
                except TransactionMisuse:
                    os.write(writing, b"refused")
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
            assert os.read(reading, 20) == b"refused"
        assert mq.queues.stats("q")[0].acked == 1


def _publishes(db: str) -> None:
    with SyncClient(db) as mq:
        mq.publish("t", "spawned")


def test_a_spawned_process(db: str) -> None:
    with SyncClient(db) as mq:
        mq.topics.create("t")
        child = multiprocessing.get_context("spawn").Process(target=_publishes, args=(db,))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert mq.topics.head("t") == 1


@pytest.mark.parametrize(("apart", "fine"), [(1, True), (-1, True), (2, False), (-2, False)])
async def test_a_schema_one_version_apart_works(
    kind: str, db: str, conn: psycopg.Connection[Any], apart: int, fine: bool
) -> None:
    conn.execute("delete from trunkline.migrations")
    conn.execute("insert into trunkline.migrations values (%s, 'x', 'x')", (latest_version() + apart,))
    async with both_clients.client(kind, db) as mq:
        if fine:
            assert await mq.topics.list() == []
        else:
            with pytest.raises(SchemaVersion, match="version") as caught:
                await mq.topics.list()
            assert caught.value.hint == ("Upgrade this program." if apart > 0 else "Run trunkline migrate.")


async def test_a_database_without_the_schema(kind: str, empty_db: str) -> None:
    async with both_clients.client(kind, empty_db) as mq:
        with pytest.raises(NotInstalled, match="trunkline"):
            await mq.publish("t", 1)


async def test_the_clock_of_the_process_does_not_matter(kind: str, db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with both_clients.client(kind, db) as mq:
        await mq.queues.create("q", lease="1s")
        await mq.enqueue("q", 1)
        async with mq.queue("q").claims() as claims:
            async for delivery in claims:
                monkeypatch.setattr(time, "time", lambda: 0.0)
                # Longer than the lease: renewals continue.
                await asyncio.sleep(1.5)
                assert await delivery.ack() == "done"
                break


async def test_errors_after_the_end_are_clear(kind: str, db: str) -> None:
    async with both_clients.client(kind, db) as mq:
        await mq.topics.create("t")
    # a closed client opens again when it is used
    try:
        await mq.publish("t", 1)
    except TrunklineError as exc:
        pytest.fail(repr(exc))
    finally:
        await mq.close()
