"""Topic to topic exactly once: publishers run, tasks fail, and drivers, executors, tasks and Postgres are killed -9.

    python -m tests.chaos.spark --messages 500000 --driver-kills 10 --pg-kills 3 --worker-kills 10

The source log is the truth: each message of it must be in the copy once, and those of a key in its order.
Kills follow what is seen, not a clock: a driver dies when a batch was just published and Spark has not written that down.
Another publisher writes to the copy meanwhile, so that offsets of both kinds alternate.
`--plant` breaks the sink on purpose, to show that the check sees it.
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

from trunkline.embedded.postmaster import find_processes
from trunkline.embedded.server import EmbeddedServer
from trunkline.sql.migrate import migrate

KEYS = 100
OTHER = b"other"
# No other process assigns offsets in a run. Often enough that no batch waits, and no more: each call costs 3 ms of CPU.
SEQUENCE_SECONDS = 0.1
# name: what is replaced in commit_stage, by what
PLANTS = {
    # a batch that is repeated is published again
    "ledger": [
        ("c.version = p_version", "false"),
        ("p_version, v_found, trunkline.clock())", "p_version, v_found, trunkline.clock()) on conflict do nothing"),
    ],
    # rows of a batch are published in the order in which tasks came
    "order": [("order by u.ord, u.first_id", "order by u.first_id desc")],
}


@dataclass
class Outcome:
    messages: int = 0
    copied: int = 0
    distinct: int = 0
    out_of_order: int = 0
    others: int = 0
    driver_kills: int = 0
    pg_kills: int = 0
    worker_kills: int = 0
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


class Neighbour(threading.Thread):
    """Publish to the copy, one message at a time; a lost response makes the message one of the uncertain ones."""

    def __init__(self, url: str, pause: float) -> None:
        super().__init__(daemon=True)
        self._url, self._pause = url, pause
        self._ended = threading.Event()
        self.sent = self.uncertain = 0

    def run(self) -> None:
        while not self._ended.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._url, autocommit=True) as conn:
                while not self._ended.wait(self._pause):
                    self.uncertain += 1
                    conn.execute("select trunkline.publish_bytes('copy', %s)", (OTHER,))
                    self.uncertain -= 1
                    self.sent += 1

    def end(self) -> None:
        self._ended.set()
        self.join()


class Driver:
    """The Spark driver in a separate process, with everything it starts."""

    def __init__(self, url: str, home: Path, rows: int, master: str, *more: str) -> None:
        self._command = [sys.executable, "-m", "tests.spark.driver", url, str(home / "checkpoint"), str(rows), master, *more]
        self._log = (home / "driver.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log)

    def kill_worker(self, chance: random.Random) -> bool:
        """One of the Python processes that tasks run in; Spark tries the task again."""
        with suppress(psutil.NoSuchProcess):
            assert self._process is not None
            below = psutil.Process(self._process.pid).children(recursive=True)
            workers = [one for one in below if "pyspark.daemon" in " ".join(one.cmdline()) and not one.children()]
            if workers:
                chance.choice(workers).send_signal(signal.SIGKILL)
                return True
        return False

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
        self._sequence_at = 0.0
        self.outcome = Outcome()

    def run(self, messages: int, faults: list[str], *, pause: float, limit: float, plant: str | None = None) -> Outcome:
        began = time.monotonic()
        migrate(self._server.url)
        with psycopg.connect(self._server.url, autocommit=True) as conn:
            conn.execute("select trunkline.create_topic('source', 4), trunkline.create_topic('copy', 4)")
            _plant(conn, plant)
        publisher = Publisher(self._server.url, messages, pause)
        publisher.start()
        neighbour = Neighbour(self._server.url, 0.05)
        neighbour.start()
        self._random.shuffle(faults)
        seen = 0
        try:
            while time.monotonic() - began < limit:
                if not self._driver.alive():
                    self._note_replay()
                    self._driver.start()
                    self.outcome.starts += 1
                published, all_copied = self._look()
                if published > seen and faults:
                    # at once, or a moment later: both before and after Spark has noted the batch
                    time.sleep(self._random.choice([0.0, 0.0, 0.05, 0.4]))
                    self._strike(faults.pop())
                    seen = self._look()[0]
                elif not faults and not publisher.is_alive() and all_copied:
                    break
                time.sleep(0.005)
            else:
                self.outcome.wrong.append(f"not finished in {limit:g} s, so what is called lost may be on its way")
        finally:
            self._driver.kill()
            neighbour.end()
        self.outcome.seconds = time.monotonic() - began
        if faults:
            self.outcome.wrong.append(f"faults left: {faults}")
        self._check()
        if not neighbour.sent <= self.outcome.others <= neighbour.sent + neighbour.uncertain:
            self.outcome.wrong.append(f"{self.outcome.others} messages of the neighbour, who sent {neighbour.sent}")
        return self.outcome

    def _strike(self, fault: str) -> None:
        if fault == "driver":
            self._driver.kill()
            self.outcome.driver_kills += 1
            return
        if fault == "worker":
            self.outcome.worker_kills += self._driver.kill_worker(self._random)
            return
        for pid in dict.fromkeys([self._server.postmaster_pid, *find_processes(self._server.pgdata)]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while self._server.alive():
            time.sleep(0.005)
        self._server.start()
        self.outcome.pg_kills += 1

    def _look(self) -> tuple[int, bool]:
        """Return how many batches were published, and whether a sequencing just now found every message copied."""
        for _ in range(200):
            with suppress(psycopg.Error):
                if self._conn is None or self._conn.closed:
                    self._conn = psycopg.connect(self._server.url, autocommit=True)
                all_copied = time.monotonic() >= self._sequence_at and self._sequence(self._conn)
                row = self._conn.execute("select count(*) from trunkline.sink_commits").fetchone()
                assert row is not None
                return row[0], all_copied
            self._conn = None
            time.sleep(0.1)
        raise TimeoutError("the server does not come back")

    def _sequence(self, conn: psycopg.Connection[Any]) -> bool:
        """Give offsets; return whether all messages that have one were copied."""
        conn.execute("call trunkline.sequence()")
        self._sequence_at = time.monotonic() + SEQUENCE_SECONDS
        row = conn.execute(
            "select (select coalesce(sum(rows), 0) from trunkline.sink_commits)"
            " >= (select sum(next_offset - 1) from trunkline.log_heads('{source}'))"
        ).fetchone()
        assert row is not None
        return bool(row[0])

    def _note_replay(self) -> None:
        """Count a batch that was published but not recorded by Spark.

        The next driver repeats it, which must be a no-op.
        """
        folder = self._home / "checkpoint" / "commits"
        noted = max((int(path.name) for path in folder.glob("[0-9]*")), default=-1) if folder.exists() else -1
        with suppress(psycopg.Error), psycopg.connect(self._server.url, autocommit=True) as conn:
            row = conn.execute("select coalesce(max(version), -1) from trunkline.sink_commits").fetchone()
            if row is not None and row[0] > noted:
                self.outcome.replays_skipped += 1

    def _check(self) -> None:
        with psycopg.connect(self._server.url, autocommit=True) as conn:
            conn.execute("call trunkline.sequence()")
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
                if payload == OTHER:
                    self.outcome.others += 1
                    continue
                source, offset = payload.split(b":")
                at = (int(source), int(offset))
                # a key is in one partition of the source, so its offsets go up
                self.outcome.out_of_order += at <= newest.get(key, (-1, -1))
                newest[key] = at
                found.append(at)
        return found


def _plant(conn: psycopg.Connection[Any], bug: str | None) -> None:
    if bug is None:
        return
    row = conn.execute("select pg_get_functiondef('trunkline.commit_stage'::regproc)").fetchone()
    text = str(row[0]) if row else ""
    for right, wrong in PLANTS[bug]:
        assert right in text, f"commit_stage has no {right}"
        text = text.replace(right, wrong)
    conn.execute(text.encode())


def run(
    messages: int,
    driver_kills: int,
    pg_kills: int,
    worker_kills: int = 0,
    *,
    rows: int,
    pause: float,
    limit: float,
    master: str = "local[2,4]",
    seed: int = 0,
    plant: str | None = None,
) -> Outcome:
    home = Path(tempfile.mkdtemp(prefix="tl-spark-chaos-", dir="/tmp"))
    faults = ["driver"] * driver_kills + ["postgres"] * pg_kills + ["worker"] * worker_kills
    with EmbeddedServer(home / "data") as server:
        outcome = Chaos(server, home, rows, master, seed).run(messages, faults, pause=pause, limit=limit, plant=plant)
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
    parser.add_argument("--worker-kills", type=int, default=10)
    parser.add_argument("--plant", choices=list(PLANTS))
    parser.add_argument("--rows", type=int, default=20_000, help="rows per batch")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    result = run(
        given.messages,
        given.driver_kills,
        given.pg_kills,
        given.worker_kills,
        rows=given.rows,
        pause=0.02,
        limit=given.limit,
        seed=given.seed,
        plant=given.plant,
    )
    print(result)
    sys.exit(0 if result.ok else 1)
