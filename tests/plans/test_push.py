"""Reads of the webhook functions, by the server's counters: never a whole table, never more with a longer history."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

from tests.conftest import Connection
from tests.plans import seeding
from tests.support.postgres import VERSIONS

ROUNDS = 10
PER_ROUND = 300
"""Rows of one table that ten deliveries from ten queues may read."""


@pytest.fixture(params=VERSIONS, ids=lambda version: f"pg{version}")
def pg_version(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version


def create(conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t'), trunkline.create_queue('q')")
    conn.execute("select trunkline.create_endpoint('e', 'https://example.com/', 1000), trunkline.bind_queue('q', 'e')")
    for number in range(10):
        conn.execute("select trunkline.create_queue(%s), trunkline.bind_queue(%s, 'e')", (f"q{number}", f"q{number}"))
        pattern = f"key.{number}" if number % 2 else f"*.{number}"
        conn.execute("select trunkline.subscribe(%s, 't', %s)", (f"q{number}", pattern))


def dispatch(conn: Connection) -> None:
    """Run a dispatcher's calls for ten deliveries from ten queues."""
    number, queues = conn.execute("select endpoint_id, queue_ids from trunkline.dispatch_plan('d')").fetchall()[0]
    for each in range(10):
        conn.execute("select trunkline.publish('t', '1', p_routing_key => %s)", (f"key.{each}",))
    conn.execute("call trunkline.sequence()")
    conn.execute("select trunkline.acquire_permits(%s, 10)", (number,))
    taken = conn.execute(
        "select queue_id, (delivery).receipt, (delivery).id from trunkline.claim_many(%s)"
        " where (delivery).receipt is not null",
        ([queue for queue in queues if queue != queues[0]],),
    ).fetchall()
    assert len(taken) == 10
    n = len(taken)
    of_queues, receipts, ids = (list(column) for column in zip(*taken, strict=True))
    conn.execute(
        "select trunkline.settle_attempts('d', %s::int[], %s::int[], %s::text[], %s::uuid[], %s::int[], %s::float8[],"
        " %s::float8[], %s::int[], %s::text[], %s::interval[], %s::text[], %s::text[])",
        ([number] * n, of_queues, receipts, ids, [1] * n, [0.1] * n, [0.1] * n, [200] * n, ["acked"] * n, *[[None] * n] * 3),
    )
    assert conn.execute("select count(*) from trunkline.list_attempts('e', p_limit => 5)").fetchone() == (5,)
    assert conn.execute("select count(*) from trunkline.list_attempts(p_id => %s)", (ids[0],)).fetchone() == (1,)
    assert conn.execute("select trunkline.receive('r', %s)", (str(uuid4()),)).fetchone() == (True,)


def fill(conn: Connection) -> None:
    """A long past of push, and of the claims of one queue."""
    rows = f"generate_series(1, {seeding.ROWS}) g"
    conn.execute(  # type: ignore[arg-type]
        "insert into trunkline.attempts"
        " select slot, endpoint_id, queue_id, gen_random_uuid(), attempt, started_at - interval '1 hour', seconds, status,"
        f" outcome, error, snippet, dispatcher from (select * from trunkline.attempts limit 1) a, {rows}"
    )
    conn.execute(  # type: ignore[arg-type]
        "insert into trunkline.inbox_keys select slot, win, receiver, id || g, at"
        f" from (select * from trunkline.inbox_keys limit 2) k, {rows}"
    )
    conn.execute(  # type: ignore[arg-type]
        "insert into trunkline.leases select r.* from"
        f" (select x from trunkline.leases x order by cursor_id, first desc limit 1) newest, {rows},"
        " jsonb_populate_record(x, jsonb_build_object('first', -g, 'n', 1, 'taken', '{}', 'xid', '3')) r"
    )


def check(conn: Connection, when: str) -> None:
    big = big_tables(conn)
    assert {name.rpartition("_")[0] for name in big} >= {"attempts", "inbox_keys", "leases"}
    dispatch(conn)
    counters = seeding.Counters(conn)
    for _ in range(ROUNDS):
        dispatch(conn)
    read = counters.since()
    assert {name: counts[0] for name, counts in read.items() if name in big and counts[0]} == {}, f"scans, planned {when}"
    touched = {
        name: counts[1] + counts[2]
        for name, counts in read.items()
        if name.startswith(("attempts_", "inbox_keys_", "leases_"))
    }
    assert {name: rows for name, rows in touched.items() if rows > PER_ROUND * ROUNDS} == {}, f"rows, planned {when}"
    # the newest thousand of an endpoint, and no more
    counters = seeding.Counters(conn)
    conn.execute("select * from trunkline.endpoint_stats()")
    read = counters.since()
    assert sum(counts[1] + counts[2] for name, counts in read.items() if name.startswith("attempts_")) <= 1100


def big_tables(conn: Connection) -> set[str]:
    rows = conn.execute(
        "select relname from pg_class where relnamespace = 'trunkline'::regnamespace and relkind = 'r'"
        " and pg_relation_size(oid) > 1000000"
    )
    return {row[0] for row in rows}


def test_push_reads_a_bounded_number_of_rows_whenever_it_was_planned(connect: Callable[[], Connection]) -> None:
    early, filler = connect(), connect()
    create(filler)
    for _ in range(8):
        dispatch(early)
    fill(filler)
    check(early, "on empty tables")
    check(connect(), "without statistics")
    filler.execute("analyze")
    check(connect(), "with statistics")
