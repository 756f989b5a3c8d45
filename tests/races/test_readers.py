"""Readers that are created while their topic changes: they read all partitions and start where messages still exist."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.conftest import Clock
from tests.races.sessions import Session, answer, wait_blocked

MakeSession = Callable[[], Session]

READERS = {
    "create_group": "select trunkline.create_group('t', 'g')",
    "ensure_group": "select trunkline.ensure_group('t', 'g')",
    "fetch": "select trunkline.fetch('t', 'g', 'm')",
    "claim_range": "select trunkline.claim_range('t', 'g')",
    "subscribe": "select trunkline.subscribe('q', 't', p_start => 'earliest')",
}
PARTITIONS = """select array_agg(c.partition order by c.partition) from trunkline.cursors c
                where c.topic_id = trunkline.topic_number('topic', 't')"""


def publish(session: Session, topic: str, n: int) -> None:
    """Messages with different keys, so that each partition gets some."""
    session.run(
        "select trunkline.publish_many(%s, array_fill('1'::bytea, array[%s]),"
        " p_keys => array(select k::text from generate_series(1, %s) k))",
        topic,
        n,
        n,
    )


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_made_while_partitions_are_added_reads_all_of_them(
    main: Session, session: MakeSession, reader: str
) -> None:
    main.run("select trunkline.create_topic('t'), trunkline.create_queue('q')")
    admin, other = session(), session()
    with admin.transaction():
        admin.run("select trunkline.alter_topic('t', p_partitions => 4)")
        making = other.start(READERS[reader])
        wait_blocked(main, other)
    answer(making)
    assert main.one(PARTITIONS) == [0, 1, 2, 3]
    publish(main, "t", 100)
    if reader == "subscribe":
        assert len(main.run("select trunkline.claim('q', 1000)")) == 100
    else:
        assert main.one("select sum(lag) from trunkline.group_stats() where topic = 't'") == 100


@pytest.mark.parametrize("reader", READERS)
def test_partitions_added_while_a_reader_is_made_are_its_own_too(main: Session, session: MakeSession, reader: str) -> None:
    main.run("select trunkline.create_topic('t'), trunkline.create_queue('q')")
    admin, other = session(), session()
    with other.transaction():
        other.run(READERS[reader])
        altering = admin.start("select trunkline.alter_topic('t', p_partitions => 4)")
        wait_blocked(main, admin)
    answer(altering)
    assert main.one(PARTITIONS) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("first", "second", "refused", "partitions"), [(4, 4, None, 4), (2, 4, None, 4), (4, 2, "TL023", 4)]
)
def test_two_that_add_partitions(
    main: Session, session: MakeSession, first: int, second: int, refused: str | None, partitions: int
) -> None:
    main.run("select trunkline.create_topic('t'), trunkline.create_group('t', 'g')")
    one, two = session(), session()
    with one.transaction():
        one.run("select trunkline.alter_topic('t', p_partitions => %s)", first)
        altering = two.start("select trunkline.alter_topic('t', p_partitions => %s)", second)
        wait_blocked(main, two)
    if refused is None:
        answer(altering)
    else:
        with pytest.raises(psycopg.Error) as error:
            answer(altering)
        assert error.value.sqlstate == refused
    assert main.one(PARTITIONS) == list(range(partitions))
    assert main.one("select partitions from trunkline.get_topic('t')") == partitions


@pytest.mark.parametrize(
    ("verb", "code"),
    [
        ("select trunkline.create_group('t', 'g')", "TL010"),
        ("select trunkline.ensure_group('t', 'g')", "TL010"),
        ("select trunkline.fetch('t', 'g', 'm')", "TL010"),
        ("select trunkline.subscribe('q', 't')", "TL010"),
        ("select trunkline.alter_topic('t', p_partitions => 2)", "TL010"),
        ("select trunkline.delete_topic('t')", "TL010"),
        ("select trunkline.delete_group('t', 'old')", "TL010"),
        ("select trunkline.create_schedule('s', '* * * * *', 't')", "TL010"),
        ("select trunkline.require_archive('t')", "TL010"),
        ("select trunkline.subscribe('gone', 'other')", "TL011"),
        ("select trunkline.pause_queue('gone')", "TL011"),
        ("select trunkline.alter_queue('gone', p_lease => '1 minute')", "TL011"),
        ("select trunkline.delete_queue('gone')", "TL011"),
        ("select trunkline.unsubscribe('gone', 'other')", "TL011"),
        ("select trunkline.bind_queue('gone', 'e')", "TL011"),
        ("select trunkline.create_schedule('s', '* * * * *', p_queue => 'gone')", "TL011"),
    ],
)
def test_what_is_deleted_meanwhile_is_reported_by_its_name(
    main: Session, session: MakeSession, verb: str, code: str
) -> None:
    main.run("select trunkline.create_topic('t'), trunkline.create_topic('other'), trunkline.create_group('t', 'old')")
    main.run("select trunkline.create_queue('q'), trunkline.create_queue('gone'), trunkline.subscribe('gone', 'other')")
    main.run("select trunkline.create_endpoint('e', 'http://192.0.2.1/')")
    admin, other = session(), session()
    with admin.transaction():
        admin.run("select trunkline.delete_topic('t', true), trunkline.delete_queue('gone', true)")
        call = other.start(verb)
        wait_blocked(main, other)
    with pytest.raises(psycopg.Error) as error:
        answer(call)
    assert error.value.sqlstate == code
    if "schedule" in verb:
        assert main.run("select trunkline.list_schedules()") == []


def test_what_is_made_sure_of_is_made_again_when_it_is_deleted_meanwhile(main: Session, session: MakeSession) -> None:
    main.run("select trunkline.create_topic('t'), trunkline.create_queue('q')")
    admin, one, two = session(), session(), session()
    with admin.transaction():
        admin.run("select trunkline.delete_topic('t'), trunkline.delete_queue('q')")
        topic = one.start("select trunkline.ensure_topic('t', p_retention => '2 days')")
        queue = two.start("select trunkline.ensure_queue('q', p_lease => '2 minutes')")
        wait_blocked(main, one)
        wait_blocked(main, two)
    answer(topic)
    answer(queue)
    assert main.one("select retention::text from trunkline.get_topic('t')") == "2 days"
    assert main.one("select lease::text from trunkline.get_queue('q')") == "00:02:00"


@pytest.mark.parametrize("kind", ["topic", "queue"])
def test_ensure_finds_what_another_session_creates(main: Session, session: MakeSession, kind: str) -> None:
    one, two = session(), session()
    with one.transaction():
        one.run(f"select trunkline.create_{kind}('new')")
        ensuring = two.start(f"select trunkline.ensure_{kind}('new')")
        wait_blocked(main, two)
    answer(ensuring)


def make_old_segments(main: Session, clock: Clock, retention: str = "") -> None:
    """A topic whose first segment retention may remove."""
    main.run(f"select trunkline.create_topic('t', 1, '1 second', p_segment_rows => 16 {retention})")
    main.run("select trunkline.create_queue('q')")
    publish(main, "t", 40)
    for _ in range(3):
        main.run("select trunkline.run_upkeep('segments')")
    clock.advance(10)


BASE = "select base_offset from trunkline.logs where topic_id = trunkline.topic_number('topic', 't')"


@pytest.mark.parametrize("hard", ["", ", p_hard_retention => '1 second'"])
@pytest.mark.parametrize("reader", ["create_group", "fetch", "subscribe", "seek"])
def test_retention_spares_a_topic_whose_new_reader_is_not_committed(
    main: Session, session: MakeSession, clock: Clock, reader: str, hard: str
) -> None:
    make_old_segments(main, clock, hard)
    if reader == "seek":
        main.run("select trunkline.create_group('t', 'g', 'latest')")
    other = session()
    with other.transaction():
        other.run("select trunkline.seek('t', 'g', 'earliest')" if reader == "seek" else READERS[reader])
        assert main.one("select trunkline.run_upkeep('retention')") == 0
        # nor do publishers wait for it, also where a segment must be made
        main.run("set lock_timeout = '2s'")
        publish(main, "t", 200)
    assert main.one(BASE) == 1
    main.run("call trunkline.sequence()")
    if reader == "subscribe":
        assert len(main.run("select trunkline.claim('q', 1000)")) == 240
    else:
        # 'fetch' has leased the partition to its member until now
        clock.advance(60)
        offsets = main.column("select log_offset from trunkline.fetch('t', 'g', 'm', 1000)")
        assert offsets == list(range(1, 241))


def test_a_reader_that_is_made_while_retention_runs_starts_above_what_it_removes(
    main: Session, session: MakeSession, clock: Clock
) -> None:
    make_old_segments(main, clock)
    upkeep, other = session(), session()
    with upkeep.transaction():
        assert upkeep.one("select trunkline.run_upkeep('retention')") == 2
        making = other.start(READERS["subscribe"])
        wait_blocked(main, other)
    answer(making)
    assert main.one(BASE) == 32
    assert main.column("select log_offset from trunkline.claim('q', 1000)") == list(range(32, 41))
