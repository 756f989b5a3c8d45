"""The SQL of jobs by itself, on the oldest and the newest server."""

from __future__ import annotations

import threading
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import Connect, call, claim, enqueue, refused, rows, sequence, value
from tests.support.postgres import VERSIONS


@pytest.fixture(params=VERSIONS, ids=lambda version: f"pg{version}")
def pg_version(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version


@pytest.fixture
def queue(conn: Connection) -> str:
    conn.execute("select trunkline.create_queue('q')")
    return "q"


def finish(conn: Connection, receipt: str, id: object, **named: object) -> list[str]:
    given = {"p_results": [b"5"], "p_tracked": [True], **named}
    return list(call(conn, "settle_jobs", "ack", [receipt], [id], **given)[0][0])


def test_two_that_end_at_once_start_the_one_that_waits_exactly_once(conn: Connection, connect: Connect, queue: str) -> None:
    """The second waits for the first at the row of the job that waits, and sees that it is the last."""
    for _ in range(2):
        enqueue(conn, queue, 1)
    one, two = claim(conn, queue, 2)
    waiting = call(conn, "enqueue_after", queue, [one.id, two.id], b"2", "last")[0]
    first, second = connect(), connect()
    with first.transaction():
        finish(first, one.receipt, one.id)
        done: list[list[str]] = []
        other = threading.Thread(target=lambda: done.append(finish(second, two.receipt, two.id)))
        other.start()
        other.join(0.3)
        assert other.is_alive()
    other.join(20)
    assert done == [["done"]]
    assert [row.id for row in claim(conn, queue, 10)] == [waiting.id]
    assert value(conn, "select count(*) from trunkline.job_waiting") == 0


def test_what_slipped_past_is_found_by_upkeep(conn: Connection, connect: Connect, queue: str) -> None:
    """The job it waits for ended in a transaction that could not see it yet."""
    enqueue(conn, queue, 1)
    [one] = claim(conn, queue, 1)
    other = connect()
    with other.transaction():
        finish(other, one.receipt, one.id)
        waiting = call(conn, "enqueue_after", queue, [one.id], b"2", "last")[0]
    assert claim(conn, queue) == []
    conn.execute("select trunkline.run_upkeep('jobs')")
    assert [row.id for row in claim(conn, queue, 10)] == [waiting.id]


@pytest.fixture
def waiting(conn: Connection, queue: str) -> UUID:
    """A job for queue `other` that waits for a job of `q`, and one for `q` that waits for the same."""
    conn.execute("select trunkline.create_queue('other')")
    enqueue(conn, queue, 1)
    [parent] = rows(conn, "select id from trunkline.peek_queue('q')")
    call(conn, "enqueue_after", queue, [parent.id], b"3", "last")
    return UUID(str(call(conn, "enqueue_after", "other", [parent.id], b"2", "last")[0].id))


def failure(conn: Connection, id: UUID) -> str:
    """The error of a job that ended as failed."""
    [row] = call(conn, "job_results", [id])
    assert (row.state, call(conn, "get_job", id)[0].state) == ("failed", "failed")
    return str(row.error)


def test_a_queue_for_which_jobs_wait_is_deleted_by_force_only(conn: Connection, waiting: UUID) -> None:
    with refused("TL021", 'cannot delete queue "other": blocked jobs (1)'):
        call(conn, "delete_queue", "other")
    assert call(conn, "get_job", waiting)[0].state == "blocked"
    call(conn, "delete_queue", "other", True)
    assert failure(conn, waiting) == 'queue "other" was deleted'
    [parent] = claim(conn, "q")
    assert finish(conn, parent.receipt, parent.id) == ["done"]
    assert [row.payload for row in claim(conn, "q")] == [b"3"]


@pytest.mark.parametrize("how", ["deleted", "smaller"])
def test_a_job_that_its_queue_refuses_fails_alone(conn: Connection, connect: Connect, waiting: UUID, how: str) -> None:
    """Its parent can be acked, and the other job that waited for it starts."""
    if how == "deleted":
        # a job that comes to wait while the queue is deleted is not seen by the deletion
        conn.execute("update trunkline.job_waiting set queue = 'nowhere' where waiting_id = %s", (waiting,))
    else:
        conn.execute("update trunkline.job_waiting set payload = '\"22\"' where waiting_id = %s", (waiting,))
        call(conn, "alter_queue", "other", p_max_payload=1)
    [parent] = claim(conn, "q")
    assert finish(conn, parent.receipt, parent.id) == ["done"]
    assert failure(conn, waiting).startswith("could not be enqueued: ")
    assert [row.payload for row in claim(conn, "q")] == [b"3"]


def test_upkeep_starts_the_jobs_of_other_queues(conn: Connection, connect: Connect, waiting: UUID) -> None:
    conn.execute("update trunkline.job_waiting set queue = 'nowhere' where waiting_id = %s", (waiting,))
    [parent] = claim(conn, "q")
    call(conn, "ack", [parent.receipt])
    call(conn, "store_result", parent.id, b"1")
    assert value(conn, "select trunkline.run_upkeep('jobs')") == 1
    assert failure(conn, waiting).startswith('could not be enqueued: queue "nowhere" does not exist')
    assert [row.payload for row in claim(conn, "q")] == [b"3"]


def test_a_lost_lease_leaves_no_trace(conn: Connection, queue: str, clock: Clock) -> None:
    enqueue(conn, queue, 1)
    [one] = claim(conn, queue, 1)
    clock.advance(60)
    assert finish(conn, one.receipt, one.id) == ["lost"]
    assert rows(conn, "select * from trunkline.job_results(array[%s::uuid])", one.id) == []


def test_markers_are_taken_by_one(conn: Connection, connect: Connect) -> None:
    assert call(conn, "begin_once", "job", "k")[0].state == "start"
    assert call(conn, "begin_once", "job", "k")[0].state == "unknown"
    assert call(conn, "begin_once", "job", "k", p_rerun=True)[0].state == "start"
    conn.execute("select trunkline.end_once('job', 'k', false)")
    assert call(conn, "begin_once", "job", "k")[0].state == "start"
    conn.execute("select trunkline.end_once('job', 'k', true, '7')")
    assert tuple(call(conn, "begin_once", "job", "k")[0]) == ("done", b"7")
    other = connect()
    with other.transaction():
        assert call(other, "begin_once", "job", "two")[0].state == "start"
        conn.execute("set lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            call(conn, "begin_once", "job", "two")
    assert call(conn, "begin_once", "job", "two")[0].state == "unknown"


def test_slots_are_shared_and_come_back(conn: Connection, clock: Clock) -> None:
    conn.execute("select trunkline.ensure_limit('l', 5)")

    def hold(worker: str, want: int) -> int:
        return int(call(conn, "acquire_limit", worker, ["l"], [want])[0][0][0])

    assert (hold("a", 4), hold("b", 4), hold("a", 1), hold("b", 4)) == (4, 1, 1, 4)
    clock.advance(20)
    assert hold("c", 10) == 5
    conn.execute("select trunkline.forget_worker('c')")
    assert hold("a", 10) == 5


def test_tokens_refill_with_time_and_no_further_than_the_burst(conn: Connection, clock: Clock) -> None:
    conn.execute("select trunkline.ensure_limit('l', null, 10, 20)")

    def take(want: int) -> int:
        return int(call(conn, "acquire_tokens", "l", want)[0].granted)

    assert take(15) == 15 and take(15) == 5
    assert 0 < call(conn, "acquire_tokens", "l", 1)[0].seconds <= 0.1
    clock.advance(1)
    assert take(100) in (10, 11)
    clock.advance(3600)
    assert take(100) == 20


def test_unique_keys_are_free_when_their_job_ended_or_their_time_is_over(conn: Connection, queue: str, clock: Clock) -> None:
    def add() -> tuple[object, bool]:
        row = call(conn, "enqueue_unique", queue, "k", b"1", "kind", p_hold="1 hour")[0]
        return row.id, row.duplicate

    first = add()
    assert add() == (first[0], True)
    [one] = claim(conn, queue, 1)
    assert one.headers == {"trunkline-unique": "k"}
    assert finish(conn, one.receipt, one.id, p_uniques=["k"]) == ["done"]
    assert add()[1] is False
    clock.advance(3601)
    assert add()[1] is False


def test_snooze_waits_and_does_not_count(conn: Connection, queue: str, clock: Clock) -> None:
    enqueue(conn, queue, 1)
    [one] = claim(conn, queue, 1)
    assert call(conn, "snooze", [one.receipt], "10 seconds")[0].result == "done"
    assert claim(conn, queue) == []
    clock.advance(11)
    assert claim(conn, queue)[0].attempt == 1


def test_a_delivery_knows_whether_the_one_before_was_answered(conn: Connection, queue: str, clock: Clock) -> None:
    def lost(*receipts: str) -> list[bool]:
        return list(value(conn, "select trunkline.lost_before(%s)", list(receipts)))

    for n in range(3):
        enqueue(conn, queue, n)
    first = claim(conn, queue, 3)
    assert lost(*(each.receipt for each in first)) == [False] * 3
    call(conn, "nack", [first[0].receipt], "0 seconds", "no")
    clock.advance(3600)
    second = claim(conn, queue, 3)
    while len(second) < 3:
        second += claim(conn, queue, 3)
    assert {each.id: lost(each.receipt)[0] for each in second} == {
        first[0].id: False,
        first[1].id: True,
        first[2].id: True,
    }
    # The third attempt of a job that was lost, released and then refused.
    [again] = [each for each in second if each.id == first[1].id]
    call(conn, "release", [again.receipt])
    [again] = claim(conn, queue, 1)
    assert lost(again.receipt) == [True]
    call(conn, "nack", [again.receipt], "0 seconds", "no")
    [again] = claim(conn, queue, 1)
    assert (again.attempt, lost("nonsense", again.receipt)) == (3, [False, False])


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("select trunkline.settle_jobs('end', '{}', '{}')", "TL001"),
        ("select trunkline.settle_jobs('ack', '{a}', '{}')", "TL001"),
        ("select trunkline.enqueue_after('q', '{}', '1', 'k')", "TL001"),
        ("select trunkline.enqueue_after('nowhere', array[gen_random_uuid()], '1', 'k')", "TL011"),
        ("select trunkline.enqueue_unique('q', '', '1', 'k')", "TL001"),
        ("select trunkline.begin_once('', 'k')", "TL001"),
        ("select trunkline.cancel_job(null)", "TL001"),
        ("select trunkline.ensure_limit('bad name', 1)", "TL002"),
        ("select trunkline.ensure_limit('l', null, 'NaN')", "TL001"),
        ("select trunkline.acquire_limit('w', '{l}', '{1}', '0')", "TL005"),
        ("select trunkline.snooze('{}', null)", "TL005"),
        ("select trunkline.list_jobs(null, 'asleep')", "TL001"),
        ("select trunkline.register_worker('', '{}')", "TL001"),
    ],
)
def test_refusals(conn: Connection, queue: str, statement: str, code: str) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        conn.execute(statement.encode())
    assert refusal.value.sqlstate == code


