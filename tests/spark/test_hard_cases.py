"""Hard cases: nothing to read, one checkpoint for two queries, a database that goes away in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.conftest import Connection
from tests.spark.topics import flat, load, payloads, publish
from trunkline import SyncClient
from trunkline.db.calls import archive as calls
from trunkline.errors import TrunklineError, Unavailable
from trunkline.spark.archive.writer import archive
from trunkline.spark.pipelines.compact import compact
from trunkline.spark.pipelines.query import run_file
from trunkline.spark.pipelines.replay import replay
from trunkline.spark.pipelines.report import report
from trunkline.spark.pipelines.validate import validate
from trunkline.spark.progress import pipelines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.xdist_group("spark")


def test_nothing_to_read(spark: SparkSession, db: str, conn: Connection, tmp_path: Path) -> None:
    conn.execute("select trunkline.create_topic('t', 2), trunkline.create_topic('copy')")
    assert load(spark, db).count() == 0
    assert archive(db, "t", str(tmp_path / "archive"), open=True, spark=spark).files == 0
    assert replay(db, "t", id="r", to_topic="copy", spark=spark).published == 0
    assert compact(db, "t", str(tmp_path / "table"), spark=spark).keys == 0
    assert validate(db, "t", schema={"type": "object"}, rejects="copy", spark=spark).read == 0
    assert report(db, str(tmp_path / "report"), spark=spark).messages == 0
    assert "No data in this period" in (tmp_path / "report" / "report.html").read_text()
    (tmp_path / "all.sql").write_text("select value from messages")
    ran = run_file(db, str(tmp_path / "all.sql"), "t", to_topic="copy", checkpoint=str(tmp_path / "c"), spark=spark)
    assert (ran.read, payloads(conn, "copy")) == (0, [[]])


def copying(spark: SparkSession, db: str, checkpoint: Path) -> StreamingQuery:
    topic = spark.readStream.format("trunkline").options(url=db, subscribe="t", startingOffsets="earliest")
    writer = topic.option("maxOffsetsPerTrigger", "50").load().select("key", "value").writeStream.format("trunkline")
    return writer.options(url=db, topic="copy", checkpointLocation=str(checkpoint)).start()


def test_two_queries_with_one_checkpoint(spark: SparkSession, db: str, conn: Connection, tmp_path: Path) -> None:
    """One of them ends, and every message is published once."""
    conn.execute("select trunkline.create_topic('t'), trunkline.create_topic('copy')")
    publish(conn, "t", 500)
    first = copying(spark, db, tmp_path)
    try:
        second = copying(spark, db, tmp_path)
    except Exception as exc:
        assert "concurrent" in str(exc).lower() or "already" in str(exc).lower()
        second = first
    second.processAllAvailable()
    assert len(spark.streams.active) == 1
    second.stop()
    assert flat(payloads(conn, "copy")) == list(range(500))


def cut(db: str) -> None:
    """All connections to the database end, as when the server is started again."""
    with psycopg.connect(db, autocommit=True) as admin:
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )


def test_the_database_goes_away_in_the_middle(spark: SparkSession, db: str, tmp_path: Path) -> None:
    with SyncClient(db) as mq:
        mq.topics.create("t", partitions=2)
        mq.topics.create("copy")
        mq.publish_many("t", list(range(900)))
    location = str(tmp_path / "archive")
    rounds: list[int] = []

    def told(done: int, total: int | None) -> None:
        rounds.append(done)
        cut(db)

    try:
        archive(db, "t", location, open=True, rows_per_file=100, spark=spark, on_progress=told)
    except TrunklineError as exc:
        assert isinstance(exc, Unavailable) or exc.code in ("pipeline_failed", "connection_lost"), exc
    assert rounds
    with psycopg.connect(db, autocommit=True) as conn:
        listed = calls.list_archive_files(conn, "t")
        assert all((Path(location) / file.path).is_file() for file in listed), "what is listed is there"
    archive(db, "t", open=True, rows_per_file=100, spark=spark)
    assert load(spark, db).selectExpr("count(*)", "count(distinct partition, offset)").first() == (900, 900)
    # A replay that is interrupted after each chunk resumes there, and publishes nothing twice.
    for _ in range(5):
        try:
            replay(db, "t", id="r", to_topic="copy", chunk_rows=300, spark=spark, on_progress=lambda *_: cut(db))
            break
        except TrunklineError:
            continue
    with psycopg.connect(db, autocommit=True) as conn:
        assert flat(payloads(conn, "copy")) == list(range(900))
    with pytest.raises(Unavailable):
        archive("postgresql://127.0.0.1:1/x", "t", location, spark=spark)
    assert all(each.state in ("done", "failed") for each in pipelines(db))
