"""A schema in front of ours with functions, operators and tables of the same names changes nothing."""

from __future__ import annotations

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import call, claim, contents, enqueue, fetch, head, publish, read, run_upkeep, settle

FAKES = """
create schema fake;
create function fake.now() returns timestamptz language sql as $$ select '1999-01-01'::timestamptz $$;
create function fake.clock_timestamp() returns timestamptz language sql as $$ select '1999-01-01'::timestamptz $$;
create function fake.gen_random_uuid() returns uuid language sql
    as $$ select '00000000-0000-0000-0000-000000000000'::uuid $$;
create function fake.length(bytea) returns int language sql as $$ select 0 $$;
create function fake.length(text) returns int language sql as $$ select 0 $$;
create function fake.lower(int8multirange) returns bigint language sql as $$ select 1000000::bigint $$;
create function fake.never(text, text) returns boolean language sql as $$ select false $$;
create operator fake.= (leftarg = text, rightarg = text, function = fake.never);
create table fake.topics (n int);
create table fake.leases (n int);
create temp table ticks (n int);
create temp table pending (n int);
"""


@pytest.mark.parametrize("path", ["fake, public", "pg_temp, fake, pg_catalog", "fake, pg_catalog", ""])
def test_nothing_in_the_callers_search_path_counts(conn: Connection, clock: Clock, path: str) -> None:
    conn.execute(FAKES)
    conn.execute("select pg_catalog.set_config('search_path', %s, false)", (path,))
    call(conn, "create_topic", "t", p_max_payload=100)
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t", "a.*")
    publish(conn, "t", 1, p_routing_key="a.b")
    publish(conn, "t", 2, p_routing_key="c.d")
    with pytest.raises(Exception, match="at most 100 bytes"):
        publish(conn, "t", "x" * 200)
    assert head(conn, "t") == 2
    assert contents(read(conn, "t")) == [1, 2]
    assert read(conn, "t")[0].created_at.year > 2000
    batch = fetch(conn, "t")
    assert call(conn, "commit", "t", "g", 0, batch[0].generation, 2)[0][0] == "done"
    [first] = claim(conn, "q")
    assert contents([first]) == [1]
    settle(conn, "nack", first.receipt, p_delay="0")
    [second] = claim(conn, "q")
    assert first.receipt != second.receipt
    assert settle(conn, "ack", first.receipt, second.receipt) == ["lost", "done"]
    enqueue(conn, "q", 3, p_idempotency_key="k")
    enqueue(conn, "q", 3, p_idempotency_key="k")
    assert contents(claim(conn, "q")) == [3]
    for name in ("pass", "segments", "retention", "rotate", "windows"):
        assert run_upkeep(conn, name) != [None]
