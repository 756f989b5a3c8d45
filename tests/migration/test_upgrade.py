"""Upgraded = fresh: whatever version a database comes from, it ends up with the same schema, and keeps its messages."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import sequence_at_once
from tests.migration.catalogs import catalog
from tests.support import postgres
from trunkline.sql import baseline
from trunkline.sql import catalog as files
from trunkline.sql.catalog import FUNCTION_FILES
from trunkline.sql.migrate import installed_version, latest_version, migrate

VERSIONS = [file.number for file in files.migrations()]


@pytest.fixture(params=postgres.VERSIONS, ids=lambda version: f"pg{version}")
def pg_version(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version


def test_migrations_are_numbered_without_a_hole() -> None:
    assert list(range(baseline.NUMBER, latest_version() + 1)) == VERSIONS


def test_catalog_of_a_fresh_install_is_not_empty(db: str) -> None:
    """The comparison below compares something."""
    with psycopg.connect(db) as conn:
        found = catalog(conn)
    assert all(found[kind] for kind in found if kind not in ("triggers", "comments"))
    assert len(found["functions"]) > 80


@pytest.mark.parametrize("start", VERSIONS)
def test_upgrade_from_each_version_equals_a_fresh_install(db: str, empty_db: str, start: int) -> None:
    """Upgrade step by step from version n, each step in a separate run that also replaces the functions."""
    for version in range(start, latest_version() + 1):
        report = migrate(empty_db, upto=version)
        assert report.version == version
    with psycopg.connect(db) as fresh, psycopg.connect(empty_db) as upgraded:
        assert installed_version(upgraded) == latest_version()
        sequence_at_once(upgraded)
        expected, found = catalog(fresh), catalog(upgraded)
    for kind in expected:
        assert found[kind] == expected[kind]


def test_functions_applied_again_change_nothing(db: str) -> None:
    with psycopg.connect(db, autocommit=True) as conn:
        conn.execute("select trunkline.create_topic('t', 3), trunkline.create_queue('q')")
        before = catalog(conn)
        conn.execute("update trunkline.function_files set checksum = 'of an older release'")
        assert set(migrate(db).applied) == set(FUNCTION_FILES)
        after = catalog(conn)
    for kind in before:
        assert after[kind] == before[kind]


def test_changed_function_is_put_right(db: str) -> None:
    with psycopg.connect(db, autocommit=True) as conn:
        before = catalog(conn)
        conn.execute("alter function trunkline.get_topic(text) cost 7")
        conn.execute("update trunkline.function_files set checksum = 'of an older release' where name = 'topics.sql'")
        assert migrate(db).applied == ["topics.sql"]
        assert catalog(conn)["functions"] == before["functions"]


def test_upgrade_keeps_messages_leases_and_positions(db: str) -> None:
    with psycopg.connect(db, autocommit=True) as conn:
        conn.execute("select trunkline.create_topic('t'), trunkline.create_queue('q')")
        conn.execute("select trunkline.publish('t', '1'), trunkline.enqueue('q', '1')")
        rows = conn.execute("select receipt from trunkline.claim('q')").fetchall()
        conn.execute("select count(*) from trunkline.fetch('t', 'g', 'm')")
        conn.execute("update trunkline.function_files set checksum = 'of an older release'")
        migrate(db)
        assert conn.execute("select result from trunkline.ack(%s)", ([rows[0][0]],)).fetchall() == [("done",)]
        assert conn.execute("select trunkline.head('t')").fetchone() == (1,)
        assert conn.execute("select fetched from trunkline.group_stats('t', 'g')").fetchone() == (1,)
        conn.execute("select trunkline.publish('t', '2')")
        conn.execute("call trunkline.sequence()")
        assert conn.execute("select trunkline.head('t')").fetchone() == (2,)
