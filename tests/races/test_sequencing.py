"""Sequencing: whatever the order of transaction numbers, ids and commits, each committed message gets one offset (G1-G3)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.conftest import Clock
from tests.races.sessions import Session, answer, wait_blocked

MakeSession = Callable[[], Session]


@pytest.fixture(autouse=True)
def topic(main: Session) -> None:
    main.run("select trunkline.create_topic('t')")


def publish(session: Session, payload: str) -> None:
    session.run("select trunkline.publish('t', to_jsonb(%s::text))", payload)


def head(session: Session) -> int:
    return session.one("select trunkline.head('t')")  # type: ignore[no-any-return]


def log(session: Session) -> list[str]:
    """The payloads in offset order; fails on a hole."""
    rows = session.run("select log_offset, payload from trunkline.read('t', 0, 1, 100000)")
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    return [row[1].decode().strip('"') for row in rows]


def is_whole(session: Session) -> bool:
    """Return true if the newest tick waits for no transaction."""
    return session.one("select whole from trunkline.ticks order by first_offset desc limit 1")  # type: ignore[no-any-return]


def test_first_transaction_that_commits_last_gets_the_last_offset(main: Session, session: MakeSession) -> None:
    slow = session()
    with slow.transaction():
        publish(slow, "slow")
        publish(main, "fast")
        assert log(main) == ["fast"]
    assert log(main) == ["fast", "slow"]


@pytest.mark.parametrize("minutes", [0, 1], ids=["by xmin", "by locks"])
def test_message_of_newer_transaction_with_lower_id_is_kept(
    main: Session, session: MakeSession, clock: Clock, minutes: int
) -> None:
    """The owner of a gap may have a higher number than every finished transaction; the horizon must lie above it."""
    early, late = session(), session()
    early.run("begin")
    early.one("select pg_current_xact_id()")
    with late.transaction():
        publish(late, "low id, high number")
        publish(early, "high id, low number")
        early.run("commit")
        for n in range(5):
            assert head(main) == 1 + n
            clock.advance(60 * minutes)
            publish(main, f"after {n}")
        assert head(main) == 6
    found = log(main)
    assert Counter(found)["low id, high number"] == 1
    assert len(found) == 7


def test_message_of_older_transaction_with_lower_id_is_kept(main: Session, session: MakeSession, clock: Clock) -> None:
    owner = session()
    with owner.transaction():
        publish(owner, "slow")
        for n in range(5):
            publish(main, f"fast {n}")
            assert head(main) == n + 1
            clock.advance(60)
    assert log(main) == [*(f"fast {n}" for n in range(5)), "slow"]


@pytest.mark.parametrize("where", ["same database", "other database"])
def test_rolled_back_ids_are_forgotten_while_unrelated_writer_is_open(
    db: str, main: Session, session: MakeSession, clock: Clock, where: str
) -> None:
    """Gaps and tick rows do not grow with the number of rollbacks, although xmin stands still."""
    publisher = session()
    with psycopg.connect(db if where == "same database" else make_conninfo(db, dbname="postgres")) as unrelated:
        unrelated.execute("select pg_current_xact_id()")
        for n in range(60):
            with publisher.transaction("rollback"):
                publish(publisher, "never")
            publish(publisher, str(n))
            assert head(main) == n + 1
            clock.advance(1.5)
        assert is_whole(main)
        assert main.one("select max(pg_column_size(t.*)) from trunkline.ticks t") < 600
    assert log(main) == [str(n) for n in range(60)]


def test_open_publisher_is_not_forgotten_among_rollbacks(main: Session, session: MakeSession, clock: Clock) -> None:
    """The same, and one of the gaps has an owner: only the others are forgotten."""
    owner, publisher, unrelated = session(), session(), session()
    unrelated.run("begin")
    unrelated.one("select pg_current_xact_id()")
    with owner.transaction():
        publish(owner, "owner")
        for n in range(20):
            with publisher.transaction("rollback"):
                publish(publisher, "never")
            publish(publisher, str(n))
            head(main)
            clock.advance(1.5)
        assert not is_whole(main)
        assert main.one("select max(pg_column_size(t.*)) from trunkline.ticks t") < 600
    unrelated.run("commit")
    assert log(main) == [*(str(n) for n in range(20)), "owner"]


@pytest.mark.parametrize("end", ["commit prepared", "rollback prepared"])
def test_prepared_transaction_keeps_its_gap(main: Session, session: MakeSession, clock: Clock, end: str) -> None:
    owner, unrelated = session(), session()
    unrelated.run("begin")
    unrelated.one("select pg_current_xact_id()")
    name = main.one("select 'p' || gen_random_uuid()")
    owner.run("begin")
    publish(owner, "prepared")
    owner.run(f"prepare transaction '{name}'")
    for n in range(5):
        publish(main, str(n))
        assert head(main) == n + 1
        clock.advance(60)
    main.run(f"{end} '{name}'")
    publish(main, "last")
    found = log(main)
    assert Counter(found) == Counter([*"01234", "last", *(["prepared"] if end == "commit prepared" else [])])
    clock.advance(60)
    publish(main, "later")
    head(main)
    clock.advance(60)
    publish(main, "latest")
    head(main)
    assert is_whole(main)


def test_only_surviving_subtransactions_appear(main: Session, session: MakeSession, clock: Clock) -> None:
    owner = session()
    with owner.transaction():
        owner.run("savepoint one")
        publish(owner, "undone")
        owner.run("rollback to one")
        publish(owner, "kept")
        owner.run("savepoint two")
        owner.run("savepoint three")
        publish(owner, "nested")
        owner.run("release three")
        for n in range(4):
            publish(main, str(n))
            head(main)
            clock.advance(60)
    assert log(main) == [*"0123", "kept", "nested"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_sequence_gives_an_offset_to_what_was_published_before_it_while_another_sequences(
    main: Session, session: MakeSession, end: str
) -> None:
    """The other sequencer read the log before the publish; the caller may not rely on what that one finds."""
    sequencer, reader = session(), session()
    publish(main, "first")
    with sequencer.transaction(end):
        sequencer.run("select trunkline.run_pass(null, array['t'])")
        publish(main, "second")
        call = reader.start("call trunkline.sequence(null, array['t'])")
        wait_blocked(main, reader)
    answer(call)
    fetched = reader.column("select payload from trunkline.fetch('t', 'g', 'm')")
    assert fetched == [b'"first"', b'"second"']


def test_fetch_sees_publish_behind_messages_that_have_offsets(main: Session) -> None:
    publish(main, "first")
    head(main)
    publish(main, "second")
    main.run("call trunkline.sequence()")
    assert [row[0] for row in main.run("select payload from trunkline.fetch('t', 'g', 'm')")] == [b'"first"', b'"second"']


@pytest.mark.parametrize("old", ["above", "below"])
def test_messages_of_another_cluster_get_one_offset_each(main: Session, session: MakeSession, old: str) -> None:
    """After dump and restore transaction numbers start over: the old ones are above all that were used, or in use again."""
    number = main.one("select trunkline.topic_number('topic', 't')")
    open_one = session()
    open_one.run("begin")
    xid = open_one.one("select pg_current_xact_id()::text") if old == "below" else "999999999999"
    publish(main, "one")
    head(main)
    # committed before the dump, without an offset
    publish(main, "two")
    main.run(f"update trunkline.topic_{number} set xid = %s::xid8", xid)
    main.run("update trunkline.ticks set snapshot = '999999999990:999999999990:' where snapshot is not null")
    main.run("update trunkline.settings set value = 'another' where name = 'cluster'")
    # a session looks at a schema once
    main.run("reset trunkline.adopted")
    publish(main, "three")
    assert log(main) == ["one", "two", "three"]
    publish(main, "four")
    open_one.run("commit")
    publish(main, "five")
    assert log(main) == ["one", "two", "three", "four", "five"]


def test_segment_drained_in_another_cluster_is_sealed(main: Session, session: MakeSession) -> None:
    """The same for a segment: it waits for open publishers, but not for numbers that this cluster has not used yet."""
    main.run("select trunkline.create_topic('small', p_segment_rows => 16)")
    main.run("select trunkline.publish_many('small', array_fill('1'::bytea, array[16]))")
    sealed = (
        "select sealed_at is not null from trunkline.segments"
        " where log = 64 * trunkline.topic_number('topic', 'small') and segment = 0"
    )
    publisher = session()
    with publisher.transaction():
        publisher.run("select trunkline.publish('small', '1')")
        for _ in range(2):
            main.run("select trunkline.run_upkeep('segments')")
        assert main.one(
            "select drained_xid is not null from trunkline.segments where segment = 0 and drained_xid is not null"
        )
        assert not main.one(sealed)
        main.run("update trunkline.segments set drained_xid = '999999999999' where drained_xid is not null")
        main.run("select trunkline.run_upkeep('segments')")
        assert main.one(sealed)


def test_sequencers_at_once_give_each_message_one_offset(session: MakeSession, main: Session) -> None:
    """Publishers that roll back one of five, commit out of order, and four sequencers."""
    stop = threading.Event()

    def sequence(one: Session) -> list[int]:
        heads = []
        while not stop.is_set():
            heads.append(head(one))
        return heads

    def produce(one: Session, name: int) -> list[str]:
        kept = []
        for n in range(100):
            payload = f"{name}/{n}"
            lost = n % 5 == name
            with one.transaction("rollback" if lost else "commit"):
                publish(one, payload)
            if not lost:
                kept.append(payload)
        return kept

    with ThreadPoolExecutor(8) as threads:
        sequencers = [threads.submit(sequence, session()) for _ in range(4)]
        producers = [threads.submit(produce, session(), name) for name in range(4)]
        try:
            kept = [payload for producer in producers for payload in producer.result(60)]
        finally:
            stop.set()
        for sequencer in sequencers:
            heads = sequencer.result(60)
            assert heads == sorted(heads)
    found = log(main)
    assert Counter(found) == Counter(kept)
    for name in range(4):
        mine = [payload for payload in found if payload.startswith(f"{name}/")]
        assert mine == [payload for payload in kept if payload.startswith(f"{name}/")], "a publisher sees its own order"


def test_sequencing_does_not_wait_for_who_changes_the_topic(session: MakeSession, main: Session) -> None:
    """A session that changes a topic may wait for a sequencer, which then must not wait for the next segment."""
    topic_id = main.one("select topic_id from trunkline.create_topic('small', p_segment_rows => 64)")
    for _ in range(100):
        main.run("select trunkline.publish('small', '1')")
    changer = session()
    with changer.transaction():
        changer.run("select pg_advisory_xact_lock(778003, %s)", topic_id)
        main.run("set lock_timeout = '2s'")
        assert main.one("select trunkline.head('small', 0)") == 100
    main.run("select trunkline.publish('small', '1')")
    assert main.one("select trunkline.head('small', 0)") == 101
    assert main.one("select count(*) from trunkline.segments where log = 64 * %s", topic_id) == 3
