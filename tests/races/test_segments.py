"""Segments of a topic are made and dropped beside publishers whose transactions overlap."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.conftest import Clock
from tests.races.sessions import Session, answer, wait_blocked

MakeSession = Callable[[], Session]

BLOCK = 32 * 16
"""Ids in one block of segments."""


def publish(session: Session, n: int) -> None:
    session.run("select trunkline.publish_many('t', array_fill('1'::bytea, array[%s]))", n)


def tables(session: Session) -> tuple[set[str], set[str]]:
    """The topic's segments and blocks."""
    names = session.column("select relid::text from pg_partition_tree('trunkline.topic_1') where level > 0")
    blocks = {name for name in names if "block" in name}
    return set(names) - blocks, blocks


def seal(session: Session, clock: Clock) -> None:
    for _ in range(3):
        clock.advance(10)
        session.run("select trunkline.run_upkeep('segments')")


def test_a_publisher_waits_for_the_maker_of_its_segment_as_long_as_it_commits(main: Session, session: MakeSession) -> None:
    """A commit is visible a moment before others are informed of its tables: there an insert failed with 23514."""
    main.run("select trunkline.create_topic('t', p_segment_rows => 16)")
    publish(main, 31)
    maker, publisher = session(), session()
    publisher.run("select trunkline.topic_stats('t')")
    maker.run("select trunkline._make_segment(1, 0, 2, 16)")
    main.run("create sequence public.checks")
    main.run(
        "create or replace function trunkline._is_committing(p_topic_id int) returns boolean language sql volatile"
        " as $$ select nextval('public.checks') < 200 $$"
    )
    with maker.transaction():
        maker.run("select pg_advisory_xact_lock(778003, 1)")
        publisher.run("select trunkline.publish('t', '1')")
    assert main.one("select last_value from public.checks") == 200


def test_a_publisher_does_not_wait_for_an_open_transaction_that_makes_segments(main: Session, session: MakeSession) -> None:
    main.run("select trunkline.create_topic('t', p_segment_rows => 16)")
    publish(main, 31)
    maker = session()
    maker.run("select trunkline._make_segment(1, 0, 2, 16)")
    main.run("set statement_timeout = '10s'")
    with maker.transaction():
        maker.run("select trunkline._make_segment(1, 0, 3, 16)")
        assert not main.one("select trunkline._is_committing(1)")
        publish(main, 10)
    assert main.one("select trunkline.head('t')") == 41


def test_full_transaction_numbers(main: Session) -> None:
    newest = int(main.one("select pg_snapshot_xmax(pg_current_snapshot())::text"))
    for number in (newest - 3, newest + 3):
        assert int(main.one("select trunkline._full_xid(%s::text::xid)::text", number)) == number


def test_emptied_segments_are_dropped_while_publishers_overlap(main: Session, session: MakeSession, clock: Clock) -> None:
    main.run("select trunkline.create_topic('t', p_segment_rows => 16, p_retention => '1 second')")
    publish(main, BLOCK + 40)
    seal(main, clock)
    segments, blocks = tables(main)
    assert len(segments) > 32
    assert blocks == {"trunkline.topic_1_0_block_0", "trunkline.topic_1_0_block_1"}
    publisher = session()
    publisher.run("begin")
    publisher.run("select trunkline.publish('t', '\"open\"')")
    main.run("set lock_timeout = '2s'")
    main.run("select trunkline.run_upkeep('retention')")
    old = {name for name in tables(main)[0] if int(name.split("_")[-1]) < 32}
    assert old == {"trunkline.topic_1_0_0"}, "the publisher has the table of the topic"
    assert main.one("select pg_relation_size('trunkline.topic_1_0_0')") == 0
    assert tables(main)[1] == blocks
    publisher.run("commit")
    main.run("select trunkline.run_upkeep('retention')")
    assert tables(main)[1] == {"trunkline.topic_1_0_block_1"}
    assert min(int(name.split("_")[-1]) for name in tables(main)[0]) >= 32
    publish(main, 3)
    assert len(main.run("select trunkline.read('t', 0, %s, 10)", BLOCK + 41)) == 4


