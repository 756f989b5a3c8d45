"""Reads of the functions, by the server's counters: never a whole table, never more with a longer history."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.conftest import Connection
from tests.plans import seeding
from tests.support.postgres import VERSIONS

ROUNDS = 20
PER_ROUND = 120
"""Rows that a round of about twenty calls, among them three passes, may read of one table."""


@pytest.fixture(params=VERSIONS, ids=lambda version: f"pg{version}")
def pg_version(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version


def check_counters(conn: Connection, when: str) -> None:
    big = seeding.big_tables(conn)
    assert big >= seeding.GROWN
    seeding.traffic(conn)
    counters = seeding.Counters(conn)
    for _ in range(ROUNDS):
        seeding.traffic(conn)
    read = counters.since()
    assert {name: counts[0] for name, counts in read.items() if name in big and counts[0]} == {}, f"scans, planned {when}"
    # queue_stats counts these two, at most 100,000 rows by their index
    counted = ("dead_letters", "scheduled")
    touched = {name: sum(counts[1:3]) for name, counts in read.items() if seeding.is_hot(name) and name not in counted}
    assert {name: rows for name, rows in touched.items() if rows > PER_ROUND * ROUNDS} == {}, f"rows, planned {when}"


def check_plans(conn: Connection, when: str) -> None:
    """The plans themselves, also those of nested statements."""
    plans: list[str] = []
    conn.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))
    conn.execute("set auto_explain.log_min_duration = 0")
    conn.execute("set auto_explain.log_nested_statements = on")
    conn.execute("set client_min_messages = log")
    seeding.traffic(conn)
    conn.execute("reset client_min_messages")
    assert any("leases_0" in plan for plan in plans), "the plans of nested statements are there"
    big = seeding.big_tables(conn)
    assert [plan for plan in plans if any(f"Seq Scan on {name} " in plan for name in big)] == [], f"planned {when}"


def test_calls_read_a_bounded_number_of_rows_whenever_they_were_planned(connect: Callable[[], Connection]) -> None:
    """Plans made while the tables were empty (as after each rotation), and before and after an analyze of full ones."""
    early, filler = connect(), connect()
    seeding.create(filler)
    for _ in range(8):
        seeding.traffic(early)
    seeding.fill(filler)
    check_counters(early, "on empty tables")
    check_counters(connect(), "without statistics")
    filler.execute("analyze")
    check_counters(connect(), "with statistics")


def test_no_plan_of_a_nested_statement_has_a_sequential_scan(connect: Callable[[], Connection], pg_version: int) -> None:
    early, filler = connect(), connect()
    try:
        early.execute("load 'auto_explain'")
    except psycopg.errors.UndefinedFile:
        pytest.skip(f"this build of Postgres {pg_version} has no auto_explain; the counters are checked all the same")
    seeding.create(filler)
    for _ in range(8):
        seeding.traffic(early)
    seeding.fill(filler)
    check_plans(early, "on empty tables")
    filler.execute("analyze")
    late = connect()
    late.execute("load 'auto_explain'")
    check_plans(late, "with statistics")
