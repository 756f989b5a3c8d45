"""Claims of the documentation's prose that no code block demonstrates."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.conftest import Clock, Connection
from trunkline import Client, SyncClient
from trunkline.embedded.install import psql
from trunkline.errors import OffsetOutOfRange, WrongIsolation
from trunkline.sql.migrate import migrate


async def test_upgrade_publishers_and_consumers_go_on(db: str) -> None:
    """docs/operations/upgrade.md: functions are replaced four times under traffic; no call fails, nothing is missing."""
    sent = got = 0
    more = True

    async def publish(mq: Client) -> None:
        nonlocal sent
        while more:
            await mq.enqueue("q", sent)
            sent += 1

    async with Client(db) as mq:
        await mq.queues.ensure("q")

        async def consume() -> None:
            nonlocal got
            async with mq.queue("q").claims(max_in_flight=10) as deliveries:
                async for delivery in deliveries:
                    await delivery.ack()
                    got += 1
                    if not more and got == sent:
                        deliveries.stop()

        async with asyncio.TaskGroup() as tasks:
            publisher = tasks.create_task(publish(mq))
            tasks.create_task(consume())
            for _ in range(4):
                before = sent
                while sent < before + 20:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(_forget_functions, db)
                assert (await asyncio.to_thread(migrate, db)).applied
            more = False
            await publisher
            # one more, so that the consumer's loop looks again
            sent += 1
            await mq.enqueue("q", "last")
        assert got == sent


def _forget_functions(db: str) -> None:
    with psycopg.connect(db, autocommit=True) as conn:
        conn.execute("delete from trunkline.function_files")


def test_backup_traffic_goes_on_during_a_dump(db: str, connect: Callable[[], Connection]) -> None:
    """docs/operations/backup.md: a dump holds a snapshot and a lock on every table, in the weakest mode."""
    with SyncClient(db) as mq, psycopg.connect(db) as dump:
        mq.topics.ensure("t")
        mq.queues.ensure("q")
        dump.execute("set transaction isolation level repeatable read, read only")
        tables = dump.execute(
            "select oid::regclass::text from pg_class"
            " where relnamespace = 'trunkline'::regnamespace and relkind in ('r', 'p')"
        ).fetchall()
        for (table,) in tables:
            dump.execute(f"lock table {table} in access share mode".encode())
        mq.publish("t", 1)
        mq.enqueue("q", 1)
        assert mq.claim("q").ack() == ["done"]
        batch = mq.fetch("t", "g", member="m")
        assert batch is not None and batch.commit() == "done"
        mq.topics.ensure("new")
        connect().execute("call trunkline.upkeep()")


def test_backup_the_schema_alone_can_be_restored(db: str, empty_db: str, tmp_path: Any) -> None:
    """docs/operations/backup.md, its last line."""
    with SyncClient(db) as mq:
        mq.topics.ensure("t")
        mq.publish_many("t", range(3))
        assert mq.topics.head("t") == 3
    programs = psql().parent
    dump = str(tmp_path / "dump")
    _run(str(programs / "pg_dump"), "--schema=trunkline", "--format=custom", f"--file={dump}", db)
    _run(str(programs / "pg_restore"), "--exit-on-error", "--no-owner", f"--dbname={empty_db}", dump)
    assert migrate(empty_db).applied == []
    with SyncClient(empty_db) as mq:
        mq.publish("t", 4)
        assert [message.body for message in mq.topics.read("t")] == [0, 1, 2, 4]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_retention_a_reader_that_was_overtaken(db: str, conn: Connection, clock: Clock) -> None:
    """docs/how-to/retention.md: the group gets an error, the queue continues, both leave a notice."""
    with SyncClient(db) as mq:
        conn.execute(
            "select trunkline.create_topic('t', p_retention => '0', p_hard_retention => '1 hour', p_segment_rows => 16)"
        )
        mq.groups.ensure("t", "slow")
        mq.queues.ensure("q")
        mq.subscriptions.add("q", "t", start="earliest")
        mq.publish_many("t", range(40))
        for _ in range(3):
            conn.execute("select trunkline.run_upkeep('segments')")
        clock.advance(7200)
        for _ in range(3):
            conn.execute("select trunkline.run_upkeep('segments')")
            conn.execute("select trunkline.run_upkeep('retention')")
        lowest = mq.topics.stats("t")[0].earliest_offset
        assert lowest > 1
        with pytest.raises(OffsetOutOfRange):
            mq.fetch("t", "slow", member="m")
        assert mq.groups.seek("t", "slow", "earliest") == {0: lowest}
        deliveries = mq.claim("q", limit=100)
        assert all(delivery.offset >= lowest for delivery in deliveries)
        assert mq.queues.stats("q")[0].expired == lowest - 1
        notices = conn.execute("select count(*) from trunkline.alerts where kind = 'retention_overtook_reader'").fetchone()
        assert notices is not None and notices[0] > 0


def test_exactly_once_needs_read_committed(db: str) -> None:
    """docs/how-to/exactly-once.md: another isolation level is refused in words."""
    with SyncClient(db) as mq, psycopg.connect(make_conninfo(db)) as conn:
        mq.queues.ensure("q")
        mq.enqueue("q", 1)
        [delivery] = mq.claim("q")
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(WrongIsolation):
            mq.on(conn).ack([delivery.receipt])
        conn.rollback()
        assert delivery.ack() == "done"
