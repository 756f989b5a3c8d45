"""Claims at once: disjoint, and nobody hangs behind a session that keeps its transaction open (Q3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.conftest import Clock
from tests.races.sessions import Session, answer, wait_blocked

MakeSession = Callable[[], Session]


def fill(session: Session, n: int, *, partitions: int = 1) -> None:
    session.run("select trunkline.create_queue('q', p_partitions => %s)", partitions)
    enqueue(session, n)


def enqueue(session: Session, n: int) -> None:
    for start in range(0, n, 1000):
        payloads = [str(i).encode() for i in range(start, min(n, start + 1000))]
        keys = [payload.decode() for payload in payloads]
        session.run("select count(*) from trunkline.enqueue_many('q', %s, p_keys => %s)", payloads, keys)


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


def test_claim_behind_an_open_claim_gives_up_with_a_clear_error(main: Session, session: MakeSession) -> None:
    fill(main, 10)
    holder, other = session(), session()
    other.run("set lock_timeout = '300ms'")
    with holder.transaction():
        assert len(claim(holder, 3)) == 3
        with pytest.raises(psycopg.errors.LockNotAvailable):
            claim(other, 3)
    assert claim(other, 3) == [b"3", b"4", b"5"]


def test_claim_goes_on_when_the_one_before_it_rolls_back(main: Session, session: MakeSession) -> None:
    fill(main, 10)
    holder, other = session(), session()
    with holder.transaction("rollback"):
        assert claim(holder, 3) == [b"0", b"1", b"2"]
        call = other.start("select payload, attempt from trunkline.claim('q', 3)")
        wait_blocked(main, other)
    assert answer(call) == [(b"0", 1), (b"1", 1), (b"2", 1)]


@pytest.mark.parametrize("past", ["new queue", "used queue"])
def test_claim_does_not_wait_for_a_locked_partition(main: Session, session: MakeSession, past: str) -> None:
    """With several partitions a claim takes from those that nobody is busy with."""
    fill(main, 400, partitions=4)
    if past == "used queue":
        assert len(claim(main, 1000)) == 400
        enqueue(main, 400)
    main.run("set lock_timeout = '300ms'")
    holder = session()
    with holder.transaction():
        [held] = holder.column("select partition from trunkline.claim('q', 1)")
        taken = main.column("select partition from trunkline.claim('q', 1000)")
    behind = main.column("select partition from trunkline.claim('q', 1000)")
    assert set(taken) == {0, 1, 2, 3} - {held}
    assert set(behind) == {held}
    assert 1 + len(taken) + len(behind) == 400


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
