"""Delayed messages against open transactions, purges and the rotation of their table: each is delivered once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.conftest import Clock
from tests.races.sessions import Session, check_running, wait_for

MakeSession = Callable[[], Session]

GENERATION = "select last_value from trunkline.delayed_generation"


@pytest.fixture(autouse=True)
def queue(main: Session) -> None:
    main.run("select trunkline.create_queue('q'), trunkline.create_topic('t', p_segment_rows => 16)")
    main.run("update trunkline.settings set value = '0' where name = 'rotate_bytes'")


def enqueue(session: Session, *values: int, delay: str = "1 hour", queue: str = "q") -> None:
    for value in values:
        session.run("select trunkline.enqueue(%s, %s::jsonb, p_delay => %s::interval)", queue, str(value), delay)


def passes(main: Session, count: int = 2) -> None:
    for _ in range(count):
        main.run("select trunkline.run_upkeep('pass')")


def step(main: Session) -> int:
    """One step of a rotation, however little the current partition has grown."""
    main.run("update trunkline.delayed_rotation set carried_bytes = 0")
    return int(main.one("select trunkline._upkeep_delayed()"))


def rotate(main: Session) -> None:
    """Move on to the next partition, and empty the one that is used after it."""
    before = main.one(GENERATION)
    for _ in range(10):
        step(main)
        oldest = (main.one(GENERATION) + 1) % 3
        if main.one(GENERATION) > before and main.one(f"select count(*) from trunkline.delayed_{oldest}") == 0:
            return
    raise AssertionError("the rotation did not succeed")


def deliver(main: Session, queue: str = "q") -> list[int]:
    """Claim and ack everything that is due."""
    values: list[int] = []
    while rows := main.run("select receipt, convert_from(payload, 'utf8')::int from trunkline.claim(%s, 100)", queue):
        main.run("select trunkline.ack(%s)", [row[0] for row in rows])
        values += [row[1] for row in rows]
    return values


def test_a_message_that_commits_after_its_due_time(main: Session, session: MakeSession, clock: Clock) -> None:
    late = session()
    late.run("begin")
    enqueue(late, 1)
    enqueue(main, 2)
    passes(main)
    clock.advance(3601)
    passes(main)
    assert deliver(main) == [2]
    late.run("commit")
    passes(main)
    assert deliver(main) == [1]
    passes(main)
    assert deliver(main) == []


def test_a_transaction_that_claims_its_own_delayed_message(main: Session, session: MakeSession, clock: Clock) -> None:
    """Without a service a claim runs passes in its transaction: they leave what that transaction has published."""
    own = session()
    own.run("begin")
    enqueue(own, 1)
    clock.advance(3601)
    assert deliver(own) == []
    own.run("commit")
    assert deliver(main) == [1]
    assert deliver(main) == []


@pytest.mark.parametrize("seen", [False, True])
def test_rotations_keep_what_waits(main: Session, clock: Clock, seen: bool) -> None:
    """Also what no pass has seen yet."""
    enqueue(main, 1, 2, 3)
    if seen:
        passes(main)
    for _ in range(4):
        rotate(main)
    assert main.one("select delayed from trunkline.queue_stats('q')") == 3
    clock.advance(3601)
    assert sorted(deliver(main)) == [1, 2, 3]
    for _ in range(3):
        rotate(main)
    assert main.one("select count(*) from trunkline.delayed") == 0
    assert deliver(main) == []


def test_a_copied_message_counts_once(main: Session, session: MakeSession, clock: Clock) -> None:
    """Between two steps of a rotation a message has two rows."""
    enqueue(main, 1, 2)
    passes(main)
    while main.one(GENERATION) < 2:
        step(main)
    assert step(main) == 2
    assert main.one("select count(*) from trunkline.delayed") == 4
    assert main.one("select delayed from trunkline.queue_stats('q')") == 2
    clock.advance(3601)
    assert sorted(deliver(main)) == [1, 2]


def test_an_open_publisher_keeps_its_partition(main: Session, session: MakeSession, clock: Clock) -> None:
    slow = session()
    slow.run("begin")
    enqueue(slow, 1)
    enqueue(main, 2)
    before = main.one(GENERATION)
    for _ in range(10):
        step(main)
    assert main.one(GENERATION) == before + 2, "it would be the next one to use"
    slow.run("commit")
    rotate(main)
    clock.advance(3601)
    assert sorted(deliver(main)) == [1, 2]


def test_a_publisher_that_missed_two_rotations_fails(main: Session, session: MakeSession, clock: Clock) -> None:
    """It has read the generation and is stopped before it inserts."""
    main.run("select pg_advisory_lock(1)")
    source = main.one("select pg_get_functiondef('trunkline._newest_purge'::regproc)")
    main.run(source.replace("$function$ select", "$function$ select pg_advisory_xact_lock_shared(1); select", 1))
    stopped = session()
    call = stopped.start("select trunkline.enqueue('q', '1', p_delay => '1 hour')")
    wait_for(main, "select cardinality(pg_blocking_pids(%s)) > 0", stopped.pid)
    main.run(source)
    for value in (2, 3):
        enqueue(main, value)
        rotate(main)
    main.run("select pg_advisory_unlock(1)")
    with pytest.raises(psycopg.errors.SerializationFailure, match="rotated twice"):
        call.result(20)
    rotate(main)
    clock.advance(3601)
    assert sorted(deliver(main)) == [2, 3]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_purge_spares_what_it_did_not_see(main: Session, session: MakeSession, clock: Clock, ordered: bool) -> None:
    main.run("select trunkline.create_queue('p', p_ordered => %s)", ordered)
    late = session()
    late.run("begin")
    enqueue(late, 1, queue="p")
    enqueue(main, 2, 3, queue="p")
    passes(main)
    assert main.one("select trunkline.purge_queue('p')") == 2
    late.run("commit")
    enqueue(main, 4, queue="p")
    stats = "select delayed, purged from trunkline.queue_stats('p')"
    assert main.run(stats) == [(2, 2)]
    passes(main)
    assert main.run(stats) == [(2, 2)]
    rotate(main)
    clock.advance(3601)
    passes(main)
    assert sorted(deliver(main, "p")) == [1, 4]
    assert main.run(stats) == [(0, 2)]
    assert main.run("select accepted, acked, purged from trunkline.audit_queue('p')") == [(4, 2, 2)]


def test_a_purge_of_the_same_transaction(main: Session, clock: Clock) -> None:
    main.run("begin")
    enqueue(main, 1)
    assert main.one("select trunkline.purge_queue('q')") == 1
    enqueue(main, 2)
    main.run("commit")
    passes(main)
    clock.advance(3601)
    assert deliver(main) == [2]
    assert main.one("select purged from trunkline.queue_stats('q')") == 1


def test_a_locked_topic_does_not_stop_the_others(main: Session, session: MakeSession, clock: Clock) -> None:
    """The maker of a new segment is open, so a delayed message of that topic cannot be appended."""
    main.run("select trunkline.publish('t', '0', p_delay => '1 hour')")
    enqueue(main, 1)
    passes(main)
    maker = session()
    maker.run("begin")
    maker.run("select count(*) from trunkline.publish_many('t', array_fill('1'::bytea, array[40]))")
    clock.advance(3601)
    passes(main)
    assert deliver(main) == [1]
    maker.run("commit")
    clock.advance(2)
    passes(main)
    assert main.one("select count(*) from trunkline.read('t', 0, 1, 1000) where payload = '0'") == 1
    clock.advance(2)
    passes(main)
    assert main.one("select count(*) from trunkline.read('t', 0, 1, 1000) where payload = '0'") == 1


def test_a_deleted_topic_with_delayed_messages(main: Session, clock: Clock) -> None:
    main.run("select trunkline.publish('t', '0', p_delay => '1 hour')")
    enqueue(main, 1)
    passes(main)
    main.run("select trunkline.delete_topic('t')")
    clock.advance(3601)
    passes(main)
    assert deliver(main) == [1]
    for _ in range(3):
        rotate(main)
    assert main.one("select count(*) from trunkline.delayed") == 0


def test_the_clock_goes_back(main: Session, clock: Clock) -> None:
    """A message is not delivered before its time, though passes have done everything up to a later time."""
    clock.advance(86400)
    enqueue(main, 1, delay="1 second")
    passes(main)
    clock.advance(-86400)
    enqueue(main, 2)
    passes(main, 4)
    assert deliver(main) == []
    assert main.one("select delayed from trunkline.queue_stats('q')") == 2
    rotate(main)
    clock.advance(3601)
    passes(main)
    assert deliver(main) == [2]
    clock.advance(86400)
    passes(main)
    assert deliver(main) == [1]


def test_publishers_passes_and_rotations(main: Session, session: MakeSession) -> None:
    """Threads: short delays, rollbacks, pauses; each committed message is delivered once."""
    stop = threading.Event()

    def publish(own: Session, name: int) -> list[int]:
        draw, sent = random.Random(name), []
        for n in range(200):
            value = name * 1000 + n
            while True:
                own.run("begin")
                try:
                    enqueue(own, value, delay=f"{draw.choice((1, 30, 150, 600))} milliseconds")
                    break
                except psycopg.errors.SerializationFailure:
                    own.run("rollback")  # rotated twice during the publish: retry, as the hint says
            if draw.random() < 0.2:
                own.run("select pg_sleep(%s)", draw.random() / 10)
            end = draw.choice(("commit", "commit", "commit", "rollback"))
            own.run(end)
            sent += [value] if end == "commit" else []
        return sent

    def upkeep(own: Session, task: str) -> None:
        while not stop.is_set():
            if task == "delayed":
                step(own)
            else:
                own.run(f"select trunkline._upkeep_{task}()")

    with ThreadPoolExecutor(6) as threads:
        keepers = [threads.submit(upkeep, session(), task) for task in ("pass", "delayed", "sequence")]
        publishers = [threads.submit(publish, session(), n) for n in range(3)]
        sent: list[int] = []
        delivered: list[int] = []
        try:
            while not all(publisher.done() for publisher in publishers):
                check_running(keepers)
                delivered += deliver(main)
            sent = [value for publisher in publishers for value in publisher.result()]
            while main.one("select ready + delayed + leased > 0 from trunkline.queue_stats('q')"):
                check_running(keepers)
                delivered += deliver(main)
        finally:
            stop.set()
    assert Counter(delivered) == Counter(sent)
    assert main.one(GENERATION) > 3, "the table was rotated meanwhile"
