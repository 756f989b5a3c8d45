"""Archive a topic's log to Parquet files, range by range. A range is archived once its file is verified and listed.

Concurrent runs are safe: a lock admits one run per topic, and the list accepts only files that continue it. A run that
dies may leave unlisted files; the next run continues where the list ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec
import psycopg
import pyarrow as pa

from trunkline.db.calls import archive as calls
from trunkline.db.calls.archive import ArchiveRange, NewFile
from trunkline.errors import ArchiveConflict, Busy, InvalidArgument, TrunklineError
from trunkline.spark.archive import files
from trunkline.spark.run import Progress, Run, clear_errors, running
from trunkline.spark.source.log_reader import read_range
from trunkline.spark.source.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_FILE = 262_144
_TASKS_PER_CORE = 2


class ArchiveReport(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a run."""

    topic: str
    location: str
    files: int
    rows: int
    bytes: int
    seconds: float
    archived_upto: dict[str, int]
    dry_run: bool = False


def archive(
    url: str,
    topic: str,
    location: str | None = None,
    *,
    open: bool = False,
    required: bool | None = None,
    rows_per_file: int = ROWS_PER_FILE,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    master: str | None = None,
    on_progress: Progress | None = None,
) -> ArchiveReport:
    """Archive the complete segments of a topic that are not archived yet (`open`: everything up to the head).

    `location` is a folder or URI that all tasks can reach. It is stored, so later runs can omit it. With `required`,
    retention waits for the archive.
    """
    started = time.monotonic()
    with clear_errors(), psycopg.connect(url, autocommit=True) as conn:
        if dry_run:
            plan = calls.plan_archive(conn, topic, rows=rows_per_file, open=open)
            return _report(conn, topic, location or "", plan, 0, started, dry_run=True)
        where = _prepare(conn, topic, location, required)
        done: list[NewFile] = []
        with (
            alone(url, topic),
            running(url, f"archive:{topic}", "archive", spark=spark, master=master, on_progress=on_progress) as run,
        ):
            # Read before planning: if the topic is recreated in between, tasks detect the new topic id and fail.
            topic_id = calls.ensure_archive(conn, topic, where).topic_id
            plan = calls.plan_archive(conn, topic, rows=rows_per_file, open=open)
            total = sum(piece.last_offset - piece.first_offset + 1 for piece in plan)
            for part in _rounds(run, plan):
                done += _archive_part(run, topic, topic_id, where, part)
                run.advance(sum(file.rows for file in done), total)
        return _report(conn, topic, where, done, sum(file.bytes for file in done), started)


@contextmanager
def alone(url: str, topic: str) -> Iterator[None]:
    """Hold the topic's archive lock. It belongs to a separate transaction, so it is released if this process dies."""
    conn = psycopg.connect(url)
    try:
        if not calls.lock_archive(conn, topic):
            raise Busy(f"topic {topic!r} is being archived by another run", hint="Wait until that run has finished.")
        yield
    finally:
        with suppress(psycopg.Error):
            conn.close()


def _prepare(conn: psycopg.Connection[tuple[object, ...]], topic: str, location: str | None, required: bool | None) -> str:
    if required is not None:
        calls.require_archive(conn, topic, required=required)
    stored = [row.location for row in calls.archive_stats(conn, topic) if row.location]
    where = location or (stored[0] if stored else None)
    if where is None:
        raise InvalidArgument(
            f"the archive of topic {topic!r} has no location yet", hint="Give a folder or URI that all tasks can reach."
        )
    files.check_writable(where)
    return calls.ensure_archive(conn, topic, where.rstrip("/") or "/").location or where


def _rounds(run: Run, plan: Sequence[ArchiveRange]) -> Iterator[Sequence[ArchiveRange]]:
    """Divide the plan into rounds. A round's files are listed together, so a run that dies loses at most one round."""
    at = 0
    while at < len(plan):
        size = max(2, run.cores * _TASKS_PER_CORE)
        yield plan[at : at + size]
        at += size


def _archive_part(run: Run, topic: str, topic_id: int, location: str, part: Sequence[ArchiveRange]) -> list[NewFile]:
    name = files.new_run()
    try:
        written = _write(run, topic, topic_id, location, part, name)
    except BaseException:
        # other tasks have written their files, and perhaps it failed because the disk is full
        with suppress(TrunklineError, OSError):
            files.remove_run(location, topic, {piece.partition for piece in part}, name)
        raise
    try:
        with psycopg.connect(run.url, autocommit=True) as conn:
            calls.add_archive_files(conn, topic, written, topic_id=topic_id)
    except psycopg.Error as exc:
        if exc.sqlstate == "TL060":
            for file in written:
                files.remove(location, file.path)
            raise ArchiveConflict(
                f"another run archived offsets of topic {topic!r} meanwhile", hint="Run the command again to continue."
            ) from exc
        raise  # Keep the files: they may be listed.
    return written


def write_piece(url: str, topic: str, topic_id: int, location: str, piece: ArchiveRange, run: str = "") -> NewFile:
    """Copy one range from the log to a file. Runs in a task, without passing rows through the JVM."""
    rows = read_range(url, OffsetRange(topic, topic_id, piece.partition, piece.first_offset, piece.last_offset + 1))
    return files.write(location, topic, piece, rows, run=run)


def _write(run: Run, topic: str, topic_id: int, location: str, part: Sequence[ArchiveRange], name: str) -> list[NewFile]:
    """Write each range in its own task. `name` is that of the round, in the names of its files."""
    url, pieces = run.url, list(part)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                file = write_piece(url, topic, topic_id, location, pieces[number], name)
                yield pa.RecordBatch.from_pydict({"file": [msgspec.json.encode(file).decode()]})

    frame = run.spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(write, "file string")
    written = [msgspec.json.decode(row.file, type=NewFile) for row in frame.collect()]
    return sorted(written, key=lambda file: (file.partition, file.first_offset))


def _report(
    conn: psycopg.Connection[tuple[object, ...]],
    topic: str,
    location: str,
    done: Sequence[ArchiveRange | NewFile],
    size: int,
    started: float,
    *,
    dry_run: bool = False,
) -> ArchiveReport:
    stats = calls.archive_stats(conn, topic)
    return ArchiveReport(
        topic=topic,
        location=location or next((row.location for row in stats if row.location), ""),
        files=len(done),
        rows=sum(piece.last_offset - piece.first_offset + 1 for piece in done),
        bytes=size,
        seconds=round(time.monotonic() - started, 3),
        archived_upto={str(row.partition): row.archived_upto for row in stats},
        dry_run=dry_run,
    )
