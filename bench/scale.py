"""`python -m bench.scale`: measure how costs grow with open messages and with the number of queues and topics.

`open` measures with 0, 10,000 and 100,000 open leases, delayed messages, returns, waiting jobs and idle groups. `many`
creates thousands of queues and topics. Both run upkeep task by task on a separate connection, so that each figure
belongs to one task. CPU time is that of the backend.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import click
import psycopg

from bench import machine, report
from bench.rounds import say
from bench.rows import Goal, Row, at_most, figure
from trunkline.embedded import install
from trunkline.embedded.server import EmbeddedServer
from trunkline.sql.migrate import migrate

_RUNS = 7
_CALLS = 60


@click.group("scale")
def main() -> None:
    """Measure how costs grow with open messages and with the number of queues and topics."""


class Bed:
    """A fresh server without a running upkeep process."""

    def __init__(self, server: EmbeddedServer, directory: Path) -> None:
        self.server = server
        self.url = server.url
        self.directory = directory
        self.conn = psycopg.connect(self.url, autocommit=True)
        self.upkeep = Backend(self.url)

    def value(self, query: str, *args: Any) -> Any:
        row = self.conn.execute(query.encode(), args).fetchone()
        return row[0] if row else None

    def tasks(self) -> dict[str, float]:
        """Return the upkeep tasks and their intervals in seconds."""
        rows = self.conn.execute("select task, extract(epoch from every)::float8 from trunkline._upkeep_tasks()")
        return dict(rows.fetchall())

    def run(self, task: str) -> None:
        self.upkeep.conn.execute("select trunkline.run_upkeep(%s)", (task,))

    def settle_down(self, rounds: int = 6) -> None:
        """Run all upkeep tasks repeatedly until they are idle, then vacuum and analyze like autovacuum."""
        for _ in range(rounds):
            for task in self.tasks():
                self.run(task)
        self.conn.execute("vacuum (analyze)")
        self.conn.execute("checkpoint")

    def close(self) -> None:
        self.upkeep.conn.close()
        self.conn.close()


class Backend:
    """A connection that measures the CPU time and memory of its backend."""

    def __init__(self, url: str) -> None:
        self.conn = psycopg.connect(url, autocommit=True)
        self.pid = self.conn.info.backend_pid

    def cpu(self) -> float:
        """Return the CPU time so far, in milliseconds."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e6

    def private_kb(self) -> int:
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty:", "Private_Clean:")))

    def spent(self, call: Callable[[], object], *, times: int, warm: int = 2) -> float:
        """Return the median CPU time of a call, in milliseconds."""
        for _ in range(warm):
            call()
        durations = []
        for _ in range(times):
            start = self.cpu()
            call()
            durations.append(self.cpu() - start)
        return median(durations)

    def rows(self, query: str, *args: Any) -> list[Any]:
        return self.conn.execute(query.encode(), args).fetchall()


@contextmanager
def _bed() -> Iterator[Bed]:
    home = Path(tempfile.mkdtemp(prefix="trunkline-scale-", dir="/var/tmp"))
    try:
        # Postgres's defaults: the size of the lock table depends on them.
        default = {"max_connections": "100", "max_prepared_transactions": "0", "shared_buffers": "128MB"}
        with patch.dict("trunkline.embedded.server._STATIC", default), EmbeddedServer(home / "data") as server:
            migrate(server.url)
            with psycopg.connect(server.superuser_url, autocommit=True) as admin:
                admin.execute("grant pg_checkpoint to trunkline")
                admin.execute("create schema bench authorization trunkline")
            bed = Bed(server, home)
            try:
                yield bed
            finally:
                bed.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _print(bed: Bed, rows: list[Row], facts: dict[str, Any]) -> None:
    facts["load_average_at_end"] = os.getloadavg()[0]
    report.print_table(facts, rows)


