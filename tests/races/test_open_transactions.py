"""No session waits for the transaction of a stranger: each public function is called in one that stays open."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from tests.conftest import Connection
from tests.sql.calls import call, claim, commit, enqueue, fetch, publish, rows, settle, value

Connect = Callable[[], Connection]
MANY = "'00000000-0000-7000-8000-000000000000'"

# One call of each public function: on the objects that others use, or, where it removes something, on `victim`.
# {receipt}, {lease}, {position} are those of a message of queue q, {generation} that of group g.
CALLS = {
    "ack": "ack(array['{receipt}'])",
    "ack_lease": "ack_lease('{lease}', array[{position}])",
    "add_archive_files": "add_archive_files('t'" + ", '{{}}'" * 8 + ")",
    "advance_group": "advance_group('t', 'g', '{{0}}', '{{1}}')",
    "alter_endpoint": "alter_endpoint('e', p_rate => 5)",
    "alter_queue": "alter_queue('q', p_lease => '40 seconds')",
    "alter_topic": "alter_topic('t', 3, p_retention => '8 days')",
    "archive_job": "archive_job('{receipt}')",
    "archive_stats": "archive_stats()",
    "archive_tiers": "archive_tiers('t', 0, 1, 1)",
    "assign_writer": "assign_writer('w', current_user::text)",
    "attention": "attention()",
    "audit_queue": "audit_queue('q')",
    "deny_egress": "deny_egress('d', {endpoint}, 'no')",
    "begin_once": "begin_once('s', 'k')",
    "bind_queue": "bind_queue('other', 'e')",
    "bury": "bury(array['{receipt}'])",
    "cancel_job": "cancel_job('{id}')",
    "claim": "claim('q', 2)",
    "claim_job": "claim_job('q')",
    "claim_many": "claim_many(array(select queue_id from trunkline.queues))",
    "claim_offsets": "claim_offsets('ranges', 1, 'single')",
    "claim_range": "claim_range('single', 'ranges', 1)",
    "clock": "clock()",
    "close_alert": "close_alert({alert})",
    "close_breaker": "close_breaker({endpoint})",
    "close_stage": "close_stage({many})",
    "commit": "commit('t', 'g', {partition}, '{generation}', {fetched})",
    "commit_stage": "commit_stage('w', 1, '{{}}', '{{}}')",
    "create_endpoint": "create_endpoint('e2', 'https://example.com/')",
    "create_group": "create_group('t', 'new')",
    "create_queue": "create_queue('new')",
    "create_schedule": "create_schedule('new', '* * * * *', 't')",
    "create_topic": "create_topic('new')",
    "abort_run": "abort_run({run})",
    "dead_groups": "dead_groups()",
    "dead_letter_errors": "dead_letter_errors()",
    "dead_spread": "dead_spread('dead', 'f')",
    "delete_endpoint": "delete_endpoint('victim', true)",
    "delete_group": "delete_group('t', 'victim')",
    "delete_queue": "delete_queue('victim', true)",
    "delete_schedule": "delete_schedule('victim')",
    "delete_topic": "delete_topic('victim', true)",
    "delivery_times": "delivery_times()",
    "disable_endpoint": "disable_endpoint('e', 'why')",
    "dispatch_plan": "dispatch_plan('d')",
    "draw_ids": "draw_ids('inbox', 'q', 3)",
    "drop_stage": "drop_stage(array[{many}::uuid])",
    "end_once": "end_once('s', 'k', true)",
    "endpoint_secrets": "endpoint_secrets('e')",
    "endpoint_stats": "endpoint_stats()",
    "enqueue": "enqueue('q', '1', p_idempotency_key => 'k')",
    "enqueue_after": "enqueue_after('q', array[{many}::uuid], '1', 'kind')",
    "enqueue_bytes": "enqueue_bytes('q', '1', p_delay => '1 hour')",
    "enqueue_job": "enqueue_job('q', '1')",
    "enqueue_many": "enqueue_many('q', array['1'::bytea, '2'])",
    "enqueue_unique": "enqueue_unique('q', 'k', '1', 'kind')",
    "ensure_archive": "ensure_archive('t', '/tmp/archive')",
    "ensure_group": "ensure_group('t', 'new')",
    "ensure_limit": "ensure_limit('l', 1)",
    "ensure_queue": "ensure_queue('q', p_max_attempts => 3)",
    "ensure_schedule": "ensure_schedule('s', '* * * * *', 't')",
    "ensure_topic": "ensure_topic('t', p_max_payload => 1000)",
    "estimate_search": "estimate_search('t')",
    "explain_message": "explain_message('{id}')",
    "explain_offset": "explain_offset('t', {partition}, 1)",
    "extend": "extend(array['{receipt}'])",
    "fetch": "fetch('t', 'g', 'm2')",
    "settle_jobs": "settle_jobs('ack', array['{receipt}'], array['{id}'::uuid])",
    "forget_pipeline": "forget_pipeline('p')",
    "forget_worker": "forget_worker('w')",
    "get_dead_letter": "get_dead_letter('dead', '{dead}')",
    "get_job": "get_job('{id}')",
    "get_messages": "get_messages(1, 2, 'single')",
    "get_queue": "get_queue('q')",
    "get_run": "get_run({run})",
    "get_topic": "get_topic('t')",
    "group_rollups": "group_rollups('t', 'g')",
    "group_stats": "group_stats()",
    "head": "head('t')",
    "heartbeat": "heartbeat('t', 'g', 'm')",
    "defer_endpoint": "defer_endpoint({endpoint}, '10 seconds')",
    "acquire_limit": "acquire_limit('w', '{{l}}', '{{1}}')",
    "init_consumer_group": "init_consumer_group('new', 'single')",
    "job_results": "job_results(array['{id}'::uuid])",
    "keep_plan": "keep_plan('p', '{{}}')",
    "leave": "leave('t', 'g', 'm')",
    "leave_dispatch": "leave_dispatch('d')",
    "allow_egress": "allow_egress('d', {endpoint})",
    "list_alerts": "list_alerts()",
    "list_completed": "list_completed()",
    "list_archive_files": "list_archive_files()",
    "list_attempts": "list_attempts()",
    "list_cancels": "list_cancels()",
    "list_commits": "list_commits('w')",
    "list_consumers": "list_consumers('q')",
    "list_dead_letters": "list_dead_letters('dead')",
    "list_delayed": "list_delayed('q')",
    "list_deliveries": "list_deliveries()",
    "list_endpoint_events": "list_endpoint_events('e')",
    "list_endpoints": "list_endpoints()",
    "list_fires": "list_fires('s')",
    "list_groups": "list_groups()",
    "list_jobs": "list_jobs()",
    "list_members": "list_members('t', 'g')",
    "list_limits": "list_limits()",
    "list_pipelines": "list_pipelines()",
    "list_progress": "list_progress('p')",
    "list_queues": "list_queues()",
    "list_runs": "list_runs()",
    "list_schedules": "list_schedules()",
    "list_segments": "list_segments()",
    "list_sessions": "list_sessions()",
    "list_sizes": "list_sizes()",
    "list_subscriptions": "list_subscriptions()",
    "list_topics": "list_topics()",
    "list_workers": "list_workers()",
    "lock_archive": "lock_archive('t')",
    "log_heads": "log_heads('{{t}}')",
    "log_rows": "log_rows({topic}, 0, '{{1}}', '{{2}}')",
    "log_runs": "log_runs('t', {topic}, {partition}, 1, 2)",
    "lost_before": "lost_before(array['{receipt}'])",
    "earliest_offset": "earliest_offset({topic}, 0)",
    "move_archive": "move_archive('archived', '/tmp/other')",
    "nack": "nack(array['{receipt}'], '0')",
    "needed_network": "needed_network('https://10.0.0.1/')",
    "new_id": "new_id()",
    "newest_commit": "newest_commit('w')",
    "next_pass": "next_pass()",
    "next_runs": "next_runs('* * * * *')",
    "offset_at": "offset_at('t', 0, now() - interval '1 hour')",
    "offset_of": "offset_of('t', 0, 'latest')",
    "open_breaker": "open_breaker({endpoint}, 0)",
    "open_stage": "open_stage('t', {many}, '{{0}}', '{{1}}')",
    "pattern_regex": "pattern_regex('a.#')",
    "pause_endpoint": "pause_endpoint('e')",
    "pause_queue": "pause_queue('q')",
    "pause_run": "pause_run({run})",
    "pause_schedule": "pause_schedule('s')",
    "peek_queue": "peek_queue('q')",
    "plan_archive": "plan_archive('t', p_open => true)",
    "preview_run": 'preview_run(\'replay\', \'{{"queue": "q", "from": "2020-01-01"}}\')',
    "poll": "poll('{{q}}', '{{t}}', '{{g}}', '{{m}}', '{{t}}')",
    "publish": "publish('t', '1', p_key => 'k')",
    "publish_bytes": "publish_bytes('t', '1', p_idempotency_key => 'k')",
    "publish_many": "publish_many('t', array['1'::bytea, '2'])",
    "publish_messages": "publish_messages('t', array['1'::bytea])",
    "purge_dead_letters": "purge_dead_letters('dead')",
    "purge_queue": "purge_queue('q')",
    "queue_number": "queue_number('q')",
    "queue_rollups": "queue_rollups('q')",
    "queue_stats": "queue_stats()",
    "read_queue": "read_queue('q')",
    "read": "read('t', {partition}, 1)",
    "reader_lags": "reader_lags()",
    "receive": "receive('r', 'id')",
    "redrive": "redrive('dead')",
    "register_worker": "register_worker('w', '{{}}')",
    "release": "release(array['{receipt}'])",
    "replay": "replay('q', p_from => now() - interval '1 hour')",
    "report_pipeline": "report_pipeline('p', 'copy')",
    "require_archive": "require_archive('t')",
    "retention_deadlines": "retention_deadlines()",
    "resume_endpoint": "resume_endpoint('e')",
    "resume_queue": "resume_queue('q')",
    "resume_schedule": "resume_schedule('s')",
    "retry_job": "retry_job('{dead}')",
    "rotate_secret": "rotate_secret('e')",
    "rollup_lines": "rollup_lines('queue')",
    "run_schedule": "run_schedule('s')",
    "search_log": "search_log('t')",
    "seek": "seek('t', 'victim', 'latest')",
    "settle_attempts": "settle_attempts('d'" + ", '{{}}'" * 12 + ")",
    "snooze": "snooze(array['{receipt}'], '1 second')",
    "stage_target": "stage_target('t')",
    "start_waiting": "start_waiting()",
    "store_result": "store_result('{id}', '1')",
    "subscribe": "subscribe('q', 'single', p_start => 'latest')",
    "acquire_permits": "acquire_permits({endpoint}, 1)",
    "acquire_probe": "acquire_probe({endpoint})",
    "acquire_tokens": "acquire_tokens('l', 1)",
    "redrive_edited": "redrive_edited('dead', '{dead}', '2')",
    "start_run": 'start_run(\'redrive\', \'{{"queue": "dead", "all": true}}\', 1)',
    "resume_run": "resume_run({run})",
    "test_endpoint": "test_endpoint('e')",
    "return_test": "return_test(1, gen_random_uuid())",
    "test_routing": "test_routing('t', 'a')",
    "test_subscriptions": "test_subscriptions('t', 'a')",
    "topic_map": "topic_map('t')",
    "topic_number": "topic_number('topic', 't')",
    "topic_rollups": "topic_rollups('t')",
    "topic_stats": "topic_stats()",
    "unbind_queue": "unbind_queue('bound')",
    "uncancel_job": "uncancel_job('{id}')",
    "unsubscribe": "unsubscribe('q', 'single2')",
    "undo_run": "undo_run({seek})",
    "upkeep_stats": "upkeep_stats()",
}
# Not called by users in their transactions, with the reason.
APART = {
    "publish_row": "a trigger function: it is publish",
    "upkeep": "a procedure with transactions of its own",
    "sequence": "a procedure with a transaction of its own",
    "pass_and_poll": "a procedure with transactions of its own",
    "sequence_logs": "what pass_and_poll calls, like run_pass",
    "run_pass": "what sequence() calls; in a transaction that stays open it keeps others from passing, as its comment says",
    "run_upkeep": "maintenance by hand: tasks lock what they work on",
    "grant_roles": "run by migrations",
    "trim_queue": "empties segments itself, in the caller's transaction: known exception until it is left to upkeep",
}


# Other ways through functions that take and settle: ordered queues, filters, delays, labels, what was returned.
VARIANTS = (
    "claim('ordered', 2)",
    "claim('filtered', 2)",
    "claim('old', 2)",
    "claim('returned', 2)",
    "claim('q', 2, p_labels => '{{kind}}')",
    "claim_many(array(select queue_id from trunkline.queues where name in ('ordered', 'filtered', 'returned')))",
    "fetch('t', 'filtered', 'm2')",
    "nack(array['{ordered}'], '0')",
    "ack(array['{ordered}'])",
    "queue_stats('ordered')",
    "peek_queue('ordered')",
    "purge_queue('ordered')",
    "purge_queue('returned')",
    "seek('t', 'victim', '2020-01-01')",
    "redrive('dead')",
    'start_run(\'replay\', \'{{"queue": "returned", "from": "2020-01-01"}}\', 0)',
    "start_run('purge_queue', '{{\"queue\": \"returned\"}}', 0)",
)
# Tables whose partitions are emptied in turn.
ROTATED = (
    "ticks positions leases settled extensions returns later cursor_states passes history attempts job_results job_once"
    " schedule_fires endpoint_events pipeline_progress"
)
LOCKS = """
    select c.relname, left(l.mode, -4) as mode from pg_locks l join pg_class c on c.oid = l.relation
    where l.pid = pg_backend_pid() and c.relnamespace = 'trunkline'::regnamespace and c.relkind = 'r'