def test_what_is_not_dead_cannot_be_retried(conn: Connection) -> None:
    with refused("TL014"):
        call(conn, "retry_job", uuid4())


def test_a_job_without_an_offset_is_seen_and_can_be_cancelled(conn: Connection, connect: Connect, queue: str) -> None:
    """Just enqueued; and committed so late that the log has gone on without it."""
    [late] = rows(conn, "select trunkline.new_id() as id")
    other = connect()
    with other.transaction():
        call(other, "enqueue", queue, "{}", p_label="late", p_id=late.id)
        fresh = call(conn, "enqueue", queue, "{}", p_label="fresh")[0]
        with refused("TL018", "does not exist"):
            call(conn, "cancel_job", late.id)
        # in a transaction: nothing gives an offset to it before
        with conn.transaction():
            shown = call(conn, "get_job", fresh.id)[0]
        assert (shown.state, shown.kind, shown.payload) == ("ready", "fresh", b"{}")
        claim(conn, queue, 1)
    assert [tuple(call(conn, "cancel_job", id)[0]) for id in (late.id, fresh.id)] == [("requested",), ("requested",)]
    with conn.transaction():
        conn.execute("set transaction read only")
        assert call(conn, "get_job", late.id)[0].cancel == "cancelled"
        assert [row.kind for row in call(conn, "list_jobs")] == ["fresh"]
    assert sorted((row.kind, row.state) for row in call(conn, "list_jobs")) == [("fresh", "running"), ("late", "ready")]


