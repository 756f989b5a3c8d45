"""Migrators at once, and one that is killed half-way: the schema is complete in the end, and never half of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.races.sessions import PATIENCE, Session, wait_for
from trunkline.errors import TrunklineError
from trunkline.sql.catalog import FUNCTION_FILES, migrations
from trunkline.sql.migrate import MigrationReport, latest_version, migrate

MakeSession = Callable[[], Session]


@pytest.fixture
def bare(empty_db: str) -> Iterator[MakeSession]:
    """Makes sessions on a database without our schema."""
    made: list[Session] = []

    def make() -> Session:
        made.append(Session(psycopg.connect(empty_db, autocommit=True)))
        return made[-1]

    yield make
    for one in made:
        one.close()
        one.conn.close()


def kill_behind(watcher: Session, blocker: Session) -> None:
    """Terminate the backend that waits for the blocker."""
    blocked = "select pid from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
    wait_for(watcher, f"select exists ({blocked})", blocker.pid)
    watcher.run(f"select pg_terminate_backend(pid) from ({blocked}) x", blocker.pid)


def kinds(session: Session) -> dict[str, int]:
    """Return the number of tables and functions in the schema."""
    return {
        "tables": session.one(
            "select count(*) from pg_class where relnamespace = 'trunkline'::regnamespace and relkind in ('r', 'p')"
        ),
        "functions": session.one("select count(*) from pg_proc where pronamespace = 'trunkline'::regnamespace"),
    }


def test_migrators_at_once_apply_each_file_once(empty_db: str, bare: MakeSession) -> None:
    with ThreadPoolExecutor(5) as threads:
        reports = [call.result(100) for call in [threads.submit(migrate, empty_db) for _ in range(5)]]
    applied = [name for report in reports for name in report.applied]
    assert len(applied) == len(set(applied))
    assert set(FUNCTION_FILES) < set(applied)
    assert {report.version for report in reports} == {latest_version()}
    assert migrate(empty_db).applied == []
    assert bare().one("select count(*) from trunkline.migrations") == len(migrations())


def killed_migrator(empty_db: str, watcher: Session, blocker: Session) -> None:
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(migrate, empty_db)
        kill_behind(watcher, blocker)
        with pytest.raises(TrunklineError):
            call.result(PATIENCE)
    blocker.run("rollback")


def test_migrator_killed_inside_a_migration_leaves_nothing_of_it(empty_db: str, bare: MakeSession) -> None:
    watcher, blocker = bare(), bare()
    watcher.run("create schema trunkline")
    blocker.run("begin")
    # a table of the middle of the file: the migrator waits for us when it comes to it
    blocker.run("create table trunkline.dead_letters (x int)")
    killed_migrator(empty_db, watcher, blocker)
    # the two tables that migrations are recorded in
    assert kinds(watcher) == {"tables": 2, "functions": 0}
    assert watcher.one("select count(*) from trunkline.migrations") == 0
    assert_complete(migrate(empty_db), watcher)


def test_migrator_killed_inside_the_functions_goes_on_there(empty_db: str, bare: MakeSession) -> None:
    watcher, blocker = bare(), bare()
    watcher.run("create schema trunkline")
    blocker.run("begin")
    blocker.run("create function trunkline._size(p_set int8multirange) returns bigint language sql as 'select 1::bigint'")
    killed_migrator(empty_db, watcher, blocker)
    assert watcher.one("select count(*) from trunkline.migrations") == len(migrations())
    # those that generated columns and triggers of migrations need
    assert kinds(watcher)["functions"] == 4
    assert_complete(migrate(empty_db), watcher)


def assert_complete(report: MigrationReport, session: Session) -> None:
    assert report.version == latest_version()
    session.run("select trunkline.create_topic('t')")
    session.run("select trunkline.publish('t', '1')")
    assert session.one("select trunkline.head('t')") == 1


def test_migration_waits_for_the_one_before_it_and_then_has_nothing_to_do(empty_db: str, bare: MakeSession) -> None:
    watcher, blocker = bare(), bare()
    watcher.run("create schema trunkline")
    blocker.run("begin")
    blocker.run("create table trunkline.dead_letters (x int)")
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(migrate, empty_db)
        wait_for(watcher, "select count(*) = 1 from pg_stat_activity where %s = any (pg_blocking_pids(pid))", blocker.pid)
        second = threads.submit(migrate, empty_db)
        wait_for(
            watcher,
            "select count(*) = 1 from pg_locks where locktype = 'advisory' and not granted"
            " and database = (select oid from pg_database where datname = current_database())",
        )
        blocker.run("rollback")
        applied = sorted(first.result(PATIENCE).applied + second.result(PATIENCE).applied)
    assert applied == sorted(set(applied))


def test_upgrade_during_traffic_breaks_no_call(empty_db: str, bare: MakeSession) -> None:
    """Functions are renewed under a running publisher and consumer; neither sees an error."""
    migrate(empty_db)
    one, two, watcher = bare(), bare(), bare()
    watcher.run("select trunkline.create_queue('q')")
    with ThreadPoolExecutor(2) as threads:
        upgrades = threads.submit(lambda: [_reapply(empty_db, two) for _ in range(3)])  # type: ignore[func-returns-value]
        sent = 0
        while not upgrades.done():
            one.run("select trunkline.enqueue('q', '1')")
            receipts = one.column("select receipt from trunkline.claim('q', 10)")
            assert set(one.column("select result from trunkline.ack(%s)", receipts)) <= {"done"}
            sent += 1
        upgrades.result()
    assert watcher.one("select acked + ready from trunkline.queue_stats('q')") == sent


def _reapply(url: str, session: Session) -> None:
    session.run("update trunkline.function_files set checksum = 'old'")
    assert set(migrate(url).applied) == set(FUNCTION_FILES)
