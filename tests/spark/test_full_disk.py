"""A full disk: below the database while rows are staged, and below the archive while files are written."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from tests.e2e.test_faults import MEGABYTE, SmallDisk
from tests.e2e.test_faults import home as home
from tests.e2e.test_faults import small_disk as small_disk
from tests.e2e.test_faults import tight_url as tight_url
from tests.sql.calls import call, head, publish, read
from trunkline.db.calls import archive as calls
from trunkline.db.calls.archive import ArchiveRange
from trunkline.errors import DiskFull, TrunklineError
from trunkline.spark.archive import files
from trunkline.spark.archive.writer import write_piece
from trunkline.spark.database import close_all
from trunkline.spark.sink.staging import Committed, commit, stage


def batches(count: int) -> Iterator[pa.RecordBatch]:
    """Batches of a megabyte that does not compress."""
    for number in range(count):
        yield pa.record_batch({"payload": pa.array([b"%d " % number + random.randbytes(100_000) for _ in range(10)])})


def test_a_write_fails_whole_and_is_repeated(tight_url: str, small_disk: SmallDisk) -> None:
    with psycopg.connect(tight_url, autocommit=True) as conn:
        call(conn, "create_topic", "t")
        publish(conn, "t", "before")
        small_disk.fill(leave=12 * MEGABYTE)
        with pytest.raises(DiskFull):
            stage(tight_url, batches(30), topic="t", job="w 0")
        small_disk.make_room()
        assert head(conn, "t") == 1, "readers see nothing of it"
        staged = stage(tight_url, batches(30), topic="t", job="w 0")
        assert commit(tight_url, "w", 0, [staged]) == Committed(True, 300)
        assert commit(tight_url, "w", 0, [staged]) == Committed(False, 0)
        numbers = [int(bytes(row.payload).split(b" ")[0]) for row in read(conn, "t", 2)]
        assert numbers == [number for number in range(30) for _ in range(10)]
        # the rows of the failed attempt are given up with their segment or their stage
        assert conn.execute("select count(*) from trunkline.staged where complete").fetchone() == (0,)
    close_all()


def test_an_archive_lists_no_file_that_is_not_whole(db: str, conn: psycopg.Connection, small_disk: SmallDisk) -> None:
    call(conn, "create_topic", "t", p_segment_rows=512)
    call(conn, "publish_many", "t", [random.randbytes(15_000) for _ in range(500)])
    assert head(conn, "t") == 500
    row = conn.execute("select topic_id from trunkline.topics where name = 't'").fetchone()
    assert row is not None
    location = small_disk.path / "archive"
    location.mkdir()
    small_disk.fill(leave=2 * MEGABYTE)
    calls.ensure_archive(conn, "t", str(location))
    with pytest.raises((TrunklineError, OSError), match="No space left"):
        write_piece(db, "t", row[0], str(location), ArchiveRange(0, 1, 500))
    assert left(location) == [], "its part is removed"
    small_disk.make_room()
    made = write_piece(db, "t", row[0], str(location), ArchiveRange(0, 1, 500))
    assert left(location) == [location / made.path]
    files.read_back(str(location), made.path, made.rows)
    close_all()


def left(location: Path) -> list[Path]:
    return [path for path in location.rglob("*") if path.is_file()]
