"""The tiered log: equal to the log by count, sum and checksum; also while ranges are archived and dropped under a reader."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from tests.conftest import Connection
from tests.spark import tiers
from tests.spark.topics import publish
from trunkline.db.calls import archive as calls
from trunkline.errors import ArchiveDamaged, InvalidArgument, OffsetOutOfRange
from trunkline.spark.archive.writer import write_piece
from trunkline.spark.options import ReadOptions
from trunkline.spark.source import log_reader
from trunkline.spark.source.columns import Shape
from trunkline.spark.source.planner import batch_ranges
from trunkline.spark.source.ranges import OffsetRange
from trunkline.spark.source.tiered_reader import Reading, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def test_all_is_read_from_archive_and_log(spark: SparkSession, db: str, tmp_path: Path) -> None:
    """`python -m tests.spark.tiers` does the same with two million."""
    figures = tiers.run(spark, db, tmp_path, messages=6_000, payload=50)
    assert figures["count"] >= 6_000
    assert "the earliest available offset" in figures["below_the_archive"]


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
    seen: list[tuple[Any, ...]] = []
    while archiver.is_alive() or len(seen) < 2:
        seen.append(tuple(frame.selectExpr(*tiers.SUMS).collect()[0]))
    archiver.join()
    assert archiver.error is None
    assert archiver.pieces > 20
    assert {each[:3] for each in seen} == {(20_000, seen[0][1], 20_000)}
    assert len(set(seen)) == 1
    stats = calls.archive_stats(conn, "t")
    assert sum(row.earliest_live for row in stats) > 15_000, "most of it was dropped meanwhile"


def test_a_read_goes_on_in_the_archive(
    db: str, conn: Connection, archiver: Archiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task, stopped at its first rows while everything behind them is archived and dropped."""
    monkeypatch.setattr(log_reader, "_BATCH_BYTES", 20_000)
    shape = Shape(pa.schema([("offset", pa.int64()), ("value", pa.binary())]))
    (head,) = [row.head for row in calls.archive_stats(conn, "t") if row.partition == 0]
    rows = read(db, OffsetRange("t", archiver._topic_id, 0, 1, head + 1), Reading(shape, "auto", True, None))
    first = next(rows)
    while archiver.archive(conn, 100):
        pass
    conn.execute("select trunkline.run_upkeep('retention')")
    offsets = first.column("offset").to_pylist() + [at for batch in rows for at in batch.column("offset").to_pylist()]
    assert offsets == list(range(1, head + 1))


def archive_offsets(db: str, conn: Connection, folder: Path, *ranges: tuple[int, int]) -> int:
    """Archive these offsets of partition 0 of t; return the number of t."""
    number = calls.ensure_archive(conn, "t", str(folder)).topic_id
    for first, last in ranges:
        piece = write_piece(db, "t", number, str(folder), calls.ArchiveRange(0, first, last))
        calls.add_archive_files(conn, "t", [piece], topic_id=number)
    return number


def remove(conn: Connection, number: int, segments: range) -> None:
    for segment in segments:
        conn.execute("select trunkline._empty_segment(%s, 0, %s, %s)", (number, segment, segment * 16 + 15))


def read_offsets(rows: Iterator[pa.RecordBatch]) -> list[int]:
    return [at for batch in rows for at in batch.column("offset").to_pylist()]


def test_a_hole_in_the_archive_is_all_that_is_skipped(
    db: str, conn: Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    conn.execute("select trunkline.create_topic('t', p_segment_rows => 16)")
    publish(conn, "t", 100)
    conn.execute("call trunkline.sequence()")
    number = archive_offsets(db, conn, tmp_path, (1, 15))
    remove(conn, number, range(3))
    archive_offsets(db, conn, tmp_path, (48, 79))
    remove(conn, number, range(3, 5))
    strict, lenient = (
        ReadOptions.parse({"url": db, "subscribe": "t", "failOnDataLoss": flag}) for flag in ("true", "false")
    )
    with pytest.raises(OffsetOutOfRange, match="offsets 16 to 47 of partition 0 of topic t are gone"):
        batch_ranges(strict)
    ranges = batch_ranges(lenient)
    assert [(part.lo, part.hi) for part in ranges] == [(1, 16), (48, 101)]
    assert [record.message for record in caplog.records if "16 to 47" in record.message]
    assert len(caplog.records) == 1
    # a task that finds the hole only while it reads
    shape = Shape(pa.schema([("offset", pa.int64())]))
    whole = OffsetRange("t", number, 0, 5, 101)
    with pytest.raises(OffsetOutOfRange, match="offsets 16 to 47 of"):
        read_offsets(read(db, whole, Reading(shape, "auto", True, None)))
    caplog.clear()
    assert read_offsets(read(db, whole, Reading(shape, "auto", False, None))) == [*range(5, 16), *range(48, 101)]
    assert [record.message for record in caplog.records if "16 to 47" in record.message] and len(caplog.records) == 1


def test_the_archive_of_a_topic_that_was_created_again_is_another(db: str, conn: Connection, tmp_path: Path) -> None:
    conn.execute("select trunkline.create_topic('t')")
    publish(conn, "t", 50)
    (planned,) = batch_ranges(ReadOptions.parse({"url": db, "subscribe": "t"}))
    written = write_piece(db, "t", planned.topic_id, str(tmp_path), calls.ArchiveRange(0, 1, 50))
    conn.execute("select trunkline.delete_topic('t'), trunkline.create_topic('t')")
    publish(conn, "t", 60, first=1000)
    conn.execute("call trunkline.sequence()")
    with pytest.raises(psycopg.Error, match="deleted and created again"):
        calls.add_archive_files(conn, "t", [written], topic_id=planned.topic_id)
    archive_offsets(db, conn, tmp_path, (1, 60))
    shape = Shape(pa.schema([("offset", pa.int64())]))
    for tier in ("auto", "archive", "live"):
        with pytest.raises(OffsetOutOfRange, match=r"offsets 1 to 50 .* created again"):
            read_offsets(read(db, planned, Reading(shape, tier, True, None)))
        assert read_offsets(read(db, planned, Reading(shape, tier, False, None))) == []


def test_an_archive_that_cannot_be_read_is_not_needed_for_what_the_log_has(
    db: str, conn: Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    conn.execute("select trunkline.create_topic('t', p_segment_rows => 16)")
    publish(conn, "t", 100)
    conn.execute("call trunkline.sequence()")
    number = archive_offsets(db, conn, tmp_path / "archive", (1, 50), (51, 80))
    (tmp_path / "archive").rename(tmp_path / "elsewhere")
    shape = Shape(pa.schema([("offset", pa.int64())]))
    whole = OffsetRange("t", number, 0, 1, 101)
    assert read_offsets(read(db, whole, Reading(shape, "auto", True, None))) == list(range(1, 101))
    assert [record.message for record in caplog.records if "reading the log instead" in record.message]
    with pytest.raises(ArchiveDamaged):
        read_offsets(read(db, whole, Reading(shape, "archive", True, None)))
    remove(conn, number, range(1))
    with pytest.raises(ArchiveDamaged):
        read_offsets(read(db, whole, Reading(shape, "auto", False, None)))
    calls.move_archive(conn, "t", "nowhere://x")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_offsets(read(db, whole, Reading(shape, "auto", True, None)))
    assert read_offsets(read(db, OffsetRange("t", number, 0, 20, 101), Reading(shape, "auto", True, None)))[0] == 20
