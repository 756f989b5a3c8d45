"""Test bed of the Spark workload: a session on two cores, its CPU meter, and the topics."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.lab import Lab
from bench.spark.cpu import Cpu, Meter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Debian's libpostgresql-jdbc-java
JAR = Path("/usr/share/java/postgresql.jar")
CORES = 2
MASTER = f"local[{CORES}]"
PAYLOAD = 500


class Bed:
    """A session with a temporary folder. `timed` measures the duration and CPU of an action."""

    def __init__(self, lab: Lab, spark: SparkSession, folder: Path) -> None:
        self.lab = lab
        self.spark = spark
        self.url = lab.tcp_url
        self._folder = folder
        self._made = 0
        gateway = spark.sparkContext._gateway
        if gateway is None:
            raise RuntimeError("this session did not start a JVM")
        self._meter = Meter(lab, gateway.proc.pid)
        # By contestant, in the order of the rounds.
        self.cpu: dict[str, list[Cpu]] = {}

    def place(self) -> str:
        """Return a new path on the lab's disk."""
        self._made += 1
        return str(self._folder / str(self._made))

    def new_topic(self, kind: str, partitions: int = 1) -> tuple[str, int]:
        """Create a topic for one measurement; return its name and number.

        Topics are removed with the lab, because deleting one could conflict with upkeep.
        """
        self._made += 1
        name = f"{kind}-{self._made}"
        return name, int(self.lab.value("select (trunkline.create_topic(%s, %s)).topic_id", name, partitions))

    @contextmanager
    def output(self) -> Iterator[str]:
        """Yield a new path that is removed when the block ends."""
        path = self.place()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def timed(self, name: str, action: Callable[[], object]) -> float:
        """Run a checkpoint and then the action. Return its seconds, and store its CPU time under the name."""
        self.lab.calm()
        before, start = self._meter.now(), time.perf_counter()
        action()
        seconds = time.perf_counter() - start
        self.cpu.setdefault(name, []).append(self._meter.now() - before)
        return seconds


@contextmanager
def open_bed(lab: Lab) -> Iterator[Bed]:
    from trunkline.spark import open_session

    folder = lab.directory / "spark"
    folder.mkdir()
    conf = {
        "spark.driver.memory": "2g",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        **({"spark.driver.extraClassPath": str(JAR)} if JAR.exists() else {}),
    }
    spark = open_session("bench", master=MASTER, conf=conf)
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield Bed(lab, spark, folder)
    finally:
        spark.stop()
