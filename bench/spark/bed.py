"""Where all of it runs: one session on two cores, its CPU meter, and the topics that are read."""

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
    """A session and a folder of its own; `timed` measures seconds and CPU of one action."""

    def __init__(self, lab: Lab, spark: SparkSession, folder: Path) -> None:
        self.lab = lab
        self.spark = spark
        self.url = lab.tcp_url
        self._folder = folder
        self._made = 0
        gateway = spark.sparkContext._gateway
        if gateway is None:
            raise RuntimeError("this session has no Java machine of its own")
        self._meter = Meter(lab, gateway.proc.pid)
        # by contestant, in the order of the rounds
        self.cpu: dict[str, list[Cpu]] = {}

    def place(self) -> str:
        """A new path on the lab's disk."""
        self._made += 1
        return str(self._folder / str(self._made))

    def new_topic(self, kind: str, partitions: int = 1) -> tuple[str, int]:
        """A topic of its own for each measurement, and its number. They go with the lab: deleting one may meet upkeep."""
        self._made += 1
        name = f"{kind}-{self._made}"
        return name, int(self.lab.value("select (trunkline.create_topic(%s, %s)).topic_id", name, partitions))

    @contextmanager
    def output(self) -> Iterator[str]:
        """A new path, gone when the block ends."""
        path = self.place()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def timed(self, name: str, action: Callable[[], object]) -> float:
        """The seconds of an action, after a checkpoint; its CPU is kept under the name."""
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
