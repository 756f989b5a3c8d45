"""Reads for people, by the server's counters: never a whole table, never more with a longer history."""

from __future__ import annotations

from collections.abc import Callable

from tests.conftest import Connection
from tests.plans import seeding

ROUNDS = 3
PER_ROUND = 4000
"""Rows of one table that one round may read. Each of the tables has 50,000; the searches read 1,000 messages."""


def look(conn: Connection) -> None:
    """Call each function once."""
    conn.execute("select * from trunkline.attention()")
    conn.execute("select * from trunkline.topic_map('t')")
    conn.execute("select * from trunkline.list_members('t', 'g')")
    conn.execute("select * from trunkline.retention_deadlines()")
    conn.execute("select * from trunkline.queue_stats(p_names => '{q*}')")
    conn.execute("select * from trunkline.read_queue('q', 0, 100, 10)")
    for kind in ("topic", "queue", "group", "endpoint", "label", "system"):
        conn.execute("select * from trunkline.rollup_lines(%s)", (kind,))
    for kind, name in (("topic", "t"), ("queue", "q")):
        head = conn.execute(
            "select max(last_offset) from trunkline.estimate_search(%s, p_kind => %s)", (name, kind)
        ).fetchall()[0][0]
        for backwards in (True, False):
            conn.execute(
                "select * from trunkline.search_log(%s, %s, p_scan => 500, p_backwards => %s, p_kind => %s)",
                (name, '{"text": "none"}', backwards, kind),
            )
        assert head > 0
    # not the first message, to which the seed gives 50,000 deliveries
    [(id,)] = conn.execute("select id from trunkline.read_queue('q', 0, 2, 1)").fetchall()
    conn.execute("select trunkline.explain_message(%s)", (id,))
    conn.execute("select trunkline.explain_offset('t', 0, 1)")


def check(conn: Connection, when: str) -> None:
    big = seeding.big_tables(conn)
    assert big >= seeding.GROWN
    look(conn)
    counters = seeding.Counters(conn)
    for _ in range(ROUNDS):
        look(conn)
    read = counters.since()
    assert {name: counts[0] for name, counts in read.items() if name in big and counts[0]} == {}, f"scans, planned {when}"
    # queue_stats counts dead letters by their index; explain_message reads what its queue will retry later
    spared = ("dead_letters", "later")
    touched = {
        name: sum(counts[1:3]) for name, counts in read.items() if seeding.is_hot(name) and not name.startswith(spared)
    }
    assert {name: rows for name, rows in touched.items() if rows > PER_ROUND * ROUNDS} == {}, f"rows, planned {when}"


def test_reads_for_people_touch_a_bounded_number_of_rows(connect: Callable[[], Connection]) -> None:
    early, filler = connect(), connect()
    seeding.create(filler)
    filler.execute("select trunkline.enqueue('q', '1')")
    filler.execute("call trunkline.sequence()")
    filler.execute("select trunkline.run_upkeep('rollups')")
    for _ in range(7):
        look(early)
    seeding.fill(filler)
    check(early, "on empty tables")
    filler.execute("analyze")
    check(connect(), "with statistics")
