"""Topic to topic exactly once: with publishers running, tasks that fail, drivers killed -9 and Postgres killed -9.

    python -m tests.spark.chaos --messages 500000 --driver-kills 10 --pg-kills 3

The source log is the truth: each message of it must be in the copy once, and those of a key in its order.
Kills follow what is seen, not a clock: a driver dies when a batch was just published and Spark has not written that down.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg

from trunkline.db.embedded import EmbeddedServer
from trunkline.db.postmaster import find_processes
from trunkline.sql.migrate import migrate

KEYS = 100


@dataclass
class Outcome:
    messages: int = 0
    copied: int = 0
    distinct: int = 0
    out_of_order: int = 0
    driver_kills: int = 0
    pg_kills: int = 0
    starts: int = 0
    replays_skipped: int = 0
    batches: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.messages == self.copied == self.distinct and self.out_of_order == 0 and not self.wrong


class Publisher(threading.Thread):
    """Publishes until there are enough messages; a server that is away is waited for."""

    def __init__(self, url: str, messages: int, pause: float) -> None:
        super().__init__(daemon=True)
        self._url, self._messages, self._pause = url, messages, pause

    def run(self) -> None:
        sent = 0
        while sent < self._messages:
            with suppress(psycopg.Error), psycopg.connect(self._url, autocommit=True) as conn:
                while sent < self._messages:
                    count = min(500, self._messages - sent)
                    numbers = range(sent, sent + count)
                    conn.execute(
                        "select count(*) from trunkline.publish_many('source', %s, p_keys => %s)",
                        ([str(n).encode() for n in numbers], [f"k{n % KEYS}" for n in numbers]),
                    )
                    sent += count
                    time.sleep(self._pause)


class Driver:
    """The Spark driver in a process of its own, with everything it starts."""

    def __init__(self, url: str, home: Path, rows: int, master: str) -> None:
        self._command = [sys.executable, "-m", "tests.spark.driver", url, str(home / "checkpoint"), str(rows), master]
        self._log = (home / "driver.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log)

    def kill(self) -> None:
        """All of it at once: the program, the Java machine and its workers."""
        if self._process is None:
            return
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._process.pid)
            for process in [root, *root.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
        self._process.wait()


class Chaos:
    def __init__(self, server: EmbeddedServer, home: Path, rows: int, master: str, seed: int) -> None:
        self._server, self._home = server, home
        self._driver = Driver(server.url, home, rows, master)
        self._random = random.Random(seed)
        self._conn: psycopg.Connection[Any] | None = None
        self.outcome = Outcome()

    def run(self, messages: int, driver_kills: int, pg_kills: int, *, pause: float, limit: float) -> Outcome:
        began = time.monotonic()
        migrate(self._server.url)
        with psycopg.connect(self._server.url, autocommit=True) as conn:
            conn.execute("select trunkline.create_topic('source', 4), trunkline.create_topic('copy', 4)")
        publisher = Publisher(self._server.url, messages, pause)
        publisher.start()
        faults = ["driver"] * driver_kills + ["postgres"] * pg_kills
        self._random.shuffle(faults)
        seen = 0
        try:
            while time.monotonic() - began < limit:
                if not self._driver.alive():
                    self._note_replay()
                    self._driver.start()
                    self.outcome.starts += 1
                version, copied, there = self._look()
                if version > seen and faults:
                    # at once, or a moment later: both before and after Spark has noted the batch
                    time.sleep(self._random.choice([0.0, 0.0, 0.05, 0.4]))
                    self._strike(faults.pop())
                    seen = self._look()[0]
                elif not faults and not publisher.is_alive() and copied >= there:
                    break
                time.sleep(0.005)
        finally:
            self._driver.kill()
        self.outcome.seconds = time.monotonic() - began
        if faults:
            self.outcome.wrong.append(f"faults left: {faults}")
        self._check()
        return self.outcome

    def _strike(self, fault: str) -> None:
        if fault == "driver":
            self._driver.kill()
            self.outcome.driver_kills += 1
            return
        for pid in dict.fromkeys([self._server.postmaster_pid, *find_processes(self._server.pgdata)]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while self._server.alive():
            time.sleep(0.005)
        self._server.start()
        self.outcome.pg_kills += 1

    def _look(self) -> tuple[int, int, int]:
        """How many batches were published, how many messages were copied, and how many there are."""
        for _ in range(200):
            with suppress(psycopg.Error):
                if self._conn is None or self._conn.closed:
                    self._conn = psycopg.connect(self._server.url, autocommit=True)
                row = self._conn.execute(
                    "select count(*), coalesce(sum(rows), 0)::bigint,"
                    " (select sum(next_offset - 1)::bigint from trunkline.log_heads('{source}')) from trunkline.sink_commits"
                ).fetchone()
                assert row is not None
                return row
            self._conn = None
            time.sleep(0.1)
        raise TimeoutError("the server does not come back")

    def _note_replay(self) -> None:
        """Was a batch published that Spark does not know of? The next driver repeats it, and must be told so."""
        folder = self._home / "checkpoint" / "commits"
        noted = max((int(path.name) for path in folder.glob("[0-9]*")), default=-1) if folder.exists() else -1
        with suppress(psycopg.Error), psycopg.connect(self._server.url, autocommit=True) as conn:
            row = conn.execute("select coalesce(max(version), -1) from trunkline.sink_commits").fetchone()
            if row is not None and row[0] > noted:
                self.outcome.replays_skipped += 1

    def _check(self) -> None:
        with psycopg.connect(self._server.url, autocommit=True) as conn:
            heads = conn.execute("select topic, partition, next_offset from trunkline.log_heads('{source,copy}')").fetchall()
            expected = {(p, o) for topic, p, head in heads if topic == "source" for o in range(1, head)}
            copies: list[tuple[int, int]] = []
            for topic, partition, head in heads:
                if topic == "copy":
                    copies += self._check_partition(conn, partition, head)
            self.outcome.batches = conn.execute("select count(*) from trunkline.sink_commits").fetchone()[0]  # type: ignore[index]
        self.outcome.messages, self.outcome.copied, self.outcome.distinct = len(expected), len(copies), len(set(copies))
        if missing := expected - set(copies):
            self.outcome.wrong.append(f"{len(missing)} lost, such as {sorted(missing)[:3]}")
        if unknown := set(copies) - expected:
            self.outcome.wrong.append(f"{len(unknown)} from nowhere")

    def _check_partition(self, conn: Any, partition: int, head: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        newest: dict[str, tuple[int, int]] = {}
        for start in range(1, head, 50_000):
            rows = conn.execute(
                "select key, payload from trunkline.read('copy', %s, %s, 50000)", (partition, start)
            ).fetchall()
            for key, payload in rows:
                source, offset = payload.split(b":")
                at = (int(source), int(offset))
                # a key is in one partition of the source, so its offsets go up
                self.outcome.out_of_order += at <= newest.get(key, (-1, -1))
                newest[key] = at
                found.append(at)
        return found


def run(
    messages: int,
    driver_kills: int,
    pg_kills: int,
    *,
    rows: int,
    pause: float,
    limit: float,
    master: str = "local[2,4]",
    seed: int = 0,
) -> Outcome:
    home = Path(tempfile.mkdtemp(prefix="tl-spark-chaos-", dir="/tmp"))
    with EmbeddedServer(home / "data") as server:
        outcome = Chaos(server, home, rows, master, seed).run(messages, driver_kills, pg_kills, pause=pause, limit=limit)
    if outcome.ok:
        shutil.rmtree(home, ignore_errors=True)
    else:
        outcome.wrong.append(f"kept in {home}")
    return outcome


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--driver-kills", type=int, default=10)
    parser.add_argument("--pg-kills", type=int, default=3)
    parser.add_argument("--rows", type=int, default=20_000, help="rows per batch")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    result = run(
        given.messages, given.driver_kills, given.pg_kills, rows=given.rows, pause=0.02, limit=given.limit, seed=given.seed
    )
    print(result)
    sys.exit(0 if result.ok else 1)
