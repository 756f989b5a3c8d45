"""Databases of version 20, made by the 20 migrations before the baseline: recognised, converted, and nothing lost."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.conftest import Clock, Connection, Servers, _database, sequence_at_once
from tests.migration.catalogs import catalog
from tests.migration.make_landed import rows
from tests.migration.test_migrate import add
from tests.support.postgres import VERSIONS
from trunkline.errors import SchemaVersion
from trunkline.sql import baseline
from trunkline.sql import catalog as files
from trunkline.sql.catalog import SqlFile
from trunkline.sql.migrate import latest_version, migrate, pending_migrations

LANDED = lzma.decompress((Path(__file__).parent / "landed_20.sql.xz").read_bytes())
# made for a topic, cursor or endpoint
OWN_OBJECTS = r"\b(topic|cursor|endpoint)_\d+"


@pytest.fixture(params=VERSIONS, ids=lambda version: f"pg{version}")
def pg_version(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version


@pytest.fixture
def landed(servers: Servers, pg_version: int, db: str) -> Iterator[str]:
    """A database of version 20 with content. (`db`: a migrated server has the roles that the dump grants rights to.)"""
    url = servers.url(pg_version)
    with psycopg.connect(url, autocommit=True) as admin:
        if not rows(admin, "select from pg_database where datname = 'tl_landed'"):
            admin.execute("create database tl_landed")
            with psycopg.connect(make_conninfo(url, dbname="tl_landed")) as conn:
                conn.execute(LANDED)
    yield from _database(servers, pg_version, "tl_landed")


@pytest.fixture
def conn(landed: str) -> Iterator[Connection]:
    with psycopg.connect(landed, autocommit=True) as conn:
        yield conn


def contents(conn: Connection) -> dict[str, Any]:
    """All rows and sequences, but for the records of the migrator."""
    tables = rows(
        conn,
        "select relname from pg_class where relnamespace = 'trunkline'::regnamespace and relkind in ('r', 'p', 'S')"
        " and not relispartition and relname not in ('migrations', 'function_files') order by 1",
    )
    return {name: sorted(str(row) for row in rows(conn, f"select * from trunkline.{name}")) for name in tables}


def recorded(conn: Connection) -> list[Any]:
    return conn.execute("select version, name, checksum from trunkline.migrations order by version").fetchall()


def test_conversion_changes_only_the_records(landed: str, conn: Connection) -> None:
    assert [version for version, _, _ in recorded(conn)] == list(range(1, 21))
    before = contents(conn)
    first = files.migrations()[0]
    assert pending_migrations(conn) == [file.name for file in files.migrations()]
    assert migrate(landed, upto=baseline.NUMBER).applied[0] == first.name
    assert recorded(conn) == [(first.number, first.name, first.checksum)]
    after = contents(conn)
    assert after.keys() == before.keys()
    for name in before:
        assert after[name] == before[name], name
    assert first.name not in migrate(landed).applied
    assert migrate(landed).applied == []


def test_converted_equals_a_fresh_install(landed: str, conn: Connection, db: str) -> None:
    migrate(landed)
    conn.execute("call trunkline.sequence()")  # which adopts the new cluster
    with psycopg.connect(db) as fresh:
        expected, found = catalog(fresh, but=OWN_OBJECTS), catalog(conn, but=OWN_OBJECTS)
    for kind in expected:
        assert found[kind] == expected[kind]


def test_later_migrations_apply_to_both(landed: str, conn: Connection, db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    number = latest_version() + 1
    add(monkeypatch, SqlFile(number, f"{number:04}_more.sql", "create table trunkline.more (x int)"))
    for url in (landed, db):
        assert f"{number:04}_more.sql" in migrate(url).applied
    with psycopg.connect(db) as fresh:
        assert recorded(conn) == recorded(fresh)


def record_old_migrations(url: str, upto: int, checksum: str = "x") -> None:
    """Records as they were before the baseline; the newest has this checksum."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("delete from trunkline.migrations where version <= %s", (baseline.NUMBER,))
        for version in range(1, upto + 1):
            values = (version, f"{version:04}_old.sql", checksum if version == upto else "x")
            conn.execute("insert into trunkline.migrations (version, name, checksum) values (%s, %s, %s)", values)


