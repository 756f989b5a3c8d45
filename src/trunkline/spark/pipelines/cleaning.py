"""Cleaning: files that tasks of a killed run left in the archive's folder. What the list names is never touched."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import psycopg
from pyarrow import fs

from trunkline.db import archive as calls
from trunkline.errors import InvalidArgument
from trunkline.spark.pipelines import files
from trunkline.spark.pipelines.archive import alone
from trunkline.spark.pipelines.running import Progress, clear_errors

AGE = timedelta(hours=1)
_NAME = re.compile(r"\d+/\d{20}-\d{20}-[0-9a-f]{12}\.parquet")


class CleanReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed."""

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
    told: Progress | None = None,
) -> CleanReport:
    """Remove files of a topic's archive that are not listed and older than `age`. Needs no Spark.

    Safe beside everything: it works alone on the topic, like a run; a file that is written now is too young, one that an
    earlier topic of this name left is older than this archive. Both stay.
    """
    if age < timedelta(0):
        raise InvalidArgument(f"the age is {age}", hint="give a duration such as 1h")
    started = time.monotonic()
    found: list[fs.FileInfo] = []
    with clear_errors(), psycopg.connect(url, autocommit=True) as conn, alone(url, topic):
        known = [row.location for row in calls.archive_stats(conn, topic) if row.location]
        if known:
            born = calls.ensure_archive(conn, topic, known[0]).created_at
            found = list(_unlisted(conn, topic, known[0], born, datetime.now(UTC) - age))
            for done, file in enumerate(found, 1):
                if not dry_run:
                    files.remove_whole(known[0], file.path)
                if told is not None:
                    told(done, len(found))
    return CleanReport(
        topic=topic,
        location=known[0] if known else "",
        files=len(found),
        bytes=sum(file.size for file in found),
        seconds=round(time.monotonic() - started, 3),
        dry_run=dry_run,
    )


def _unlisted(
    conn: psycopg.Connection[tuple[object, ...]], topic: str, location: str, born: datetime, before: datetime
) -> Iterator[fs.FileInfo]:
    """First the folder, then the list: what was listed in between is in the list."""
    system, base = files.place(location)
    there = system.get_file_info(fs.FileSelector(f"{base}/{topic}", allow_not_found=True, recursive=True))
    listed = {file.path for file in calls.list_archive_files(conn, topic)}
    for file in there:
        path = file.path.removeprefix(base).lstrip("/")
        ours = file.type == fs.FileType.File and _NAME.fullmatch(path.removeprefix(f"{topic}/"))
        if ours and path not in listed and file.mtime is not None and born <= file.mtime <= before:
            yield file
