"""The checker sees: each bug that is planted into the kernel makes it count; the same script without the bug does not."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.chaos import scripts
from tests.chaos.planted import BRIEF, FILTERED, ORDERED, QUEUE, TOPIC, Change, World
from tests.chaos.workloads import Workload
from tests.conftest import Clock
from trunkline.db.embedded import EmbeddedServer
from trunkline.sql.migrate import migrate


@dataclass(frozen=True)
class Bug:
    """A change of the kernel, a script that would show it, and the rules of which at least one must count."""

    changes: tuple[Change, ...]
    workload: Workload
    script: Callable[[World], None]
    rules: tuple[str, ...]


_OLD_GAPS = "v_dead := not isempty(t.old_gaps) and v_xmin >= t.old_horizon;"
_LOOK_AT_GAPS = "v_late := trunkline._visible_among(p_topic_id, p_partition, p_segment_rows, v_gaps);"
_WAIT = "perform pg_advisory_xact_lock(2);"

BUGS = {
    "row id before transaction id": Bug(
        (
            Change("_write_functions", "case when pg_current_xact_id() is not null", "case when true"),
            Change("_write_functions", "if pg_current_xact_id() is not null and current_setting", "if current_setting"),
        ),
        TOPIC,
        scripts.late_transaction_id,
        ("lost",),
    ),
    "gap retired too early": Bug(
        (Change("_tick", _OLD_GAPS, "v_dead := not isempty(t.old_gaps);"),), TOPIC, scripts.slow_publisher, ("lost",)
    ),
    "horizon below an open transaction": Bug(
        (Change("_horizon", "perform from trunkline.logs where log = p_log for no key update;", ""),),
        TOPIC,
        scripts.newest_open_transaction,
        ("lost",),
    ),
    "reader does not wait for the sequencer": Bug(
        (
            Change(
                "_tick",
                "perform pg_advisory_xact_lock(778001, v_log);",
                "if not pg_try_advisory_xact_lock(778001, v_log) then return trunkline._head(v_log); end if;",
            ),
        ),
        TOPIC,
        scripts.reader_beside_a_long_look,
        ("late_arrival",),
    ),
    "gaps looked at before the new ids": Bug(
        (
            Change("_tick", _LOOK_AT_GAPS, "null;"),
            Change(
                "_tick",
                "v_late := '{}';\n",
                f"v_late := '{{}}'; if not isempty(v_gaps) then {_LOOK_AT_GAPS} end if; {_WAIT}\n",
            ),
            Change("_tick", "v_ids := '{}';\n", "v_ids := '{}'; v_gaps := t.old_gaps + t.new_gaps;\n"),
        ),
        TOPIC,
        scripts.publisher_between_two_looks,
        ("order",),
    ),
    "ack ignores the deadline": Bug(
        (
            Change("_ack_open", "and l.deadline > v_now and", "and"),
            Change("_settle", "if l.deadline <= v_now then", "if false then"),
        ),
        QUEUE,
        scripts.late_ack,
        ("stale_ack",),
    ),
    "expiry races settle": Bug(
        (
            Change("_expire_lease", "for update skip locked", ""),
            Change("_expire_lease", "where e.cursor_id = l.cursor_id and e.lease_no = l.lease_no", "where false"),
        ),
        QUEUE,
        scripts.ack_at_the_deadline,
        ("acked_redelivered",),
    ),
    "nack revives an acked message": Bug(
        (Change("_settle", "(l.offsets - v_acked - v_other)", "(l.offsets - v_other)"),),
        QUEUE,
        scripts.nack_after_ack,
        ("acked_redelivered",),
    ),
    "attempt not counted when a lease ends": Bug(
        (
            Change(
                "_settle_lease",
                "case p_kind when 'r' then l.attempt - 1",
                "case when p_kind in ('r', 'x') then l.attempt - 1",
            ),
        ),
        QUEUE,
        scripts.lease_that_ends,
        ("attempts",),
    ),
    "delay of a nack forgotten": Bug(
        (Change("_settle_lease", "coalesce(p_delay, trunkline._backoff(q, l.attempt))", "interval '0'"),),
        QUEUE,
        scripts.nack_with_delay,
        ("early",),
    ),
    "claim does not move on": Bug(
        (Change("_claim", "s.position := s.position + v_count;", ""),), QUEUE, scripts.two_consumers, ("double_lease",)
    ),
    "dead letters not counted": Bug(
        (Change("_check_leases", "k.dead := k.dead + r.dead;", ""),), QUEUE, scripts.buried_message, ("conservation",)
    ),
    "claim by label takes any": Bug(
        (Change("_scan", "p_labels is null or coalesce(r.label = any (p_labels), false) as wanted", "true as wanted"),),
        QUEUE,
        scripts.claim_by_label,
        ("unexpected",),
    ),
    "message of another label forgotten": Bug(
        (Change("_scan", "and hit and not old and not wanted\n            returning 1", "and false returning 1"),),
        QUEUE,
        scripts.claim_by_label,
        ("lost",),
    ),
    "redrive keeps the dead letter": Bug(
        (
            Change(
                "redrive",
                "trunkline._take_dead_letters(p_queue, p_ids, p_limit)",
                "trunkline.list_dead_letters(p_queue) where id = any (p_ids)",
            ),
        ),
        QUEUE,
        scripts.redrive_of_buried_messages,
        ("duplicate",),
    ),
    "redrive drops the message": Bug(
        (Change("redrive", "where payloads is not null", "where false"),),
        QUEUE,
        scripts.redrive_of_buried_messages,
        ("lost",),
    ),
    "former owner may commit": Bug(
        (
            Change(
                "commit",
                "s.generation is distinct from p_generation or p_generation is null or s.deadline <= trunkline.clock()",
                "p_generation is null",
            ),
        ),
        TOPIC,
        scripts.former_owner,
        ("stale_commit",),
    ),
    "commit goes back": Bug(
        (Change("commit", "if p_offset > s.committed then", "if true then"),),
        TOPIC,
        scripts.commit_of_less,
        ("commit_regress",),
    ),
    "seek leaves the owner its batch": Bug(
        tuple(
            Change("seek", f"s.{field};", "")
            for field in ("fetched := s.committed", "generation := null", "deadline := null")
        ),
        TOPIC,
        scripts.commit_after_a_seek,
        ("stale_commit",),
    ),
    "filtered group passes what it fetched": Bug(
        (Change("fetch", "s.committed := lower(v_found.offsets) - 1;", "s.committed := s.fetched;"),),
        FILTERED,
        scripts.filtered_batch_of_a_dead_member,
        ("gap",),
    ),
    "purge does not remove": Bug(
        (Change("purge_queue", "s.position := v_head + 1;", ""),), QUEUE, scripts.purge_of_new_and_nacked, ("after_purge",)
    ),
    "purge not counted": Bug(
        (Change("purge_queue", "s.purged := s.purged + v_count;", ""),),
        QUEUE,
        scripts.purge_of_new_and_nacked,
        ("conservation",),
    ),
    "ttl not looked at": Bug(
        (Change("_scan", "coalesce(r.created_at < p_oldest, false) as old", "false as old"),),
        BRIEF,
        scripts.message_past_its_ttl,
        ("after_ttl",),
    ),
    "idempotency key forgotten": Bug(
        (Change("_reserve_keys", "return v_first;", "return null;"),), TOPIC, scripts.repeated_publish, ("duplicate",)
    ),
    "two leases in an ordered partition": Bug(
        (Change("_ordered_turn", "if not isempty(v_open) and", "if false and"),),
        ORDERED,
        scripts.next_in_line,
        ("order",),
    ),
}


@pytest.mark.parametrize("name", list(BUGS))
def test_planted_bug_is_seen(
    name: str, db: str, conn: psycopg.Connection[tuple[object, ...]], clock: Clock, tmp_path: Path
) -> None:
    bug = BUGS[name]
    for change in bug.changes:
        change.apply(conn)
    world = World(db, tmp_path, bug.workload, clock.advance)
    bug.script(world)
    report = world.verdict()
    assert any(report.counts[rule] for rule in bug.rules), report.table()


@pytest.mark.parametrize("name", list(BUGS))
def test_script_without_the_bug_is_clean(name: str, db: str, clock: Clock, tmp_path: Path) -> None:
    world = World(db, tmp_path, BUGS[name].workload, clock.advance)
    BUGS[name].script(world)
    report = world.verdict()
    assert report.ok, report.table()


@pytest.fixture(scope="module")
def doomed() -> Iterator[EmbeddedServer]:
    """A server to kill, on which nothing but a synchronous commit brings the log of changes to disk."""
    home = Path(tempfile.mkdtemp(prefix="tl-chaos-pg-", dir="/tmp"))
    with EmbeddedServer(home / "data") as server:
        with psycopg.connect(server.superuser_url, autocommit=True) as conn:
            for setting in ("wal_writer_delay = '10s'", "autovacuum = off", "bgwriter_lru_maxpages = 0"):
                conn.execute(f"alter system set {setting}")
            conn.execute("select pg_reload_conf()")
        yield server
    shutil.rmtree(home, ignore_errors=True)


CRASH_BUGS = {
    "tick committed asynchronously": (
        (Change("_tick", "perform trunkline._commit_durably();", "perform set_config('synchronous_commit', 'off', true);"),),
        TOPIC,
        scripts.crash_after_a_read,
        "divergent",
    ),
    "ack ignores the token": (
        (
            Change("_ack_open", "l.token::text = split_part(p_lease, '.', 3)", "true"),
            Change("_settle", "l.token::text = split_part(g.lease, '.', 4)", "true"),
        ),
        QUEUE,
        scripts.crash_after_a_relaxed_claim,
        "stale_ack",
    ),
}


@pytest.mark.parametrize("planted", [True, False], ids=["planted", "clean"])
@pytest.mark.parametrize("name", list(CRASH_BUGS))
def test_bug_that_needs_a_crash_is_seen(name: str, planted: bool, doomed: EmbeddedServer, tmp_path: Path) -> None:
    changes, workload, script, rule = CRASH_BUGS[name]
    database = f"crash_{list(CRASH_BUGS).index(name)}_{'planted' if planted else 'clean'}"
    with psycopg.connect(doomed.superuser_url, autocommit=True) as conn:
        conn.execute(f"create database {database} owner trunkline".encode())
    url = make_conninfo(doomed.url, dbname=database)
    migrate(url)
    if planted:
        with psycopg.connect(url, autocommit=True) as conn:
            for change in changes:
                change.apply(conn)
    world = World(url, tmp_path, workload)
    script(doomed, world)
    report = world.verdict()
    assert bool(report.counts[rule]) is planted, report.table()
    assert planted or report.ok, report.table()
