"""The rate limit of an endpoint, over all queues and dispatchers together."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.conftest import Connection
from tests.push import starts
from tests.push.dispatch import Process
from tests.push.receivers import receiving
from tests.push.test_dispatch import make, value


async def test_two_queues_and_two_dispatchers_share_one_rate(db: str, conn: Connection, tmp_path: Path) -> None:
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
            row = conn.execute("select delays, valid from trunkline.acquire_permits(%s, 7)", (id,)).fetchone()
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
