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
from tests.chaos.planted import BRIEF, FILTERED, ORDERED, QUEUE, SUBSCRIBED, TOPIC, Change, World
from tests.chaos.workloads import Workload
from tests.conftest import Clock
from trunkline.embedded.server import EmbeddedServer
from trunkline.sql.migrate import migrate


@dataclass(frozen=True)
class Bug:
    """A change of the kernel, a script that would show it, and the rules of which at least one must count."""

    changes: tuple[Change, ...]
    workload: Workload
    script: Callable[[World], None]
    rules: tuple[str, ...]


_WAIT = "perform pg_advisory_xact_lock(2);"
_READ_LEASES = "            v_left := trunkline._unleased(c.cursor_id, v_left);\n"
# of an ack of the only message of a lease
_LEASE_OF_ONE = (
    "from trunkline.leases_{} l\n            where l.cursor_id = r[2]::int and l.first = r[1]::bigint and l.n = 1"
)
_LOCK = (
    "if not pg_try_advisory_xact_lock(778005, v_cursors[v_i]) then\n"
    "                            perform trunkline._lock_cursor(v_cursors[v_i]);\n                        end if;"
)
# what was open at the scan or pass before, and what is open now
_OPEN_BEFORE = (
    "                + (select coalesce(range_agg(int8range(x::text::bigint, x::text::bigint, '[]')), '{}')"
    " from pg_snapshot_xip(p_before) x)\n"
)
_OPEN_NOW = (
    "                - (select coalesce(range_agg(int8range(x::text::bigint, x::text::bigint, '[]')), '{}')"
    " from pg_snapshot_xip(p_now) x)\n"
)
_LOOKED = "perform trunkline._commit_durably();\n    perform trunkline._write_ticks("


def _changes_of_ack(old: str, new: str) -> list[Change]:
    """Change the condition of an ack of the only message of a lease, in each rotation partition."""
    leases = [_LEASE_OF_ONE.format(number) for number in range(3)]
    return [Change("ack", lease + old, lease + new) for lease in leases]


