"""Chaos: workers are killed and paused, Postgres is killed, some jobs kill their worker; then everything is counted.

`python -m tests.chaos.jobs` is the full form: 20,000 jobs, 60 kills and 40 pauses of workers, 10 kills of Postgres.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from tests.chaos.chaos_jobs import POISON_ATTEMPTS, app, book, innocent, poison, poison_at_once, send
from tests.chaos.nemesis import crash
from trunkline.embedded.server import EmbeddedServer
from trunkline.errors import TrunklineError
from trunkline.sql.migrate import migrate

WORKERS = 4
PAUSE_SECONDS = 4.5
"""Longer than the lease."""


@dataclass(frozen=True)
class Plan:
    jobs: int
    kills: int
    pauses: int
    crashes: int
    poisons: int = 3
    gap: float = 0.7
    seed: int = 1


@dataclass
class Report:
    """Counts and findings; `problems` must be empty."""

    done: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    unknown: int = 0
    acked: int = 0
    dead: int = 0
    seconds: float = 0.0


class _Silent:
    def note(self, *_: Any, **__: Any) -> None: ...


class Crew:
    """Worker processes; one that died is replaced."""

    def __init__(self, url: str, folder: Path, queues: str, prefetch: int) -> None:
        self._queues = ["--queues", queues, "--prefetch", str(prefetch)]
        self._env = {**os.environ, "TRUNKLINE_DATABASE_URL": url, "CHAOS_FOLDER": str(folder), "PYTHONWARNINGS": "ignore"}
        self._log = (folder / "workers.log").open("ab")
        self.all = [self._start() for _ in range(WORKERS)]
        self.paused: list[tuple[float, subprocess.Popen[bytes]]] = []
        self.struck: set[int] = set()
        self.crashes: list[float] = []
        self.replaced = 0

    def _start(self) -> subprocess.Popen[bytes]:
        line = ["worker", "run", "tests.chaos.chaos_jobs:app", *self._queues]
        command = [sys.executable, "-m", "trunkline.cli.main", *line]
        return subprocess.Popen(command, env=self._env, stdout=self._log, stderr=self._log)

    def tend(self) -> None:
        """Wake those whose pause is over, replace the dead."""
        for until, worker in list(self.paused):
            if time.monotonic() > until:
                worker.send_signal(signal.SIGCONT)
                self.paused.remove((until, worker))
        for number, worker in enumerate(self.all):
            if worker.poll() is not None:
                self.all[number] = self._start()
                self.replaced += 1

    def victim(self, source: random.Random) -> subprocess.Popen[bytes]:
        awake = [worker for worker in self.all if worker not in [paused for _, paused in self.paused]]
        chosen = source.choice(awake or self.all)
        self.struck.add(chosen.pid)
        return chosen

    def stop(self) -> None:
        for worker in self.all:
            worker.send_signal(signal.SIGCONT)
            worker.kill()
            worker.wait()
        self._log.close()


def run(plan: Plan, *, say: Any = None) -> Report:
    folder = Path(tempfile.mkdtemp(prefix="tl-jobs-chaos-", dir="/tmp"))
    folder.chmod(0o777)
    server = EmbeddedServer(folder / "data", version=18)
    try:
        return asyncio.run(_run(plan, server, folder, say or (lambda _: None)))
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def _run(plan: Plan, server: EmbeddedServer, folder: Path, say: Any) -> Report:
    began = time.monotonic()
    url = server.start()
    migrate(url)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("create table chaos_effects (n int)")
    app.url = url
    report = Report()
    await app.setup()
    booked, sent = range(plan.jobs // 2), range(plan.jobs // 2, plan.jobs)
    todo = [*(book.bind(n) for n in booked), *(send.bind(n) for n in sent)]
    random.Random(plan.seed).shuffle(todo)
    poisons = [poison.bind(n) for n in range(plan.poisons)]
    step = max(1, len(todo) // max(1, plan.poisons))
    for n, each in enumerate(poisons):
        todo.insert(n * step, each)
    await app.enqueue_many(todo)
    await app.close()
    crew = Crew(url, folder, "chaos:4", 4)
    try:
        await _strike(plan, server, crew, report, say)
        await _drain(url, crew, "chaos")
    finally:
        crew.stop()
    report.done["replaced workers"] = crew.replaced
    await _poison_among_innocents(url, folder, plan)
    _check(url, folder, plan, list(booked), list(sent), report)
    _check_poison(url, folder, plan, crew, report)
    report.seconds = time.monotonic() - began
    return report


async def _strike(plan: Plan, server: EmbeddedServer, crew: Crew, report: Report, say: Any) -> None:
    source = random.Random(plan.seed)
    faults = ["kill"] * plan.kills + ["pause"] * plan.pauses + ["crash"] * plan.crashes
    source.shuffle(faults)
    await asyncio.sleep(2)
    for number, fault in enumerate(faults, start=1):
        crew.tend()
        if fault == "crash":
            crew.crashes.append(time.time())
            crash(server, _Silent())  # type: ignore[arg-type]
        elif fault == "kill":
            crew.victim(source).kill()
        else:
            victim = crew.victim(source)
            victim.send_signal(signal.SIGSTOP)
            crew.paused.append((time.monotonic() + PAUSE_SECONDS, victim))
        report.done[fault] += 1
        if number % 10 == 0:
            say(f"{number} of {len(faults)} faults")
        await asyncio.sleep(plan.gap)
    while crew.paused:
        crew.tend()
        await asyncio.sleep(0.05)


async def _poison_among_innocents(url: str, folder: Path, plan: Plan) -> None:
    """Side by side with jobs that have no more attempts than they."""
    todo = []
    for n in _among(plan):
        kind = poison if n % 2 else poison_at_once
        todo += [innocent.bind(10 * n + other) for other in range(10)]
        todo.insert(-n % 10, kind.bind(n))
    await app.enqueue_many([msgspec.structs.replace(call, queue="poison") for call in todo])
    await app.close()
    crew = Crew(url, folder, "poison:4", 4)
    try:
        await _drain(url, crew, "poison")
    finally:
        crew.stop()


def _among(plan: Plan) -> range:
    return range(plan.poisons, 2 * plan.poisons)


async def _drain(url: str, crew: Crew, queue: str) -> None:
    while not await _drained(url, queue):
        crew.tend()
        await asyncio.sleep(0.1)


async def _drained(url: str, queue: str) -> bool:
    try:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
            # what has no offset yet is not in the statistics
            await conn.execute("call trunkline.sequence()")
            row = await (
                await conn.execute("select ready + delayed + leased from trunkline.queue_stats(%s)", (queue,))
            ).fetchone()
    except (psycopg.Error, TrunklineError):
        return False
    return row is not None and row[0] == 0


def _check(url: str, folder: Path, plan: Plan, booked: list[int], sent: list[int], report: Report) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        effects = Counter(n for (n,) in conn.execute("select n from chaos_effects"))
        letters = conn.execute(
            "select label, convert_from(payload, 'UTF8')::jsonb ->> 'n', attempts, error"
            " from unnest(array['chaos', 'poison']) q cross join lateral trunkline.list_dead_letters(q, 0, 10000)"
        ).fetchall()
        row = conn.execute("select acked, dead from trunkline.queue_stats('chaos')").fetchone()
    assert row is not None
    report.acked, report.dead = row
    total = plan.jobs + plan.poisons
    if report.acked + report.dead != total:
        report.problems.append(f"{total} enqueued, {report.acked} acked and {report.dead} dead")
    if effects != Counter(booked):
        wrong = {n: effects[n] for n in {*booked, *effects} if effects[n] != 1}
        report.problems.append(f"effects in the database that did not happen exactly once: {wrong}")
    if sum(effects.elements()) != sum(booked):
        report.problems.append("the sum of the effects is wrong")
    outside = Counter(map(int, _lines(folder / "sent")))
    twice = {n: count for n, count in outside.items() if count > 1}
    if twice:
        report.problems.append(f"outside effects that happened twice: {twice}")
    unknown = {int(n) for label, n, _, error in letters if label == "send" and error.startswith("EffectUnknown")}
    report.unknown = len(unknown)
    silent = set(sent) - set(outside) - unknown
    if silent:
        report.problems.append(f"outside effects that neither happened nor are reported as unknown: {silent}")
    other = [
        (label, n, error)
        for label, n, _, error in letters
        if not label.startswith("poison") and not error.startswith("EffectUnknown")
    ]
    if other:
        report.problems.append(f"jobs that died for another reason: {other[:5]}")
    spared = {int(line) for line in _lines(folder / "innocent")}
    if spared != {10 * n + each for n in _among(plan) for each in range(10)}:
        report.problems.append("not every innocent job was done")


def _check_poison(url: str, folder: Path, plan: Plan, crew: Crew, report: Report) -> None:
    """Each was seen in every attempt, but where its worker died in another way before it could begin; and each is dead."""
    begun: dict[int, dict[int, set[int]]] = {n: {} for n in range(2 * plan.poisons)}
    for line in _lines(folder / "poison"):
        n, attempt, pid = map(int, line.split())
        # the same attempt twice: a crash of Postgres forgot the claim, or a paused worker began what was no longer its own
        begun[n].setdefault(attempt, set()).add(pid)
    with psycopg.connect(url, autocommit=True) as conn:
        claims = conn.execute(
            "with done as materialized (select * from trunkline.list_deliveries(null, '1 day', 1000000))"
            " select (convert_from(l.payload, 'UTF8')::jsonb ->> 'n')::int, d.attempt, d.consumer,"
            " extract(epoch from d.claimed_at)::float8"
            " from trunkline.dead_letters l join trunkline.queues q using (queue_id) join done d on d.queue = q.name"
            " and d.partition = l.partition and l.log_offset between d.first_offset and d.last_offset"
            " where l.label like 'poison%' and d.outcome = 'expired'"
        ).fetchall()
    attempts = {n: sorted({attempt for m, attempt, *_ in claims if m == n}) for n in begun}
    wrong = {n: found for n, found in attempts.items() if found != [*range(1, POISON_ATTEMPTS + 1)]}
    if wrong:
        report.problems.append(f"poison jobs were not tried {POISON_ATTEMPTS} times and then dead: {wrong}")
    for n, attempt, consumer, at in claims:
        pid = int(consumer.rsplit("-", 2)[1])
        others = {pid for m, starts in begun.items() if m != n for pids in starts.values() for pid in pids}
        crashed = any(moment - 10 < at < moment + 1 for moment in crew.crashes)
        if attempt not in begun[n]:
            report.done["attempts that could not begin"] += 1
            if pid not in crew.struck | others and not crashed:
                report.problems.append(
                    f"poison job {n}: attempt {attempt} did not begin, and nothing else killed its worker"
                )
    if any(attempt > POISON_ATTEMPTS for starts in begun.values() for attempt in starts):
        report.problems.append("a poison job was tried too often")
    report.done["poison seen"] = sum(len(starts) for starts in begun.values())


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def main() -> int:
    report = run(Plan(jobs=20_000, kills=60, pauses=40, crashes=10, poisons=10), say=print)
    print(
        f"{report.seconds:.0f} s, {dict(report.done)}, acked {report.acked}, dead {report.dead},"
        f" unknown effects {report.unknown}, problems: {report.problems or 'none'}"
    )
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
