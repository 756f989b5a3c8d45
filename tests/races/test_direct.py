"""Changes of one queue at the same time: the row that claims read has both, or one of them fails."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.races.sessions import Session, answer, wait_blocked

MakeSession = Callable[[], Session]


@pytest.fixture
def subscribed(main: Session) -> Session:
    """A queue with a subscription that has a pattern, so it is not direct."""
    main.run("select trunkline.create_topic('old')")
    main.run("select trunkline.create_topic('new')")
    main.run("select trunkline.create_queue('q')")
    main.run("select trunkline.subscribe('q', 'old', p_pattern => 'a.*')")
    assert main.one("select count(*) from trunkline.direct_queues") == 0
    return main


def logs(one: Session) -> int:
    return int(one.one("select coalesce(max(cardinality(logs)), 0) from trunkline.direct_queues where name = 'q'"))


def test_subscribing_beside_unsubscribing_is_not_lost(subscribed: Session, session: MakeSession) -> None:
    other, watcher = session(), session()
    with other.transaction():
        other.run("select trunkline.subscribe('q', 'new')")
        waiting = subscribed.start("select trunkline.unsubscribe('q', 'old')")
        wait_blocked(watcher, subscribed)
    answer(waiting)
    assert logs(watcher) == 2, "its own log and that of topic new"


def test_an_old_snapshot_fails_instead_of_describing_the_queue_as_it_was(subscribed: Session, session: MakeSession) -> None:
    other = session()
    other.run("begin isolation level repeatable read")
    other.run("select 1 from trunkline.queues")
    subscribed.run("select trunkline.unsubscribe('q', 'old')")
    with pytest.raises(psycopg.errors.SerializationFailure):
        other.run("select trunkline.pause_queue('q')")
    other.run("rollback")
    assert logs(subscribed) == 1