def test_list_and_get_say_the_same(conn: Connection, queue: str, clock: Clock) -> None:
    """Deliveries and jobs use different terms: delayed, paused, held back by the queue, left by a dead worker."""
    conn.execute("select trunkline.create_queue('slow', p_delivery_delay => '1 hour')")
    for name in ("snoozed", "nacked", "lost"):
        call(conn, "enqueue", queue, "{}", p_label=name)
    call(conn, "enqueue", "slow", "{}", p_label="held")
    snoozed, nacked, _ = claim(conn, queue, 3)
    call(conn, "snooze", [snoozed.receipt], "1 hour")
    call(conn, "nack", [nacked.receipt], "1 hour", "no")
    call(conn, "enqueue", queue, "{}", p_label="paused")
    conn.execute("select trunkline.pause_queue('q')")
    sequence(conn)
    clock.advance(120)
    # in a transaction: no pass ends the lease before
    with conn.transaction():
        listed = {row.kind: row for row in call(conn, "list_jobs")}
    assert {kind: (row.state, row.attempt) for kind, row in listed.items()} == {
        "snoozed": ("delayed", 0),
        "nacked": ("delayed", 1),
        "lost": ("running", 1),
        "paused": ("ready", 0),
        "held": ("delayed", 0),
    }
    for row in listed.values():
        with conn.transaction():
            [shown] = call(conn, "get_job", row.id)
        assert {name: getattr(shown, name) for name in row._fields if name != "position"} == {
            name: value for name, value in row._asdict().items() if name != "position"
        }
