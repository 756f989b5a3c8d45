"""Deletions under traffic: traffic does not wait, errors name what was deleted, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.races.sessions import Session, answer, wait_blocked

MakeSession = Callable[[], Session]

OBJECTS = """select relname from pg_class where relnamespace = 'trunkline'::regnamespace
             union all select proname from pg_proc where pronamespace = 'trunkline'::regnamespace order by 1"""
TRAFFIC = {
    "publish": ("select trunkline.publish('t', '1')", "TL010"),
    "publish_many": ("select trunkline.publish_many('t', array_fill('1'::bytea, array[5]))", "TL010"),
    "publish by number": ("select trunkline.topic_{topic}_publish('1')", "TL010"),
    "draw": ("select trunkline.topic_{topic}_draw(3)", "TL010"),
    "head": ("select trunkline.head('t')", "TL010"),
    "read": ("select trunkline.read('t', 0, 1)", "TL010"),
    "fetch": ("select trunkline.fetch('t', 'g', 'm')", "TL010"),
    "enqueue": ("select trunkline.enqueue('q', '1')", "TL011"),
    "claim": ("select trunkline.claim('q')", "TL011"),
}


def make(main: Session) -> dict[str, int]:
    """A topic and a queue with messages, and their numbers."""
    main.run("select trunkline.create_topic('t', p_segment_rows => 16), trunkline.create_queue('q', p_segment_rows => 16)")
    main.run("select trunkline.create_group('t', 'g')")
    main.run("select trunkline.publish('t', '1'), trunkline.enqueue('q', '1'), trunkline.head('t')")
    main.run("select trunkline.fetch('t', 'g', 'm')")
    return {
        "topic": main.one("select trunkline.topic_number('topic', 't')"),
        "queue": main.one("select trunkline.queue_number('q')"),
    }


def clean_up(main: Session) -> None:
    """The first run notes open transactions, the second one drops the tables; the sequences of cursors go by themselves."""
    for task in ("retention", "retention", "windows"):
        main.run("select trunkline.run_upkeep(%s)", task)


def code_of(session: Session, query: str) -> str | None:
    with pytest.raises(psycopg.Error) as error:
        session.run(query)
    return error.value.sqlstate


@pytest.mark.parametrize("verb", TRAFFIC)
def test_traffic_does_not_wait_for_a_deletion_and_learns_of_it(main: Session, session: MakeSession, verb: str) -> None:
    before = main.run(OBJECTS)
    numbers = make(main)
    query, code = TRAFFIC[verb]
    query = query.format(**numbers)
    admin, other = session(), session()
    other.run("set lock_timeout = '2s'")
    with admin.transaction():
        admin.run("select trunkline.delete_topic('t', true), trunkline.delete_queue('q', true)")
        other.run(query)
    assert code_of(other, query) == code
    clean_up(main)
    assert main.run(OBJECTS) == before


def test_a_transaction_that_knows_a_deleted_topic_keeps_its_tables(main: Session, session: MakeSession) -> None:
    """It publishes before the deletion commits, so the tables stay until it ends; what it does later fails by name."""
    before = main.run(OBJECTS)
    make(main)
    admin, other = session(), session()
    other.run("begin")
    with admin.transaction():
        admin.run("select trunkline.delete_topic('t', true), trunkline.delete_queue('q', true)")
        other.run("select trunkline.publish('t', '2')")
        # reads the list of topics only: it could still publish to it
        other.run("select trunkline.queue_number('q')")
    for _ in range(3):
        clean_up(main)
        assert main.one("select count(*) from trunkline.deletions") == 2
    other.run("savepoint s")
    assert code_of(other, "select trunkline.publish('t', '3')") == "TL010"
    other.run("rollback to s")
    assert code_of(other, "select trunkline.enqueue('q', '3')") == "TL011"
    other.run("rollback")
    clean_up(main)
    assert main.run(OBJECTS) == before
    assert main.one("select count(*) from trunkline.deletions") == 0


def test_a_deletion_is_refused_while_a_transaction_publishes(main: Session, session: MakeSession) -> None:
    make(main)
    other = session()
    with other.transaction():
        other.run("select trunkline.publish('t', '2'), trunkline.enqueue('q', '2')")
        assert code_of(main, "select trunkline.delete_topic('t', true)") == "55P03"
        assert code_of(main, "select trunkline.delete_queue('q', true)") == "55P03"
    assert main.one("select trunkline.head('t')") == 2
    assert len(main.run("select trunkline.claim('q', 10)")) == 2


def test_a_deletion_yields_to_a_publisher_that_waits_for_it(main: Session, session: MakeSession) -> None:
    """The publisher has the topic's row and needs a segment; the deletion has the lock of segments and needs the row."""
    make(main)
    publisher, admin = session(), session()
    with publisher.transaction():
        publisher.run("select trunkline.publish('t', '2', p_delay => '1 hour')")
        deleting = admin.start("select trunkline.delete_topic('t', true)")
        wait_blocked(main, admin)
        publisher.run("select trunkline.publish_many('t', array_fill('1'::bytea, array[100]))")
    answer(deleting)
    assert code_of(main, "select trunkline.get_topic('t')") == "TL010"


