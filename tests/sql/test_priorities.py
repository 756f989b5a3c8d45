"""A queue with priorities: urgent levels are served first more often, and no level is starved."""

from __future__ import annotations

from collections import Counter

import psycopg
import pytest


def test_the_urgent_lane_is_asked_first_more_often(conn: psycopg.Connection) -> None:
    conn.execute("select trunkline.create_queue('q', p_priorities => 3)")
    for level in range(3):
        conn.execute(
            "select count(*) from trunkline.enqueue_many('q', array_fill('x'::bytea, array[400]),"
            " p_priorities => array_fill(%s::int, array[400]))",
            (level,),
        )
    first = Counter(conn.execute("select partition from trunkline.claim('q', 1)").fetchone()[0] for _ in range(300))  # type: ignore[index]
    assert first[2] > first[1] > first[0] > 0 or (first[2] > 200 and first[1] > first[0])


def test_no_lane_starves(conn: psycopg.Connection) -> None:
    conn.execute("select trunkline.create_queue('q', p_priorities => 2)")
    conn.execute("select trunkline.enqueue('q', '\"low\"')")
    # The lowest level leads one claim in 65: the probability that none of 3,000 does is 1 in 10^20.
    for _ in range(3000):
        conn.execute("select trunkline.enqueue('q', '\"high\"', p_priority => 1)")
        [(partition, receipt)] = conn.execute("select partition, receipt from trunkline.claim('q', 1)").fetchall()
        conn.execute("select trunkline.ack(array[%s])", (receipt,))
        if partition == 0:
            return
    pytest.fail("the low lane was never asked first")


def test_what_is_new_and_urgent_goes_before_an_old_backlog(conn: psycopg.Connection) -> None:
    conn.execute("select trunkline.create_queue('q', p_priorities => 2)")
    conn.execute("select count(*) from trunkline.enqueue_many('q', array_fill('x'::bytea, array[1000]))")
    conn.execute("select trunkline.claim('q', 1)")
    early = 0
    for _ in range(20):
        conn.execute("select trunkline.enqueue('q', '\"urgent\"', p_priority => 1)")
        early += conn.execute("select partition from trunkline.claim('q', 1)").fetchone()[0]  # type: ignore[index]
    assert early >= 12


def test_one_claim_takes_from_several_lanes(conn: psycopg.Connection) -> None:
    conn.execute("select trunkline.create_queue('q', p_priorities => 3)")
    for level in range(3):
        conn.execute("select trunkline.enqueue('q', '1', p_priority => %s)", (level,))
    rows = conn.execute("select receipt, partition from trunkline.claim('q', 10)").fetchall()
    assert sorted(partition for _, partition in rows) == [0, 1, 2]
    assert {r for (r,) in conn.execute("select result from trunkline.ack(%s)", ([r for r, _ in rows],))} == {"done"}


def test_delay_and_redrive_keep_the_priority(conn: psycopg.Connection) -> None:
    conn.execute("select trunkline.create_queue('q', p_priorities => 4, p_max_attempts => 1)")
    conn.execute("select trunkline.enqueue('q', '1', p_priority => 3, p_delay => '1 microsecond')")
    conn.execute("select trunkline.run_upkeep('pass'), trunkline.run_upkeep('pass')")
    [(receipt, partition)] = conn.execute("select receipt, partition from trunkline.claim('q', 1)").fetchall()
    assert partition == 3
    conn.execute("select trunkline.nack(array[%s])", (receipt,))
    assert conn.execute("select trunkline.redrive('q')").fetchone() == (1,)
    assert conn.execute("select partition from trunkline.claim('q', 1)").fetchone() == (3,)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("select trunkline.create_queue('x', p_priorities => 0)", "TL001"),
        ("select trunkline.create_queue('x', p_priorities => 11)", "TL001"),
        ("select trunkline.create_queue('x', p_priorities => 2, p_ordered => true)", "TL023"),
        ("select trunkline.create_queue('x', p_priorities => 2, p_partitions => 2)", "TL023"),
        ("select trunkline.enqueue('q', '1', p_priority => 2)", "TL001"),
        ("select trunkline.enqueue('q', '1', p_priority => -1)", "TL001"),
        ("select trunkline.enqueue('plain', '1', p_priority => 1)", "TL001"),
        ("select trunkline.enqueue_many('q', array['a','b']::bytea[], p_priorities => array[0, 2])", "TL001"),
        ("select trunkline.enqueue_many('q', array['a','b']::bytea[], p_priorities => array[0])", "TL001"),
    ],
)
def test_bad_priorities_are_refused(conn: psycopg.Connection, statement: str, code: str) -> None:
    conn.execute("select trunkline.create_queue('q', p_priorities => 2)")
    conn.execute("select trunkline.create_queue('plain')")
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(statement.encode())
    assert caught.value.sqlstate == code
    assert caught.value.diag.message_hint
