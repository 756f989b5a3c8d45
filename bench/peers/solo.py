"""Contestants that are libraries, each run in a separate process: see `bench/solo` and `bench/node`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.lab import Lab
from bench.peers.ours import LEASE_TABLES
from bench.rounds import say
from bench.solo.contract import Options

_NODE = Path(__file__).resolve().parents[1] / "node"
_ROOT = _NODE.parents[1]


class Moved(msgspec.Struct, frozen=True):
    """A contestant's own report: number of messages, and duration in seconds."""

    messages: int = 0
    seconds: float = 0.0


class Solo(msgspec.Struct, frozen=True, kw_only=True):
    """One library. `clear` empties its queue; `count` counts the unfinished messages in it.

    `completed` counts the finished messages in its tables; null if finished messages leave no row.
    """

    name: str
    command: tuple[str, ...]
    tables: tuple[str, ...]
    clear: str
    count: str
    completed: str | None = None
    # Backlog per second of a run. A contestant that drains it earlier is measured up to its last message.
    backlog: int
    enqueue_note: str
    consume_note: str

    def run(self, lab: Lab, action: str, options: Options) -> Moved:
        done = subprocess.run(
            [*self.command, action, msgspec.json.encode(options).decode()],
            cwd=_ROOT,
            # Passed in the environment: arguments are visible to all users, and the url contains a password.
            env={**os.environ, "DATABASE_URL": lab.tcp_url},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        lines = done.stdout.strip().splitlines()
        if done.returncode != 0 or not lines:
            raise RuntimeError(
                f"{self.name}, {action}, failed ({done.returncode}):\n{done.stderr[-3000:]}{done.stdout[-500:]}"
            )
        return msgspec.json.decode(lines[-1], type=Moved)

    def wait_for(self, lab: Lab, messages: int) -> int:
        """Wait until the queue has this many messages and return their number. Ours count once they have offsets."""
        end = time.monotonic() + 10
        while (found := int(lab.value(self.count))) < messages and time.monotonic() < end:
            time.sleep(0.01)
        return found

    def empty(self, lab: Lab) -> None:
        lab.conn.execute(self.clear.encode())

    def calm(self, lab: Lab) -> None:
        lab.calm(*self.tables)


def ours() -> Solo:
    return Solo(
        name="trunkline",
        command=(sys.executable, "-m", "bench.solo", "trunkline"),
        tables=("trunkline.ticks", *LEASE_TABLES),
        clear="select trunkline.delete_queue('peers'), trunkline.create_queue('peers')",
        count="select ready + delayed + leased + dead from trunkline.queue_stats('peers')",
        completed="select acked from trunkline.queue_stats('peers')",
        backlog=50_000,
        enqueue_note="Python client; calls of the same moment share a statement by themselves",
        consume_note="Python client; claims() with max_in_flight=2,000, one ack per message",
    )


def jobs(name: str) -> Solo:
    """Return the contestant in `bench/solo/with_trunkline_<name>.py`."""
    return Solo(
        name="trunkline jobs",
        command=(sys.executable, "-m", "bench.solo", f"trunkline_{name}"),
        tables=("trunkline.ticks", *LEASE_TABLES),
        # Not while an upkeep task reads the queue: the task would fail on dropped tables.
        clear="select pg_advisory_xact_lock(778004, hashtext(d)) from unnest('{sequence,segments,retention}'::text[]) d;"
        "select trunkline.delete_queue('jobs', true); select trunkline.create_queue('jobs')",
        count="select ready + delayed + leased + dead from trunkline.queue_stats('jobs')",
        completed="select acked from trunkline.queue_stats('jobs')",
        backlog=30_000,
        enqueue_note="typed functions; calls of the same moment share a statement by themselves",
        consume_note="a worker with 100 jobs at once, one ack per job",
    )


def peers(lab: Lab) -> list[Solo]:
    """Return the contestants that can run here, installing npm packages. Names the others on stderr."""
    found = []
    for find in (_procrastinate, _pgqueuer, _graphile, _boss):
        peer = find()
        if peer is not None:
            peer.run(lab, "install", Options())
            found.append(peer)
    return found


def _procrastinate() -> Solo | None:
    return _python(
        "procrastinate",
        lambda version: Solo(
            name=f"Procrastinate {version}",
            command=(sys.executable, "-m", "bench.solo", "procrastinate"),
            tables=("procrastinate_jobs", "procrastinate_events"),
            clear="truncate procrastinate_jobs cascade",
            count="select count(*) from procrastinate_jobs where status <> 'succeeded'",
            completed="select count(*) from procrastinate_jobs where status = 'succeeded'",
            backlog=1_000,
            enqueue_note="pool of 22",
            consume_note="concurrency 20, pool of 22",
        ),
    )


def _pgqueuer() -> Solo | None:
    driver = "asyncpg" if importlib.util.find_spec("asyncpg") else "psycopg; asyncpg is not installed"
    return _python(
        "pgqueuer",
        lambda version: Solo(
            name=f"PgQueuer {version}",
            command=(sys.executable, "-m", "bench.solo", "pgqueuer"),
            tables=("pgqueuer", "pgqueuer_log"),
            clear="truncate pgqueuer, pgqueuer_log",
            count="select count(*) from pgqueuer",
            completed="select count(*) from pgqueuer_log where status = 'successful'",
            backlog=18_000,
            enqueue_note=f"10 connections, {driver}",
            consume_note=f"4 queue managers, batch_size 500, {driver}",
        ),
    )


def _graphile() -> Solo | None:
    return _node(
        "graphile-worker",
        lambda version: Solo(
            name=f"graphile-worker {version}",
            command=(_program("node"), str(_NODE / "solo.mjs"), "graphile"),
            tables=("graphile_worker._private_jobs",),
            clear="truncate graphile_worker._private_jobs",
            count="select count(*) from graphile_worker._private_jobs",
            backlog=40_000,
            enqueue_note=f"pool of 10, {_node_version()}",
            consume_note=f"localQueue 500, 24 jobs, completeJobBatchDelay 0, {_node_version()}",
        ),
    )


def _boss() -> Solo | None:
    return _node(
        "pg-boss",
        lambda version: Solo(
            name=f"pg-boss {version}",
            command=(_program("node"), str(_NODE / "solo.mjs"), "boss"),
            tables=("pgboss.job",),
            clear="delete from pgboss.job where name = 'bench'",
            count="select count(*) from pgboss.job where name = 'bench' and state <> 'completed'",
            completed="select count(*) from pgboss.job where name = 'bench' and state = 'completed'",
            backlog=25_000,
            enqueue_note=f"pool of 10, {_node_version()}",
            consume_note=f"batchSize 500, 4 workers, burst, {_node_version()}",
        ),
    )


def _python(package: str, make: Callable[[str], Solo]) -> Solo | None:
    try:
        return make(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        say(f"  peers: {package} is skipped, it is not installed (make setup)")
        return None


def _node(package: str, make: Callable[[str], Solo]) -> Solo | None:
    if not (shutil.which("node") and shutil.which("npm")):
        say(f"  peers: {package} is skipped, node and npm are not both installed")
        return None
    if not _installed():
        say("  peers: npm ci in bench/node")
        command = [_program("npm"), "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(command, cwd=_NODE, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            say(f"  peers: {package} is skipped, npm ci failed: {done.stderr.strip()[-300:]}")
            return None
    return make(json.loads((_NODE / "node_modules" / package / "package.json").read_text())["version"])


def _installed() -> bool:
    """Return true if node_modules matches the lock file. npm keeps a copy of the lock that it installed."""
    kept = _NODE / "node_modules" / ".package-lock.json"
    return kept.exists() and kept.stat().st_mtime >= (_NODE / "package-lock.json").stat().st_mtime


def _program(name: str) -> str:
    return shutil.which(name) or name


def _node_version() -> str:
    done = subprocess.run([_program("node"), "--version"], capture_output=True, text=True, check=True)
    return f"node {done.stdout.strip()}"
