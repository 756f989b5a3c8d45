"""Lists by page: a page reads a bounded number of rows, however long the past is, and never a whole table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import Connection
from tests.plans import seeding
from tests.support.postgres import VERSIONS

ROWS = 50_000
PAGES = {
    "list_delayed('q', p_limit => 20)": 400,
    "list_delayed('q', p_after => 'r/1/1', p_limit => 20)": 400,
    "list_delayed('q', p_after => 'l/1/1', p_limit => 20)": 400,
    "list_delayed('q', p_after => 'd/1/1', p_limit => 20)": 400,
    "list_delayed(p_topic => 't', p_limit => 20)": 400,
    "list_jobs('q', 'ready', 20)": 5000,
    "list_jobs('q', 'delayed', 20)": 5000,
    "list_jobs('q', 'dead', 20)": 5000,
    "list_jobs('q', 'done', 20)": 5000,
    "list_fires('s', p_limit => 20)": 100,
    "list_fires('s', 40000, 20)": 100,
    "list_endpoint_events('e', p_limit => 20)": 100,
    "list_progress('p', p_limit => 20)": 100,
    "list_attempts('e', p_limit => 20)": 400,
    "list_attempts('e', p_outcome => 'nacked', p_limit => 20)": 400,
    "list_attempts('e', p_status => 5, p_limit => 20)": 400,
    "list_attempts('e', p_before => now() - interval '1 hour', p_before_id => gen_random_uuid(), p_limit => 20)": 400,
    "list_alerts(p_limit => 20)": 400,
    "list_commits('w', p_limit => 20)": 400,
}
"""The most rows of one table that each may read."""
GROWN = ("schedule_fires", "endpoint_events", "pipeline_progress", "attempts", "history", "sink_commits", "alerts")


@pytest.fixture(params=VERSIONS, ids=lambda version: f"pg{version}")
def pg_version(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version


def fill(conn: Connection) -> None:
    seeding.fill(conn)
    conn.execute("select trunkline.create_schedule('s', '0 0 1 1 *', 't')")
    conn.execute("select trunkline.create_endpoint('e', 'https://example.com/')")
    rows = f"generate_series(1, {ROWS}) g"
    for statement in (
        "schedule_fires (slot, schedule_id, kind, tick, at)"
        " select 0, schedule_id, 'o', now(), now() from trunkline.schedules",
        "endpoint_events (slot, endpoint_id, at, event) select 0, endpoint_id, now(), 'paused' from trunkline.endpoints",
        "pipeline_progress (slot, name, at, state, detail)"
        " select 0, case g % 2 when 0 then 'p' else 'o' end, now(), 'running', '{}' from (select) x",
        # one of a thousand failed
        "attempts (slot, endpoint_id, id, attempt, started_at, seconds, status, outcome, dispatcher)"
        " select 0, endpoint_id, gen_random_uuid(), 1, now() - g * interval '1 second', 0.1,"
        " case g % 1000 when 0 then 503 else 200 end, case g % 1000 when 0 then 'nacked' else 'acked' end, 'd'"
        " from trunkline.endpoints",
        "history (slot, queue_id, source_id, first_offset, last_offset, attempt, claimed_at, settled_at, kind)"
        " select 0, c.queue_id, c.cursor_id, g, g, 1, now(), now() - g * interval '1 second', 'a' from trunkline.cursors c",
        "sink_commits select case g % 2 when 0 then 'w' else 'o' end, g, 1, now() from (select) x",
        "alerts (at, kind, detail) select now(), 'k', '{}' from (select) x",
    ):
        where = " where c.queue_id is not null and c.kind = 'log'" if "cursors" in statement else ""
        conn.execute(f"insert into trunkline.{statement}, {rows}{where}")  # type: ignore[arg-type]


def check(conn: Connection, when: str) -> None:
    big = {
        row[0]
        for row in conn.execute(
            "select relname from pg_class where relnamespace = 'trunkline'::regnamespace and relkind = 'r'"
            " and pg_relation_size(oid) > 1000000"
        ).fetchall()
    }
    assert all(any(name.startswith(grown) for name in big) for grown in GROWN)
    wrong = {}
    for page, most in PAGES.items():
        conn.execute(f"select count(*) from trunkline.{page}")  # type: ignore[arg-type]
        counters = seeding.Counters(conn)
        conn.execute(f"select count(*) from trunkline.{page}")  # type: ignore[arg-type]
        read = {name: counts for name, counts in counters.since().items() if name in big}
        bad = {name: counts[:3] for name, counts in read.items() if counts[0] or sum(counts[1:3]) > most}
        if bad:
            wrong[page] = bad
    assert wrong == {}, when


def test_a_page_reads_a_bounded_number_of_rows(connect: Callable[[], Connection]) -> None:
    early, filler = connect(), connect()
    seeding.create(filler)
    for page in PAGES:
        if "'s'" not in page and "'e'" not in page:
            early.execute(f"select count(*) from trunkline.{page}")  # type: ignore[arg-type]
    fill(filler)
    check(early, "planned on empty tables")
    check(connect(), "planned without statistics")
    filler.execute("analyze")
    check(connect(), "planned with statistics")
