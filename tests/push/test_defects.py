"""Defects of pgmb that Trunkline must not have: T11 to T16 (T17, T18: test_pgmb.py; T19: test_dispatch.py)."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

from tests.conftest import Connection
from tests.push import starts
from tests.push.dispatch import Process, dispatching
from tests.push.receivers import Receiver, Seen, receiving
from tests.push.test_dispatch import make, until, value


async def test_t11_a_delayed_message_is_not_delivered_early(db: str, conn: Connection, receiver: Receiver) -> None:
    make(conn, receiver.url)
    async with dispatching(db):
        sent = time.monotonic()
        conn.execute("select trunkline.enqueue('q', '1', p_delay => '2 seconds')")
        conn.execute("select trunkline.enqueue('q', '2')")
        seen = await asyncio.to_thread(receiver.wait, lambda seen: len(seen) == 2)
    assert [each.body for each in seen] == [b"2", b"1"]
    assert seen[1].at - sent >= 2


async def test_t12_an_idle_dispatcher_delivers_within_about_a_second(db: str, conn: Connection, receiver: Receiver) -> None:
    """Published from plain SQL, without a wake-up, so the poll finds it.

    Only checks that it takes less than a minute.
    """
    make(conn, receiver.url)
    async with dispatching(db):
        for number in range(1, 4):
            conn.execute("select trunkline.enqueue('q', '1')")
            await asyncio.to_thread(receiver.wait, lambda seen, number=number: len(seen) == number, 20)


async def test_t13_what_was_answered_before_a_kill_is_not_all_sent_again(db: str, conn: Connection, tmp_path: Path) -> None:
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


async def test_t14_retries_grow_apart_and_block_nobody(db: str, conn: Connection) -> None:
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


async def test_t15_no_transaction_is_open_while_a_call_is(db: str, conn: Connection) -> None:
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


async def test_t16_two_queues_and_two_dispatchers_share_one_rate(db: str, conn: Connection, tmp_path: Path) -> None:
    """Also with a third queue and tests: one limit per endpoint."""
    with receiving() as receiver:
        make(conn, receiver.url, "a", rate=40, burst=4)
        conn.execute("select trunkline.create_queue('b'), trunkline.bind_queue('b', 'e')")
        for queue in ("a", "b"):
            conn.execute("select trunkline.enqueue(%s, to_jsonb(n)) from generate_series(1, 60) n", (queue,))
        record = tmp_path / "starts"
        processes = [Process(db, record), Process(db, record)]
        try:
            await asyncio.to_thread(receiver.wait, lambda seen: len(seen) >= 120)
        finally:
            for process in processes:
                await asyncio.to_thread(process.stop)
        times = starts.read(record)["e"]
    assert len(times) == 120
    assert starts.worst_excess(times, 40, 4) <= 0


def test_the_checker_of_starts_sees_a_limit_that_is_broken() -> None:
    even = [n / 10 for n in range(50)]
    assert starts.worst_excess(even, 10, 1) <= 1e-6
    assert starts.worst_excess(sorted([*even, 2.05]), 10, 1) > 0
    assert starts.worst_excess([0, 0, 0], 1, 3) <= 0
    assert starts.worst_excess([0, 0, 0, 0], 1, 3) > 0


def test_permits_keep_the_rate_whenever_they_are_used(conn: Connection) -> None:
    """From SQL alone, with many takers: the latest use of one permit and the earliest of the others stay in the limit."""
    for number, (rate, burst) in enumerate([(50.0, 10), (5.0, 1), (1000.0, 50), (0.5, 2), (20.0, 2)]):
        conn.execute("select trunkline.create_endpoint(%s, 'https://example.com/', %s, %s)", (f"e{number}", rate, burst))
        id = value(conn, "select endpoint_id from trunkline.endpoints where name = %s", f"e{number}")
        early: list[float] = []
        late: list[float] = []
        for _ in range(40):
            before = value(conn, "select extract(epoch from clock_timestamp())::float8")
            row = conn.execute("select delays, valid from trunkline.take_permits(%s, 7)", (id,)).fetchone()
            after = value(conn, "select extract(epoch from clock_timestamp())::float8")
            assert row is not None
            if after - before <= row[1]:  # else they were void when they came
                early += [after + delay for delay in row[0]]
                late += [before + delay + row[1] for delay in row[0]]
        assert early
        # the worst mix: everything up to some moment as late as allowed, everything after it as early as allowed
        for cut in range(0, len(early) + 1, max(1, len(early) // 20)):
            times = sorted(late[:cut] + early[cut:])
            assert starts.worst_excess(times, rate, burst) <= 0.01, (rate, burst, cut)