def _upkeep_figures(bed: Bed, *, runs: int = _RUNS) -> dict[str, float]:
    """Return the CPU time of each task, and the total CPU time and WAL per second at the tasks' intervals."""
    figures: dict[str, float] = {}
    total = wal = 0.0
    for task, every in bed.tasks().items():
        written = []

        def once(task: str = task, written: list[float] = written) -> None:
            start = bed.value("select pg_current_wal_insert_lsn()::text")
            bed.run(task)
            written.append(float(bed.value("select pg_current_wal_insert_lsn() - %s::pg_lsn", start)))

        spent = bed.upkeep.spent(once, times=runs)
        figures[f"upkeep {task} ms"] = spent
        total += spent / every
        wal += median(written) / 1000 / every
    return {"upkeep ms/s": total, "WAL kB/s": wal, **figures}


# --- open ---------------------------------------------------------------------------------------------------------------


@main.command("open")
@click.option("--level", "levels", type=click.IntRange(0), multiple=True, help="Sizes [0, 10,000 and 100,000].")
def open_(levels: tuple[int, ...]) -> None:
    """Measure costs with many open leases, delayed messages, returns, waiting jobs and idle groups."""
    sizes = levels or (0, 10_000, 100_000)
    measured: dict[int, dict[str, float]] = {}
    with _bed() as bed:
        facts = machine.facts(bed.conn, bed.directory)
        for queue in ("leased", "delayed", "returned", "used", "jobs"):
            bed.value("select trunkline.create_queue(%s)", queue)
        bed.value("select trunkline.create_topic('events')")
        before = 0
        for size in sizes:
            _open_more(bed, before, size)
            before = size
            bed.settle_down()
            measured[size] = {**_upkeep_figures(bed), **_call_figures(bed)}
            say(f"open {size:,}: " + ", ".join(f"{name} {value:.3g}" for name, value in measured[size].items()))
        rows = list(_open_rows(measured))
        _print(bed, rows, facts)


def _open_rows(measured: dict[int, dict[str, float]]) -> Iterator[Row]:
    base = measured[min(measured)]
    for name in base:
        for size, figures in measured.items():
            ratio = figures[name] / base[name] if base[name] and size != min(measured) else None
            yield Row(
                workload="open",
                payload=0,
                name=f"{name.rpartition(' ')[0]}, {size:,}",
                value=figures[name],
                unit=name.rpartition(" ")[2],
                rounds=[figures[name]],
                ratio=ratio,
                goal=at_most(1.2) if ratio is not None and not name.startswith("upkeep ") else None,
            )


