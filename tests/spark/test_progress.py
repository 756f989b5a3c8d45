"""Pipelines report their progress; a group shows Spark's position."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.conftest import Connection
from tests.spark.topics import publish
from trunkline.db.calls import spark as calls
from trunkline.errors import InUse, InvalidArgument
from trunkline.spark.database import plain
from trunkline.spark.progress import pipelines, report, with_queries
from trunkline.spark.session.listener import lag_of


def test_a_pipeline_says_how_it_fares(db: str, conn: Connection) -> None:
    report(db, "p", "archive", detail={"topic": "t"})
    report(db, "p", "archive", batch=3, rows=100, rows_per_second=50.0, lag=7)
    report(db, "p", "archive", detail={"file": "x"})
    first = pipelines(db)[0]
    assert (first.name, first.kind, first.state, first.batch, first.rows, first.lag) == (
        "p",
        "archive",
        "running",
        3,
        100,
        7,
    )
    assert first.detail == {"topic": "t", "file": "x"}
    assert first.ended_at is None
    report(db, "p", "archive", state="failed", error="no room")
    failed = pipelines(db)[0]
    assert (failed.state, failed.error, failed.ended_at is None) == ("failed", "no room", False)
    report(db, "p", "archive")
    again = pipelines(db)[0]
    assert (again.state, again.error, again.ended_at) == ("running", None, None)
    assert again.started_at > first.started_at
    for name, state in [("", "running"), ("x", "asleep")]:
        with pytest.raises(InvalidArgument):
            report(db, name, "archive", state=state)
    with plain(db) as mine:
        assert calls.forget_pipeline(mine, "p")
        assert not calls.forget_pipeline(mine, "p")


def test_a_pipeline_and_its_query_are_one_row(db: str) -> None:
    report(db, "run:large", "run", batch=2, rows=100)
    report(db, "run:large:query", "stream", rows=100, rows_per_second=50.0, lag=7)
    report(db, "mine:query", "stream", rows=1, lag=1)
    found = {each.name: (each.kind, each.rows, each.rows_per_second, each.lag) for each in with_queries(db)}
    assert found == {"run:large": ("run", 100, 50.0, 7), "mine:query": ("stream", 1, None, 1)}


def test_a_group_moves_forwards_only(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t', 2)")
    publish(conn, "t", 100)

    def positions() -> list[int]:
        return [
            row[0] for row in conn.execute("select next_offset - 1 from trunkline.group_stats('t', 'g') order by partition")
        ]

    with plain(db) as mine:
        calls.advance_group(mine, "t", "g", {0: 11, 1: 1})
        assert positions() == [10, 0]
        calls.advance_group(mine, "t", "g", {0: 5, 1: 21})
        assert positions() == [10, 20]
        conn.execute("select * from trunkline.fetch('t', 'g', 'somebody', 1)")
        with pytest.raises(InUse, match="separate group"):
            calls.advance_group(mine, "t", "g", {0: 31, 1: 31})
        assert positions() == [10, 20]


def test_lag_of_our_sources_only() -> None:
    ours = SimpleNamespace(
        endOffset='{"t": {"0": 5}, "$topics": {"t": 1}}', latestOffset='{"t": {"0": 9, "1": 3}, "$topics": {"t": 1}}'
    )
    other = SimpleNamespace(endOffset="17", latestOffset="20")
    silent = SimpleNamespace(endOffset=None, latestOffset=None)
    assert lag_of([ours, other, silent]) == 4
    assert lag_of([other, silent]) is None
