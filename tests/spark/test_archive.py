"""The archive pipeline on Spark: incremental, exact, one run at a time; the tiered source reads what the log has dropped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.conftest import Connection
from trunkline import SyncClient
from trunkline.db.calls import archive as calls
from trunkline.errors import ArchiveConflict, ArchiveDamaged, Busy, InvalidArgument
from trunkline.spark.archive.export import export
from trunkline.spark.archive.writer import archive
from trunkline.spark.pipelines.query import run_file
from trunkline.spark.progress import pipelines
from trunkline.spark.run import clear_errors
from trunkline.types import NewMessage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")
SUMS = ("count(*)", "sum(offset)", "count(distinct partition, offset)", "sum(crc32(value))", "sum(crc32(id))")


def fill(db: str, conn: Connection, n: int, topic: str = "t") -> None:
    conn.execute("select trunkline.create_topic(%s, 2, p_retention => '0', p_segment_rows => 256)", (topic,))
    with SyncClient(db) as mq:
        mq.publish_many(topic, [NewMessage(body={"n": each}, key=f"k{each % 9}", headers={"a": "b"}) for each in range(n)])


def seal(conn: Connection) -> None:
    for _ in range(3):
        conn.execute("select trunkline.run_upkeep('segments')")


def sums(spark: SparkSession, db: str, topic: str = "t") -> tuple[int, ...]:
    frame = spark.read.format("trunkline").option("url", db).option("subscribe", topic).load()
    with clear_errors():
        return tuple(frame.selectExpr(*SUMS).collect()[0])


def test_archive_then_drop_then_read_all(spark: SparkSession, db: str, conn: Connection, tmp_path: Path) -> None:
    fill(db, conn, 2000)
    before = sums(spark, db)
    seal(conn)
    location = str(tmp_path / "archive")
    planned = archive(db, "t", location, dry_run=True, spark=spark)
    assert planned.dry_run
    with pytest.raises(InvalidArgument, match="cannot be read"):
        archive(db, "t", "nowhere://x", open=True, spark=spark)
    assert calls.list_archive_files(conn, "t") == []
    told: list[tuple[int, int | None]] = []
    done = archive(
        db, "t", location, rows_per_file=300, required=True, spark=spark, on_progress=lambda *each: told.append(each)
    )
    assert done.rows == planned.rows == told[-1][0] == told[-1][1]
    assert done.files == len(list(Path(location).rglob("*.parquet"))) > 4
    assert archive(db, "t", spark=spark).files == 0

    conn.execute("select trunkline.run_upkeep('retention')")
    stats = calls.archive_stats(conn, "t")
    assert all(1 < row.earliest_live <= row.archived_upto + 1 for row in stats)
    assert sums(spark, db) == before
    assert streamed(spark, db, str(tmp_path / "checkpoint")) == before[:3]
    conn.execute("select trunkline.create_group('t', 'g', 'archive')")
    file = tmp_path / "all.sql"
    file.write_text("select value, partition as p, offset as o from messages")
    table = str(tmp_path / "table")
    ran = run_file(db, str(file), "t", table=table, group="g", checkpoint=str(tmp_path / "group"), spark=spark)
    assert ran.read == 2000
    assert spark.read.parquet(table).select("p", "o").distinct().count() == 2000
    with SyncClient(db) as mq:
        assert sum(row.lag for row in mq.groups.stats("t", "g")) == 0
        mq.publish_many("t", [{"n": n} for n in range(100)])
    # what is open too; then nothing is left to do
    assert archive(db, "t", open=True, spark=spark).rows == 2100 - done.rows
    assert sums(spark, db)[:1] == (2100,)
    assert {row.name: row.state for row in pipelines(db)} == {"archive:t": "done", "run:all": "done"}

    # offsets that the log has no more; others are read from the log
    oldest = next(row for row in calls.list_archive_files(conn, "t") if row.first_offset == 1)
    [victim] = Path(location).rglob(Path(oldest.path).name)
    victim.write_bytes(b"PAR1")
    with pytest.raises(ArchiveDamaged, match=victim.name):
        sums(spark, db)


def streamed(spark: SparkSession, db: str, checkpoint: str) -> tuple[int, ...]:
    """The same through a stream that begins in the archive and ends at the head."""
    frame = spark.readStream.format("trunkline").option("url", db).option("subscribe", "t")
    writer = frame.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 900).load().writeStream
    query = (
        writer.format("memory")
        .queryName("tiered")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return tuple(spark.table("tiered").selectExpr(*SUMS[:3]).collect()[0])


def test_runs_at_once_do_no_harm(spark: SparkSession, db: str, conn: Connection, tmp_path: Path) -> None:
    fill(db, conn, 600)
    location = str(tmp_path / "a")
    with psycopg.connect(db) as other:
        assert calls.lock_archive(other, "t")
        with pytest.raises(Busy, match="another run"):
            archive(db, "t", location, open=True, spark=spark)
    assert archive(db, "t", location, open=True, spark=spark).rows == 600
    with pytest.raises(ArchiveConflict, match=location):
        archive(db, "t", str(tmp_path / "b"), open=True, spark=spark)


def test_bad_locations(spark: SparkSession, db: str, conn: Connection, tmp_path: Path) -> None:
    fill(db, conn, 10)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="no location"):
        archive(db, "t", open=True, spark=spark)
    with pytest.raises(InvalidArgument, match="cannot be written"):
        archive(db, "t", str(tmp_path / "file" / "x"), open=True, spark=spark)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        archive(db, "t", "nowhere://x", open=True, spark=spark)
    assert calls.list_archive_files(conn, "t") == []


def test_export_to_open_table_formats(spark: SparkSession, db: str, conn: Connection, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    fill(db, conn, 500)
    archive(db, "t", str(tmp_path), open=True, rows_per_file=200, spark=spark)
    for kind in ("delta", "iceberg"):
        first, second = export(db, "t", kind), export(db, "t", kind)
        assert (first.rows, second.rows) == (500, 0)
    with SyncClient(db) as mq:
        mq.publish_many("t", list(range(50)))
    assert archive(db, "t", open=True, spark=spark).rows == 50
    assert export(db, "t", "delta").rows == export(db, "t", "iceberg").rows == 50
    table = deltalake.DeltaTable(str(tmp_path / "t"))
    assert table.to_pyarrow_table(columns=["offset"]).num_rows == 550
