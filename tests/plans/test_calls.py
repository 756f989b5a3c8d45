"""What the functions really read, by the server's own counters: never a whole table, never more for a longer past."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.conftest import Connection
from tests.plans import seeding

ROUNDS = 20


@pytest.fixture(params=[18, 15], ids=lambda version: f"pg{version}")
def pg_version(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version


@pytest.fixture(params=["planned on empty tables", "planned without statistics", "planned with statistics"])
def busy(request: pytest.FixtureRequest, connect: Callable[[], Connection]) -> Connection:
    """A session whose plans were made at different times: before the tables grew, before and after an analyze."""
    conn, filler = connect(), connect()
    seeding.create(filler)
    if request.param == "planned on empty tables":
        for _ in range(8):
            seeding.traffic(conn)
    seeding.fill(filler)
    if request.param == "planned with statistics":
        filler.execute("analyze")
    return conn


def test_no_call_scans_a_table_that_has_grown(busy: Connection) -> None:
    big = seeding.big_tables(busy)
    assert {"ticks_0", "leases_0", "lease_events_0", "lease_checks_0", "positions_0", "pending", "topic_1_0_0"} <= big
    seeding.traffic(busy)
    counters = seeding.Counters(busy)
    for _ in range(ROUNDS):
        seeding.traffic(busy)
    read = counters.since()
    assert {name: counts[0] for name, counts in read.items() if name in big and counts[0]} == {}
    # about 30 calls' worth of rows per round, whatever is in the tables
    touched = {name: counts[1] + counts[2] for name, counts in read.items() if seeding.is_hot(name)}
    assert {name: rows for name, rows in touched.items() if rows > 60 * ROUNDS} == {}


def test_no_plan_inside_a_call_has_a_sequential_scan(busy: Connection, pg_version: int) -> None:
    """The same by the plans themselves, also those of nested statements."""
    try:
        busy.execute("load 'auto_explain'")
    except psycopg.errors.UndefinedFile:
        pytest.skip(f"this build of Postgres {pg_version} has no auto_explain; the counters are checked instead")
    plans: list[str] = []
    busy.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))
    busy.execute("set auto_explain.log_min_duration = 0")
    busy.execute("set auto_explain.log_nested_statements = on")
    busy.execute("set client_min_messages = log")
    seeding.traffic(busy)
    busy.execute("reset client_min_messages")
    assert any("leases_0" in plan for plan in plans), "the plans of nested statements are there"
    big = seeding.big_tables(busy)
    assert [plan for plan in plans if any(f"Seq Scan on {name} " in plan for name in big)] == []
