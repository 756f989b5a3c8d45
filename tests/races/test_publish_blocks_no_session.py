"""An open publisher blocks no session, and no session blocks publishers, nor do rotation and retention: P4."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import Clock
from tests.races.sessions import Session, check_running

MakeSession = Callable[[], Session]


@pytest.fixture
def open_publisher(main: Session, session: MakeSession) -> Session:
    """A session that has published to both and stays in its transaction."""
    main.run("select trunkline.create_topic('t', p_segment_rows => 16, p_retention => '1 second')")
    main.run("select trunkline.create_queue('q', p_segment_rows => 16, p_retention => '1 second')")
    publisher = session()
    publisher.run("begin")
    publisher.run("select trunkline.publish('t', '\"open\"'), trunkline.enqueue('q', '\"open\"')")
    # A session that has to wait for it causes an error instead of a slow test.
    main.run("set lock_timeout = '2s'")
    return publisher


def publish(session: Session, n: int) -> None:
    session.run("select trunkline.publish_many('t', array_fill('1'::bytea, array[%s]))", n)
    session.run("select trunkline.enqueue_many('q', array_fill('1'::bytea, array[%s]))", n)


def test_others_publish_sequence_claim_and_fetch(main: Session, open_publisher: Session) -> None:
    publish(main, 10)
    assert main.one("select trunkline.head('t')") == 10
    receipts = main.column("select receipt from trunkline.claim('q', 100)")
    assert main.column("select result from trunkline.ack(%s)", receipts) == ["done"] * 10
    rows = main.run("select generation, log_offset from trunkline.fetch('t', 'g', 'm')")
    assert [row[1] for row in rows] == list(range(1, 11))
    assert main.one("select trunkline.commit('t', 'g', 0, %s, 10)", rows[0][0]) == "done"
    open_publisher.run("commit")
    assert main.column("select payload from trunkline.claim('q', 100)") == [b'"open"']
    assert main.column("select log_offset from trunkline.fetch('t', 'g', 'm')") == [11]


def test_segments_are_made_and_filled(main: Session, open_publisher: Session) -> None:
    """New segments are attached while a transaction that wrote to the same topic is open."""
    for _ in range(10):
        publish(main, 10)
        main.run("select trunkline.run_upkeep('segments')")
    assert main.one("select trunkline.head('t')") == 100
    open_publisher.run("select trunkline.publish_many('t', array_fill('1'::bytea, array[10]))")
    publish(main, 10)
    open_publisher.run("commit")
    assert main.one("select trunkline.head('t')") == 121
    assert main.column("select log_offset from trunkline.read('t', 0, 1, 1000)") == list(range(1, 122))


def test_state_tables_rotate(main: Session, open_publisher: Session) -> None:
    publish(main, 10)
    assert len(main.column("select receipt from trunkline.claim('q', 5)")) == 5
    main.run("update trunkline.settings set value = '0' where name = 'rotate_bytes'")
    for _ in range(4):
        assert main.one("select trunkline._swap_partitions()") == 1
        assert main.one("select trunkline._rotate()") > 0
    open_publisher.run("commit")
    main.run("call trunkline.sequence()")
    assert len(main.column("select receipt from trunkline.claim('q', 100)")) == 6


def test_retention_of_what_the_publisher_does_not_need_goes_on(main: Session, session: MakeSession, clock: Clock) -> None:
    """Only the segments that an open transaction may still write to have to wait for it."""
    main.run("select trunkline.create_topic('t', p_segment_rows => 16, p_retention => '1 second')")
    main.run("select trunkline.publish_many('t', array_fill('1'::bytea, array[40]))")
    for _ in range(4):
        clock.advance(10)
        main.run("select trunkline.run_upkeep('segments')")
    publisher = session()
    publisher.run("begin")
    publisher.run("select trunkline.publish('t', '\"open\"')")
    main.run("set lock_timeout = '2s'")
    clock.advance(10)
    assert main.one("select trunkline.run_upkeep('retention')") > 0
    assert main.one("select base_offset from trunkline.logs where log > 1") == 41
    publisher.run("select trunkline.publish('t', '\"again\"')")
    publisher.run("commit")
    assert main.column("select payload from trunkline.read('t', 0, 41)") == [b'"open"', b'"again"']


def test_retention_never_takes_the_segment_of_an_open_publisher(
    main: Session, open_publisher: Session, clock: Clock
) -> None:
    publish(main, 60)
    for _ in range(6):
        clock.advance(10)
        main.run("select trunkline.run_upkeep('segments')")
        main.run("select trunkline.run_upkeep('retention')")
        main.run("select trunkline.head('t')")
    assert (
        main.one("select min(base_offset) from trunkline.logs join trunkline.topics using (topic_id) where name = 't'") == 1
    )
    open_publisher.run("commit")
    assert main.one("select trunkline.head('t')") == 61
    assert main.column("select payload from trunkline.read('t', 0, 61)") == [b'"open"']


def limits(session: Session) -> list[int]:
    """Return the id up to which publishers assume that a segment exists, in each partition."""
    source = session.one("select prosrc from pg_proc where proname = 'topic_1_publish'")
    return [int(one) for one in re.findall(r"'{([0-9,]+)}'", source)[0].split(",")]


def test_publishers_trust_only_segments_that_were_there_before(main: Session) -> None:
    """Segments that a transaction attaches are visible before others know them: functions must not use them yet."""
    main.run("select trunkline.create_topic('t', p_segment_rows => 16)")
    there = main.one("select max(segment) + 1 from trunkline.segments")
    # each time beyond the middle of a segment, from where upkeep creates the next one
    for n in (12, 16, 16):
        main.run(f"select trunkline.publish_many('t', array_fill('1'::bytea, array[{n}]))")
        assert main.one("select trunkline.run_upkeep('segments')") > 0
        assert limits(main) == [16 * there]
        there = main.one("select max(segment) + 1 from trunkline.segments")
        main.run("select trunkline.run_upkeep('segments')")
        assert limits(main) == [16 * there], "a later look counts on it"
    main.run("select trunkline.alter_topic('t', 3)")
    assert limits(main) == [16 * there, 0, 0]
    main.run("select trunkline.run_upkeep('segments')")
    assert limits(main) == [16 * there, 16, 16]
    written = main.one("select xmin from pg_proc where proname = 'topic_1_publish'")
    main.run("select trunkline.run_upkeep('segments')")
    assert main.one("select xmin from pg_proc where proname = 'topic_1_publish'") == written


def publish_beside_a_change(main: Session, other: Session) -> None:
    with other.transaction():
        other.run("select trunkline.create_group('t', 'g')")
        main.run("set lock_timeout = '2s'")
        main.run("select trunkline.publish('t', '1')")


def test_a_topic_of_a_subtransaction_is_like_any_other(main: Session, session: MakeSession) -> None:
    """Its publishers do not wait for a session that changes it."""
    with main.transaction():
        main.run("savepoint here")
        main.run("select trunkline.create_topic('t', p_segment_rows => 16)")
    assert limits(main) == [16]
    publish_beside_a_change(main, session())
    assert main.column("select log_offset from trunkline.fetch('t', 'g', 'm')") == [1]


def test_publishers_do_not_wait_for_who_changes_the_topic(main: Session, session: MakeSession) -> None:
    """Also if they are the first in a segment that upkeep has not announced to them."""
    main.run("select trunkline.create_topic('t', p_segment_rows => 16)")
    main.run("select trunkline.publish_many('t', array_fill('1'::bytea, array[40]))")
    assert limits(main) == [16]
    publish_beside_a_change(main, session())
    assert main.one("select trunkline.head('t')") == 41


def test_publishers_do_not_wait_while_a_segment_is_ended_early(main: Session, session: MakeSession, clock: Clock) -> None:
    """Upkeep draws the rest of its ids, up to a million, and publishers continue in the next one immediately."""
    main.run("select trunkline.create_topic('t', p_segment_rows => 100, p_retention => '1 second')")
    main.run("set lock_timeout = '2s'")
    upkeep = session()
    for _ in range(12):
        main.run("select trunkline.publish('t', '1')")
        clock.advance(2)
        with upkeep.transaction():
            upkeep.run("select trunkline.run_upkeep('segments')")
            main.run("select trunkline.publish('t', '1')")
    assert main.one("select trunkline._last_id(1, 0)") > 300
    assert main.one("select trunkline.head('t')") == 24


def test_publishing_goes_on_while_segments_are_made_sealed_and_removed(
    main: Session, session: MakeSession, clock: Clock
) -> None:
    """Publishers in threads against all upkeep tasks: no error, and every message that retention left is readable."""
    main.run("select trunkline.create_topic('t', p_segment_rows => 32, p_retention => '1 second')")
    stop = threading.Event()

    def produce(one: Session) -> int:
        count = 0
        while not stop.is_set():
            with one.transaction("rollback" if count % 7 == 3 else "commit"):
                one.run("select trunkline.publish('t', '1')")
            count += 1
        return count - sum(n % 7 == 3 for n in range(count))

    with ThreadPoolExecutor(3) as threads:
        producers = [threads.submit(produce, session()) for _ in range(3)]
        try:
            for _ in range(40):
                clock.advance(2)
                for duty in ("sequence", "segments", "retention", "rotate"):
                    main.run("select trunkline.run_upkeep(%s)", duty)
                check_running(producers)
        finally:
            stop.set()
        sent = sum(producer.result(30) for producer in producers)
    assert main.one("select trunkline.head('t')") == sent
    base = main.one("select base_offset from trunkline.logs where log > 1")
    assert base > 1
    assert main.column("select log_offset from trunkline.read('t', 0, %s, 100000)", base) == list(range(base, sent + 1))