def test_a_block_that_gets_a_segment_is_not_dropped(main: Session, session: MakeSession) -> None:
    """Upkeep sees a block without segments; it must not drop the segment that another session attaches meanwhile."""
    main.run("select trunkline.create_topic('t', p_segment_rows => 16)")
    maker = session()
    maker.run("select trunkline._block(1, 0, 64, 16)")
    with maker.transaction():
        maker.run("select trunkline._make_segment(1, 0, 64, 16)")
        main.run("select trunkline._drop_empty_segments()")
    maker.run("select trunkline._block(1, 0, 96, 16)")
    with main.transaction():
        main.run("set transaction isolation level repeatable read")
        main.run("select 1")
        maker.run("select trunkline._make_segment(1, 0, 96, 16)")
        main.run("select trunkline._drop_empty_segments()")
    assert {"trunkline.topic_1_0_64", "trunkline.topic_1_0_96"} <= tables(main)[0]


def test_an_idle_topic_has_one_segment_and_no_block(main: Session) -> None:
    main.run("select trunkline.create_topic('t', 2, p_segment_rows => 16)")
    main.run("select trunkline.publish('t', '1', p_key => 'a')")
    main.run("select trunkline.run_upkeep('segments')")
    assert tables(main) == ({"trunkline.topic_1_0_0", "trunkline.topic_1_1_0"}, set())
    for _ in range(8):
        main.run("select trunkline.publish('t', '1', p_key => 'a')")
    main.run("select trunkline.run_upkeep('segments')")
    assert [len(names) for names in tables(main)] == [3, 1]


def test_the_first_segment_is_in_the_block_of_an_earlier_release(main: Session) -> None:
    main.run("select trunkline.create_topic('t', p_segment_rows => 16)")
    main.run("drop table trunkline.topic_1_0_0")
    main.run(
        "create table trunkline.topic_1_0_block_0 partition of trunkline.topic_1 for values from (0, 0) to (0, 512)"
        " partition by range (partition, id)"
    )
    main.run("delete from trunkline.segments where log = 64")
    main.run("select trunkline._make_segment(1, 0, s, 16) from generate_series(0, 2) s")
    assert main.one("select count(*) from pg_inherits where inhparent = 'trunkline.topic_1_0_block_0'::regclass") == 3


def test_segments_of_an_earlier_release_have_no_block(main: Session, clock: Clock) -> None:
    block = main.one("select pg_get_functiondef('trunkline._block'::regproc)")
    main.run(
        "create or replace function trunkline._block(p_topic_id int, p_partition int, p_segment bigint, p_rows int)"
        " returns text language sql as $$ select 'topic_' || p_topic_id $$"
    )
    main.run("select trunkline.create_topic('t', p_segment_rows => 16, p_retention => '1 second')")
    publish(main, 40)
    main.conn.execute(block)  # it has % signs
    publish(main, BLOCK)
    assert main.one("select count(*) from pg_inherits where inhparent = 'trunkline.topic_1'::regclass") == 32 + 1
    assert main.one("select trunkline.head('t')") == BLOCK + 40
    assert len(main.run("select trunkline.read('t', 0, 1, 1000)")) == BLOCK + 40
    seal(main, clock)
    main.run("select trunkline.run_upkeep('retention')")
    assert min(int(name.split("_")[-1]) for name in tables(main)[0]) >= 32


@pytest.mark.parametrize("offset", [1, 85])
def test_a_reader_that_waits_for_retention_learns_what_is_left(
    main: Session, session: MakeSession, clock: Clock, offset: int
) -> None:
    """In an old segment, and in one of the newest, which readers have a fixed statement for."""
    main.run("select trunkline.create_topic('t', p_segment_rows => 16, p_retention => '1 second')")
    publish(main, 100)
    main.run("call trunkline.sequence()")
    main.run("select trunkline._write_functions(1)")
    seal(main, clock)
    reader = session()
    assert len(reader.run("select trunkline.read('t', 0, %s, 1)", offset)) == 1
    with main.transaction():
        assert main.one("select trunkline.run_upkeep('retention')") > 5
        waiting = reader.start("select trunkline.read('t', 0, %s, 1)", offset)
        wait_blocked(main, reader)
    with pytest.raises(psycopg.Error, match=f'offset {offset} of topic "t", partition 0, was removed') as refusal:
        answer(waiting)
    assert refusal.value.sqlstate == "TL006"
