"""The migrator: each file once, recorded with its checksum, whole or not at all, and refusals instead of guesses."""

from __future__ import annotations

import psycopg
import pytest

from trunkline.errors import SchemaVersion, TrunklineError
from trunkline.sql import catalog
from trunkline.sql.catalog import FUNCTION_FILES, SqlFile
from trunkline.sql.migrate import installed_version, latest_version, migrate


def add(monkeypatch: pytest.MonkeyPatch, *more: SqlFile) -> None:
    """A later release with further migrations."""
    known = catalog.migrations()
    monkeypatch.setattr(catalog, "migrations", lambda: [*known, *more])


def replace(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A release whose first migration was edited."""
    first, *rest = catalog.migrations()
    monkeypatch.setattr(catalog, "migrations", lambda: [SqlFile(first.number, first.name, first.text + text), *rest])


def tables(url: str) -> set[str]:
    with psycopg.connect(url) as conn:
        rows = conn.execute("select relname from pg_class where relnamespace = to_regnamespace('trunkline')::oid").fetchall()
    return {row[0] for row in rows}


def test_first_run_applies_everything_and_records_it(empty_db: str) -> None:
    files = catalog.migrations()
    report = migrate(empty_db)
    assert report.applied == [*(file.name for file in files), *FUNCTION_FILES]
    assert report.version == latest_version()
    with psycopg.connect(empty_db) as conn:
        recorded = conn.execute("select version, name, checksum from trunkline.migrations order by version").fetchall()
        assert recorded == [(file.number, file.name, file.checksum) for file in files]
        assert installed_version(conn) == latest_version()


def test_second_run_applies_nothing(db: str) -> None:
    with psycopg.connect(db) as conn:
        before = conn.execute("select array_agg(xmin::text order by oid) from pg_proc").fetchone()
        report = migrate(db)
        assert (report.applied, report.version) == ([], latest_version())
        assert conn.execute("select array_agg(xmin::text order by oid) from pg_proc").fetchone() == before


def test_run_up_to_a_version_stops_there(empty_db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    last = latest_version()
    add(monkeypatch, SqlFile(last + 1, f"{last + 1:04}_more.sql", "create table trunkline.more (x int)"))
    assert migrate(empty_db, upto=last).version == last
    assert "more" not in tables(empty_db)
    assert migrate(empty_db).applied[0] == f"{last + 1:04}_more.sql"
    assert "more" in tables(empty_db)


def test_edited_migration_is_refused(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "create table trunkline.sneaked_in (x int);")
    with pytest.raises(SchemaVersion, match="differs from the one that was applied"):
        migrate(db)
    assert "sneaked_in" not in tables(db)


def test_edited_comment_is_refused_too(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "-- only a word\n")
    with pytest.raises(SchemaVersion):
        migrate(db)


def test_schema_newer_than_the_program_is_refused(db: str) -> None:
    """And nothing is changed: not even functions that differ."""
    with psycopg.connect(db, autocommit=True) as conn:
        conn.execute("insert into trunkline.migrations (version, name, checksum) values (9999, '9999_later.sql', 'x')")
        conn.execute("update trunkline.function_files set checksum = 'newer'")
        with pytest.raises(SchemaVersion, match="Upgrade this program"):
            migrate(db)
        assert conn.execute("select distinct checksum from trunkline.function_files").fetchall() == [("newer",)]


def test_migration_that_the_database_skipped_is_refused(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    last = latest_version()
    with psycopg.connect(db, autocommit=True) as conn:
        conn.execute("insert into trunkline.migrations (version, name, checksum) values (%s, 'later.sql', 'x')", (last + 2,))
    add(monkeypatch, SqlFile(last + 1, f"{last + 1:04}_more.sql", "create table trunkline.more (x int)"))
    with pytest.raises(SchemaVersion):
        migrate(db)
    assert "more" not in tables(db)


def test_failed_migration_leaves_nothing_of_its_file(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file before it stays, the one after it is not tried, and the repaired file is applied by the next run."""
    last = latest_version()
    good = SqlFile(last + 1, f"{last + 1:04}_good.sql", "create table trunkline.good (x int)")
    name = f"{last + 2:04}_bad.sql"
    bad = SqlFile(last + 2, name, "create table trunkline.half (x int); select 1 / 0; create table trunkline.rest (x int)")
    after = SqlFile(last + 3, f"{last + 3:04}_after.sql", "create table trunkline.after_it (x int)")
    with monkeypatch.context() as release:
        add(release, good, bad, after)
        with pytest.raises(TrunklineError):
            migrate(db)
    assert {"good", "half", "rest", "after_it"} & tables(db) == {"good"}
    with psycopg.connect(db) as conn:
        assert installed_version(conn) == last + 1
    add(monkeypatch, good, SqlFile(last + 2, name, "create table trunkline.half (x int)"), after)
    assert migrate(db).applied == [name, after.name]
    assert {"good", "half", "after_it"} <= tables(db)


def test_failed_function_file_leaves_the_functions_as_they_were(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = catalog.functions()
    broken = [SqlFile(0, file.name, file.text + "select 1 / 0;") if file.name == "dead.sql" else file for file in known]
    renamed = [SqlFile(0, file.name, file.text + "\n-- newer") if file.name == "clock.sql" else file for file in broken]
    with psycopg.connect(db, autocommit=True) as conn:
        before = conn.execute("select * from trunkline.function_files order by name").fetchall()
        with monkeypatch.context() as release:
            release.setattr(catalog, "functions", lambda: renamed)
            with pytest.raises(TrunklineError):
                migrate(db)
        assert conn.execute("select * from trunkline.function_files order by name").fetchall() == before
    assert migrate(db).applied == []


def test_schema_made_by_an_administrator_is_used(empty_db: str) -> None:
    """A role that may not create schemas can install into one that it owns, without being a superuser."""
    with psycopg.connect(empty_db, autocommit=True) as admin:
        role = f"plain_{admin.info.backend_pid}"
        admin.execute(f"create role {role} login password 'x'")  # type: ignore[arg-type]
        admin.execute(f"revoke create on database {admin.info.dbname} from public")  # type: ignore[arg-type]
        admin.execute(f"create schema trunkline authorization {role}")  # type: ignore[arg-type]
    plain = psycopg.conninfo.make_conninfo(empty_db, user=role, password="x")
    try:
        assert migrate(plain).version == latest_version()
        with psycopg.connect(plain, autocommit=True) as conn:
            conn.execute("select trunkline.create_queue('q')")
            conn.execute("select trunkline.enqueue('q', '1')")
            assert len(conn.execute("select * from trunkline.claim('q')").fetchall()) == 1
            conn.execute("call trunkline.upkeep()")
    finally:
        with psycopg.connect(empty_db, autocommit=True) as admin:
            admin.execute(f"drop owned by {role}")  # type: ignore[arg-type]
            admin.execute(f"drop role {role}")  # type: ignore[arg-type]


def test_defaults_of_the_database_do_not_stop_it(empty_db: str) -> None:
    with psycopg.connect(empty_db, autocommit=True) as conn:
        for setting in ("default_transaction_isolation = serializable", "statement_timeout = '20ms'"):
            conn.execute(f"alter database {conn.info.dbname} set {setting}")  # type: ignore[arg-type]
    assert migrate(empty_db).version == latest_version()
    assert migrate(empty_db).applied == []
