"""Install or upgrade schema `trunkline`: numbered migrations once each, then all function files.

Each migration is one transaction, recorded with its checksum in the same transaction, so an interrupted run goes on
where it stopped. Migrators wait for each other on an advisory lock. Needs no superuser and no extension, only the
right to create a schema (or a schema `trunkline` that the role owns).
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
    """What a run applied (empty when everything was in place) and the version it left behind."""

    applied: list[str]
    version: int


def latest_version() -> int:
    """The schema version this program works with."""
    return catalog.migrations()[-1].number


def installed_version(conn: psycopg.Connection[Any]) -> int | None:
    """The schema version in the database, or None when the schema is not installed."""
    row = conn.execute("select to_regclass('trunkline.migrations') is not null").fetchone()
    if row is None or not row[0]:
        return None
    newest = conn.execute("select max(version) from trunkline.migrations").fetchone()
    return None if newest is None else newest[0]


def pending_migrations(conn: psycopg.Connection[Any]) -> list[str]:
    """The names of the migrations that a run would apply. Raises SchemaVersion if it would refuse an old schema."""
    installed = installed_version(conn)
    if installed is None:
        return [file.name for file in catalog.migrations()]
    before = baseline.is_before(conn)
    return [
        file.name for file in catalog.migrations() if file.number > installed or (before and file.number == baseline.NUMBER)
    ]


def migrate(conninfo: str, *, upto: int | None = None, extra: Sequence[str] = ()) -> MigrationReport:
    """Bring the schema to the latest version (or to `upto`); safe to run at any time, from many places at once.

    `extra` names compatibility schemas to install; those that are there are kept up to date without it.
    """
    try:
        with psycopg.connect(conninfo, autocommit=True) as conn:
            # of each transaction, so that it also holds behind a transaction pooler; see _lock for the others
            conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            return _migrate(conn, upto, extra)
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc


def _migrate(conn: psycopg.Connection[Any], upto: int | None, extra: Sequence[str]) -> MigrationReport:
    if conn.info.server_version < _OLDEST_SERVER:
        raise SchemaVersion(
            f"the server is PostgreSQL {conn.info.server_version // 10000}", hint="use PostgreSQL 15 or newer"
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
        # the functions belong to the newest tables
        if upto is None or upto >= latest_version():
            applied += _apply_functions(conn)
            applied += _apply_optional(conn, extra)
        version = installed_version(conn)
    return MigrationReport(applied=applied, version=version or 0)


def _lock(conn: psycopg.Connection[Any]) -> None:
    # A limit for the statements of an application must not stop a migration, which may wait for another one.
    conn.execute(
        "select set_config(name, '0', true) from unnest(%s::text[]) name where current_setting(name, true) <> '0'",
        (["statement_timeout", "transaction_timeout", "idle_in_transaction_session_timeout"],),
    )
    # Held to the end of the transaction, so that it works behind a transaction pooler too.
    conn.execute("select pg_advisory_xact_lock(%s, %s)", _LOCK)
    # The installer is often an administrator: what others have put into its search_path must not run with its rights.
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
                hint="install the release that made this schema, or restore the file: migrations are never edited",
            )
        return False
    newest = installed_version(conn)
    if newest is not None and newest > file.number:
        raise SchemaVersion(
            f"the database is at version {newest} but never had migration {file.name}",
            hint="upgrade this program",
        )
    conn.execute(file.text.encode())
    conn.execute(
        "insert into trunkline.migrations (version, name, checksum) values (%s, %s, %s)",
        (file.number, file.name, file.checksum),
    )
    return True


def _apply_functions(conn: psycopg.Connection[Any]) -> list[str]:
    """Re-apply all function files when one of them changed, and renew the functions that topics have of their own."""
    newest = installed_version(conn)
    if newest is not None and newest > latest_version():
        raise SchemaVersion(
            f"the database is at version {newest}, this program knows {latest_version()}",
            hint="upgrade this program",
        )
    files = catalog.functions()
    known = dict(conn.execute("select name, checksum from trunkline.function_files").fetchall())
    # The numbering of the server matters too: clock.sql is another function on Postgres 18.
    checksums = {
        file.name: hashlib.sha256(f"{file.checksum} {conn.info.server_version // 10000}".encode()).hexdigest()
        for file in files
    }
    changed = [file.name for file in files if known.get(file.name) != checksums[file.name]]
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


def _apply_optional(conn: psycopg.Connection[Any], asked: Sequence[str]) -> list[str]:
    known = dict(conn.execute("select name, checksum from trunkline.function_files").fetchall())
    applied = []
    for name in catalog.OPTIONAL:
        file = catalog.optional(name)
        if (name in asked or file.name in known) and known.get(file.name) != file.checksum:
            conn.execute(file.text.encode())
            conn.execute(
                "insert into trunkline.function_files (name, checksum) values (%s, %s)"
                " on conflict (name) do update set checksum = excluded.checksum, applied_at = clock_timestamp()",
                (file.name, file.checksum),
            )
            applied.append(file.name)
    return applied
