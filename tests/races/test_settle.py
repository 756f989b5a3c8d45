"""Settling against settling, expiry and rotation: one of them wins, and the other one gets an error (Q2-Q4)."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.conftest import Clock
from tests.races.sessions import Session, answer, wait_blocked

MakeSession = Callable[[], Session]


@pytest.fixture(autouse=True)
def queue(main: Session) -> None:
    main.run("update trunkline.settings set value = '0' where name = 'rotate_bytes'")
    main.run("select trunkline.create_queue('q', p_backoff_base => '0', p_backoff_jitter => 0)")


def lease(session: Session, n: int = 1) -> list[str]:
    """Enqueue and claim n messages: their receipts."""
    session.run("select trunkline.enqueue_many('q', array_fill('1'::bytea, array[%s]))", n)
    return claim(session, n)


def claim(session: Session, n: int = 10) -> list[str]:
    return session.column("select receipt from trunkline.claim('q', %s)", n)


def settle(session: Session, verb: str, receipts: list[str]) -> list[str]:
    return session.column(f"select result from trunkline.{verb}(%s)", receipts)


def begin(session: Session, verb: str, receipts: list[str]) -> None:
    """Settle in a transaction that stays open."""
    session.run("begin")
    assert settle(session, verb, receipts) == ["done"] * len(receipts)


def audit(session: Session) -> dict[str, int]:
    session.run("begin isolation level repeatable read")
    [row] = session.run("select to_jsonb(a) from trunkline.audit_queue('q') a")
    session.run("commit")
    counts: dict[str, int] = row[0]
    accepted = counts.pop("accepted")
    assert accepted == sum(counts.values())
    return {name: n for name, n in counts.items() if n}


def test_ack_in_open_transaction_wins_over_expiry(main: Session, session: MakeSession, clock: Clock) -> None:
    """The lease expires during the business transaction: no other consumer gets the message, and the ack stands."""
    worker = session()
    receipts = lease(main)
    begin(worker, "ack", receipts)
    clock.advance(60)
    main.run("select trunkline.run_upkeep('pass')")
    assert claim(main) == []
    worker.run("commit")
    clock.advance(60)
    main.run("select trunkline.run_upkeep('pass')")
    assert claim(main) == []
    assert audit(main) == {"acked": 1}


def test_rolled_back_ack_leaves_the_lease(main: Session, session: MakeSession, clock: Clock) -> None:
    worker = session()
    receipts = lease(main)
    begin(worker, "ack", receipts)
    worker.run("rollback")
    assert claim(main) == []
    assert audit(main) == {"leased": 1}
    assert settle(main, "ack", receipts) == ["done"]
    clock.advance(60)
    assert claim(main) == []


def test_rolled_back_ack_lets_the_lease_end(main: Session, session: MakeSession, clock: Clock) -> None:
    worker = session()
    receipts = lease(main)
    begin(worker, "ack", receipts)
    clock.advance(60)
    assert claim(main) == []
    worker.run("rollback")
    # a lease that was in use when it was due is checked again 0.3 s later
    clock.advance(1)
    assert len(claim(main)) == 1
    assert settle(main, "ack", receipts) == ["lost"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_ack_that_waits_for_expiry_is_lost(main: Session, session: MakeSession, clock: Clock, end: str) -> None:
    upkeep, worker = session(), session()
    receipts = lease(main)
    clock.advance(60)
    upkeep.run("begin")
    upkeep.run("select trunkline.run_upkeep('pass')")
    call = worker.start("select result from trunkline.ack(%s)", receipts)
    wait_blocked(main, worker)
    upkeep.run(end)
    assert answer(call) == [("lost",)]
    assert [row[0] for row in main.run("select attempt from trunkline.claim('q')")] == [2]


@pytest.mark.parametrize(("end", "result"), [("commit", "lost"), ("rollback", "done")])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("nack", "ack"),
        ("ack", "nack"),
        ("nack", "nack"),
        ("bury", "nack"),
        ("release", "ack"),
        ("ack", "bury"),
    ],
)
def test_second_settle_waits_and_loses_to_a_committed_first(
    main: Session, session: MakeSession, first: str, second: str, end: str, result: str
) -> None:
    one, two = session(), session()
    receipts = lease(main)
    begin(one, first, receipts)
    call = two.start(f"select result from trunkline.{second}(%s)", receipts)
    wait_blocked(main, two)
    one.run(end)
    assert answer(call) == [(result,)]
    winner = first if end == "commit" else second
    state = {"ack": "acked", "nack": "ready", "release": "ready", "bury": "dead"}[winner]
    assert audit(main) == {state: 1}


def test_acks_at_once_both_answer_done_and_count_once(main: Session, session: MakeSession) -> None:
    one, two = session(), session()
    receipts = lease(main)
    begin(one, "ack", receipts)
    call = two.start("select result from trunkline.ack(%s)", receipts)
    wait_blocked(main, two)
    one.run("commit")
    assert answer(call) == [("done",)]
    assert claim(main) == []
    assert audit(main) == {"acked": 1}


@pytest.mark.parametrize("count", [1, 3])
def test_ack_of_a_message_that_an_open_transaction_acked_waits_ten_seconds_at_most(
    main: Session, session: MakeSession, count: int
) -> None:
    one, two = session(), session()
    receipts = lease(main, count)
    begin(one, "ack", receipts[:1])
    # what the wait is limited by is set for the statement alone, and seen in its own context
    main.run(
        "create or replace function trunkline._wait_ten_seconds() returns boolean language sql volatile as"
        " $$ select set_config('lock_timeout', '200ms', true) is not null $$"
    )
    with pytest.raises(psycopg.errors.LockNotAvailable):
        settle(two, "ack", receipts[:1])
    assert two.one("select current_setting('lock_timeout')") == "0"
    one.run("rollback")
    assert settle(two, "ack", receipts[:1]) == ["done"]


@pytest.mark.parametrize(("end", "state"), [("commit", "ready"), ("rollback", "leased")])
def test_extend_beside_an_open_nack_does_not_wait_and_does_not_keep_it(
    main: Session, session: MakeSession, end: str, state: str
) -> None:
    """As if the extension came first: the nack takes effect with its commit."""
    one, two = session(), session()
    receipts = lease(main)
    begin(one, "nack", receipts)
    assert settle(two, "extend", receipts) == ["done"]
    one.run(end)
    assert audit(main) == {state: 1}


def test_acks_of_one_lease_do_not_wait_for_each_other(main: Session, session: MakeSession) -> None:
    one, two = session(), session()
    receipts = lease(main, 4)
    begin(one, "ack", receipts[:2])
    begin(two, "ack", receipts[2:])
    two.run("commit")
    one.run("rollback")
    assert settle(main, "ack", receipts[1:]) == ["done"] * 3
    assert audit(main) == {"leased": 1, "acked": 3}


def test_extend_in_open_transaction_wins_over_expiry(main: Session, session: MakeSession, clock: Clock) -> None:
    worker = session()
    receipts = lease(main)
    worker.run("begin")
    assert worker.column("select result from trunkline.extend(%s, '5 minutes')", receipts) == ["done"]
    clock.advance(60)
    main.run("select trunkline.run_upkeep('pass')")
    worker.run("commit")
    assert claim(main) == []
    assert settle(main, "ack", receipts) == ["done"]


def test_settle_behind_a_kept_one_gives_up_with_a_clear_error(main: Session, session: MakeSession) -> None:
    one, two = session(), session()
    two.run("set lock_timeout = '300ms'")
    receipts = lease(main)
    begin(one, "nack", receipts)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        settle(two, "ack", receipts)
    one.run("rollback")
    assert settle(two, "ack", receipts) == ["done"]


def test_rotation_leaves_an_open_ack_alone(main: Session, session: MakeSession, clock: Clock) -> None:
    """The rotation gives up in time, and the next one succeeds."""
    worker = session()
    receipts = lease(main)
    begin(worker, "ack", receipts)
    # the partition of the lease is left, and the next one is used: only then must its own be emptied
    assert [main.one("select trunkline._rotate()") > 0 for _ in range(3)] == [True, True, False]
    worker.run("commit")
    for _ in range(4):
        assert main.one("select trunkline._rotate()") > 0
    clock.advance(60)
    assert claim(main) == []
    assert audit(main) == {"acked": 1}


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_settle_that_waits_for_a_rotation_is_kept(main: Session, session: MakeSession, verb: str, end: str) -> None:
    upkeep, worker = session(), session()
    receipts = lease(main)
    for _ in range(2):
        assert main.one("select trunkline._rotate()") > 0
    upkeep.run("begin")
    assert upkeep.one("select trunkline._rotate()") > 0
    call = worker.start(f"select result from trunkline.{verb}(%s)", receipts)
    wait_blocked(main, worker)
    upkeep.run(end)
    assert answer(call) == [("done",)]
    assert audit(main) == {{"ack": "acked", "nack": "ready", "extend": "leased"}[verb]: 1}


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "bury", "extend"])
def test_receipt_works_after_rotations(main: Session, verb: str) -> None:
    receipts = lease(main)
    for _ in range(7):
        assert main.one("select trunkline._rotate()") > 0
    assert settle(main, verb, receipts) == ["done"]


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_open_settle_locks_only_the_partition_of_its_lease(main: Session, verb: str) -> None:
    """Also when the session has settled often enough to have plans for any partition."""
    receipts = lease(main, 20)
    for receipt in receipts[:-1]:
        assert settle(main, verb, [receipt]) == ["done"]
    begin(main, verb, receipts[-1:])
    locked = main.column(
        "select distinct right(relation::regclass::text, 1) from pg_locks where pid = pg_backend_pid()"
        " and relation::regclass::text ~ '(leases|settled|extensions|returns|later)_[012]$'"
    )
    assert locked == ["0"]
    main.run("commit")