def _open_more(bed: Bed, before: int, size: int) -> None:
    count = size - before
    if count <= 0:
        return
    for queue, due in (("leased", "null"), ("returned", "null"), ("delayed", "clock_timestamp() + '1 hour'")):
        _enqueue(bed, queue, count, due)
    for task in ("sequence", "pass"):
        bed.run(task)
    say(f"leasing {count:,}")
    bed.conn.execute(
        f"""do $$ begin for i in 1 .. {count} loop
                perform from trunkline.claim('leased', 1, '1 hour', p_relaxed => true); commit;
                if i % 1000 = 0 then perform trunkline.run_upkeep('pass'); commit; end if;
            end loop; end $$""".encode()
    )
    for _ in range(count // 100):
        bed.conn.execute(
            "select count(*) from trunkline.nack(array(select receipt from trunkline.claim('returned', 100)), '1 hour')"
        )
    bed.run("pass")
    say(f"waiting jobs and groups, {count:,}")
    bed.conn.execute(
        f"""do $$ begin for i in 1 .. {count} loop
                perform trunkline.enqueue_after('jobs', array[gen_random_uuid()], '1', 'job');
                if i % 1000 = 0 then commit; end if;
            end loop; end $$""".encode()
    )
    bed.conn.execute(
        f"""do $$ begin for i in {before + 1} .. {size} loop
                perform trunkline.create_group('events', 'group-' || i, 'earliest');
                if i % 100 = 0 then commit; end if;
            end loop; end $$""".encode()
    )


def _enqueue(bed: Bed, queue: str, count: int, due: str) -> None:
    for _ in range(0, count, 1000):
        bed.value(
            f"select count(*) from trunkline.enqueue_many(%s, array_fill('1'::bytea, array[{min(1000, count)}]),"
            f" p_deliver_ats => array_fill(({due})::timestamptz, array[{min(1000, count)}]))",
            queue,
        )


def _call_figures(bed: Bed) -> dict[str, float]:
    """Return the CPU time of calls on queues with many open messages, and on other queues."""
    _enqueue(bed, "used", 1000, "null")
    _enqueue(bed, "leased", 1000, "null")
    for task in ("sequence", "pass"):
        bed.run(task)
    backend = Backend(bed.url)
    calls = {
        "claim and ack": (
            "select result from trunkline.claim('used') c cross join lateral trunkline.ack(array[c.receipt])",
            _CALLS,
        ),
        "claim of a queue with leases": ("select from trunkline.claim('leased', p_relaxed => true)", _CALLS),
        "queue_stats of leased": ("select * from trunkline.queue_stats('leased')", _CALLS),
        "queue_stats of delayed": ("select * from trunkline.queue_stats('delayed')", _CALLS),
        "queue_stats of returned": ("select * from trunkline.queue_stats('returned')", _CALLS),
        "poll": ("select * from trunkline.poll('{leased,delayed,returned}', '{}', '{}', '{}', '{}')", _CALLS),
        "peek_queue of leased": ("select * from trunkline.peek_queue('leased')", 5),
        "trim_queue of leased": ("select trunkline.trim_queue('leased')", 3),
        "topic_stats": ("select * from trunkline.topic_stats('events')", 20),
    }
    figures = {}
    for name, (query, times) in calls.items():
        figures[f"{name} us"] = backend.spent(lambda query=query: backend.rows(query), times=times, warm=3) * 1000  # type: ignore[misc]
    message = bed.value(
        "select m.message_id from trunkline.topics t join trunkline.logs l using (topic_id)"
        " join trunkline.store m using (log) where t.name = 'leased' order by m.id limit 1"
    )
    figures["explain_message us"] = (
        backend.spent(lambda: backend.rows("select trunkline.explain_message(%s)", message), times=10) * 1000
    )
    backend.conn.close()
    return figures


# --- many ---------------------------------------------------------------------------------------------------------------


@main.command("many")
@click.option("--queues", type=click.IntRange(100), default=10_000, show_default=True)
@click.option(
    "--topics", type=click.IntRange(0), default=1_000, show_default=True, help="Number of topics, with four partitions each."
)
@click.option("--dump/--no-dump", default=True, show_default=True, help="Measure dump and restore.")
def many(queues: int, topics: int, dump: bool) -> None:
    """Measure thousands of queues and topics: creation, memory, upkeep, statistics, migrate, dump and restore."""
    with _bed() as bed:
        facts = machine.facts(bed.conn, bed.directory)
        rows: list[Row] = []

        def add(name: str, value: float, unit: str, goal: Goal | None = None, note: str = "") -> None:
            rows.append(figure("many", name, value, unit, goal=goal, note=note))
            say(f"{name}: {value:,.2f} {unit} {note}")

        for kind, count in bed.conn.execute(
            "select relkind::text, count(*) from pg_class where relnamespace = 'trunkline'::regnamespace group by 1"
        ).fetchall():
            add(f"relations of an empty schema, kind {kind}", count, "")
        add("relations of an empty schema", _relations(bed), "", at_most(250))
        bed.value("select trunkline.create_queue('first')")
        _create_all(bed, add, "queue", queues, "select trunkline.create_queue(%s)")
        if topics:
            _create_all(bed, add, "topic", topics, "select trunkline.create_topic(%s, 4)")
        _touch_all(bed, add, queues, topics)
        _upkeep_of_many(bed, add)
        _read_many(bed, add)
        if dump:
            _dump(bed, add)
        _print(bed, rows, facts)


def _relations(bed: Bed) -> int:
    return int(bed.value("select count(*) from pg_class where relnamespace = 'trunkline'::regnamespace and relkind <> 't'"))


def _timed(call: Callable[[], object]) -> float:
    """Return the wall time of a call, in milliseconds. On a busy machine much of it is waiting."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def _measured(backend: Backend, calls: Iterable[Callable[[], object]], last: int | None = None) -> tuple[float, str]:
    """Run all calls. Return the median CPU time of the (last) calls, and a note with their median wall time."""
    spent, clock = [], []
    for call in calls:
        start = backend.cpu()
        clock.append(_timed(call))
        spent.append(backend.cpu() - start)
    return median(spent[-(last or len(spent)) :]), f"{median(clock[-(last or len(clock)) :]):,.1f} ms wall time"


def _create_all(bed: Bed, add: Callable[..., None], kind: str, count: int, query: str) -> None:
    creator, other = Backend(bed.url), Backend(bed.url)
    for _ in range(10):
        other.rows("select from trunkline.claim('first')")
    before = _relations(bed)
    few = max(20, count // 50)
    creations: list[Callable[[], object]] = [lambda i=i: creator.rows(query, f"{kind}-{i}") for i in range(count)]  # type: ignore[misc]
    value, note = _measured(creator, creations[:few])
    add(f"create a {kind}, the first {few}", value, "ms", None, note)
    _measured(creator, creations[few:-few])
    value, note = _measured(creator, creations[-few:-10])
    add(f"create a {kind}, the last {few}", value, "ms", at_most(20), note)
    after = []
    for create in creations[-10:]:
        other.rows("select from trunkline.claim('first')")
        create()
        after.append(_measured(other, [lambda: other.rows("select from trunkline.claim('first')")])[0])
    add(f"next statement after creating a {kind}", median(after), "ms", at_most(10))
    add(f"relations of a {kind}", (_relations(bed) - before) / count, "")
    creator.conn.close()
    other.conn.close()


def _touch_all(bed: Bed, add: Callable[..., None], queues: int, topics: int) -> None:
    backend = Backend(bed.url)

    def on_each(query: str, kind: str, count: int) -> tuple[float, str]:
        return _measured(backend, (lambda i=i: backend.rows(query, f"{kind}-{i}") for i in range(count)))  # type: ignore[misc]

    for _ in range(10):
        backend.rows("select from trunkline.enqueue_bytes('first', '1')")
        backend.rows("select from trunkline.claim('first')")
    start = backend.private_kb()
    value, note = on_each("select from trunkline.enqueue_bytes(%s, '1')", "queue", queues)
    add("enqueue to each queue", value, "ms", None, note)
    _first_upkeep(bed, add, "after a message to each queue")
    value, note = on_each(
        "select from trunkline.claim(%s) c cross join lateral trunkline.ack(array[c.receipt])", "queue", queues
    )
    add("claim and ack of each queue", value, "ms", None, note)
    add("private memory of a queue and connection", (backend.private_kb() - start) / queues, "kB", at_most(20))
    if topics:
        start = backend.private_kb()
        value, note = on_each("select from trunkline.publish_bytes(%s, '1')", "topic", topics)
        add("publish to each topic", value, "ms", None, note)
        add("private memory of a topic and connection", (backend.private_kb() - start) / topics, "kB")
    backend.conn.close()
    _first_upkeep(bed, add, "after an ack of each queue and a message to each topic")


def _first_upkeep(bed: Bed, add: Callable[..., None], when: str) -> None:
    start = bed.upkeep.cpu()
    seconds = _timed(lambda: bed.upkeep.conn.execute("call trunkline.upkeep()")) / 1000
    add(f"one upkeep call {when}", seconds, "s", note=f"{bed.upkeep.cpu() - start:,.0f} ms of CPU")


def _upkeep_of_many(bed: Bed, add: Callable[..., None]) -> None:
    for _ in range(40):
        bed.upkeep.conn.execute("call trunkline.upkeep()")
        time.sleep(0.1)
    bed.settle_down(2)
    for name, value in _upkeep_figures(bed, runs=5).items():
        add(name.rpartition(" ")[0] + ", idle", value, name.rpartition(" ")[2])
    seconds, start, began, calls = 65.0, bed.upkeep.cpu(), time.monotonic(), 0
    longest = 0.0
    while time.monotonic() - began < seconds:
        longest = max(longest, _timed(lambda: bed.upkeep.conn.execute("call trunkline.upkeep()")))
        calls += 1
        time.sleep(0.2)
    share = (bed.upkeep.cpu() - start) / (time.monotonic() - began) / 10
    add("idle upkeep, share of a core", share, "%", at_most(5), f"{calls} calls, the longest {longest:,.0f} ms")
    late = bed.conn.execute("select task, state, error from trunkline.upkeep_stats() where state <> 'ok'").fetchall()
    add("tasks that are late or fail", len(late), "", at_most(0), "; ".join(str(row) for row in late))
    backend = Backend(bed.url)
    message = bed.value("select message_id from trunkline.store order by id desc limit 1")
    for name, query in (
        ("explain_message", f"select trunkline.explain_message('{message}')"),
        ("explain_message of an unknown id", "select trunkline.explain_message(gen_random_uuid())"),
    ):
        value, note = _measured(backend, [lambda query=query: backend.rows(query)] * 3)  # type: ignore[misc]
        add(name, value, "ms", None, note)
    backend.conn.close()


def _read_many(bed: Bed, add: Callable[..., None]) -> None:
    backend = Backend(bed.url)
    page = "select count(*) from trunkline.list_queues('queue-5', 50) q cross join lateral trunkline.queue_stats(q.name) s"
    names = "select array_agg(name) from trunkline.list_queues('queue-5', 50)"
    calls = {
        "list_queues of a page": ("select count(*) from trunkline.list_queues('queue-5', 50)", 5, None),
        "statistics of a page of 50 queues": (page, 5, at_most(100)),
        "names of a page": (names, 5, None),
        "queue_stats of all": ("select count(*) from trunkline.queue_stats()", 2, None),
        "topic_stats of all": ("select count(*) from trunkline.topic_stats()", 2, None),
        "group_stats of all": ("select count(*) from trunkline.group_stats()", 2, None),
        "claim_many of 500 queues": (
            "select count(*) from trunkline.claim_many("
            "array(select queue_id from trunkline.queues order by queue_id limit 500))",
            5,
            None,
        ),
    }
    for name, (query, times, goal) in calls.items():
        backend.rows(query)
        value, note = _measured(backend, [lambda query=query: backend.rows(query)] * times)  # type: ignore[misc]
        add(name, value, "ms", goal, note)
    backend.conn.close()
    add("migrate again", _timed(lambda: migrate(bed.url)) / 1000, "s")
    # As after an upgrade: all functions are replaced.
    bed.conn.execute("update trunkline.function_files set checksum = ''")
    add("migrate with new functions", _timed(lambda: migrate(bed.url)) / 1000, "s", at_most(10))


def _dump(bed: Bed, add: Callable[..., None]) -> None:
    programs = install.programs(18, install.choose_account(bed.server.pgdata))
    restored = urlsplit(bed.server.superuser_url)._replace(path="/restored").geturl()
    path = bed.directory / "dump"

    def run(program: str, *args: str) -> str:
        done = subprocess.run([str(programs / program), *args], capture_output=True, text=True, check=False)
        return done.stderr.strip().splitlines()[-1] if done.returncode else ""

    start = time.perf_counter()
    error = run("pg_dump", "-Fc", "-f", str(path), bed.server.superuser_url)
    add("pg_dump", time.perf_counter() - start, "s", at_most(0) if error else None, error)
    if not error:
        with psycopg.connect(bed.server.superuser_url, autocommit=True) as admin:
            admin.execute("create database restored")
        start = time.perf_counter()
        error = run("pg_restore", "--exit-on-error", "-d", restored, str(path))
        add("pg_restore", time.perf_counter() - start, "s", at_most(0) if error else None, error)


if __name__ == "__main__":
    main()