@pytest.mark.parametrize("more", ["'2', p_delay => '1 hour'", "'2', p_idempotency_key => 'k', p_delay => '1 hour'"])
def test_a_delayed_publish_that_meets_a_deletion_fails_by_name(main: Session, session: MakeSession, more: str) -> None:
    make(main)
    admin, one, two = session(), session(), session()
    with admin.transaction():
        admin.run("select trunkline.delete_topic('t', true), trunkline.delete_queue('q', true)")
        publishing = one.start(f"select trunkline.publish('t', {more})")
        enqueuing = two.start(f"select trunkline.enqueue('q', {more})")
        wait_blocked(main, one)
        wait_blocked(main, two)
    for call, code in ((publishing, "TL010"), (enqueuing, "TL011")):
        with pytest.raises(psycopg.Error) as error:
            answer(call)
        assert error.value.sqlstate == code


def test_a_publish_that_needs_a_segment_of_a_deleted_topic_fails_by_name(main: Session, session: MakeSession) -> None:
    make(main)
    admin, one, two = session(), session(), session()
    with admin.transaction():
        admin.run("select trunkline.delete_topic('t', true), trunkline.delete_queue('q', true)")
        publishing = one.start("select trunkline.publish_many('t', array_fill('1'::bytea, array[40]))")
        enqueuing = two.start("select trunkline.enqueue_many('q', array_fill('1'::bytea, array[40]))")
        wait_blocked(main, one)
        wait_blocked(main, two)
    for call, code in ((publishing, "TL010"), (enqueuing, "TL011")):
        with pytest.raises(psycopg.Error) as error:
            answer(call)
        assert error.value.sqlstate == code


@pytest.mark.parametrize(("create", "code"), [(True, None), (False, "TL012")])
def test_a_fetch_that_meets_the_deletion_of_its_group(
    main: Session, session: MakeSession, create: bool, code: str | None
) -> None:
    make(main)
    admin, other = session(), session()
    with admin.transaction():
        admin.run("select trunkline.delete_group('t', 'g')")
        fetching = other.start("select log_offset from trunkline.fetch('t', 'g', 'new', p_create => %s)", create)
        wait_blocked(main, other)
    if code is None:
        assert answer(fetching) == [(1,)]
    else:
        with pytest.raises(psycopg.Error) as error:
            answer(fetching)
        assert error.value.sqlstate == code


@pytest.mark.parametrize(
    "change", ["pause_queue('q')", "resume_queue('q')", "alter_queue('q', p_lease => '1 minute')", "subscribe('q', 't')"]
)
def test_changes_of_a_queue_wait_for_each_other(main: Session, session: MakeSession, change: str) -> None:
    """Each writes the queue's functions; the last one knows of the others."""
    make(main)
    one, two = session(), session()
    with one.transaction():
        one.run("select trunkline.pause_queue('q')")
        changing = two.start(f"select trunkline.{change}")
        wait_blocked(main, two)
    answer(changing)
    claimed = main.run("select trunkline.claim('q')")
    assert len(claimed) == (1 if change.startswith("resume") else 0)


def test_a_queue_is_bound_or_its_endpoint_deleted(main: Session, session: MakeSession) -> None:
    make(main)
    main.run("select trunkline.create_endpoint('e', 'http://192.0.2.1/')")
    one, two = session(), session()
    with one.transaction():
        one.run("select trunkline.bind_queue('q', 'e')")
        deleting = two.start("select trunkline.delete_endpoint('e')")
        wait_blocked(main, two)
    with pytest.raises(psycopg.Error) as error:
        answer(deleting)
    assert error.value.sqlstate == "TL021"
    with one.transaction():
        one.run("select trunkline.delete_endpoint('e', true)")
        binding = two.start("select trunkline.bind_queue('q', 'e')")
        wait_blocked(main, two)
    with pytest.raises(psycopg.Error) as error:
        answer(binding)
    assert error.value.sqlstate == "TL017"
