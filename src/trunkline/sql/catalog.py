"""The SQL files of the kernel, the order in which they are applied, and their checksums."""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from importlib.resources.abc import Traversable

import msgspec

# Statements of a file may use types and functions of earlier files only. Function bodies may use those of any file.
FUNCTION_FILES = (
    "retired.sql",
    "clock.sql",
    "checks.sql",
    "reads.sql",
    "topics.sql",
    "store.sql",
    "publish.sql",
    "log.sql",
    "groups.sql",
    "queues.sql",
    "direct.sql",
    "claim.sql",
    "claim_next.sql",
    "ordered.sql",
    "claim_many.sql",
    "settle.sql",
    "delayed.sql",
    "pass.sql",
    "dead.sql",
    "dead_groups.sql",
    "runs.sql",
    "upkeep.sql",
    "history.sql",
    "system.sql",
    "explain.sql",
    "explain_waiting.sql",
    "poll.sql",
    "stats.sql",
    "schedules.sql",
    "rollups.sql",
    "series.sql",
    "topic_map.sql",
    "search.sql",
    "attention.sql",
    "outbox.sql",
    "pg_messaging.sql",
    "compat.sql",
    "tokens.sql",
    "spark.sql",
    "archive.sql",
    "report.sql",
    "jobs.sql",
    "job_lists.sql",
    "addresses.sql",
    "push.sql",
    "events.sql",
    "roles.sql",
    "pin.sql",
)
# Compatibility schemas: applied on request, and by every upgrade of a database that has them.
OPTIONAL = ("pgmb",)
_MIGRATION = re.compile(r"^(\d{4})_[a-z0-9_]+(?:\.sql)?$")


class SqlFile(msgspec.Struct, frozen=True):
    """One file, or a directory that is applied as one. `number`: the number of the migration, 0 for functions."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations() -> list[SqlFile]:
    """Return all migrations, oldest first. Each is a file such as `0021_name.sql`, or a directory of files."""
    files = []
    for entry in (resources.files(__package__) / "migrations").iterdir():
        if match := _MIGRATION.match(entry.name):
            files.append(SqlFile(int(match[1]), entry.name, _text(entry)))
    return sorted(files, key=lambda file: file.number)


def _text(entry: Traversable) -> str:
    """Return the text of a file, or of the files of a directory in the order of their names."""
    if not entry.is_dir():
        return entry.read_text(encoding="utf-8")
    parts = sorted((part for part in entry.iterdir() if part.name.endswith(".sql")), key=lambda part: part.name)
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)


def functions() -> list[SqlFile]:
    """Return all function files in the order in which they are applied."""
    folder = resources.files(__package__) / "functions"
    return [SqlFile(0, name, (folder / name).read_text(encoding="utf-8")) for name in FUNCTION_FILES]


def optional(name: str) -> SqlFile:
    """Return the file of a compatibility schema."""
    folder = resources.files(__package__) / "optional"
    return SqlFile(0, f"{name}.sql", (folder / f"{name}.sql").read_text(encoding="utf-8"))
