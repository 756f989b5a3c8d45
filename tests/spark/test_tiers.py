"""The tiered log: equal to the log by count, sum and checksum; also while ranges are archived and dropped under a reader."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from tests.conftest import Connection
from tests.spark import tiers
from trunkline.db import archive as calls
from trunkline.spark import reading
from trunkline.spark.columns import Shape
from trunkline.spark.pipelines.archive import write_piece
from trunkline.spark.ranges import Range
from trunkline.spark.tiering import Reading, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def test_all_is_read_from_archive_and_log(spark: SparkSession, db: str, tmp_path: Path) -> None:
    """`python -m tests.spark.tiers` does the same with two million."""
    figures = tiers.run(spark, db, tmp_path, messages=6_000, payload=50)
    assert figures["count"] >= 6_000
    assert "the lowest" in figures["below_the_archive"]


class Archiver(threading.Thread):
    """Archives piece by piece, and lets retention drop each at once."""

    def __init__(self, db: str, location: Path, topic_id: int) -> None:
        super().__init__()
        self._db = db
        self._location = str(location)
        self._topic_id = topic_id
        self.pieces = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self._db, autocommit=True) as conn:
                while self.archive(conn, 4):
                    conn.execute("select trunkline.run_upkeep('retention')")
        except BaseException as exc:
            self.error = exc

    def archive(self, conn: psycopg.Connection[Any], pieces: int) -> bool:
        plan = calls.plan_archive(conn, "t", rows=500, open=False)
        for piece in plan[:pieces]:
            calls.add_archive_files(conn, "t", [write_piece(self._db, "t", self._topic_id, self._location, piece)])
            self.pieces += 1
        return bool(plan)


@pytest.fixture
def archiver(db: str, conn: Connection, tmp_path: Path) -> Archiver:
    made = conn.execute(
        "select (trunkline.create_topic('t', 2, p_retention => '0', p_segment_rows => 512)).topic_id"
    ).fetchone()
    assert made is not None
    calls.require_archive(conn, "t")
    calls.ensure_archive(conn, "t", str(tmp_path))
    tiers.fill(conn, "t", 0, 20_000, 50)
    tiers.drop(conn)
    return Archiver(db, tmp_path, int(made[0]))


def test_readers_do_not_notice(spark: SparkSession, db: str, conn: Connection, archiver: Archiver) -> None:
    """Ranges are archived and dropped between planning and reading, and in the middle of reads."""
    frame = spark.read.format("trunkline").options(url=db, subscribe="t", maxRecordsPerPartition="1500").load()
    archiver.start()
    seen = []
    while archiver.is_alive() or len(seen) < 2:
        seen.append(tuple(frame.selectExpr(*tiers.SUMS).collect()[0]))
    archiver.join()
    assert archiver.error is None
    assert archiver.pieces > 20
    assert {each[:3] for each in seen} == {(20_000, seen[0][1], 20_000)}
    assert len(set(seen)) == 1
    stats = calls.archive_stats(conn, "t")
    assert sum(row.lowest_live for row in stats) > 15_000, "most of it was dropped meanwhile"


def test_a_read_goes_on_in_the_archive(
    db: str, conn: Connection, archiver: Archiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task, stopped at its first rows while everything behind them is archived and dropped."""
    monkeypatch.setattr(reading, "_BATCH_BYTES", 20_000)
    shape = Shape(pa.schema([("offset", pa.int64()), ("value", pa.binary())]))
    (head,) = [row.head for row in calls.archive_stats(conn, "t") if row.partition == 0]
    rows = read(db, Range("t", archiver._topic_id, 0, 1, head + 1), Reading(shape, "auto", True, None))
    first = next(rows)
    while archiver.archive(conn, 100):
        pass
    conn.execute("select trunkline.run_upkeep('retention')")
    offsets = first.column("offset").to_pylist() + [at for batch in rows for at in batch.column("offset").to_pylist()]
    assert offsets == list(range(1, head + 1))
