"""One claim from many queues: the same messages as from each alone, none twice, none left behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.postgres import VERSIONS

QUEUES = {
    "exact": ("a.b", None),
    "one word": ("a.*", None),
    "all": ("#", None),
    "other": ("c.#", None),
    "filtered": ("a.b", '{"region": "eu"}'),
    "never": ("z", None),
}


def create(conn: Connection, **settings: str) -> dict[int, str]:
    """A queue per pattern, by their numbers."""
    conn.execute("select trunkline.create_topic('t', p_segment_rows => 1000)")
    made: dict[int, str] = {}
    for title, (pattern, filter) in QUEUES.items():
        name = title.replace(" ", "-")
        named = "".join(f", p_{key} => {value}" for key, value in settings.items())
        conn.execute(f"select trunkline.create_queue('{name}'{named})".encode())
        conn.execute("select trunkline.subscribe(%s, 't', %s, %s::jsonb)", (name, pattern, filter))
        row = conn.execute("select trunkline.queue_number(%s)", (name,)).fetchone()
        assert row is not None
        made[row[0]] = title
    return made


def publish(conn: Connection, count: int, seed: int = 1) -> dict[str, list[UUID]]:
    """Create random messages; return the recipients of each, by rules reimplemented here."""
    draw = random.Random(seed)
    wanted: dict[str, list[UUID]] = {title: [] for title in QUEUES}
    for _ in range(count):
        key, region = draw.choice(["a.b", "a.c", "c", "c.d.e", "x"]), draw.choice(["eu", "us"])
        row = conn.execute(
            "select id from trunkline.publish('t', '1', p_routing_key => %s, p_headers => %s)",
            (key, f'{{"region": "{region}"}}'),
        ).fetchone()
        assert row is not None
        hits = {"all"} | ({"exact", "one word"} if key == "a.b" else {"one word"} if key == "a.c" else set())
        hits |= {"other"} if key.startswith("c") else set()
        hits |= {"filtered"} if key == "a.b" and region == "eu" else set()
        for title in hits:
            wanted[title].append(row[0])
    sequence(conn)
    return wanted


def sequence(conn: Connection) -> None:
    """Give offsets to what was committed, and return what is due."""
    conn.execute("call trunkline.sequence()")


def claim(conn: Connection, queues: list[int], most: int) -> tuple[list[tuple[int, str, UUID]], set[int]]:
    """Deliveries, and the queues that have nothing more."""
    rows = conn.execute(
        "select queue_id, (delivery).receipt, (delivery).id from trunkline.claim_many(%s, %s, 'c')", (queues, most)
    ).fetchall()
    return [row for row in rows if row[1] is not None], {row[0] for row in rows if row[1] is None}


def drain(conn: Connection, queues: dict[int, str], most: int) -> dict[str, list[UUID]]:
    found: dict[str, list[UUID]] = {title: [] for title in QUEUES}
    left = list(queues)
    while left:
        taken, empty = claim(conn, left, most)
        assert len(taken) <= most
        for queue, _, id in taken:
            found[queues[queue]].append(id)
        conn.execute("select trunkline.ack(%s)", ([receipt for _, receipt, _ in taken],))
        left = [queue for queue in left if queue not in empty]
    return found


@pytest.mark.parametrize("pg_version", VERSIONS)
@pytest.mark.parametrize("most", [7, 1000])
def test_each_queue_gets_what_is_for_it_in_order(conn: Connection, most: int) -> None:
    queues = create(conn)
    wanted = publish(conn, 120)
    assert drain(conn, queues, most) == wanted
    stats = dict(conn.execute("select queue, acked from trunkline.queue_stats()").fetchall())  # type: ignore[var-annotated]
    assert stats == {title.replace(" ", "-"): len(ids) for title, ids in wanted.items()}
    # Messages that are not for a queue are skipped, so that they do not count as ready.
    assert claim(conn, list(queues), 10) == ([], set(queues))
    assert conn.execute("select sum(ready) from trunkline.queue_stats()").fetchone() == (0,)
    for (name,) in conn.execute("select name from trunkline.queues").fetchall():
        assert conn.execute("select * from trunkline.audit_queue(%s)", (name,)).fetchall()


@pytest.mark.parametrize("settings", [{"ordered": "true"}, {"ttl": "'1 hour'"}, {"priorities": "3"}])
def test_queues_of_other_kinds_are_claimed_from_alone(conn: Connection, settings: dict[str, str]) -> None:
    queues = create(conn, **settings)
    wanted = publish(conn, 30)
    found = drain(conn, queues, 1000)
    assert {title: sorted(ids) for title, ids in found.items()} == {title: sorted(ids) for title, ids in wanted.items()}


def test_what_came_back_and_the_own_inbox_come_along(conn: Connection) -> None:
    queues = create(conn)
    publish(conn, 10)
    taken, _ = claim(conn, list(queues), 1000)
    conn.execute("select trunkline.nack(%s, '0')", ([receipt for _, receipt, _ in taken],))
    conn.execute("select trunkline.enqueue('never', '1')")
    sequence(conn)
    again, _ = claim(conn, list(queues), 1000)
    assert {(queue, id) for queue, _, id in taken} < {(queue, id) for queue, _, id in again}
    assert len(again) == len(taken) + 1


def test_a_long_backlog_does_not_keep_back_the_others(conn: Connection) -> None:
    """A queue that starts at the beginning of a long log, beside those at its head."""
    queues = create(conn)
    for _ in range(3):
        conn.execute("select count(*) from trunkline.publish_many('t', array_fill('1'::bytea, array[1000]))")
    sequence(conn)
    drain(conn, queues, 1000)
    conn.execute("select trunkline.create_queue('late'), trunkline.subscribe('late', 't', 'a.b', p_start => 'earliest')")
    row = conn.execute("select trunkline.queue_number('late')").fetchone()
    assert row is not None
    wanted = publish(conn, 20)
    left, found = [*queues, row[0]], []
    while left:
        taken, empty = claim(conn, left, 1000)
        found += [id for queue, _, id in taken if queue == row[0]]
        left = [queue for queue in left if queue not in empty]
    assert found == wanted["exact"]


def test_claims_at_the_same_time_share_nothing(connect: Callable[[], Connection]) -> None:
    conn = connect()
    queues = create(conn)
    wanted = publish(conn, 200)

    def work(_: int) -> list[tuple[int, UUID]]:
        own, found, rest = connect(), [], 200
        while rest:
            taken, _ = claim(own, list(queues), 20)  # type: ignore[assignment]
            found += [(queue, id) for queue, _, id in taken]
            rest = rest - 1 if not taken else 200
        return found

    with ThreadPoolExecutor(4) as pool:
        found = [each for part in pool.map(work, range(4)) for each in part]
    assert len(found) == len(set(found)) == sum(len(ids) for ids in wanted.values())


@pytest.mark.parametrize("arguments", ["array[1], 0", "array[1], 1001", "array_fill(1, array[10001]), 1"])
def test_bad_arguments_are_refused(conn: Connection, arguments: str) -> None:
    with pytest.raises(psycopg.Error) as refused:
        conn.execute(f"select * from trunkline.claim_many({arguments})".encode())
    assert refused.value.sqlstate == "TL001"
    # a queue that is not there has nothing
    assert conn.execute("select (delivery).receipt from trunkline.claim_many(array[999999], 1)").fetchall() == [(None,)]


def test_a_backlog_of_others_keeps_back_neither_what_came_back_nor_ordered_queues(conn: Connection) -> None:
    """Queues that are claimed from together have more than a call takes, again and again; so have the ordered ones."""
    create(conn)
    conn.execute("select count(*) from trunkline.publish_many('t', array_fill('1'::bytea, array[1000]))")
    for number in range(4):
        conn.execute(f"select trunkline.create_queue('o{number}', p_ordered => true)".encode())
        conn.execute(f"select trunkline.enqueue('o{number}', '1') from generate_series(1, 50)".encode())
        conn.execute(f"select trunkline.create_queue('all{number}')".encode())
        conn.execute(f"select trunkline.subscribe('all{number}', 't', p_start => 'earliest')".encode())
    sequence(conn)
    receipts = conn.execute("select receipt from trunkline.claim('all', 2)").fetchall()
    conn.execute("select trunkline.nack(%s, '0')", ([receipt for (receipt,) in receipts],))
    sequence(conn)
    names = dict(conn.execute("select queue_id, name from trunkline.queues where name ~ '^(all|o[0-9])'").fetchall())  # type: ignore[var-annotated]
    seen: set[str] = set()
    for _ in range(60):
        taken, _ = claim(conn, list(names), 3)
        conn.execute("select trunkline.ack(%s)", ([receipt for _, receipt, _ in taken],))
        seen |= {names[queue] for queue, _, _ in taken}
    assert seen == set(names.values())
    assert conn.execute("select count(*) from trunkline._returned(trunkline.queue_number('all'))").fetchone() == (0,)


def test_queues_with_nothing_for_them_are_moved_only_when_they_are_far_behind(conn: Connection) -> None:
    queues = create(conn)
    never = next(number for number, title in queues.items() if title == "never")

    def leases() -> int:
        row = conn.execute(
            "select count(*) from trunkline.leases join trunkline.cursors using (cursor_id) where queue_id = %s", (never,)
        ).fetchone()
        assert row is not None
        return int(row[0])

    for _ in range(20):
        publish(conn, 2)
        taken, empty = claim(conn, list(queues), 1000)
        assert taken and never in empty
    assert leases() == 0
    conn.execute("select count(*) from trunkline.publish_many('t', array_fill('1'::bytea, array[600]))")
    sequence(conn)
    taken, empty = claim(conn, list(queues), 1000)
    assert taken and leases() == 1
    publish(conn, 1)
    claim(conn, [never], 10)
    assert conn.execute("select ready from trunkline.queue_stats('never')").fetchone() == (0,)


def test_claims_that_need_many_draws_stay_below_the_limit_of_a_transaction(conn: Connection) -> None:
    """A filter that hits nothing in a backlog of many partitions: a draw for each."""
    conn.execute("select trunkline.create_queue('sparse')")
    for name in (f"t{number}" for number in range(9)):
        conn.execute("select trunkline.create_topic(%s, p_partitions => 64)", (name,))
        conn.execute("select trunkline.subscribe('sparse', %s, 'z')", (name,))
        conn.execute(
            "select count(*) from trunkline.publish_many(%s, array_fill('1'::bytea, array[1000]),"
            " p_keys => array(select i::text from generate_series(1, 1000) i))",
            (name,),
        )
    for _ in range(3):
        sequence(conn)
    for _ in range(10):
        assert conn.execute("select count(*) from trunkline.claim('sparse', 10)").fetchone() == (0,)
    assert conn.execute("select ready from trunkline.queue_stats('sparse')").fetchone() == (0,)