BUGS = {
    "row id before transaction id": Bug(
        (
            Change("_write_publish", "case when pg_current_xact_id() is not null", "case when true"),
            Change("_write_draw", "if pg_current_xact_id() is not null and current_setting", "if current_setting"),
        ),
        TOPIC,
        scripts.late_transaction_id,
        ("lost",),
    ),
    "open transactions of the scan before forgotten": Bug(
        (Change("_ended_between", _OPEN_BEFORE, ""),), TOPIC, scripts.slow_publisher, ("lost",)
    ),
    "newest open transaction forgotten": Bug(
        (
            Change(
                "_ended_between",
                "int8range(pg_snapshot_xmax(p_before)::text::bigint,",
                "int8range(pg_snapshot_xmax(p_before)::text::bigint + 1,",
            ),
        ),
        TOPIC,
        scripts.newest_open_transaction,
        ("lost",),
    ),
    "log taken for quiet although a publisher is open": Bug(
        (Change("_tick", "v_whole := not trunkline._has_owner(p_topic_id, p_partition);", "v_whole := true;"),),
        TOPIC,
        scripts.publisher_that_commits_last,
        ("late_arrival",),
    ),
    "reader does not wait for the sequencer": Bug(
        (
            Change("_lock_sequencing", "elsif not p_wait then", "else"),
            Change("_sequence_logs", "                skipped := true;\n", ""),
        ),
        TOPIC,
        scripts.reader_beside_a_long_look,
        ("late_arrival",),
    ),
    "what is open at the scan counts as ended": Bug(
        (
            Change("_ended_between", _OPEN_NOW, ""),
            Change("_ids_of", "    for s in select segment", f"    {_WAIT}\n    for s in select segment"),
        ),
        TOPIC,
        scripts.publisher_between_two_looks,
        ("duplicate", "divergent", "unexpected"),
    ),
    "snapshot taken after the scan": Bug(
        (Change("_tick", _LOOKED, f"{_WAIT} v_snapshot := trunkline._snapshot_of_others(); {_LOOKED}"),),
        TOPIC,
        scripts.publisher_between_two_looks,
        ("lost",),
    ),
    "own transaction counts as seen": Bug(
        (
            Change(
                "_snapshot_of_others",
                "pg_current_xact_id_if_assigned()",
                "null::xid8",
            ),
        ),
        TOPIC,
        scripts.publisher_that_sequences_itself,
        ("lost",),
    ),
    "snapshot of the store taken after the scan": Bug(
        (
            Change(
                "_tick_store",
                "    if v_logs is null then",
                f"    {_WAIT} v_snapshot := trunkline._snapshot_of_others();\n    if v_logs is null then",
            ),
        ),
        QUEUE,
        scripts.enqueued_during_a_scan,
        ("lost",),
    ),
    "store taken for quiet although a publisher is open": Bug(
        (Change("_tick_store", "v_whole := not trunkline._has_owner(0, 1);", "v_whole := true;"),),
        QUEUE,
        scripts.enqueued_last,
        ("lost",),
    ),
    "own messages get offsets at each scan of their transaction": Bug(
        (Change("_store_unsequenced", "where t.own_xid is distinct from v_own or not t.own_ids @> n.id", ""),),
        QUEUE,
        scripts.enqueued_around_an_own_scan,
        ("duplicate",),
    ),
    "messages after the own scan of their transaction forgotten": Bug(
        (
            Change(
                "_store_unsequenced", "if t.own_xid is distinct from v_own and t.own_xid is not null then", "if false then"
            ),
        ),
        QUEUE,
        scripts.enqueued_around_an_own_scan,
        ("lost",),
    ),
    "segment of the store emptied with messages that are needed": Bug(
        (Change("_retire_segment", "if v_needed <= r.last_offset then", "if false then"),),
        QUEUE,
        scripts.segment_of_the_store_ends,
        ("lost", "error"),
    ),
    "messages copied out of the store in another order": Bug(
        (Change("_copy_out", "order by log_offset) x", "order by log_offset desc) x"),),
        QUEUE,
        scripts.segment_of_the_store_ends,
        ("unexpected", "order"),
    ),
    "mark of an open claim not looked at": Bug(
        (Change("_judge", "lost := v_left - v_marked;", "lost := v_left;"),),
        QUEUE,
        scripts.claim_beside_passes,
        ("double_lease",),
    ),
    "drawn back to the head although the claim that gave the offsets is open": Bug(
        (
            Change(
                "_draw_back",
                "if not pg_try_advisory_xact_lock(778001, trunkline._sequenced_with(c.log)) then",
                "if false then",
            ),
        ),
        QUEUE,
        scripts.claim_of_its_own_offsets_beside_passes,
        ("double_lease", "error"),
    ),
    "draw judged although its claim had no time to show its mark": Bug(
        (Change("claim", " and coalesce(pg_sequence_last_value('trunkline.pass_epoch'), 0) <= v_epoch then", " then"),),
        QUEUE,
        scripts.claim_that_is_frozen_after_its_draw,
        ("double_lease",),
    ),
    "draw judged one pass after it was read": Bug(
        (Change("_judge", "least(s.drawn_before, v_head)", "least(s.drawn, v_head)"),),
        QUEUE,
        scripts.claim_that_draws_during_a_pass,
        ("double_lease",),
    ),
    "leases not read again after the marks": Bug(
        (Change("_judge", f"{_READ_LEASES}            lost :=", "            lost :="),),
        QUEUE,
        scripts.commit_between_leases_and_marks,
        ("double_lease",),
    ),
    "hole never returned": Bug(
        (Change("_pass", "if not isempty(v_lost) then", "if false then"),),
        QUEUE,
        scripts.claim_that_is_rolled_back,
        ("lost",),
    ),
    "hole returned twice": Bug(
        (Change("_judge", "v_left := v_left * v_marked;", "null;"),),
        QUEUE,
        scripts.claim_that_is_rolled_back,
        ("double_lease", "acked_redelivered"),
    ),
    "attempt counted for a hole": Bug(
        (Change("_return_hole", "coalesce(r.attempt, 0) as attempt", "coalesce(r.attempt, 0) + 1 as attempt"),),
        QUEUE,
        scripts.claim_that_is_rolled_back,
        ("attempts",),
    ),
    # the key of the lease stops the second of them
    "draw without the lock": Bug((Change("claim", _LOCK, ""),), QUEUE, scripts.draws_at_once, ("double_lease", "error")),
    "lease registered behind the watermark": Bug(
        (
            Change(
                "_do_new",
                "greatest(date_bin('250 milliseconds', l.deadline, '2000-01-01') + interval '250 milliseconds',"
                " (p.before).walked + interval '1 microsecond')",
                "date_bin('250 milliseconds', l.deadline, '2000-01-01') + interval '250 milliseconds'",
            ),
        ),
        QUEUE,
        scripts.claim_that_commits_after_its_deadline,
        ("lost",),
    ),
    "nack that commits late not seen": Bug(
        (Change("_ended_between", _OPEN_BEFORE, ""),), QUEUE, scripts.nack_that_commits_late, ("lost",)
    ),
    "claim that commits late not seen": Bug(
        (Change("_ended_between", _OPEN_BEFORE, ""),), QUEUE, scripts.claim_that_commits_late, ("lost",)
    ),
    "nack seen by two passes": Bug(
        (Change("_new_settled", "s.xid >= r.lo and s.xid < r.hi", "s.xid < r.hi"),),
        QUEUE,
        scripts.nack_after_a_while,
        ("double_lease", "acked_redelivered"),
    ),
    "hole returned with what does not match": Bug(
        (Change("_return_hole", "p_lost := p_lost - v_skipped;", ""),),
        SUBSCRIBED,
        scripts.claim_of_a_subscription_that_is_rolled_back,
        ("unexpected",),
    ),
    # a pass that has seen the purge drops it; what one has returned that had not is dropped by the claim
    "hole returned after a purge": Bug(
        (
            Change("_return_hole", "c.purged_upto + 1", "0"),
            Change("_scan_returns", "x.log_offset <= k.purged_upto", "false"),
        ),
        QUEUE,
        scripts.purge_after_a_rolled_back_claim,
        ("after_purge",),
    ),
    "purge leaves what a pass returns meanwhile": Bug(
        (Change("_scan_returns", "x.purge_no < q.purge_nos[cardinality(q.purge_nos)]", "false"),),
        QUEUE,
        scripts.purge_beside_a_pass,
        ("conservation",),
    ),
    "purge takes what was sent back after it": Bug(
        (Change("_return", "p_ats[i], p_purges[i]", "p_ats[i], 0"),), QUEUE, scripts.nack_after_a_purge, ("conservation",)
    ),
    "delayed message that commits late not seen": Bug(
        (Change("_ended_between", _OPEN_BEFORE, ""),), QUEUE, scripts.delayed_message_that_commits_late, ("lost",)
    ),
    "delayed message registered behind the watermark": Bug(
        (Change("_note_delayed", "else p.upto + interval '1 microsecond' end", "else d.due_at end"),),
        QUEUE,
        scripts.delayed_message_that_commits_late,
        ("lost",),
    ),
    "delayed message appended by two passes": Bug(
        (Change("_due_delayed", "d.due > (p.before).walked and", ""),),
        QUEUE,
        scripts.delayed_messages_one_after_the_other,
        ("duplicate", "double_lease", "acked_redelivered"),
    ),
    "delayed message appended before its time": Bug(
        (
            Change("_note_delayed", "then d.due_at + d.no / 10 % 1000 *", "then p.upto + d.no / 10 % 1000 *"),
            Change("_due_delayed", "and d.due_at <= p.now", ""),
            Change("_release_delayed", "and d.due_at > p.now;", "and false;"),
        ),
        QUEUE,
        scripts.delayed_messages_one_after_the_other,
        ("early",),
    ),
    "delayed message that no pass has seen not copied": Bug(
        (
            Change(
                "_copy_delayed",
                "trunkline._is_waiting(y.no, y.xid, y.due_at)",
                "pg_visible_in_snapshot(y.xid, (select b.snapshot from trunkline.passes b order by b.pass desc limit 1))",
            ),
        ),
        QUEUE,
        scripts.delayed_message_during_rotations,
        ("lost",),
    ),
    "delayed message purged that its purge did not see": Bug(
        (Change("_is_withdrawn", "(u.xid = p_xid or pg_visible_in_snapshot(p_xid, u.snapshot)) and", ""),),
        QUEUE,
        scripts.delayed_message_beside_a_purge,
        ("lost", "after_purge"),
    ),
    "lease rotated away before its draw was judged": Bug(
        (Change("_carry", "l.first + l.n - 1 > s.upto or", "false or"),),
        QUEUE,
        scripts.rotations_after_an_ack,
        ("acked_redelivered",),
    ),
    "open lease not carried": Bug(
        (Change("_carry", "where l.rotation = p_from and (", "where false and ("),),
        QUEUE,
        scripts.rotations_of_an_open_lease,
        ("lost",),
    ),
    "ack ignores the deadline": Bug(
        (
            *_changes_of_ack(" and l.token::text = r[5] and l.deadline > trunkline.clock()", " and l.token::text = r[5]"),
            Change("_ack_range", "or l.deadline <= v_now or", "or"),
            Change("_settle_one", "if l.deadline <= v_now then", "if false then"),
        ),
        QUEUE,
        scripts.late_ack,
        ("stale_ack",),
    ),
    # the row lock, the key of `settled`, and that only what was expired is returned: each alone would do
    "expiry races settle": Bug(
        (
            Change(
                "_end_leases",
                "elsif not trunkline._try_lock_lease(l.rotation, l.cursor_id, l.first) then",
                "elsif false then",
            ),
            Change(
                "_write_settled",
                "v_purge from unnest(p_positions) r;",
                "v_purge from unnest(p_positions) r on conflict do nothing;",
            ),
            Change("_end_leases", "where s.kind = 'x' and", "where"),
        ),
        QUEUE,
        scripts.ack_at_the_deadline,
        ("acked_redelivered",),
    ),
    # the key of `settled` stops it
    "nack revives an acked message": Bug(
        (Change("_settle_one", "(held - v_acked - v_other)", "(held - v_other)"),),
        QUEUE,
        scripts.nack_after_ack,
        ("acked_redelivered", "error"),
    ),
    "attempt not counted when a lease ends": Bug(
        (Change("_end_leases", "array_agg(x.attempt + 1 order by x.pos)", "array_agg(x.attempt order by x.pos)"),),
        QUEUE,
        scripts.lease_that_ends,
        ("attempts",),
    ),
    "delay of a nack forgotten": Bug(
        (
            Change(
                "_settle_lease",
                "case p_kind when 'n' then coalesce(p_delay, trunkline._backoff(q, e.attempt))",
                "case p_kind when 'n' then interval '0'",
            ),
        ),
        QUEUE,
        scripts.nack_with_delay,
        ("early",),
    ),
    # the key of the lease stops it
    "claim does not move on": Bug(
        (Change("_draw", "perform setval(c.drawn_seq, s.first + s.n - 1);", "null;"),),
        QUEUE,
        scripts.two_consumers,
        ("double_lease", "error"),
    ),
    "dead letters not counted": Bug(
        (Change("_write_states", "o.dead + c.dead", "o.dead"),), QUEUE, scripts.buried_message, ("conservation",)
    ),
    "claim by label takes any": Bug(
        (Change("_scan_log", "p_labels is null or coalesce(r.label = any (p_labels), false) as wanted", "true as wanted"),),
        QUEUE,
        scripts.claim_by_label,
        ("unexpected",),
    ),
    "message of another label forgotten": Bug(
        (Change("_scan_log", "filter (where hit and not old and not wanted)", "filter (where false)"),),
        QUEUE,
        scripts.claim_by_label,
        ("lost",),
    ),
    "redrive keeps the dead letter": Bug(
        (
            Change(
                "redrive",
                "trunkline._remove_dead_letters(p_queue, p_ids, p_limit) x",
                "trunkline.list_dead_letters(p_queue) x where x.id = any (p_ids)",
            ),
        ),
        QUEUE,
        scripts.redrive_of_buried_messages,
        ("duplicate",),
    ),
    "redrive drops the message": Bug(
        (Change("_redrive_taken", "where payloads is not null", "where false"),),
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
            Change("_seek", f"s.{field};", "")
            for field in ("fetched := s.committed", "generation := null", "deadline := null")
        ),
        TOPIC,
        scripts.commit_after_a_seek,
        ("stale_commit",),
    ),
    "filtered group passes what it fetched": Bug(
        (Change("_take_matches", "s.committed := lower(taken) - 1;", "s.committed := s.fetched;"),),
        FILTERED,
        scripts.filtered_batch_of_a_dead_member,
        ("gap",),
    ),
    # the key of the lease stops it
    "purge does not remove": Bug(
        (Change("_purge_cursor", "perform setval(c.drawn_seq, v_head);", ""),),
        QUEUE,
        scripts.purge_of_new_and_nacked,
        ("after_purge", "error"),
    ),
    "purge not counted": Bug(
        (Change("_write_states", "case when e.kind = 'p' or ", "case when "),),
        QUEUE,
        scripts.purge_of_new_and_nacked,
        ("conservation",),
    ),
    "ttl not looked at": Bug(
        (Change("_scan_log", "coalesce(r.entered_at < v_oldest, false) or", "false or"),),
        BRIEF,
        scripts.message_past_its_ttl,
        ("after_ttl",),
    ),
    "idempotency key forgotten": Bug(
        (Change("_reserve_keys", "return v_first;", "return null;"),), TOPIC, scripts.repeated_publish, ("duplicate",)
    ),
    "two leases in an ordered partition": Bug(
        (Change("_next_ordered", "if o.is_open then", "if false then"),),
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
            *_changes_of_ack(" and l.token::text = r[5]", ""),
            Change("_ack_range", "l.token::text <> p_token or ", ""),
            Change("_settle_one", "if l.token::text <> split_part(p_lease, '.', 5) then", "if false then"),
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
