"""Concurrent claims: disjoint, and none waits for a session that keeps its transaction open (Q3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import Clock
from tests.races.sessions import Session, wait_for

MakeSession = Callable[[], Session]


def fill(session: Session, n: int, *, partitions: int = 1) -> None:
    session.run("select trunkline.create_queue('q', p_partitions => %s)", partitions)
    enqueue(session, n)


def enqueue(session: Session, n: int) -> None:
    for start in range(0, n, 1000):
        payloads = [str(i).encode() for i in range(start, min(n, start + 1000))]
        keys = [payload.decode() for payload in payloads]
        session.run("select count(*) from trunkline.enqueue_many('q', %s, p_keys => %s)", payloads, keys)
    # or the first claim would do it in its own transaction, and the others would wait for that one's end
    session.run("call trunkline.sequence()")


def claim(session: Session, n: int) -> list[bytes]:
    return session.column("select payload from trunkline.claim('q', %s)", n)


@pytest.mark.parametrize("partitions", [1, 4])
def test_sixteen_claimers_get_disjoint_messages(main: Session, session: MakeSession, partitions: int) -> None:
    fill(main, 4000, partitions=partitions)

    def drain(one: Session, size: int) -> list[bytes]:
        mine: list[bytes] = []
        while batch := claim(one, size):
            mine += batch
        return mine

    with ThreadPoolExecutor(16) as threads:
        calls = [threads.submit(drain, session(), 1 + 7 * n) for n in range(16)]
        taken = [payload for call in calls for payload in call.result(100)]
    assert Counter(taken) == Counter(str(i).encode() for i in range(4000))


def test_sixteen_claimers_get_disjoint_returned_messages(main: Session, session: MakeSession, clock: Clock) -> None:
    """The same for messages whose leases ended: each is delivered once more, with attempt 2."""
    fill(main, 500)
    assert len(claim(main, 500)) == 500
    clock.advance(60)

    def drain(one: Session) -> list[tuple[object, ...]]:
        mine: list[tuple[object, ...]] = []
        while batch := one.run("select payload, attempt from trunkline.claim('q', 7)"):
            mine += batch
        return mine

    with ThreadPoolExecutor(16) as threads:
        calls = [threads.submit(drain, session()) for _ in range(16)]
        taken = [row for call in calls for row in call.result(100)]
    # who came while another session was bringing them back may have found nothing
    taken += drain(main)
    assert Counter(taken) == Counter((str(i).encode(), 2) for i in range(500))


def test_claim_does_not_wait_for_an_open_claim(main: Session, session: MakeSession) -> None:
    fill(main, 10)
    holder, other = session(), session()
    other.run("set lock_timeout = '300ms'")
    with holder.transaction():
        assert len(claim(holder, 3)) == 3
        assert claim(other, 3) == [b"3", b"4", b"5"]
    assert claim(other, 10) == [b"6", b"7", b"8", b"9"]


@pytest.mark.parametrize("end", ["rollback", "rollback to one", "close"])
def test_what_a_claim_drew_that_did_not_happen_is_delivered_with_the_same_attempt(
    main: Session, session: MakeSession, end: str
) -> None:
    fill(main, 10)
    holder, other = session(), session()
    holder.run("begin")
    holder.run("savepoint one")
    assert claim(holder, 3) == [b"0", b"1", b"2"]
    assert claim(other, 3) == [b"3", b"4", b"5"]
    if end == "close":
        holder.conn.close()
        wait_for(main, "select not exists (select from pg_stat_activity where pid = %s)", holder.pid)
    else:
        holder.run(end)
    taken: list[tuple[object, ...]] = []
    while rows := other.run("select payload, attempt from trunkline.claim('q', 3)"):
        taken += rows
    assert sorted(taken) == [(str(i).encode(), 1) for i in (0, 1, 2, 6, 7, 8, 9)]


def test_nothing_of_an_open_claim_is_delivered_however_many_passes_run(main: Session, session: MakeSession) -> None:
    fill(main, 10)
    holder = session()
    with holder.transaction("rollback"):
        assert len(claim(holder, 3)) == 3
        for _ in range(6):
            main.run("select trunkline.run_upkeep('pass')")
        assert len(claim(main, 100)) == 7
        assert claim(main, 100) == []
    assert sorted(claim(main, 100)) == [b"0", b"1", b"2"]


def test_offsets_that_were_given_and_drawn_by_a_claim_that_is_rolled_back(main: Session, session: MakeSession) -> None:
    """Without a service a claim gives offsets in its own transaction; the position of its cursor is not rolled back."""
    main.run("select trunkline.create_queue('q')")
    main.run("select trunkline.enqueue_many('q', array['1', '2', '3']::bytea[])")
    # of the store in which the queue's messages are
    holder, log = session(), 1
    with holder.transaction("rollback"):
        assert len(claim(holder, 3)) == 3
    holder.run("select pg_advisory_lock(778001, %s)", log)
    # the messages have no offset, so the purge takes none of them
    assert main.one("select trunkline.purge_queue('q')") == 0
    holder.run("select pg_advisory_unlock(778001, %s)", log)
    main.run("select trunkline.run_upkeep('pass')")
    main.run("call trunkline.sequence('{q}')")
    assert main.one("select leased from trunkline.queue_stats('q')") == 0
    assert claim(main, 3) == [b"1", b"2", b"3"]


def test_offsets_that_an_open_claim_gave_and_drew_stay_drawn(main: Session, session: MakeSession) -> None:
    main.run("select trunkline.create_queue('q')")
    main.run("select trunkline.enqueue_many('q', array['1', '2', '3']::bytea[])")
    holder = session()
    with holder.transaction():
        assert len(claim(holder, 3)) == 3
        for _ in range(6):
            main.run("select trunkline.run_upkeep('pass')")
        assert claim(main, 3) == []
    for _ in range(6):
        main.run("select trunkline.run_upkeep('pass')")
    assert claim(main, 3) == []


def test_claim_takes_from_all_partitions_beside_an_open_claim(main: Session, session: MakeSession) -> None:
    fill(main, 400, partitions=4)
    main.run("set lock_timeout = '300ms'")
    holder = session()
    with holder.transaction():
        assert len(holder.column("select partition from trunkline.claim('q', 1)")) == 1
        taken = main.column("select partition from trunkline.claim('q', 1000)")
    assert set(taken) == {0, 1, 2, 3}
    assert len(taken) == 399


def test_fetch_does_not_wait_for_a_partition_that_is_being_fetched(main: Session, session: MakeSession) -> None:
    main.run("select trunkline.create_topic('t')")
    main.run("select trunkline.publish('t', '1')")
    main.run("select trunkline.create_group('t', 'g')")
    holder, other = session(), session()
    with holder.transaction():
        assert len(holder.run("select * from trunkline.fetch('t', 'g', 'one')")) == 1
        assert other.run("select * from trunkline.fetch('t', 'g', 'two')") == []


def test_fetches_at_once_give_a_partition_to_one_member(main: Session, session: MakeSession) -> None:
    main.run("select trunkline.create_topic('t', p_partitions => 4)")
    keys = [str(i) for i in range(400)]
    main.run("select count(*) from trunkline.publish_many('t', %s, p_keys => %s)", [key.encode() for key in keys], keys)

    def fetch(one: Session, member: str) -> list[tuple[object, ...]]:
        mine: list[tuple[object, ...]] = []
        for _ in range(30):
            mine += one.run("select partition, log_offset from trunkline.fetch('t', 'g', %s, 10)", member)
        return mine

    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(fetch, session(), f"member{n}") for n in range(4)]
        owners: dict[object, set[int]] = {}
        for n, call in enumerate(calls):
            for partition, _ in call.result(100):
                owners.setdefault(partition, set()).add(n)
    owned_now = main.run("select partition, member from trunkline.group_stats('t', 'g') where member is not null")
    assert len(owned_now) == len({row[0] for row in owned_now})
    assert set(owners) <= {0, 1, 2, 3}
