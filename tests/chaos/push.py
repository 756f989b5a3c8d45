"""Push under faults: bad receivers, kill -9 of dispatchers and of Postgres. `python -m tests.chaos.push` is the long form.

Checked: nothing lost; the receivers' inbox makes each effect happen exactly once, although requests repeat; in no window do
more requests start than the endpoint's rate allows; what was answered well is repeated only where the answer was lost; no
dispatcher ever has a transaction open while it does not work on it.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import psycopg
from aiohttp import web
from psycopg_pool import AsyncConnectionPool

from tests.chaos.history import Recorder
from tests.chaos.nemesis import crash
from tests.push import starts
from tests.push.dispatch import Process
from tests.push.receivers import Receiver, Seen
from trunkline import upkeep
from trunkline.embedded.server import EmbeddedServer
from trunkline.errors import TrunklineError
from trunkline.push import Refused, Verifier
from trunkline.sql.migrate import migrate

RATE, BURST = 300.0, 30
# Share of the load per endpoint, and its response.
SHARES = {"healthy": 0.3, "limited": 0.3, "flaky": 0.25, "hanging": 0.05, "dying": 0.1}


class Plan(NamedTuple):
    deliveries: int
    kills: int
    crashes: int
    dispatchers: int
    seed: int
    every: float
    """Seconds between two faults."""


class Outcome(NamedTuple):
    problems: list[str]
    totals: dict[str, Any]

    def table(self) -> str:
        lines = [f"{name}: {value}" for name, value in self.totals.items()]
        return "\n".join([*lines, *(f"PROBLEM {problem}" for problem in self.problems)])


class World:
    """Receivers with an inbox, and what they saw."""

    def __init__(self, url: str, plan: Plan) -> None:
        self.random = random.Random(plan.seed)
        self.url = url
        self.kinds: Counter[str] = Counter()
        self.answered: dict[str, list[float]] = defaultdict(list)
        self.requests: dict[str, list[float]] = defaultdict(list)
        self.lost: Counter[str] = Counter()
        self.verifiers: dict[str, Verifier] = {}
        self.dead = True
        self._pool: AsyncConnectionPool[Any] | None = None
        self.receiver = Receiver(self.answer).start()

    async def answer(self, seen: Seen) -> Any:
        name = seen.path.strip("/")
        try:
            received = self.verifiers[name].verify(seen.headers, seen.body)
        except Refused as exc:
            self.lost[f"refused: {exc}"] += 1
            return 401
        self.requests[received.id].append(seen.at)
        kind = self._kind(name)
        self.kinds[kind] += 1
        if kind == "429":
            return web.Response(status=429, headers={"retry-after": "1"})
        if kind == "302":
            return web.Response(status=302, headers={"location": "http://127.0.0.1:1/"})
        if kind == "500":
            return 500
        if kind == "hang":
            return "hang"
        # The effect happens here; then the response may be lost.
        try:
            await self._take(received)
        except (psycopg.Error, TrunklineError, TimeoutError):
            return 503
        if kind in ("reset", "half"):
            return kind
        self.answered[received.id].append(time.monotonic())
        return 200

    def _kind(self, name: str) -> str:
        draw = self.random.random()
        if name == "flaky":
            for kind in ("500", "429", "302", "reset", "half"):
                draw -= 0.08 if kind != "429" else 0.004
                if draw < 0:
                    return kind
        elif name == "hanging" and draw < 0.3:
            return "hang"
        elif name == "dying" and self.dead:
            return "500"
        return "200"

    def close(self) -> None:
        if self._pool is not None:
            self.receiver.run(self._pool.close())
        self.receiver.stop()

    async def _take(self, received: Any) -> None:
        if self._pool is None:
            pool: AsyncConnectionPool[Any] = AsyncConnectionPool(self.url, min_size=0, max_size=8, open=False, timeout=5)
            await pool.open()
            self._pool = pool
        async with self._pool.connection() as conn, conn.transaction():
            if await received.first(conn, "chaos"):
                await conn.execute("insert into effects values (%s)", (received.id,))


def run(plan: Plan, server: EmbeddedServer, say: Callable[[str], object] = lambda words: None) -> Outcome:
    url = server.url
    migrate(url)
    world = World(url, plan)
    home = Path(tempfile.mkdtemp(prefix="tl-push-chaos-"))
    recorder = Recorder(home, "nemesis")
    _prepare(url, world, plan)
    stop = asyncio.Event()
    keeping = threading.Thread(target=lambda: asyncio.run(_keep_upkeep(url, stop)), daemon=True)
    keeping.start()
    looking = OpenTransactions(url)
    record = home / "starts"
    processes = [Process(looking.watched, record) for _ in range(plan.dispatchers)]
    events: list[float] = []
    begun = time.monotonic()
    try:
        faults = ["kill"] * plan.kills + ["crash"] * plan.crashes
        world.random.shuffle(faults)
        for number, fault in enumerate(faults):
            time.sleep(plan.every)
            if number >= len(faults) // 2:
                world.dead = False
            events.append(time.monotonic())
            if fault == "crash":
                crash(server, recorder)
                events.append(time.monotonic())
            else:
                victim = world.random.randrange(len(processes))
                processes[victim].kill()
                processes[victim] = Process(looking.watched, record)
            say(f"{fault} {number + 1} of {len(faults)}: {_progress(url)} of {plan.deliveries}")
        world.dead = False
        _await_end(url, plan, say)
    finally:
        for process in processes:
            process.stop()
        stop.set()
        looking.stop()
        world.close()
    outcome = _check(url, plan, world, events, record)
    outcome.totals["looks at the dispatchers' sessions"] = looking.looks
    outcome.totals["of these with an open transaction"] = looking.found
    if looking.found or not looking.looks:
        outcome.problems.append(f"{looking.found} transactions were open during a call, in {looking.looks} looks")
    outcome.totals["seconds"] = round(time.monotonic() - begun)
    shutil.rmtree(home)
    return outcome


class OpenTransactions:
    """Looks at the sessions of the dispatchers all the time: none may be idle in a transaction."""

    def __init__(self, url: str) -> None:
        self.watched = psycopg.conninfo.make_conninfo(url, application_name="push-chaos")
        self.looks = self.found = 0
        self._url = url
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(30)

    def _run(self) -> None:
        query = (
            "select count(*) filter (where state like 'idle in transaction%'), count(*)"
            " from pg_stat_activity where application_name = 'push-chaos'"
        )
        while not self._stopped.is_set():
            try:
                with psycopg.connect(self._url, autocommit=True) as conn:
                    while not self._stopped.wait(0.05):
                        row = conn.execute(query).fetchone()
                        assert row is not None
                        self.looks += row[1] > 0
                        self.found += row[0]
            except psycopg.Error:
                self._stopped.wait(0.2)


async def _keep_upkeep(url: str, stop: asyncio.Event) -> None:
    from datetime import timedelta

    while not stop.is_set():
        try:
            await upkeep.run(url, timedelta(milliseconds=500), stop)
        except (TrunklineError, psycopg.Error):
            await asyncio.sleep(0.3)


def _prepare(url: str, world: World, plan: Plan) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("create table effects (id text not null)")
        conn.execute("create table sent (id uuid primary key, endpoint text not null)")
        for name, share in SHARES.items():
            rate = (RATE, BURST) if name == "limited" else (None, None)
            row = conn.execute(
                "select secret from trunkline.create_endpoint(%s, %s, %s, %s, p_timeout => '1 second')",
                (name, f"http://127.0.0.1:{world.receiver.port}/{name}", *rate),
            ).fetchone()
            assert row is not None
            world.verifiers[name] = Verifier(row[0])
            # two queues on the limited one
            queues = [name, f"{name}-2"] if name == "limited" else [name]
            for queue in queues:
                conn.execute(
                    "select trunkline.create_queue(%s, p_lease => '10 seconds', p_max_attempts => 1000,"
                    " p_backoff_base => '50 milliseconds', p_backoff_cap => '2 seconds')",
                    (queue,),
                )
                conn.execute("select trunkline.bind_queue(%s, %s)", (queue, name))
                for first in range(0, int(plan.deliveries * share / len(queues)), 1000):
                    count = min(1000, int(plan.deliveries * share / len(queues)) - first)
                    conn.execute(
                        "insert into sent select id, %s from trunkline.enqueue_many(%s,"
                        " array(select convert_to(n::text, 'UTF8') from generate_series(1, %s) n))",
                        (name, queue, count),
                    )


def _progress(url: str) -> int:
    try:
        with psycopg.connect(url, autocommit=True) as conn:
            row = conn.execute("select count(*) from effects").fetchone()
            return row[0] if row else 0
    except psycopg.Error:
        return -1


def _await_end(url: str, plan: Plan, say: Callable[[str], object]) -> None:
    until = time.monotonic() + 60 + plan.deliveries / 50
    query = "select coalesce(sum(ready + delayed + leased), 0) from trunkline.queue_stats()"
    while time.monotonic() < until:
        with psycopg.connect(url, autocommit=True) as conn:
            row = conn.execute(query).fetchone()
        if row == (0,):
            return
        say(f"left: {row and row[0]}")
        time.sleep(1)


def _check(url: str, plan: Plan, world: World, events: list[float], record: Path) -> Outcome:
    problems: list[str] = []
    with psycopg.connect(url, autocommit=True) as conn:

        def count(query: str) -> int:
            row = conn.execute(query.encode()).fetchone()
            return int(row[0]) if row else 0

        sent = count("select count(*) from sent")
        lost = count("select count(*) from sent s where not exists (select from effects e where e.id = s.id::text)")
        twice = count("select count(*) from (select id from effects group by id having count(*) > 1) x")
        dead = count("select count(*) from trunkline.dead_letters")
        stats = count("select sum(acked) from trunkline.queue_stats()")
        unheard = {
            str(row[0]) for row in conn.execute("select distinct id from trunkline.attempts where outcome <> 'acked'")
        }
    if lost or dead:
        problems.append(f"{lost} deliveries without effect, {dead} dead")
    if twice:
        problems.append(f"{twice} effects happened twice")
    if stats != sent:
        problems.append(f"{stats} acked, {sent} sent")
    problems += [f"{number} requests {words}" for words, number in world.lost.items()]
    times = starts.read(record)
    excess = starts.worst_excess(times["limited"], RATE, BURST)
    if excess > 0:
        problems.append(f"the rate was exceeded by {excess:.2f} starts")
    repeats, unexplained = _repeats(world, events, unheard)
    if unexplained:
        problems.append(
            f"{unexplained} requests were repeated although they were answered well, in time, and nothing was killed"
        )
    return Outcome(
        problems,
        {
            "deliveries": sent,
            "requests started": sum(len(each) for each in times.values()),
            "answers": dict(world.kinds),
            "kills of dispatchers": plan.kills,
            "crashes of Postgres": plan.crashes,
            "lost": lost,
            "effects twice": twice,
            "repeats after a good answer": repeats,
            "of these unexplained": unexplained,
            "limited: starts": len(times["limited"]),
            "limited: most above rate x w + burst": round(excess, 2),
        },
    )


def _repeats(world: World, events: list[float], unheard: set[str]) -> tuple[int, int]:
    """Return requests for messages that already got a 200, and how many of them are unexplained.

    Explanations are a kill or crash at that time, or a dispatcher that recorded that the response did not arrive in
    time.
    """
    repeats = unexplained = 0
    for id, answers in world.answered.items():
        for at in world.requests[id]:
            before = [answer for answer in answers if answer < at]
            if before:
                repeats += 1
                # A crash shortly before a response may have lost the lease too.
                explained = id in unheard or any(before[0] - 20 <= event <= at for event in events)
                unexplained += not explained
    return repeats, unexplained


@click.command()
@click.option("--deliveries", default=50_000)
@click.option("--kills", default=20)
@click.option("--crashes", default=5)
@click.option("--dispatchers", default=3)
@click.option("--every", default=3.0)
@click.option("--seed", type=int, default=None)
def main(deliveries: int, kills: int, crashes: int, dispatchers: int, every: float, seed: int | None) -> None:
    seed = seed if seed is not None else int.from_bytes(os.urandom(3), "big")
    home = Path(tempfile.mkdtemp(prefix="tl-push-chaos-pg-", dir="/tmp"))
    print(f"seed {seed}")
    with EmbeddedServer(home / "data") as server:
        outcome = run(
            Plan(deliveries, kills, crashes, dispatchers, seed, every), server, lambda words: print(words, flush=True)
        )
    shutil.rmtree(home, ignore_errors=True)
    print(outcome.table())
    sys.exit(1 if outcome.problems else 0)


if __name__ == "__main__":
    main()
