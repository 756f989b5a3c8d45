"""Spark Connect: source, sink, streams and pipelines through the client without its own JVM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import Connection
from tests.spark.topics import flat, load, payloads, publish
from trunkline.errors import InvalidOption, SparkUnavailable
from trunkline.spark.archive.writer import archive
from trunkline.spark.pipelines.query import run_file
from trunkline.spark.pipelines.replay import replay
from trunkline.spark.progress import pipelines
from trunkline.spark.run import clear_errors
from trunkline.spark.session import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def topics(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    conn.execute("select trunkline.create_topic('t', 2), trunkline.create_topic('copy', 2), trunkline.create_topic('again')")
    publish(conn, "t", 200)
    # a program whose session is one of Connect has it set: PySpark's functions look there
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")


def test_batch_and_stream(connect_spark: SparkSession, db: str, conn: Connection, topics: None, tmp_path: Path) -> None:
    frame = load(connect_spark, db, includeHeaders="true")
    assert frame.selectExpr("count(*)", "count(distinct partition, offset)").first() == (200, 200)
    rows = connect_spark.range(50).selectExpr("string(id) as value")
    for _ in range(2):
        writer = rows.write.format("trunkline").options(url=db, topic="again", txnAppId="a", txnVersion="1")
        writer.mode("append").save()
    assert flat(payloads(conn, "again")) == list(range(50))
    stream = connect_spark.readStream.format("trunkline").options(url=db, subscribe="t", startingOffsets="earliest")
    for _ in range(2):
        query = (
            stream.option("maxOffsetsPerTrigger", "120")
            .load()
            .select("key", "value")
            .writeStream.format("trunkline")
            .options(url=db, topic="copy", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert flat(payloads(conn, "copy")) == list(range(200))
    with pytest.raises(InvalidOption, match="subscribe"), clear_errors():
        load(connect_spark, db, None, subscrib="t").count()


def test_pipelines(connect_spark: SparkSession, db: str, conn: Connection, topics: None, tmp_path: Path) -> None:
    assert archive(db, "t", str(tmp_path / "archive"), open=True, spark=connect_spark).rows == 200
    done = replay(db, "t", id="r", to_topic="again", filter="body::int % 2 = 0", spark=connect_spark)
    assert (done.read, done.published) == (200, 100)
    (tmp_path / "some.sql").write_text("select key, value from messages where body::int < 10")
    checkpoint = str(tmp_path / "checkpoint")
    ran = run_file(db, str(tmp_path / "some.sql"), "t", to_topic="copy", checkpoint=checkpoint, spark=connect_spark)
    assert (ran.read, flat(payloads(conn, "copy"))) == (200, list(range(10)))
    states = {each.name: each.state for each in pipelines(db)}
    assert [states[name] for name in ("archive:t", "replay:r", "run:some")] == ["done"] * 3


CLIENT = """
import sys
from trunkline.spark import open_session

spark = open_session(master=sys.argv[1], url=sys.argv[2])
topic = spark.read.format("trunkline").option("url", sys.argv[2]).option("subscribe", "t").load()
print(topic.count(), spark.conf.get("spark.sql.session.timeZone"))
"""


def test_a_client_in_another_process(spark: SparkSession, db: str, conn: Connection) -> None:
    """It has no Java machine; the server's is used. It ends although it does not stop its session."""
    conn.execute("select trunkline.create_topic('t')")
    publish(conn, "t", 30)
    jvm: Any = spark.sparkContext._jvm
    service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    server = f"sc://localhost:{getattr(service, 'MODULE$').localPort()}"
    done = subprocess.run([sys.executable, "-c", CLIENT, server, db], capture_output=True, text=True, timeout=100)
    assert done.stdout == "30 UTC\n", done.stderr


def test_a_session_without_it_says_so(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not connect.is_connect(spark)
    monkeypatch.setattr(connect, "_PLUGIN", "another")
    with pytest.raises(SparkUnavailable, match="without Spark Connect"):
        connect.connected(spark)
