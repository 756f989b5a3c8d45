"""Install or upgrade schema `trunkline`: each numbered migration once, then all function files.

Each migration runs in one transaction, which also records its checksum, so an interrupted run can be repeated.
An advisory lock serializes migrators. Needs no superuser and no extension, only the right to create a schema (or a
schema `trunkline` that the role owns).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg

from trunkline.errors import SchemaVersion, from_psycopg
from trunkline.sql import baseline, catalog

_LOCK = (778000, 0)
_OLDEST_SERVER = 150000


class MigrationReport(msgspec.Struct, frozen=True):
    """The files that a run applied (empty if the schema was up to date) and the resulting schema version."""

    applied: list[str]
    version: int


def latest_version() -> int:
    """Return the schema version that this program requires."""
    return catalog.migrations()[-1].number


def installed_version(conn: psycopg.Connection[Any]) -> int | None:
    """Return the schema version in the database, or None if the schema is not installed."""
    row = conn.execute("select to_regclass('trunkline.migrations') is not null").fetchone()
    if row is None or not row[0]:
        return None
    newest = conn.execute("select max(version) from trunkline.migrations").fetchone()
    return None if newest is None else newest[0]


def pending_migrations(conn: psycopg.Connection[Any]) -> list[str]:
    """Return the names of the migrations to apply. Raises SchemaVersion if the schema is too old."""
    installed = installed_version(conn)
    if installed is None:
        return [file.name for file in catalog.migrations()]
    before = baseline.is_before(conn)
    return [
        file.name for file in catalog.migrations() if file.number > installed or (before and file.number == baseline.NUMBER)
    ]


def migrate(conninfo: str, *, upto: int | None = None, extra: Sequence[str] = ()) -> MigrationReport:
    """Upgrade the schema to the latest version (or to `upto`). Safe to run at any time and concurrently.

    `extra` names compatibility schemas to install. Installed ones are upgraded in any case.
    """
    try:
        with psycopg.connect(conninfo, autocommit=True) as conn:
            # Set for each transaction, so that it also works behind a transaction pooler. _lock sets the rest.
            conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            return _migrate(conn, upto, extra)
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc


def _migrate(conn: psycopg.Connection[Any], upto: int | None, extra: Sequence[str]) -> MigrationReport:
    if conn.info.server_version < _OLDEST_SERVER:
        raise SchemaVersion(
            f"server must be PostgreSQL 15 or newer, got {conn.info.server_version // 10000}",
            hint="Upgrade the server.",
        )
    applied: list[str] = []
    with conn.transaction():
        _lock(conn)
        if conn.execute("select to_regnamespace('trunkline') is null").fetchone() == (True,):
            conn.execute("create schema trunkline")
        conn.execute(
            "create table if not exists trunkline.migrations ("
            " version int primary key, name text not null, checksum text not null,"
            " applied_at timestamptz not null default clock_timestamp())"
        )
        conn.execute(
            "create table if not exists trunkline.function_files ("
            " name text primary key, checksum text not null, applied_at timestamptz not null default clock_timestamp())"
        )
    for file in catalog.migrations():
        if upto is None or file.number <= upto:
            with conn.transaction():
                _lock(conn)
                if _apply_migration(conn, file):
                    applied.append(file.name)
    with conn.transaction():
        _lock(conn)
        # Functions need the newest tables.
        if upto is None or upto >= latest_version():
            applied += _apply_functions(conn)
            applied += _apply_optional(conn, extra)
        version = installed_version(conn)
    return MigrationReport(applied=applied, version=version or 0)


def _lock(conn: psycopg.Connection[Any]) -> None:
    # Timeouts for an application must not cancel a migration, which may wait for another one.
    conn.execute(
        "select set_config(name, '0', true) from unnest(%s::text[]) name where current_setting(name, true) <> '0'",
        (["statement_timeout", "transaction_timeout", "idle_in_transaction_session_timeout"],),
    )
    # Held until the transaction ends, so that it also works behind a transaction pooler.
    conn.execute("select pg_advisory_xact_lock(%s, %s)", _LOCK)
    # The installer is often an administrator. Functions of other roles in its search_path must not run with its rights.
    conn.execute("set local search_path = pg_catalog, pg_temp")
    conn.execute("set local client_min_messages = warning")
    conn.execute("set local check_function_bodies = off")


def _apply_migration(conn: psycopg.Connection[Any], file: catalog.SqlFile) -> bool:
    if file.number == baseline.NUMBER and baseline.is_before(conn):
        baseline.adopt(conn, file)
        return True
    row = conn.execute("select checksum from trunkline.migrations where version = %s", (file.number,)).fetchone()
    if row is not None:
        if row[0] != file.checksum:
            raise SchemaVersion(
                f"migration {file.name} differs from the one that was applied to this database",
                hint="Install the release that created this schema, or restore the file. Migrations are never edited.",
            )
        return False
    newest = installed_version(conn)
    if newest is not None and newest > file.number:
        raise SchemaVersion(
            f"schema has version {newest}, but migration {file.name} was never applied",
            hint="Upgrade this program.",
        )
    conn.execute(file.text.encode())
    conn.execute(
        "insert into trunkline.migrations (version, name, checksum) values (%s, %s, %s)",
        (file.number, file.name, file.checksum),
    )
    return True


def _apply_functions(conn: psycopg.Connection[Any]) -> list[str]:
    """Apply all function files again if one of them changed, and write the functions of all topics again."""
    newest = installed_version(conn)
    if newest is not None and newest > latest_version():
        raise SchemaVersion(
            f"schema version must be at most {latest_version()}, got {newest}",
            hint="Upgrade this program.",
        )
    files = catalog.functions()
    checksums_before = dict(conn.execute("select name, checksum from trunkline.function_files").fetchall())
    # Includes the major version of the server: clock.sql defines another function on Postgres 18.
    checksums = {
        file.name: hashlib.sha256(f"{file.checksum} {conn.info.server_version // 10000}".encode()).hexdigest()
        for file in files
    }
    changed = [file.name for file in files if checksums_before.get(file.name) != checksums[file.name]]
    if not changed:
        return []
    for file in files:
        conn.execute(file.text.encode())
        conn.execute(
            "insert into trunkline.function_files (name, checksum) values (%s, %s)"
            " on conflict (name) do update set checksum = excluded.checksum, applied_at = clock_timestamp()",
            (file.name, checksums[file.name]),
        )
    conn.execute(
        "select trunkline._write_functions(topic_id) from trunkline.topics"
        " where to_regclass(format('trunkline.topic_%s', topic_id)) is not null"
    )
    return changed


def _apply_optional(conn: psycopg.Connection[Any], extra: Sequence[str]) -> list[str]:
    checksums_before = dict(conn.execute("select name, checksum from trunkline.function_files").fetchall())
    applied = []
    for name in catalog.OPTIONAL:
        file = catalog.optional(name)
        if (name in extra or file.name in checksums_before) and checksums_before.get(file.name) != file.checksum:
            conn.execute(file.text.encode())
            conn.execute(
                "insert into trunkline.function_files (name, checksum) values (%s, %s)"
                " on conflict (name) do update set checksum = excluded.checksum, applied_at = clock_timestamp()",
                (file.name, file.checksum),
            )
            applied.append(file.name)
    return applied
