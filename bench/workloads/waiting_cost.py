"""Cost of waiting messages: open leases, delayed messages and returns, at rest and next to a queue in use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench.lab import Lab
from bench.plan import Plan
from bench.rounds import say
from bench.rows import Row, at_most

_LEVELS = (0, 10_000, 100_000)
_CALLS = 300
_CONNECTIONS = 4


def run(lab: Lab, plan: Plan) -> list[Row]:
    """Measure the same figures with 0, 10,000 and 100,000 of each. Ratios compare with none."""
    for queue in ("leased", "delayed", "returned", "used"):
        lab.value("select trunkline.create_queue(%s)", queue)
    levels = _LEVELS[:2] if plan.quick else _LEVELS
    found: dict[int, dict[str, float]] = {}
    for before, level in zip((0, *levels), levels, strict=False):
        _add(lab, level - before)
        lab.calm()
        time.sleep(5)  # until sequencer passes have processed all of them
        found[level] = _measure(lab, plan.seconds)
        say(f"waiting_cost {level:,}: " + ", ".join(f"{name} {value:.3g}" for name, value in found[level].items()))
    for queue in ("leased", "delayed", "returned", "used"):
        lab.value("select trunkline.delete_queue(%s, true)", queue)
    return [
        Row(
            workload="waiting_cost",
            payload=0,
            name=f"{name}, {level:,} waiting",
            value=value,
            unit=name.rpartition(" ")[2],
            rounds=[value],
            ratio=value / found[0][name] if level else None,
            ratios=[value / found[0][name]] if level else [],
            goal=at_most(1.2) if level else None,
        )
        for level, figures in found.items()
        for name, value in figures.items()
    ]


def _add(lab: Lab, count: int) -> None:
    """Add open leases of one message each, delayed messages, and messages returned with a delay of an hour."""
    if not count:
        return
    for queue in ("leased", "returned"):
        _enqueue(lab, queue, count, "null")
    _enqueue(lab, "delayed", count, "clock_timestamp() + '1 hour'")
    lab.conn.execute("call trunkline.sequence('{leased,returned}', '{}')")

    def lease(_: int) -> None:
        with psycopg.connect(lab.url, autocommit=True) as conn:
            for _ in range(count // _CONNECTIONS):
                conn.execute("select from trunkline.claim('leased', 1, '1 hour', p_relaxed => true)")

    def send_back(_: int) -> None:
        with psycopg.connect(lab.url, autocommit=True) as conn:
            for _ in range(count // _CONNECTIONS // 100):
                receipts = [row[0] for row in conn.execute("select receipt from trunkline.claim('returned', 100)")]
                conn.execute("select count(*) from trunkline.nack(%s, '1 hour')", (receipts,))

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        for work in (lease, send_back):
            list(pool.map(work, range(_CONNECTIONS)))


def _enqueue(lab: Lab, queue: str, count: int, due: str) -> None:
    for _ in range(0, count, 1000):
        lab.value(
            f"select count(*) from trunkline.enqueue_many(%s, array_fill('1'::bytea, array[1000]),"
            f" p_deliver_ats => array_fill(({due})::timestamptz, array[1000]))",
            queue,
        )


def _measure(lab: Lab, seconds: float) -> dict[str, float]:
    figures: dict[str, float] = {}
    (upkeep,) = lab.conn.execute(
        "select pid from pg_stat_activity where datname = current_database() and query ilike 'call trunkline.upkeep%'"
    ).fetchone() or (0,)
    with _spent(upkeep) as cpu:
        start = lab.value("select pg_current_wal_insert_lsn()")
        time.sleep(seconds * 2)
        wal = float(lab.value("select pg_current_wal_insert_lsn() - %s::pg_lsn", str(start)))
    figures["upkeep ms/s"] = cpu() / 1000 / (seconds * 2)
    figures["WAL kB/s"] = wal / 1000 / (seconds * 2)
    _enqueue(lab, "used", 1000, "null")
    lab.conn.execute("call trunkline.sequence('{used}', '{}')")
    with psycopg.connect(lab.url, autocommit=True) as conn:
        pid = conn.info.backend_pid
        for name, call in _calls(conn).items():
            for _ in range(20):
                call()
            with _spent(pid) as cpu:
                for _ in range(_CALLS):
                    call()
            figures[f"{name} us"] = cpu() / _CALLS
    return figures


def _calls(conn: psycopg.Connection[Any]) -> dict[str, Callable[[], object]]:
    pair = "select result from trunkline.claim('used') c cross join lateral trunkline.ack(array[c.receipt])"
    return {
        "claim and ack": lambda: conn.execute(pair).fetchall(),
        "claim of nothing": lambda: conn.execute("select from trunkline.claim('leased', p_relaxed => true)").fetchall(),
        **{
            f"queue_stats of {queue}": lambda queue=queue: conn.execute(  # type: ignore[misc]
                "select * from trunkline.queue_stats(%s)", (queue,)
            ).fetchall()
            for queue in ("leased", "delayed", "returned")
        },
    }


@contextmanager
def _spent(pid: int) -> Iterator[Callable[[], float]]:
    """Yield a function that returns a backend's CPU time since the block began, in microseconds."""
    path = Path(f"/proc/{pid}/schedstat")
    start = int(path.read_text().split()[0])
    yield lambda: (int(path.read_text().split()[0]) - start) / 1000
