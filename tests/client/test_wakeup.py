"""Waking up: by our own publishers, by other processes, by the poll alone, and after the listener was cut off."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import psycopg
import pytest

from tests.support import both_clients
from tests.support.waiting import until
from trunkline.db import wakeup as async_wakeup
from trunkline.db.sync import wakeup as sync_wakeup
from trunkline.errors import OutcomeUnknown, Unavailable

LISTENERS = "select pid from pg_stat_activity where datname = current_database() and query like 'listen %'"


@pytest.fixture
def slow_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls so rarely that only a hint can wake anybody in time."""
    for module in (async_wakeup, sync_wakeup):
        monkeypatch.setattr(module, "POLL_SECONDS", 1000.0)


async def hearing(mq: Any) -> None:
    wakeup = both_clients.bare(mq).session.wakeup
    await until(lambda: wakeup.hearing)


class Consumer:
    """Takes everything of a queue in the background."""

    def __init__(self, mq: Any, queue: str) -> None:
        self.bodies: list[Any] = []
        self._claims = mq.queue(queue).claims(max_in_flight=10)
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self._claims as claims:
            async for delivery in claims:
                self.bodies.append(delivery.body)
                # Disconnected during the ack: the message may be redelivered, which is not tested here.
                with contextlib.suppress(Unavailable, OutcomeUnknown):
                    await delivery.ack()

    async def stop(self) -> None:
        self._claims.stop()
        await self._task


async def test_our_own_publishers_wake_us_directly(mq: Any, slow_poll: None, monkeypatch: pytest.MonkeyPatch) -> None:
    await mq.queues.create("q")
    await mq.topics.create("t")
    await mq.subscriptions.add("q", "t")
    consumer = Consumer(mq, "q")
    for n in range(5):
        await mq.enqueue("q", n)
        await until(lambda n=n: len(consumer.bodies) == 2 * n + 1)
        await mq.publish("t", n)
        await until(lambda n=n: len(consumer.bodies) == 2 * n + 2)
    await consumer.stop()


async def test_publishers_of_another_client_wake_us_by_a_hint(mq: Any, kind: str, db: str, slow_poll: None) -> None:
    await mq.queues.create("q")
    await mq.topics.create("t")
    consumer = Consumer(mq, "q")
    found: list[Any] = []

    async def read() -> None:
        async with mq.subscribe("t", group="g") as batches:
            async for batch in batches:
                found.extend(message.body for message in batch)
                await batch.commit()
                if len(found) == 3:
                    return

    reading = asyncio.create_task(read())
    async with both_clients.client(kind, db) as other:
        await hearing(mq)
        for n in range(3):
            await other.enqueue("q", n)
            await other.publish("t", n)
            await until(lambda n=n: len(consumer.bodies) == n + 1 and len(found) == n + 1)
    await reading
    await consumer.stop()


async def test_a_client_that_publishes_and_closes_still_tells(kind: str, db: str) -> None:
    async with await psycopg.AsyncConnection.connect(db, autocommit=True) as listener:
        await listener.execute("listen trunkline")
        async with both_clients.client(kind, db) as mq:
            await mq.topics.create("t")
            await mq.publish("t", 1)
        heard = [hint async for hint in listener.notifies(timeout=20, stop_after=1)]
    assert len(heard) == 1


async def test_the_poll_alone_is_enough(mq: Any, conn: psycopg.Connection[Any]) -> None:
    """A publisher without wake-up: psql, a trigger, a caller's own transaction."""
    await mq.queues.create("q")
    consumer = Consumer(mq, "q")
    conn.execute("select trunkline.enqueue('q', '1')")
    await until(lambda: consumer.bodies == [1])
    # committed long after its id was drawn: a poll that only looked at the sequence would miss it
    with conn.transaction():
        conn.execute("select trunkline.enqueue('q', '2')")
        await asyncio.sleep(2.5)
    await until(lambda: consumer.bodies == [1, 2])
    await consumer.stop()


async def test_what_comes_back_is_taken_again(mq: Any) -> None:
    await mq.queues.create("q")
    await mq.enqueue("q", 1)
    [delivery] = await mq.claim("q")
    consumer = Consumer(mq, "q")
    await delivery.nack(delay="200ms")
    await until(lambda: consumer.bodies == [1])
    await consumer.stop()


async def test_an_overdue_lease_is_ended_where_nobody_runs_upkeep(mq: Any) -> None:
    await mq.queues.create("q")
    await mq.enqueue("q", 1)
    await mq.claim("q", lease="1s")
    consumer = Consumer(mq, "q")
    await until(lambda: consumer.bodies == [1], seconds=40)
    await consumer.stop()