"""


class World:
    """Objects that others use, and what the calls need to know of them."""

    def __init__(self, connect: Connect) -> None:
        self.conn = conn = connect()
        conn.execute("update trunkline.settings set value = '1 minute' where name = 'sequence_alone_after'")
        for topic, partitions in (("t", 2), ("single", 1), ("archived", 1), ("victim", 1)):
            call(conn, "create_topic", topic, partitions)
        call(conn, "create_topic", "single2")
        for queue in ("q", "other", "dead", "bound", "victim"):
            call(conn, "create_queue", queue)
        call(conn, "subscribe", "q", "single2", p_name="single2")
        call(conn, "create_queue", "ordered", p_ordered=True)
        call(conn, "create_queue", "filtered")
        call(conn, "subscribe", "filtered", "single", "a.#", p_start="earliest")
        call(conn, "create_queue", "old", p_ttl="1 hour", p_delivery_delay="1 second")
        call(conn, "create_queue", "returned")
        call(conn, "create_group", "t", "filtered", "earliest", p_pattern="a.#")
        for group in ("g", "h", "victim"):
            call(conn, "create_group", "t", group)
        call(conn, "create_group", "single", "ranges")
        call(conn, "create_endpoint", "e", "https://example.com/")
        call(conn, "create_endpoint", "victim", "https://example.com/")
        call(conn, "bind_queue", "bound", "e")
        call(conn, "ensure_limit", "l", 1)
        call(conn, "ensure_archive", "archived", "/tmp/archive")
        for schedule in ("s", "victim"):
            call(conn, "create_schedule", schedule, "0 0 1 1 *", "t")
        conn.execute("select trunkline.dispatch_plan('d')")
        publish(conn, "t", *range(4), p_key="a")
        publish(conn, "single", *range(4))
        [id_, *_] = enqueue(conn, "q", *range(4), p_label="kind")
        enqueue(conn, "dead", 1, p_label="kind")
        for queue in ("ordered", "old", "returned"):
            enqueue(conn, queue, *range(4))
        self.sequence()
        settle(conn, "nack", claim(conn, "returned")[0].receipt, p_delay="0")
        self.sequence()
        [dead] = claim(conn, "dead")
        settle(conn, "bury", dead.receipt)
        [delivery] = claim(conn, "q", 1)
        batch = fetch(conn, "t", p_limit=1)
        position, _, lease = delivery.receipt.partition(".")
        alert = value(conn, "insert into trunkline.alerts (at, kind, detail) values (now(), 'k', '{}') returning alert_id")
        call(conn, "seek", "t", "victim", "earliest")
        self.facts = {
            "alert": alert,
            "receipt": delivery.receipt,
            "ordered": claim(conn, "ordered", 2)[0].receipt,
            "lease": lease,
            "position": position,
            "generation": batch[0].generation,
            "partition": batch[0].partition,
            "fetched": batch[0].log_offset,
            "dead": dead.id,
            "id": id_,
            "endpoint": value(conn, "select endpoint_id from trunkline.endpoints where name = 'e'"),
            "topic": value(conn, "select topic_id from trunkline.topics where name = 't' and kind = 'topic'"),
            "many": MANY,
            "seek": value(conn, "select max(run_id) from trunkline.runs where kind = 'seek'"),
            "run": value(
                conn,
                """select trunkline.start_run('purge_dead_letters',
                                              '{"queue": "dead", "all": true}', 1, '{"grace": 86400}')""",
            ),
        }

    def sequence(self) -> None:
        """Run what a service does all the time."""
        for _ in range(3):
            self.conn.execute("call trunkline.sequence()")

    def go_on(self) -> None:
        """Everything that others do, each with a limit that only a wait for a lock can reach."""
        conn = self.conn
        conn.execute("set statement_timeout = '8s'")
        conn.execute("set lock_timeout = '3s'")
        publish(conn, "t", "new", p_key="a")
        publish(conn, "single", "new")
        enqueue(conn, "q", "new")
        enqueue(conn, "other", "new")
        self.sequence()
        assert claim(conn, "q", 1000), "the new message of the same queue"
        assert claim(conn, "other"), "another queue"
        fetch(conn, "t", "g", "m3")
        batch = fetch(conn, "t", "h", "m4")
        assert batch, "another group"
        assert commit(conn, "t", batch, group="h") == "done"
        assert call(conn, "read", "single", 0, 1)
        for stats in ("queue_stats", "group_stats", "topic_stats"):
            assert call(conn, stats)


@pytest.fixture
def world(connect: Connect) -> World:
    return World(connect)


def test_every_public_function_is_here(conn: Connection) -> None:
    public = rows(
        conn,
        "select distinct proname from pg_proc where pronamespace = 'trunkline'::regnamespace"
        " and proname !~ '^(_|topic_[0-9])'",
    )
    assert {row.proname for row in public} == CALLS.keys() | APART.keys()


@pytest.mark.parametrize("names", [sorted(CALLS)[n::8] for n in range(8)], ids=lambda names: names[0])
def test_a_transaction_that_stays_open(connect: Connect, world: World, names: list[str]) -> None:
    """After each call, other sessions continue; then the call is rolled back."""
    for name in names:
        session = connect()
        session.execute("begin")
        session.execute("select * from trunkline." + CALLS[name].format_map(world.facts))
        try:
            world.go_on()
        except psycopg.Error as exc:
            pytest.fail(f"{name}: others wait: {exc}")
        session.execute("rollback")
        session.close()


def test_no_lock_on_a_rotated_table_stays_but_of_what_was_written(connect: Connect, world: World) -> None:
    """Rotation empties a partition when no open transaction has a lock on it: one that only reads must not keep one.

    A settle keeps its lease, and so the partitions with the number that is in the receipt.
    """
    kept = {}
    for query in (*CALLS.values(), *VARIANTS):
        session = connect()
        session.execute("begin")
        session.execute("select * from trunkline." + query.format_map(world.facts))
        locks = [lock for lock in rows(session, LOCKS) if lock.relname.rpartition("_")[0] in ROTATED.split()]
        written = {lock.relname for lock in locks if lock.mode.startswith("Row")}
        leases = {name[-1] for name in written if name.startswith(("leases", "settled"))}
        left = {lock.relname for lock in locks} - written
        kept[query] = {name for name in left if not (name.startswith("settled") and name[-1] in leases)}
        session.execute("rollback")
        session.close()
    assert {query: names for query, names in kept.items() if names} == {}


def test_a_search_keeps_no_lock_on_the_ids_of_topics(connect: Connect, world: World) -> None:
    """Such a lock is that of a publisher: it would keep segments from being ended and topics from being deleted."""
    locks = LOCKS.replace("relkind = 'r'", "relkind = 'S'") + " and c.relname like 'topic%%ids'"
    session = connect()
    session.execute("begin")
    unknown = value(session, "select trunkline.explain_message(trunkline.new_id()) ->> 'state'")
    assert (unknown, rows(session, locks)) == ("unknown", [])
    publish(session, "t", 1)
    assert rows(session, locks), "a publisher has one"


@pytest.mark.parametrize("name", ["claim", "fetch", "ack", "nack", "commit", "publish", "queue_stats", "read"])
@pytest.mark.parametrize("mode", ["savepoint", "one message", "works on"])
def test_other_ways_to_stay_open(connect: Connect, world: World, name: str, mode: str) -> None:
    session = connect()
    query = "select * from trunkline." + CALLS[name].format_map(world.facts)
    if mode == "savepoint":
        session.execute("begin")
        session.execute("savepoint s")
        session.execute(query)
        session.execute("rollback to s")
        world.go_on()
    elif mode == "one message":
        session.execute(f"begin; {query}")
        world.go_on()
    else:
        thread = threading.Thread(target=works_on, args=(session, query))
        thread.start()
        try:
            world.go_on()
        finally:
            session.cancel()
            thread.join()
    session.close()


def works_on(session: Connection, query: str) -> None:
    with pytest.raises(psycopg.errors.QueryCanceled):
        session.execute(f"do $$ begin perform * from ({query}) x; perform pg_sleep(60); end $$".replace("%", "%%"))