def test_migrations_after_the_baseline_that_were_applied_stay(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    number = latest_version() + 1
    add(monkeypatch, SqlFile(number, f"{number:04}_more.sql", "create table trunkline.more (x int)"))
    migrate(db)
    with psycopg.connect(db) as conn:
        before = recorded(conn)
        record_old_migrations(db, 20, baseline.LAST_CHECKSUM)
        assert migrate(db).applied == [files.migrations()[0].name]
        assert recorded(conn) == before


@pytest.mark.parametrize("version", [1, 19])
def test_older_versions_are_refused(db: str, version: int) -> None:
    with psycopg.connect(db, autocommit=True) as conn:
        conn.execute("delete from trunkline.migrations")
        record_old_migrations(db, version)
        before = recorded(conn)
        with pytest.raises(
            SchemaVersion, match=f"schema version must be at least 20 to be upgraded, got {version} "
        ) as caught:
            migrate(db)
        assert "install again" in str(caught.value.hint)
        with pytest.raises(SchemaVersion):
            pending_migrations(conn)
        assert recorded(conn) == before


def test_another_version_20_is_refused(db: str) -> None:
    record_old_migrations(db, 20)
    with pytest.raises(SchemaVersion, match="differs from the one that was applied"):
        migrate(db)


class Landed:
    """A converted database at the time of its dump, and what its revision returned. Time stands still: no lease ends."""

    def __init__(self, url: str, conn: Connection) -> None:
        migrate(url)
        sequence_at_once(conn)
        self.conn = conn
        self.clock = Clock(conn)
        conn.execute(
            "create or replace function trunkline.clock() returns timestamptz language sql volatile as"
            " $$ select at + skew from public.landed, public.test_clock $$"
        )
        [self.expected] = rows(conn, "select expected from public.landed")
        for _ in range(4):
            conn.execute("call trunkline.sequence()")


@pytest.fixture
def converted(landed: str, conn: Connection) -> Landed:
    return Landed(landed, conn)


def test_messages_keep_their_offsets(converted: Landed) -> None:
    conn, expected = converted.conn, converted.expected
    messages = rows(
        conn,
        "select r.topic, r.partition, r.log_offset, r.id::text, convert_from(r.payload, 'utf8')"
        " from trunkline.topics t, generate_series(0, t.partitions - 1) p, trunkline.read(t.name, p, 1, 1000) r"
        " where t.kind = 'topic' order by 1, 2, 3",
    )
    before = [tuple(row) for row in expected["log"]]
    assert len(before) == 150 + 20 + 3
    assert set(before) <= set(messages)
    new = [row for row in messages if row not in set(before)]
    # committed before the dump, without an offset by then
    head = max(row[2] for row in before if row[0] == "events")
    assert [(row[0], row[2]) for row in new] == [("events", head + 1 + n) for n in range(4)]
    assert {row[3] for row in new} == set(expected["new"])
    converted.clock.advance(timedelta(minutes=11))
    conn.execute("select trunkline.run_upkeep('pass'), trunkline.run_upkeep('pass')")
    conn.execute("call trunkline.sequence()")
    assert rows(conn, "select convert_from(payload, 'utf8') from trunkline.read('events', 0, %s)", head + 5) == ['"later"']


def test_groups_keep_their_positions(converted: Landed) -> None:
    conn, expected = converted.conn, converted.expected
    stats = rows(
        conn,
        "select topic, group_name, partition, next_offset, fetched, member from trunkline.group_stats() order by 1, 2, 3",
    )
    assert stats == [tuple(row) for row in expected["groups"]]
    partition, generation, last = expected["fetched"]
    assert rows(conn, "select trunkline.commit('events', 'held', %s, %s, %s)", partition, generation, last) == ["done"]
    converted.clock.advance(timedelta(hours=2))
    for topic, group in sorted({(row[0], row[1]) for row in stats} - {("events", "latest")}):
        positions = dict(rows(conn, "select partition, next_offset from trunkline.group_stats(%s, %s)", topic, group))
        fetched = rows(
            conn,
            "select partition, min(log_offset) from trunkline.fetch(%s, %s, 'new', 1000) group by 1",
            topic,
            group,
        )
        assert fetched
        for partition, first in fetched:
            if group == "us":
                assert first >= positions[partition]
            else:
                assert first == positions[partition], (topic, group, partition)


def test_open_leases_can_be_settled(converted: Landed) -> None:
    for queue, receipts in converted.expected["receipts"].items():
        assert set(rows(converted.conn, "select result from trunkline.ack(%s)", receipts)) == {"done"}, queue
        # one ack counts
        assert set(rows(converted.conn, "select result from trunkline.ack(%s)", receipts)) != {"lost"}, queue


def test_counts_of_queues_stay(converted: Landed) -> None:
    """But for delayed messages, which version 20 did not count as accepted and pending."""
    scheduled = (
        "select count(*) from trunkline.delayed s join trunkline.queues q on q.inbox_id = s.topic_id where q.name = %s"
    )
    for queue, (accepted, ready, pending, *rest) in converted.expected["audit"].items():
        [delayed] = rows(converted.conn, scheduled, queue)
        expected = (accepted + delayed, ready, pending + delayed, *rest)
        assert rows(converted.conn, "select * from trunkline.audit_queue(%s)", queue) == [expected], queue


def drain(converted: Landed, queue: str) -> list[tuple[str, int, str | None]]:
    """Claim and ack everything; ids, attempts and keys in the order of delivery."""
    deliveries: list[tuple[str, int, str | None]] = []
    idle = 0
    while idle < 4:
        batch = converted.conn.execute(
            "select id::text, attempt, key, receipt from trunkline.claim(%s, 100, '1 hour')", (queue,)
        ).fetchall()
        idle = 0 if batch else idle + 1
        deliveries += [(id, attempt, key) for id, attempt, key, _ in batch]
        results = rows(converted.conn, "select result from trunkline.ack(%s)", [row[3] for row in batch])
        assert set(results) <= {"done"}
        converted.conn.execute("call trunkline.sequence()")
    return deliveries


def test_everything_is_delivered_once_more_or_dead(converted: Landed) -> None:
    conn, expected = converted.conn, converted.expected
    converted.clock.advance(timedelta(hours=3))
    conn.execute("select trunkline.run_upkeep('pass'), trunkline.run_upkeep('pass'), trunkline.resume_queue('levels')")
    for _ in range(4):
        conn.execute("call trunkline.sequence()")
    ended = {*expected["settled"], *expected["dead"]}
    for queue, ids in expected["ids"].items():
        deliveries = drain(converted, queue)
        delivered = [id for id, _, _ in deliveries]
        assert len(delivered) == len(set(delivered)), queue
        assert set(delivered) == set(ids) - ended, queue
        if queue != "ordered":
            assert sorted(id for id, attempt, _ in deliveries if attempt > 1) == expected["again"][queue], queue
        else:
            for key in {key for _, _, key in deliveries}:
                own = [ids.index(id) for id, _, each in deliveries if each == key]
                assert own == sorted(own)
        dead = rows(conn, "select id::text from trunkline.list_dead_letters(%s)", queue)
        assert set(dead) == set(ids) & set(expected["dead"])


def test_jobs_webhooks_and_staged_rows_continue(converted: Landed) -> None:
    conn, expected = converted.conn, converted.expected
    jobs = expected["jobs"]
    results = rows(conn, "select state, result from trunkline.job_results(%s)", [jobs["done"], jobs["failed"]])
    assert [(state, result) for state, result in results] == [("done", b"7"), ("failed", None)]
    [(state, result)] = rows(conn, "select state, result from trunkline.begin_once('charge', 'order-1')")
    assert (state, bytes(result)) == ("done", b"10")
    assert rows(conn, "select duplicate from trunkline.enqueue_unique('jobs', 'one', '9', 'mail')") == [True]
    assert rows(
        conn,
        "select duplicate from trunkline.publish('orders', '{\"n\": 0}', 'customer-0', 'orders.us',"
        " p_headers => '{\"n\": 0}', p_idempotency_key => 'key-0')",
    ) == [True]
    [(receipt, id)] = conn.execute(
        "select receipt, id from trunkline.claim('jobs', 10) where id = %s", (jobs["left"][0],)
    ).fetchall()
    assert rows(conn, "select trunkline.settle_jobs('ack', %s, %s, '{8}', '{t}')", [receipt], [id]) == [["done"]]
    conn.execute("call trunkline.sequence()")
    assert rows(conn, "select id::text from trunkline.claim('jobs', 10)") == [jobs["waits"]]
    assert rows(conn, "select trunkline.receive('shop', 'delivery-1')") == [False]
    assert rows(conn, "select status from trunkline.list_attempts('shop')") == [200]
    assert len(rows(conn, "select id from trunkline.claim('hooks', 10)")) == 2
    assert rows(conn, "select name from trunkline.list_schedules()") == ["daily"]
    assert rows(conn, "select trunkline._verify_audit()") == [None]
    head = rows(conn, "select trunkline.head('events')")[0]
    assert rows(conn, "select trunkline.commit_stage('writer', 2, %s, '{3}')", [expected["staged"]]) == [3]
    assert rows(conn, "select trunkline.commit_stage('writer', 1, %s, '{3}')", [expected["staged"]]) == [None]
    assert rows(conn, "select trunkline.head('events')") == [head + 3]


def test_upkeep_tasks(converted: Landed) -> None:
    conn = converted.conn
    conn.execute("update trunkline.upkeep_tasks set since = null, code = null, error = null")
    for hours in (0, 1, 30):
        converted.clock.advance(timedelta(hours=hours))
        conn.execute("call trunkline.upkeep()")
    assert rows(conn, "select * from trunkline.upkeep_tasks where since is not null") == []
    # the topic that was deleted before
    assert rows(conn, "select * from trunkline.deletions") == []
