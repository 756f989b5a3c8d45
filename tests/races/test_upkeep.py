"""Duties and overviews while topics and queues are deleted under them: what is gone is passed by."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.conftest import Clock
from tests.races.sessions import Session, answer

MakeSession = Callable[[], Session]
OVERVIEWS = ("topic_stats", "queue_stats", "group_stats", "list_topics", "list_queues", "list_groups", "list_subscriptions")
DUTIES = ("pass", "delayed", "schedules", "sequence", "segments", "retention", "windows", "history", "rotate", "rollups")


def delete_during(main: Session, session: MakeSession, query: str) -> list[tuple[object, ...]]:
    """Start the query while a topic and a queue are being deleted, and return its rows when they are deleted."""
    for name in ("gone", "kept"):
        main.run("select trunkline.create_topic(%s)", name)
        main.run("select trunkline.create_queue(%s)", name)
        main.run("select trunkline.create_group(%s, 'readers')", name)
        main.run("select trunkline.subscribe(%s, %s)", name, name)
        main.run("select trunkline.publish(%s, '{}')", name)
        main.run("select trunkline.enqueue(%s, '{}')", name)
    deleter, asker = session(), session()
    deleter.run("begin")
    deleter.run("select trunkline.delete_queue('gone', true), trunkline.delete_topic('gone', true)")
    call = asker.start(query)
    while not (call.done() or main.one("select cardinality(pg_blocking_pids(%s)) > 0", asker.pid)):
        time.sleep(0.005)
    deleter.run("commit")
    return answer(call)


@pytest.mark.parametrize("duty", DUTIES)
def test_a_duty_survives_a_deletion(main: Session, session: MakeSession, duty: str) -> None:
    delete_during(main, session, f"select trunkline.run_upkeep('{duty}')")
    if duty == "sequence":
        assert main.run("select topic, head from trunkline.topic_stats() where topic = 'kept'") == [("kept", 1)]


@pytest.mark.parametrize("overview", OVERVIEWS)
def test_an_overview_survives_a_deletion(main: Session, session: MakeSession, overview: str) -> None:
    name = {"topic_stats": "topic", "group_stats": "topic", "queue_stats": "queue", "list_subscriptions": "queue"}.get(
        overview
    )
    rows = delete_during(main, session, f"select {name or 'name'} from trunkline.{overview}()")
    # the deletion is not committed, and overviews do not wait for it
    if overview.endswith("_stats"):
        assert rows == [("gone",), ("kept",)]


def test_segments_are_not_waited_for(main: Session, session: MakeSession) -> None:
    """Deleting a topic locks it, then its tables: an upkeep task that holds the tables must not wait for the topic."""
    topic_id = main.one("select topic_id from trunkline.create_topic('small', p_segment_rows => 64)")
    for _ in range(100):
        main.run("select trunkline.publish('small', '1')")
    changer = session()
    main.run("set lock_timeout = '2s'")
    with changer.transaction():
        changer.run("select pg_advisory_xact_lock(778003, %s)", topic_id)
        main.run("select trunkline.run_upkeep('segments')")
    main.run("select trunkline.run_upkeep('segments')")
    assert main.one("select count(*) from trunkline.segments where log = 64 * %s", topic_id) == 3


def test_a_log_that_somebody_keeps_is_passed_by(main: Session, session: MakeSession) -> None:
    """One who asked for the head in a transaction that stays open: all other logs get their offsets."""
    for name in ("kept", "other"):
        main.run("select trunkline.create_topic(%s)", name)
        main.run("select trunkline.publish(%s, '1')", name)
    reader = session()
    heads = (
        "select t.name, trunkline._head(l.log) from trunkline.topics t join trunkline.logs l using (topic_id)"
        " where l.log > 1 order by 1"
    )
    with reader.transaction():
        reader.run("select trunkline.run_pass(null, array['kept'])")
        assert reader.one("select trunkline.head('kept')") == 1
        main.run("select trunkline.publish('kept', '1')")
        main.run("select trunkline.run_upkeep('sequence')")
        assert main.run(heads) == [("kept", 0), ("other", 1)]
    main.run("select trunkline.run_upkeep('sequence')")
    assert main.run(heads) == [("kept", 2), ("other", 1)]


def test_hard_retention_does_not_wait_for_a_claim_that_stays_open(main: Session, session: MakeSession, clock: Clock) -> None:
    """The claim's messages stay; the segments of other topics are removed."""
    for name in ("kept", "other"):
        main.run("select trunkline.create_topic(%s, 1, '1 second', null, '1 second', p_segment_rows => 16)", name)
        main.run("select trunkline.create_queue(%s), trunkline.subscribe(%s, %s)", name, name, name)
        main.run("select trunkline.publish_many(%s, array_fill('1'::bytea, array[20]))", name)
    for _ in range(3):
        main.run("select trunkline.run_upkeep('segments')")
    clock.advance(10)
    worker = session()
    lowest = "select base_offset from trunkline.logs where topic_id = trunkline.topic_number('topic', %s)"
    with worker.transaction():
        assert len(worker.column("select log_offset from trunkline.claim('kept')")) == 1
        assert main.one("select trunkline.run_upkeep('retention')") == 1
        assert [main.one(lowest, name) for name in ("kept", "other")] == [1, 16]
    assert main.one("select trunkline.run_upkeep('retention')") == 1
    assert main.one(lowest, "kept") == 16


def test_segments_that_end_early_beside_publishers_give_no_id_twice(main: Session, session: MakeSession) -> None:
    """The end of a segment is skipped by moving the sequence of ids, which publishers draw from at the same time."""
    topic_id = main.one("select topic_id from trunkline.create_topic('t', p_segment_rows => 1000)")
    ender, publishers = session(), [session() for _ in range(3)]
    publish = "select trunkline.publish('t', '1') from generate_series(1, 40)"
    for _ in range(15):
        calls = [each.start(publish) for each in publishers]
        while not all(call.done() for call in calls):
            ender.run("select trunkline._end_segment(%s, 0, 1000)", topic_id)
        for call in calls:
            answer(call)
    main.run("call trunkline.sequence()")
    assert main.one("select trunkline.head('t')") == 15 * 3 * 40
    assert main.one("select count(distinct id) from trunkline.read('t', 0, 1, 10000)") == 15 * 3 * 40
    assert main.one("select trunkline._last_id(%s, 0) / 1000", topic_id) > 3, "no segment ended early"


def test_a_segment_with_an_open_publisher_is_not_ended_early(main: Session, session: MakeSession) -> None:
    topic_id = main.one("select topic_id from trunkline.create_topic('t', p_segment_rows => 1000)")
    publisher, other = session(), session()
    with publisher.transaction():
        publisher.run("select trunkline.publish('t', '1')")
        assert main.one("select trunkline._end_segment(%s, 0, 1000)", topic_id) is False
        with main.transaction():
            assert main.one("select trunkline._end_segment(%s, 0, 1000)", topic_id) is False
            other.run("select trunkline.publish('t', '2')")
    with main.transaction():
        assert main.one("select trunkline._end_segment(%s, 0, 1000)", topic_id) is True
        # the lock is gone although this transaction is open
        other.run("set lock_timeout = '2s'")
        other.run("select trunkline.publish('t', '3')")
    ids = main.one(f"select array_agg(id order by id) from trunkline.topic_{topic_id}")
    assert [id >= 1000 for id in ids] == [False, False, True]
