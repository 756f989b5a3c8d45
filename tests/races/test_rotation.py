"""Rotation of the state tables under load, and against the other tasks: no loss, no duplicates, no failures."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.conftest import Clock
from tests.races.sessions import Session, answer, check_running, wait_blocked, wait_for

MakeSession = Callable[[], Session]
ROTATIONS = 30


def rotate_bytes(session: Session) -> None:
    """Each call of _rotate leaves the current partition, however small it is."""
    session.run("update trunkline.settings set value = '0' where name = 'rotate_bytes'")


def rotate(session: Session) -> None:
    """A rotation gives up when a table is in use: try until it was done."""
    rotate_bytes(session)
    wait_for(session, "select trunkline._swap_partitions() = 1")
    wait_for(session, "select trunkline._rotate() > 0")


def consume(session: Session, stop: threading.Event) -> list[bytes]:
    """Claim and ack; what was acked."""
    acked: list[bytes] = []
    while not stop.is_set():
        rows = session.run("select receipt, payload from trunkline.claim('q', 5)")
        results = session.column("select result from trunkline.ack(%s)", [row[0] for row in rows])
        assert set(results) <= {"done"}
        acked += [row[1] for row in rows]
    return acked


def follow(session: Session, member: str, stop: threading.Event) -> list[tuple[int, bytes]]:
    """Fetch and commit; what was committed, with its offset."""
    done: list[tuple[int, bytes]] = []
    while not stop.is_set():
        rows = session.run("select log_offset, payload, partition, generation from trunkline.fetch('t', 'g', %s, 7)", member)
        if rows:
            *_, (last, _, partition, generation) = rows
            assert session.one("select trunkline.commit('t', 'g', %s, %s, %s)", partition, generation, last) == "done"
            done += [(row[0], row[1]) for row in rows]
    return done


def produce(session: Session, name: int, stop: threading.Event) -> list[bytes]:
    """Publish to both, until told to stop."""
    sent: list[bytes] = []
    while not stop.is_set():
        payload = f"{name}/{len(sent)}".encode()
        session.run("select trunkline.enqueue_bytes('q', %s), trunkline.publish_bytes('t', %s)", payload, payload)
        sent.append(payload)
    return sent


def test_traffic_goes_on_through_rotations(main: Session, session: MakeSession) -> None:
    """Publishers, claims, acks, fetches and commits in threads, while the tables rotate thirty times."""
    main.run("select trunkline.create_queue('q'), trunkline.create_topic('t')")
    stop, dry = threading.Event(), threading.Event()
    with ThreadPoolExecutor(6) as threads:
        producers = [threads.submit(produce, session(), n, stop) for n in range(2)]
        consumers = [threads.submit(consume, session(), dry) for _ in range(3)]
        follower = threads.submit(follow, session(), "one", dry)
        try:
            for _ in range(ROTATIONS):
                rotate(main)
                check_running([*producers, *consumers, follower])
            stop.set()
            sent = [payload for producer in producers for payload in producer.result(30)]
            wait_for(main, "select ready + leased = 0 from trunkline.queue_stats('q')")
            wait_for(main, "select lag = 0 from trunkline.group_stats('t', 'g')")
        finally:
            stop.set()
            dry.set()
        acked = [payload for consumer in consumers for payload in consumer.result(30)]
        committed = follower.result(30)
    assert Counter(acked) == Counter(sent)
    assert [offset for offset, _ in committed] == list(range(1, len(sent) + 1))
    assert Counter(payload for _, payload in committed) == Counter(sent)
    assert main.one("select acked from trunkline.queue_stats('q')") == len(sent)


def test_retention_that_waits_for_a_rotation_keeps_leased_messages(
    main: Session, session: MakeSession, clock: Clock
) -> None:
    """The rotation carries the open lease to another table while retention waits: it must not take it for settled."""
    main.run("select trunkline.create_queue('q', p_lease => '1 hour', p_retention => '1 second', p_segment_rows => 16)")
    main.run("select trunkline.enqueue_many('q', array_fill('1'::bytea, array[40]))")
    [receipt] = main.column("select receipt from trunkline.claim('q', 1)")
    rest = main.column("select receipt from trunkline.claim('q', 100)")
    main.run("select trunkline.ack(%s)", rest)
    for _ in range(6):
        clock.advance(10)
        main.run("select trunkline.run_upkeep('pass'), trunkline.run_upkeep('segments')")
    rotate(main)
    rotate(main)
    upkeep, other = session(), session()
    with upkeep.transaction():
        assert upkeep.one("select trunkline._rotate()") > 0
        call = other.start("select trunkline.run_upkeep('retention')")
        wait_blocked(main, other)
    answer(call)
    assert main.column("select result from trunkline.nack(%s, '0')", [receipt]) == ["done"]
    assert main.column("select log_offset from trunkline.claim('q')") == [1]


def test_rotation_does_not_wait_for_an_open_claim(main: Session, session: MakeSession) -> None:
    """It gives up within its lock timeout and reports that; sessions that arrive meanwhile continue."""
    main.run("select trunkline.create_queue('q')")
    main.run("select trunkline.enqueue_many('q', array_fill('1'::bytea, array[10]))")
    main.run("call trunkline.sequence()")
    holder = session()
    with holder.transaction():
        assert len(holder.run("select * from trunkline.claim('q', 5)")) == 5
        rotate_bytes(main)
        assert [main.one("select trunkline._rotate()") > 0 for _ in range(3)] == [True, True, False]
    assert main.one("select trunkline._rotate()") > 0
    assert len(main.run("select * from trunkline.claim('q', 10)")) == 5


def test_transactions_that_overlap_do_not_hold_rotation_back(main: Session, session: MakeSession) -> None:
    """Claims, acks, commits and reads in transactions, one of which is open at any time."""
    main.run("select trunkline.create_queue('q'), trunkline.create_topic('t', 2)")
    main.run("select trunkline.create_group('t', 'g', 'earliest')")
    rotate_bytes(main)
    places = set()
    sessions = [session(), session()]
    for turn in range(12):
        main.run("select trunkline.enqueue('q', '1'), trunkline.publish('t', '1')")
        main.run("call trunkline.sequence()")
        ours = sessions[turn % 2]
        ours.run("begin")
        [(receipt,)] = ours.run("select receipt from trunkline.claim('q', 1)")
        ours.run("select trunkline.ack(array[%s])", receipt)
        batch = ours.run("select partition, generation, log_offset from trunkline.fetch('t', 'g', %s)", f"m{turn % 2}")
        if batch:
            ours.run("select trunkline.commit('t', 'g', %s, %s, %s)", *batch[-1])
        ours.run("select trunkline.read('t', 0, 1), trunkline.queue_stats(), trunkline.group_stats()")
        ours.run("select trunkline.explain_message(gen_random_uuid())")
        main.run("select trunkline.run_upkeep('rotate')")
        places.add(main.run("select e.rotated_at, r.rotated_at from trunkline.epoch e, trunkline.rotation r")[0])
        if turn > 0:
            sessions[(turn + 1) % 2].run("commit")
    assert len({ticks for ticks, _ in places}) >= 5
    assert len({leases for _, leases in places}) >= 3


def test_a_lease_that_is_moved_while_its_settle_waits_is_found(main: Session, session: MakeSession) -> None:
    """It was moved once before, so the receipt names a partition where it is no more."""
    main.run("select trunkline.create_queue('q', p_lease => '1 hour'), trunkline.enqueue('q', '1')")
    main.run("call trunkline.sequence()")
    rotate_bytes(main)
    [(receipt,)] = main.run("select receipt from trunkline.claim('q', 1)")
    place = "select rotation from trunkline.leases"
    while main.one(place) == 0:
        main.run("select trunkline._rotate()")
    moved = main.one(place)
    rotation, settler = session(), session()
    while rotation.one(place) == moved:
        rotation.run("commit")
        rotation.run("begin")
        rotation.run("select trunkline._rotate()")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(settler.column, "select result from trunkline.ack(array[%s])", receipt)
        wait_blocked(main, settler)
        rotation.run("commit")
        assert waiting.result(30) == ["done"]


def test_rolled_back_rotation_changes_nothing(main: Session, session: MakeSession) -> None:
    main.run("select trunkline.create_queue('q')")
    main.run("select trunkline.enqueue_many('q', array_fill('1'::bytea, array[10]))")
    receipts = main.column("select receipt from trunkline.claim('q', 5)")
    rotate_bytes(main)
    upkeep = session()
    for _ in range(3):
        with upkeep.transaction("rollback"):
            assert all(upkeep.one("select trunkline._rotate()") > 0 for _ in range(3))
    assert main.column("select result from trunkline.ack(%s)", receipts) == ["done"] * 5
    assert len(main.run("select * from trunkline.claim('q', 10)")) == 5


def test_lease_that_no_pass_has_accounted_for_survives_rotations(main: Session) -> None:
    """A draw is judged two passes after a pass has seen it: until then its lease is what tells it from a hole."""
    main.run("select trunkline.create_queue('q')")
    main.run("select trunkline.enqueue_many('q', array_fill('1'::bytea, array[10]))")
    main.run("call trunkline.sequence()")
    rotate_bytes(main)
    receipts = main.column("select receipt from trunkline.claim('q', 5)")
    assert main.column("select result from trunkline.ack(%s)", receipts) == ["done"] * 5
    for _ in range(9):
        assert main.one("select trunkline._rotate()") > 0
    assert len(main.run("select * from trunkline.claim('q', 100)")) == 5
    assert main.run("select * from trunkline.claim('q', 100)") == []


def test_an_audit_in_a_snapshot_older_than_a_rotation_is_refused(main: Session, session: MakeSession) -> None:
    """Truncated tables look empty to it: it would count what is settled as ready."""
    main.run("select trunkline.create_queue('q')")
    main.run("select trunkline.enqueue('q', '1') from generate_series(1, 10)")
    receipts = main.column("select receipt from trunkline.claim('q', 5)")
    main.run("select trunkline.ack(%s)", receipts)
    auditor = session()
    auditor.run("begin isolation level repeatable read")
    auditor.run("select 1")
    rotate(main)
    rotate(main)
    with pytest.raises(psycopg.errors.SerializationFailure, match="older than the last rotation"):
        auditor.run("select * from trunkline.audit_queue('q')")
    auditor.run("rollback")
    auditor.run("begin isolation level repeatable read")
    assert auditor.run("select accepted, ready, acked from trunkline.audit_queue('q')") == [(10, 5, 5)]
    auditor.run("commit")


def test_a_read_that_waits_for_a_rotation_holds_nothing_that_it_takes_later(main: Session, session: MakeSession) -> None:
    """Upkeep locks leases, and then ticks in the same transaction."""
    main.run("select trunkline.create_queue('q')")
    upkeep, reader = session(), session()
    with upkeep.transaction():
        upkeep.run("lock table trunkline.leases_1 in access exclusive mode")
        call = reader.start("select trunkline._begin_read()")
        wait_blocked(main, reader)
        held = (
            "select count(*) from pg_locks l join pg_class c on c.oid = l.relation"
            " where l.pid = %s and l.granted and c.relname ~ '^(ticks|positions)_'"
        )
        assert main.one(held, reader.pid) == 0
    answer(call)


def test_a_dump_sees_all_rows_of_its_snapshot(main: Session, session: MakeSession) -> None:
    """A dump takes its snapshot before it locks the tables; rotations in between would truncate what it is to save."""
    main.run("select trunkline.create_queue('q'), trunkline.create_topic('t')")
    main.run("select trunkline.enqueue_bytes('q', n::text::bytea) from generate_series(1, 20) n")
    main.run("select trunkline.enqueue('q', '1', p_delay => '1 day'), trunkline.publish('t', '1')")
    main.run("select count(*) from trunkline.claim('q', 10, '1 hour')")
    rotate(main)
    tables = ("leases", "ticks", "cursor_states", "delayed")
    counts = "select " + ", ".join(f"(select count(*) from trunkline.{table})" for table in tables)
    dump = session()
    dump.run("set application_name = 'pg_dump'")
    dump.run("begin isolation level repeatable read")
    dump.run("select 1")
    for _ in range(6):
        main.run("select trunkline._swap_partitions(), trunkline._rotate(), trunkline._upkeep_delayed()")
    [saved] = dump.run(counts)
    assert all(saved), dict(zip(tables, saved, strict=True))
    dump.run("commit")
    dump.run("set application_name = ''")
    rotate(main)
