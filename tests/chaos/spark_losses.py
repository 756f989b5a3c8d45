"""Topic to topic with failOnDataLoss=false, while messages vanish: nothing else is lost, and nothing is read twice.

    python -m tests.chaos.spark_losses --each 10

Operators archive parts of the source, drop segments (of which some are archived: a hole is what is in neither), add
partitions, and delete the topic and create it again, while drivers are killed -9. An archive keeps the files of a deleted
topic, so a batch that is repeated after that must not find those of the new one. Payloads are numbers that occur once.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
from msgspec import Struct

from tests.chaos.spark import KEYS, Driver
from trunkline.db.calls import archive as calls
from trunkline.embedded.server import EmbeddedServer
from trunkline.spark.archive.writer import write_piece
from trunkline.sql.migrate import migrate

ROWS = 512
"""Rows of a segment."""


class Losses(Struct):
    published: int = 0
    copied: int = 0
    vanished: int = 0
    """Messages that were dropped or deleted, whether they were copied before or not."""
    starts: int = 0
    faults: Counter[str] = Counter()
    wrong: list[str] = []


class Run:
    def __init__(self, server: EmbeddedServer, home: Path, rows: int, seed: int) -> None:
        self._url, self._home = server.url, home
        self._driver = Driver(server.url, home, rows, "local[2,4]", "losses")
        self._random = random.Random(seed)
        self._rows, self._sent = rows, 0
        self._eras: list[int] = []
        self._vanished: set[int] = set()
        self._dropped: Counter[tuple[int, int]] = Counter()
        self.result = Losses()

    def run(self, faults: list[str], *, limit: float) -> Losses:
        migrate(self._url)
        self._random.shuffle(faults)
        end = time.monotonic() + limit
        with psycopg.connect(self._url, autocommit=True) as conn:
            self._conn = conn
            conn.execute("select trunkline.create_topic('source', 2, p_segment_rows => %s)", (ROWS,))
            conn.execute("select trunkline.create_topic('copy', 4)")
            seen = -1
            try:
                while faults or not self._is_complete():
                    if time.monotonic() > end:
                        self.result.wrong.append(f"not finished in {limit:g} s, faults left: {faults}")
                        break
                    batches = self._one("select count(*) from trunkline.sink_commits")
                    if faults and batches > seen:
                        seen = batches
                        self._publish()
                        # with the driver dead, what vanishes is often what it has not read
                        if self._random.random() < 0.3:
                            self._strike("driver")
                        self._strike(faults.pop())
                        self._publish()
                    if not self._driver.alive():
                        self._driver.start()
                        self.result.starts += 1
                    conn.execute("call trunkline.sequence()")
                    time.sleep(0.05)
            finally:
                self._driver.kill()
            self._check()
        return self.result

    def _publish(self) -> None:
        """More than a batch, so that there is always something to read."""
        for _ in range(3):
            numbers = range(self._sent, self._sent + self._rows // 2)
            self._conn.execute(
                "select count(*) from trunkline.publish_many('source', %s, p_keys => %s)",
                ([str(n).encode() for n in numbers], [f"k{n % KEYS}" for n in numbers]),
            )
            self._sent = numbers.stop

    def _one(self, query: str, *values: Any) -> int:
        row = self._conn.execute(query.encode(), values).fetchone()
        assert row is not None
        return int(row[0])

    def _numbers(self, topic: str) -> dict[tuple[int, int], int]:
        """The payloads of a topic that can be read from its log, by partition and offset."""
        rows = self._conn.execute(
            "select r.partition, r.log_offset, r.payload from trunkline.topic_stats(%s) s"
            " cross join lateral trunkline.read(%s, s.partition, s.earliest_offset, 100000) r"
            " where s.head >= s.earliest_offset",
            (topic, topic),
        )
        return {(partition, offset): int(payload) for partition, offset, payload in rows}

    def _strike(self, fault: str) -> None:
        self.result.faults[fault] += 1
        if fault == "driver":
            self._driver.kill()
            return
        self._conn.execute("call trunkline.sequence()")
        id = self._one("select topic_id from trunkline.get_topic('source')")
        getattr(self, f"_{fault}")(id)

    def _archive(self, id: int) -> None:
        where = str(self._home / "archive" / str(id))
        calls.ensure_archive(self._conn, "source", where)
        plan = calls.plan_archive(self._conn, "source", rows=self._random.randint(50, ROWS), open=True)
        for piece in plan[: self._random.randint(1, 6)]:
            calls.add_archive_files(self._conn, "source", [write_piece(self._url, "source", id, where, piece)], topic_id=id)

    def _hole(self, id: int) -> None:
        """Drop the oldest segments of a partition, as retention does."""
        partition = self._random.randrange(self._one("select partitions from trunkline.get_topic('source')"))
        numbers = {n: offset for (part, offset), n in self._numbers("source").items() if part == partition}
        files = self._conn.execute(
            "select first_offset, last_offset from trunkline.list_archive_files('source') where partition = %s", (partition,)
        ).fetchall()
        for _ in range(self._random.randint(1, 4)):
            segment = self._dropped[id, partition]
            table = f"trunkline.topic_{id} where partition = {partition} and id"
            if self._one(f"select count(*) from {table} >= {(segment + 1) * ROWS}") == 0:
                return  # the newest segment stays
            inside = [
                int(payload)
                for (payload,) in self._conn.execute(
                    f"select payload from {table} between {segment * ROWS} and {(segment + 1) * ROWS - 1}".encode()
                )
            ]
            offsets = [numbers[n] for n in inside]
            if self._one("select trunkline._empty_segment(%s, %s, %s, %s)", id, partition, segment, max(offsets)) == 0:
                return  # a reader has it
            self._vanished |= {n for n in inside if not any(lo <= numbers[n] <= hi for lo, hi in files)}
            self._dropped[id, partition] += 1

    def _grow(self, id: int) -> None:
        self._eras.append(self._sent)
        partitions = self._one("select partitions from trunkline.get_topic('source')")
        self._conn.execute("select trunkline.alter_topic('source', %s)", (min(4, partitions + 1),))

    def _recreate(self, id: int) -> None:
        self._eras.append(self._sent)
        self._vanished |= set(range(self._sent))
        self._conn.execute("select trunkline.delete_topic('source', true)")
        self._conn.execute("select trunkline.create_topic('source', 2, p_segment_rows => %s)", (ROWS,))

    def _is_complete(self) -> bool:
        return set(range(self._sent)) - self._vanished <= set(self._numbers("copy").values())

    def _check(self) -> None:
        copied = self._numbers("copy")
        times = Counter(copied.values())
        self.result.published, self.result.copied = self._sent, len(copied)
        self.result.vanished = len(self._vanished)
        if twice := [n for n, count in times.items() if count > 1]:
            self.result.wrong.append(f"{len(twice)} twice, such as {sorted(twice)[:3]}")
        if unknown := set(times) - set(range(self._sent)):
            self.result.wrong.append(f"{len(unknown)} from nowhere")
        if lost := set(range(self._sent)) - self._vanished - set(times):
            self.result.wrong.append(f"{len(lost)} lost, such as {sorted(lost)[:3]}")
        newest: dict[tuple[int, int], int] = {}
        disorder = []
        for _, n in sorted(copied.items()):
            # until partitions are added, a key is in one partition of the source
            place = (n % KEYS, bisect_right(self._eras, n))
            if n < newest.get(place, -1):
                disorder.append(n)
            newest[place] = n
        if disorder:
            self.result.wrong.append(f"{len(disorder)} out of order, such as {disorder[:3]}")


def run(faults: dict[str, int], *, rows: int, limit: float, seed: int) -> Losses:
    home = Path(tempfile.mkdtemp(prefix="tl-spark-losses-", dir="/tmp"))
    todo = [fault for fault, count in faults.items() for _ in range(count)]
    with EmbeddedServer(home / "data") as server:
        result = Run(server, home, rows, seed).run(todo, limit=limit)
    if result.wrong:
        result.wrong.append(f"kept in {home}")
    else:
        shutil.rmtree(home, ignore_errors=True)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", type=int, default=10, help="faults of each kind")
    parser.add_argument("--rows", type=int, default=2_000, help="rows per batch")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    each = dict.fromkeys(["archive", "hole", "grow", "recreate"], given.each) | {"archive": 2 * given.each}
    found = run(each, rows=given.rows, limit=given.limit, seed=given.seed)
    print(found)
    sys.exit(1 if found.wrong else 0)
