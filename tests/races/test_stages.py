"""Staged rows (docs/adr/0018) against upkeep, other sessions of the same attempt, and all tasks at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.conftest import Clock
from tests.races.sessions import Session, answer, wait_blocked

MakeSession = Callable[[], Session]
OPEN = "select segment, first_id, n from trunkline.open_stage(%s, %s, '{0}', %s)"


def fill(session: Session, places: list[tuple[str, int, int]], first: int = 0) -> None:
    """Copies numbered rows to the places that open_stage gave."""
    for table, first_id, n in places:
        session.run(
            f"insert into trunkline.{table} (id, message_id, payload, created_at)"
            " select %s + i, gen_random_uuid(), (%s + i)::text::bytea, trunkline.clock() from generate_series(0, %s - 1) i",
            first_id,
            first,
            n,
        )
        first += n


def stage(session: Session, topic: str, n: int, first: int = 0) -> UUID:
    attempt = uuid4()
    fill(session, session.run(OPEN, topic, attempt, [n]), first)
    assert session.one("select trunkline.close_stage(%s)", attempt) == n
    return attempt


def commit(session: Session, version: int, attempt: UUID, n: int) -> int | None:
    return session.one("select trunkline.commit_stage('w', %s, array[%s::uuid], array[%s])", version, attempt, n)


def test_a_segment_is_not_sealed_under_ids_that_are_being_given(main: Session, session: MakeSession) -> None:
    """The rest of a segment goes to an uncommitted attempt: to upkeep it looks full, without waiting sessions."""
    main.run("select trunkline.create_topic('t', p_segment_rows => 16)")
    assert commit(main, 0, stage(main, "t", 10), 10) == 10
    task, attempt = session(), uuid4()
    with task.transaction():
        places = task.run(OPEN, "t", attempt, [6])
        main.run("select trunkline.run_upkeep('stages'), trunkline.run_upkeep('retention')")
    fill(task, places, 10)
    task.run("select trunkline.close_stage(%s)", attempt)
    assert commit(task, 1, attempt, 6) == 6
    assert [int(payload) for payload in main.column("select payload from trunkline.read('t', 0, 1)")] == list(range(16))
    assert main.one("select trunkline.run_upkeep('stages')") == 1


def test_what_is_opened_during_a_close_is_not_complete(main: Session, session: MakeSession) -> None:
    """A second session of the same attempt gets ids while the first has its rows counted."""
    main.run("select trunkline.create_topic('t')")
    attempt, closing, holder = uuid4(), session(), session()
    places = main.run(OPEN, "t", attempt, [3])
    fill(main, places)
    with holder.transaction():
        holder.run(f"lock table trunkline.{places[0][0]} in access exclusive mode")
        call = closing.start("select trunkline.close_stage(%s)", attempt)
        wait_blocked(main, closing)
        more = main.run(OPEN, "t", attempt, [2])
    assert answer(call) == [(3,)]
    with pytest.raises(psycopg.Error, match="expected 5 staged rows, got 3"):
        commit(main, 0, attempt, 5)
    fill(main, more, 3)
    assert main.one("select trunkline.close_stage(%s)", attempt) == 2
    assert commit(main, 0, attempt, 5) == 5
    assert [int(payload) for payload in main.column("select payload from trunkline.read('t', 0, 1)")] == list(range(5))


def test_what_a_queue_is_done_with_can_be_removed_at_once(main: Session) -> None:
    """Also what Spark has put into its inbox; not what waits for a commit, is leased, or was never delivered."""
    main.run("select trunkline.create_queue('q', p_segment_rows => 100)")
    main.run("select trunkline.enqueue('q', '-1')")
    commit(main, 0, stage(main, "queue:q", 250), 250)
    waiting = stage(main, "queue:q", 20, 250)
    main.run("select trunkline.ack(array(select receipt from trunkline.claim('q', 241)))")
    leased = main.column("select receipt from trunkline.claim('q', 10)")
    assert main.one("select trunkline.trim_queue('q')") == 3
    assert main.one("select base_offset from trunkline.logs where log > 1") == 202
    assert set(main.column("select result from trunkline.ack(%s)", leased)) == {"done"}
    assert commit(main, 1, waiting, 20) == 20
    assert main.one("select trunkline.trim_queue('q')") == 0, "a segment holds what was not delivered"
    rest = main.run("select receipt, payload from trunkline.claim('q', 1000)")
    assert [int(payload) for _, payload in rest] == list(range(250, 270))
    main.run("select trunkline.ack(%s)", [receipt for receipt, _ in rest])
    assert main.one("select trunkline.trim_queue('q')") > 0
    sizes = "select pg_relation_size(relid) from pg_partition_tree('trunkline.topic_1') where isleaf"
    assert set(main.column(sizes)) == {0}


def test_rows_that_were_given_up_go_while_a_publisher_is_open(main: Session, session: MakeSession) -> None:
    """It holds the table of the topic and its own block of segments, so theirs can be dropped."""
    main.run("select trunkline.create_topic('t', p_segment_rows => 16)")
    attempt, publisher = stage(main, "t", 16), session()
    main.run("select trunkline.drop_stage(array[%s])", attempt)
    with publisher.transaction():
        publisher.run("select trunkline.publish('t', '1')")
        assert main.run("select trunkline.run_upkeep('stages'), trunkline.run_upkeep('retention')") == [(1, 1)]
        assert main.one("select count(*) from trunkline.staged_segments") == 0


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_slow_commit_and_the_end_of_patience(main: Session, session: MakeSession, clock: Clock, end: str) -> None:
    """Upkeep does not wait for a commit of what was staged four days ago; if it ends in nothing, another is too late."""
    main.run("select trunkline.create_topic('t', p_segment_rows => 16)")
    attempt, committer = stage(main, "t", 16), session()
    clock.advance(timedelta(days=4))
    main.run("set lock_timeout = '2s'")
    with committer.transaction(end):
        assert commit(committer, 0, attempt, 16) == 16
        assert main.one("select trunkline.run_upkeep('stages')") == 0
    assert main.one("select trunkline.run_upkeep('stages')") == 1
    main.run("select trunkline.run_upkeep('retention')")
    if end == "rollback":
        with pytest.raises(psycopg.Error, match="expected 16 staged rows, got 0"):
            commit(main, 0, attempt, 16)
    assert main.one("select trunkline.head('t')") == (16 if end == "commit" else 0)
    assert len(main.column("select payload from trunkline.read('t', 0, 1)")) == (16 if end == "commit" else 0)
    assert main.one("select count(*) from trunkline.staged_segments") == (1 if end == "commit" else 0)
