"""Deliveries to endpoints: on time, once where settled, with backoff and without open transactions."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

from tests.conftest import Connection
from tests.push.dispatch import Process, dispatching
from tests.push.receivers import Receiver, Seen, receiving
from tests.push.test_dispatch import make, value
from tests.support.waiting import until


async def test_a_delayed_message_is_not_delivered_early(db: str, conn: Connection, receiver: Receiver) -> None:
    make(conn, receiver.url)
    async with dispatching(db):
        sent = time.monotonic()
        conn.execute("select trunkline.enqueue('q', '1', p_delay => '2 seconds')")
        conn.execute("select trunkline.enqueue('q', '2')")
        seen = await asyncio.to_thread(receiver.wait, lambda seen: len(seen) == 2)
    assert [each.body for each in seen] == [b"2", b"1"]
    assert seen[1].at - sent >= 2


async def test_an_idle_dispatcher_delivers_within_about_a_second(db: str, conn: Connection, receiver: Receiver) -> None:
    """Published from plain SQL, without a wake-up, so the poll finds it.

    Only checks that it takes less than a minute.
    """
    make(conn, receiver.url)
    async with dispatching(db):
        for number in range(1, 4):
            conn.execute("select trunkline.enqueue('q', '1')")
            await asyncio.to_thread(receiver.wait, lambda seen, number=number: len(seen) == number, 20)  # type: ignore[misc]


async def test_settled_deliveries_are_not_repeated_after_a_kill(db: str, conn: Connection, tmp_path: Path) -> None:
    """The dispatcher is killed after 50 of 100 responses; the settled deliveries are not repeated."""

    async def answer(seen: Seen) -> int:
        if len(receiver.seen) > 50:
            await asyncio.sleep(3600)
        return 200

    with receiving(answer) as receiver:
        make(conn, receiver.url, lease="2 seconds", timeout="60 seconds")
        conn.execute("select trunkline.enqueue('q', to_jsonb(n)) from generate_series(1, 100) n")
        process = Process(db, tmp_path / "starts")
        await asyncio.to_thread(receiver.wait, lambda seen: len(seen) > 50)
        await until(lambda: value(conn, "select acked >= 45 from trunkline.queue_stats('q')"))
        settled = value(conn, "select acked from trunkline.queue_stats('q')")
        process.kill()
        first = len(receiver.seen)
        receiver.answer = lambda seen: 200
        async with dispatching(db):
            await until(lambda: value(conn, "select acked = 100 from trunkline.queue_stats('q')"))
        assert len(receiver.seen) - first == 100 - settled


async def test_retries_back_off_and_block_no_other_delivery(db: str, conn: Connection) -> None:
    with receiving(lambda seen: 500 if seen.body == b"0" else 200) as receiver:
        make(conn, receiver.url, max_attempts=4, backoff_base="100 milliseconds")
        conn.execute("select trunkline.enqueue('q', to_jsonb(n)) from generate_series(0, 20) n")
        async with dispatching(db):
            await until(lambda: value(conn, "select dead = 1 and acked = 20 from trunkline.queue_stats('q')"))
        poison = [each.at for each in receiver.seen if each.body == b"0"]
    spaces = [after - before for before, after in itertools.pairwise(poison)]
    # 0.1, 0.2 and 0.4 s with a tenth of jitter, none earlier
    assert len(spaces) == 3
    for space, least in zip(spaces, (0.09, 0.18, 0.36), strict=True):
        assert space >= least


async def test_no_transaction_is_open_during_a_request(db: str, conn: Connection) -> None:
    with receiving(lambda seen: "hang") as receiver:
        make(conn, receiver.url, timeout="60 seconds")
        conn.execute("select trunkline.enqueue('q', to_jsonb(n)) from generate_series(1, 5) n")
        async with dispatching(db, grace=0.1):
            await asyncio.to_thread(receiver.wait, lambda seen: len(seen) == 5)
            for _ in range(30):
                open_ = value(
                    conn,
                    "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
                    " and (state like 'idle in transaction%%' or xact_start < now() - interval '1 second')"
                    " and backend_type = 'client backend'",
                )
                assert open_ == 0
                await asyncio.sleep(0.05)
