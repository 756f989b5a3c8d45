"""Remove files that tasks of a killed archive run left behind. Listed files are never removed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import psycopg
from pyarrow import fs

from trunkline.db.calls import archive as calls
from trunkline.errors import InvalidArgument
from trunkline.spark.archive import files
from trunkline.spark.archive.writer import alone
from trunkline.spark.run import Progress, clear_errors

AGE = timedelta(hours=1)
_NAME = re.compile(r"\d+/\d{20}-\d{20}-[0-9a-f]{12}\.parquet")


class CleanReport(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of the removed files."""

    topic: str
    location: str
    files: int
    bytes: int
    seconds: float
    dry_run: bool = False


def clean(
    url: str,
    topic: str,
    *,
    age: timedelta = AGE,
    dry_run: bool = False,
    on_progress: Progress | None = None,
) -> CleanReport:
    """Remove unlisted files of a topic's archive that are older than `age`. Does not need Spark.

    Safe to run at any time: it holds the topic's archive lock. Files younger than `age`, and files older than this
    archive, which an earlier topic of the same name may have left, are kept.
    """
    if age < timedelta(0):
        raise InvalidArgument(f"age must not be negative, got {age}", hint="Give a duration such as 1h.")
    started = time.monotonic()
    unlisted: list[fs.FileInfo] = []
    with clear_errors(), psycopg.connect(url, autocommit=True) as conn, alone(url, topic):
        locations = [row.location for row in calls.archive_stats(conn, topic) if row.location]
        if locations:
            created = calls.ensure_archive(conn, topic, locations[0]).created_at
            unlisted = list(_unlisted(conn, topic, locations[0], created, datetime.now(UTC) - age))
            for done, file in enumerate(unlisted, 1):
                if not dry_run:
                    files.remove_whole(locations[0], file.path)
                if on_progress is not None:
                    on_progress(done, len(unlisted))
    return CleanReport(
        topic=topic,
        location=locations[0] if locations else "",
        files=len(unlisted),
        bytes=sum(file.size for file in unlisted),
        seconds=round(time.monotonic() - started, 3),
        dry_run=dry_run,
    )


def _unlisted(
    conn: psycopg.Connection[tuple[object, ...]], topic: str, location: str, created: datetime, before: datetime
) -> Iterator[fs.FileInfo]:
    """Yield unlisted files. Reads the folder before the list, so a file that is listed in between counts as listed."""
    system, base = files.place(location)
    stored = system.get_file_info(fs.FileSelector(f"{base}/{topic}", allow_not_found=True, recursive=True))
    listed = {file.path for file in calls.list_archive_files(conn, topic)}
    for file in stored:
        path = file.path.removeprefix(base).lstrip("/")
        ours = file.type == fs.FileType.File and _NAME.fullmatch(path.removeprefix(f"{topic}/"))
        if ours and path not in listed and file.mtime is not None and created <= file.mtime <= before:
            yield file
