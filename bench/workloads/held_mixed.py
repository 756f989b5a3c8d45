"""Everything that a queue does at once, while a transaction stays open: retries, delays, labels, jobs, groups, slow acks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from bench.lab import Lab
from bench.plan import Plan
from bench.rounds import say
from bench.rows import Goal, Row, at_least, at_most, figure, percentile

_RATE = 2_000
_EVERY = 0.1
_PAYLOAD = b"x" * 300
# the rotated tables, whose size must stay bounded
_ROTATED = (
    "leases",
    "settled",
    "extensions",
    "returns",
    "later",
    "cursor_states",
    "passes",
    "ticks",
    "positions",
    "delayed",
)


class _Traffic:
    """Threads with a connection each, and what they counted since the last phase."""

    def __init__(self, url: str) -> None:
        self.acked = 0
        self.claims: list[float] = []
        self.failed: list[BaseException] = []
        self.counting = threading.Lock()
        self._url = url
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, step: Callable[[psycopg.Connection[Any]], None], *, every: float = 0) -> None:
        def loop() -> None:
            try:
                with psycopg.connect(self._url, autocommit=True) as conn:
                    due = time.monotonic()
                    while not self._stop.is_set():
                        step(conn)
                        due += every
                        self._stop.wait(max(0.0, due - time.monotonic()) if every else 0)
            except BaseException as exc:
                self.failed.append(exc)

        self._threads.append(threading.Thread(target=loop))
        self._threads[-1].start()

    def count(self, acked: int, seconds: float | None = None) -> None:
        with self.counting:
            self.acked += acked
            if seconds is not None:
                self.claims.append(seconds)

    def reset(self) -> tuple[int, list[float]]:
        with self.counting:
            counted = self.acked, self.claims
            self.acked, self.claims = 0, []
            return counted

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self.failed:
            raise self.failed[0]


def run(lab: Lab, plan: Plan) -> list[Row]:
    lab.value("select trunkline.create_queue('mixed-work', p_max_attempts => 50)")
    lab.value("select trunkline.create_queue('mixed-jobs', p_max_attempts => 50)")
    lab.value("select trunkline.create_topic('mixed-events')")
    held = plan.minutes * 60
    around = max(5.0, min(held / 5, 120))
    traffic = _Traffic(lab.url)
    traffic.start(_publish, every=_EVERY)
    traffic.start(_publish_jobs, every=_EVERY)
    for number in range(3):
        traffic.start(_consumer(traffic, by_label=number == 0))
    traffic.start(_work(traffic))
    for _ in range(2):
        traffic.start(_ack_slowly(traffic))
        traffic.start(_publish_and_roll_back(), every=0.02)
    traffic.start(_read_group, every=_EVERY)
    try:
        _phase(lab, traffic, "warm", min(around, 20))
        rows = _rows("before", before := _phase(lab, traffic, "before", around), None)
        with _open_transaction(lab.url), _open_publisher(lab.url):
            rows += _rows("held", _phase(lab, traffic, "held", held), before)
        rows += _rows("after", _phase(lab, traffic, "after", around), before)
    finally:
        traffic.stop()
    return rows


@contextmanager
def _open_transaction(url: str) -> Iterator[None]:
    with psycopg.connect(url) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select pg_current_xact_id(), count(*) from trunkline.topics")
        yield
        holder.rollback()


@contextmanager
def _open_publisher(url: str) -> Iterator[None]:
    with psycopg.connect(url) as publisher:
        publisher.execute("select trunkline.publish('mixed-events', '1')")
        yield


def _phase(lab: Lab, traffic: _Traffic, name: str, seconds: float) -> dict[str, float]:
    traffic.reset()
    rotations: set[tuple[Any, ...]] = set()
    start = time.monotonic()
    while (left := start + seconds - time.monotonic()) > 0 and not traffic.failed:
        time.sleep(min(left, 1))
        rotations.add(lab.conn.execute("select current, emptied from trunkline.rotation").fetchone() or ())
    acked, claims = traffic.reset()
    lab.conn.execute("select pg_stat_force_next_flush()")
    figures = {
        "settled msg/s": acked / (time.monotonic() - start),
        "claim ms p99": percentile(claims, 99) * 1000,
        "dead rows": lab.value(
            "select coalesce(sum(n_dead_tup), 0)::float8 from pg_stat_user_tables where schemaname = 'trunkline'"
        ),
        "rotated tables MB": lab.value(
            "select sum(pg_total_relation_size(relid))::float8 / 1e6 from pg_stat_user_tables"
            " where schemaname = 'trunkline' and regexp_replace(relname, '_[0-9]$', '') = any (%s)",
            list(_ROTATED),
        ),
        "largest tick bytes": lab.value("select max(pg_column_size(t))::float8 from trunkline.ticks t"),
        "pass ms": _pass(lab),
    }
    say(f"  held_mixed, {name}: " + ", ".join(f"{key} {value:,.1f}" for key, value in figures.items()))
    say(f"    partitions of leases used and emptied: {sorted(rotations)}; dead rows: {_dead_rows(lab)}")
    return figures


def _dead_rows(lab: Lab) -> str:
    """The tables with the most dead rows. Each publish that is rolled back leaves one in a table of messages."""
    rows = lab.conn.execute(
        "select relname, n_dead_tup from pg_stat_user_tables where schemaname = 'trunkline' and n_dead_tup > 0"
        " order by n_dead_tup desc limit 6"
    )
    return ", ".join(f"{table} {count:,}" for table, count in rows.fetchall()) or "none"


def _pass(lab: Lab) -> float:
    """The time of one more pass, beside those of upkeep."""
    start = time.perf_counter()
    lab.value("select trunkline.run_upkeep('pass')")
    return (time.perf_counter() - start) * 1000


def _rows(phase: str, figures: dict[str, float], before: dict[str, float] | None) -> list[Row]:
    goals: dict[str, Goal] = {"dead rows": at_most(999)}
    compared: dict[str, Goal] = {"settled msg/s": at_least(0.97), "claim ms p99": at_most(1.5)}
    rows = []
    for name, value in figures.items():
        what, _, unit = name.rpartition(" ")
        row = figure("held_mixed", f"{what}, {phase}", value, unit, payload=len(_PAYLOAD), goal=goals.get(name))
        if before is not None and name in compared and before[name]:
            share = value / before[name]
            row = figure("held_mixed", f"{what}, {phase}", value, unit, payload=len(_PAYLOAD), note=f"{share:.2f} x before")
            rows.append(figure("held_mixed", f"{what}, {phase} to before", share, "x", goal=compared[name]))
        rows.append(row)
    return rows


# --- what runs at once ----------------------------------------------------------------------------------------------------


def _publish(conn: psycopg.Connection[Any]) -> None:
    """2,000 a second less the jobs; a tenth with a delay of two seconds, a twentieth with a label."""
    n = int(_RATE * _EVERY * 0.9)
    conn.execute(
        "select count(*) from trunkline.enqueue_many('mixed-work', %s, p_delays => %s::interval[], p_labels => %s)",
        (
            [_PAYLOAD] * n,
            ["2 seconds"] * (n // 10) + [None] * (n - n // 10),
            [None] * (n - n // 20) + ["rare"] * (n // 20),
        ),
    )


def _publish_jobs(conn: psycopg.Connection[Any]) -> None:
    n = int(_RATE * _EVERY * 0.1)
    conn.execute(
        "select count(*) from trunkline.enqueue_many('mixed-jobs', %s, p_labels => %s)", ([_PAYLOAD] * n, ["job"] * n)
    )


def _consumer(traffic: _Traffic, *, by_label: bool) -> Callable[[psycopg.Connection[Any]], None]:
    calls = 0

    def step(conn: psycopg.Connection[Any]) -> None:
        nonlocal calls
        calls += 1
        labels = ["rare"] if by_label and calls % 7 == 0 else None
        start = time.perf_counter()
        claimed = conn.execute(
            "select receipt, attempt from trunkline.claim('mixed-work', 100, p_labels => %s)", (labels,)
        ).fetchall()
        spent = time.perf_counter() - start
        if not claimed:
            time.sleep(0.005)
            return
        back = [receipt for receipt, attempt in claimed if attempt == 1][: len(claimed) // 10]
        done = [receipt for receipt, _ in claimed if receipt not in set(back)]
        conn.execute("select from trunkline.nack(%s, '2 seconds')", (back,))
        conn.execute("select from trunkline.ack(%s)", (done,))
        traffic.count(len(done), spent)

    return step


def _work(traffic: _Traffic) -> Callable[[psycopg.Connection[Any]], None]:
    """Jobs of which a third fails twice, with the queue's own backoff."""

    def step(conn: psycopg.Connection[Any]) -> None:
        claimed = conn.execute("select receipt, attempt, log_offset from trunkline.claim('mixed-jobs', 50)").fetchall()
        failed = [receipt for receipt, attempt, offset in claimed if offset % 3 == 0 and attempt < 3]
        done = [row[0] for row in claimed if row[0] not in set(failed)]
        if failed:
            conn.execute("select from trunkline.nack(%s, p_error => 'failed on purpose')", (failed,))
        if done:
            conn.execute("select from trunkline.ack(%s)", (done,))
        traffic.count(len(done))
        if not claimed:
            time.sleep(0.02)

    return step


def _ack_slowly(traffic: _Traffic) -> Callable[[psycopg.Connection[Any]], None]:
    """Acks inside business transactions of 0.3 s; two workers, so one of these transactions is almost always open."""

    def step(conn: psycopg.Connection[Any]) -> None:
        claimed = [row[0] for row in conn.execute("select receipt from trunkline.claim('mixed-work', 10)").fetchall()]
        with conn.transaction():
            conn.execute("select from trunkline.ack(%s)", (claimed,))
            time.sleep(0.3)
        traffic.count(len(claimed))

    return step


def _publish_and_roll_back() -> Callable[[psycopg.Connection[Any]], None]:
    calls = 0

    def step(conn: psycopg.Connection[Any]) -> None:
        nonlocal calls
        calls += 1
        with conn.transaction(force_rollback=calls % 10 == 0):
            conn.execute("select trunkline.publish('mixed-events', '1')")

    return step


def _read_group(conn: psycopg.Connection[Any]) -> None:
    rows = conn.execute(
        "select partition, generation, log_offset from trunkline.fetch('mixed-events', 'readers', 'one', 1000)"
    ).fetchall()
    if rows:
        conn.execute("select trunkline.commit('mixed-events', 'readers', %s, %s, %s)", rows[-1])