async def test_a_listener_that_was_cut_off_hears_again(mq: Any, kind: str, db: str, slow_poll: None, connect: Any) -> None:
    await mq.queues.create("q")
    consumer = Consumer(mq, "q")
    killer = connect()
    async with both_clients.client(kind, db) as other:
        await hearing(mq)
        for n in range(5):
            [(pid,)] = killer.execute(LISTENERS).fetchall()
            killer.execute("select pg_terminate_backend(%s)", (pid,))
            # Published while no listener is connected: detected after the listener reconnects.
            await other.enqueue("q", n)
            await until(lambda n=n: len(consumer.bodies) == n + 1)
            await until(lambda pid=pid: [(pid,)] != killer.execute(LISTENERS).fetchall() != [])
    assert consumer.bodies == list(range(5))
    await consumer.stop()


async def test_all_connections_cut_at_once(mq: Any, kind: str, db: str, connect: Any) -> None:
    await mq.queues.create("q")
    consumer = Consumer(mq, "q")
    killer = connect()
    await hearing(mq)
    async with both_clients.client(kind, db) as other:
        for n in range(3):
            killer.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            while True:
                try:
                    await other.enqueue("q", n, idempotency_key=str(n))
                    break
                except Exception:
                    await asyncio.sleep(0.05)
            await until(lambda n=n: n in consumer.bodies)
    await consumer.stop()


async def test_a_deaf_listener_is_noticed_and_polling_goes_on(
    mq: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, conn: psycopg.Connection[Any]
) -> None:
    """As behind a transaction pooler, where LISTEN is accepted and nothing is ever heard."""
    for module in (async_wakeup, sync_wakeup):
        monkeypatch.setattr(module.calls, "CHANNEL", "somewhere_else")
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.3)

    async def deaf(conn: Any) -> None:
        await conn.execute("listen nobody_speaks_here")

    monkeypatch.setattr(async_wakeup.calls, "listen", deaf)  # type: ignore[attr-defined]
    monkeypatch.setattr(sync_wakeup.calls, "listen", lambda conn: conn.execute("listen nobody_speaks_here"))  # type: ignore[attr-defined]
    await mq.queues.create("q")
    consumer = Consumer(mq, "q")
    await until(lambda: "LISTEN is not working" in caplog.text)
    conn.execute("select trunkline.enqueue('q', '1')")
    await until(lambda: consumer.bodies == [1])
    await consumer.stop()


async def test_idle_consumers_cost_one_query_per_second_together(
    mq: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 idle consumers: only the poller queries."""
    await mq.queues.create("q")
    await mq.topics.create("t")
    loops = [mq.queue("q").claims() for _ in range(100 if kind == "async" else 10)]
    loops += [mq.subscribe("t", group=f"g{n}") for n in range(100 if kind == "async" else 10)]

    async def idle(loop: Any) -> None:
        async with loop as items:
            async for _ in items:
                pass

    if kind == "sync":
        from concurrent.futures import ThreadPoolExecutor

        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64))
    tasks = [asyncio.create_task(idle(loop)) for loop in loops]
    wakeup = both_clients.bare(mq).session.wakeup
    await until(lambda: sum(watch.waiting for watch in wakeup._watches) == len(loops), seconds=60)
    await hearing(mq)
    # what they looked for once is over when two polls have passed without a ring
    await until(lambda polls=wakeup.polls: wakeup.polls >= polls + 2)
    asked, polls = count_statements(monkeypatch), wakeup.polls
    await until(lambda: wakeup.polls >= polls + 4)
    # nothing but polls; a ping may be among them
    assert len(asked) <= wakeup.polls - polls + 2, asked
    for loop in loops:
        loop.stop()
    await asyncio.gather(*tasks)


def count_statements(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collects every statement that this process sends from here on."""
    asked: list[Any] = []
    for cls in (psycopg.AsyncCursor, psycopg.Cursor):

        def execute(self: Any, query: Any, *args: Any, _real: Any = cls.execute, **kwargs: Any) -> Any:
            asked.append(query)
            return _real(self, query, *args, **kwargs)

        monkeypatch.setattr(cls, "execute", execute)
    return asked


async def test_wake_tells_after_a_transaction_of_the_callers(
    mq: Any, kind: str, db: str, slow_poll: None, conn: psycopg.Connection[Any]
) -> None:
    await mq.queues.create("q")
    consumer = Consumer(mq, "q")
    async with both_clients.client(kind, db) as other:
        await hearing(mq)
        with conn.transaction():
            both_clients.bare(mq).on(conn).enqueue("q", 1)
        other.wake()
        await until(lambda: consumer.bodies == [1])
        with conn.transaction():
            both_clients.bare(mq).on(conn).enqueue("q", 2)
        mq.wake()
        await until(lambda: consumer.bodies == [1, 2])
    await consumer.stop()
