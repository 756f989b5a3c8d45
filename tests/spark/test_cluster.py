"""A real standalone cluster, master and two workers, with a worker killed -9 in the middle of a job."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pyspark
import pytest

from tests.conftest import Connection
from tests.spark.tiers import drop
from tests.spark.topics import flat, in_order_of_keys, payloads, publish
from trunkline.db.calls import archive as calls

pytestmark = pytest.mark.xdist_group("spark")

# Runs as a program of its own: a process has one Spark, and the other tests have theirs.
PROGRAM = """
import sys, time
from trunkline.spark import open_session
from trunkline.spark.archive.writer import archive

master, url, home = sys.argv[1:4]
spark = open_session("cluster", master=master, conf={
    "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2", "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false",
})
spark.sparkContext.setLogLevel("OFF")
print("archived", archive(url, "t", home + "/archive", rows_per_file=700, spark=spark).files, flush=True)
sys.stdin.readline()

def sums():
    frame = spark.read.format("trunkline").options(url=url, subscribe="t", minPartitions="4").load()
    return frame.selectExpr("count(*)", "count(distinct partition, offset)", "sum(string(value))").first()

print("read", *sums(), flush=True)

def slowly(batches):
    import time
    for batch in batches:
        time.sleep(1)
        yield batch

stream = (
    spark.readStream.format("trunkline").options(url=url, subscribe="t", startingOffsets="earliest", minPartitions="4")
    .schema("key binary, value binary").load()
)
query = (
    stream.mapInArrow(slowly, stream.schema).writeStream.format("trunkline")
    .options(url=url, topic="copy", checkpointLocation=home + "/checkpoint").trigger(availableNow=True).start()
)
print("running", flush=True)
query.awaitTermination()
print("done", *sums(), flush=True)
"""


# Each task stages a first part of its rows; then one fails, and one is so slow that it gets a twin.
TWINS = """
import sys
from trunkline.spark import open_session

master, url, rows = sys.argv[1:4]
spark = open_session("twins", master=master, conf={
    "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2", "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m", "spark.ui.enabled": "false", "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.4", "spark.speculation.multiplier": "1.1", "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.efficiency.enabled": "false",
})
spark.sparkContext.setLogLevel("OFF")

def unlucky(batches):
    import time
    from pyspark import TaskContext
    task, seen = TaskContext.get(), 0
    for batch in batches:
        yield batch
        seen += batch.num_rows
        if seen >= 100_000 and task.attemptNumber() == 0:
            if task.partitionId() == 0:
                raise RuntimeError("on purpose")
            time.sleep(600)

frame = spark.range(0, int(rows), numPartitions=2).selectExpr("cast(id as string) as value", "concat('k', id % 10) as key")
frame.mapInArrow(unlucky, frame.schema).write.format("trunkline").options(url=url, topic="t").mode("append").save()
print("done", flush=True)
"""


class Cluster(NamedTuple):
    master: str
    workers: list[subprocess.Popen[bytes]]


def daemon(*command: str, log: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with log.open("wb") as out:
        return subprocess.Popen([str(program), *command], env=environment, stdout=out, stderr=out)


def awaited(log: Path, pattern: str) -> str:
    for _ in range(600):
        if found := re.search(pattern, log.read_text()):
            return found[0]
        time.sleep(0.1)
    raise TimeoutError(log.read_text())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    log = tmp_path / "master.log"
    running = [
        daemon("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", log=log)
    ]
    try:
        master = awaited(log, r"spark://127\.0\.0\.1:[1-9]\d*")
        for number in range(2):
            # speculation wants another host
            options = [
                "--host",
                f"127.0.0.{number + 1}",
                "--webui-port",
                "0",
                "-c",
                "1",
                "-m",
                "600m",
                "-d",
                str(tmp_path / f"worker{number}"),
            ]
            running.append(
                daemon("org.apache.spark.deploy.worker.Worker", master, *options, log=tmp_path / f"worker{number}.log")
            )
        for number in range(2):
            awaited(tmp_path / f"worker{number}.log", "Successfully registered with master")
        yield Cluster(master, running[1:])
    finally:
        for process in running:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """A daemon with the executors that it started."""
    try:
        root = psutil.Process(process.pid)
        for one in [*root.children(recursive=True), root]:
            one.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        pass
    process.wait()


@pytest.mark.timeout(600)
def test_a_worker_dies_in_the_middle(cluster: Cluster, db: str, conn: Connection, tmp_path: Path) -> None:
    """Archive, a read over the border of the archive, and a stream during which a worker is killed."""
    conn.execute("select trunkline.create_topic('t', 2, p_retention => '0', p_segment_rows => 256)")
    conn.execute("select trunkline.require_archive('t'), trunkline.create_topic('copy', 2)")
    publish(conn, "t", 4000)
    drop(conn)
    command = [sys.executable, "-c", PROGRAM, cluster.master, db, str(tmp_path)]
    whole = f"4000 4000 {sum(range(4000)):.1f}\n"
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    said = tmp_path / "driver.log"
    with (
        said.open("wb") as log,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as driver,
    ):
        assert driver.stdout is not None and driver.stdin is not None
        assert int(driver.stdout.readline().removeprefix("archived ") or 0) > 4, said.read_text()
        drop(conn)
        assert all(row.earliest_live > 1000 for row in calls.archive_stats(conn, "t"))
        print(file=driver.stdin, flush=True)
        assert driver.stdout.readline() == f"read {whole}", said.read_text()
        assert driver.stdout.readline() == "running\n"
        # a task has staged or is about to: the segment for it is made by the first one
        for _ in range(600):
            if conn.execute("select count(*) from trunkline.staged_segments").fetchone() != (0,):
                break
            time.sleep(0.05)
        kill(cluster.workers[0])
        assert driver.stdout.readline() == f"done {whole}", said.read_text()
    found = payloads(conn, "copy")
    assert flat(found) == list(range(4000))
    assert in_order_of_keys(found)


@pytest.mark.timeout(600)
def test_tasks_with_twins(cluster: Cluster, db: str, conn: Connection, tmp_path: Path) -> None:
    rows = 210_000
    conn.execute("select trunkline.create_topic('t', 2)")
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    said = tmp_path / "driver.log"
    with said.open("wb") as log:
        command = [sys.executable, "-c", TWINS, cluster.master, db, str(rows)]
        told = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, timeout=200, check=False
        )
    assert told.stdout == "done\n", said.read_text()
    found: list[list[int]] = []
    for partition in range(2):
        pages = [
            conn.execute("select payload from trunkline.read('t', %s, %s, 100000)", (partition, first)).fetchall()
            for first in range(1, rows, 100_000)
        ]
        found.append([int(row[0]) for page in pages for row in page])
    assert flat(found) == list(range(rows))
    assert in_order_of_keys(found)
    # The attempts that failed and were overtaken had ids for rows of their own, which the commit gave up.
    reserved = conn.execute(
        "select sum(i.next_id - i.segment * t.segment_rows) from trunkline.staged_ids i"
        " join trunkline.logs l using (log) join trunkline.topics t using (topic_id)"
    ).fetchone()
    assert reserved is not None and reserved[0] > rows
    assert conn.execute("select count(*) from trunkline.staged").fetchone() == (0,)
