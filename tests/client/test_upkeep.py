"""Upkeep as a process, and our own sessions, in databases whose defaults are not what they need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import psycopg
import pytest

from tests.conftest import Connection
from tests.support import both_clients
from tests.support.waiting import until
from trunkline import Client, upkeep
from trunkline.errors import TrunklineError
from trunkline.jobs import App, Worker

# counts its runs and the sessions they came from
COUNTING = """
create table public.runs (pid int not null);
create or replace function trunkline._upkeep_delayed() returns int language sql
as 'insert into public.runs values (pg_backend_pid()); select 1 from (select {work}) x'
"""


@asynccontextmanager
async def keeping_up(db: str, seconds: float = 0.02) -> AsyncIterator[list[str]]:
    """Upkeep runs; yields what it reports."""
    stop = asyncio.Event()
    reports: list[str] = []
    task = asyncio.create_task(upkeep.run(db, timedelta(seconds=seconds), stop, reports.append))
    try:
        yield reports
    finally:
        stop.set()
        await task


def runs(conn: Connection) -> list[int]:
    return [pid for (pid,) in conn.execute("select pid from public.runs").fetchall()]


async def test_a_failing_task_does_not_slow_down_the_others(db: str, conn: Connection) -> None:
    conn.execute(COUNTING.format(work="1"))
    conn.execute("create or replace function trunkline._upkeep_sequence() returns int language sql as 'select 1 / 0'")
    async with keeping_up(db) as reports:
        await until(lambda: len(runs(conn)) >= 6)
        assert reports == ['upkeep task "sequence" failed: division by zero'], "once, and without a pause"
        conn.execute("create or replace function trunkline._upkeep_sequence() returns int language sql as 'select 1'")
        await until(lambda: len(reports) == 2)
        assert reports[1] == 'upkeep task "sequence" recovered'
    assert len(set(runs(conn))) == 1, "in one session"


async def test_a_lost_connection_is_made_again(db: str, conn: Connection) -> None:
    conn.execute(COUNTING.format(work="1"))
    async with keeping_up(db) as reports:
        for n in range(1, 3):
            await until(lambda n=n: len(set(runs(conn))) == n)
            conn.execute("select pg_terminate_backend(%s)", (runs(conn)[-1],))
        await until(lambda: len(set(runs(conn))) == 3)
    assert len(reports) == 2
    assert all("next try in 0.5 s" in report for report in reports), "a run that worked resets the pause"


LIMITS = {
    "default_transaction_isolation": "serializable",
    "statement_timeout": "100ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "10ms",
    "idle_session_timeout": "200ms",
    "transaction_timeout": "200ms",
}


def set_defaults(conn: Connection, **settings: str) -> None:
    for name, value in settings.items():
        conn.execute(f"alter database {conn.info.dbname} set {name} = '{value}'")


async def test_upkeep_does_not_depend_on_the_defaults_of_the_database(db: str, conn: Connection) -> None:
    conn.execute(COUNTING.format(work="pg_sleep(0.3)"))
    set_defaults(conn, **LIMITS)
    async with keeping_up(db, 0.5) as reports:
        await until(lambda: len(runs(conn)) >= 3)
    assert reports == []
    assert conn.execute("select distinct state from trunkline.upkeep_stats()").fetchall() == [("ok",)]


async def test_a_client_sets_its_isolation_level(kind: str, db: str, conn: Connection) -> None:
    set_defaults(conn, default_transaction_isolation="serializable", statement_timeout="5s")
    async with both_clients.client(kind, db) as mq:
        await mq.queues.ensure("q")
        await mq.enqueue("q", 1)
        [delivery] = await mq.claim("q")
        assert await delivery.ack() == "done"


async def test_a_borrowed_connection_keeps_its_settings(db: str, conn: Connection) -> None:
    set_defaults(conn, default_transaction_isolation="serializable")
    async with Client(db) as mq, await psycopg.AsyncConnection.connect(db) as own:
        await mq.queues.ensure("q")
        await mq.on(own).enqueue("q", 1)
        assert await (await own.execute("show transaction_isolation")).fetchone() == ("serializable",)
        await own.commit()
        assert await (await own.execute("show default_transaction_isolation")).fetchone() == ("serializable",)
        with pytest.raises(TrunklineError, match="serializable"):
            await mq.on(own).ack(["1.1.1.x"])


async def test_a_worker_sets_its_isolation_level(db: str, conn: Connection) -> None:
    set_defaults(conn, default_transaction_isolation="serializable")
    app = App(db)

    @app.job(result=True)
    async def double(n: int) -> int:
        return 2 * n

    async with Worker(app):
        assert await (await double.enqueue(4)).result("20s") == 8
    await app.close()
