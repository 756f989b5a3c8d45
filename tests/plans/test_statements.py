"""Each hot statement of the functions, as it stands there, has a generic plan that goes by an index and touches few rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.conftest import Connection
from tests.plans import seeding

BOUND = 1100
"""Rows that a statement may touch: one batch. Each of the tables has 50,000."""


class Statement(NamedTuple):
    """Text of a function, and the variables in it that become parameters: name -> type and value."""

    function: str
    text: str
    variables: dict[str, tuple[str, object]]


STATEMENTS = {
    "newest tick": Statement(
        "_tick",
        "select * into t from trunkline.ticks where log = v_log order by first_offset desc limit 1",
        {"v_log": ("int", 64)},
    ),
    "tick of an offset": Statement(
        "_read",
        "select * into t from trunkline.ticks where log = v_log and first_offset <= v_next"
        " order by first_offset desc limit 1",
        {"v_log": ("int", 64), "v_next": ("bigint", 25_000)},
    ),
    "newest lease": Statement(
        "_lease_state",
        "select * into s from trunkline.leases where cursor_id = c.cursor_id order by lease_no desc limit 1",
        {"c.cursor_id": ("int", 1)},
    ),
    "lease by its number": Statement(
        "_expire_lease",
        "select * into l from trunkline.leases where cursor_id = p_lease.cursor_id and lease_no = p_lease.lease_no"
        " for update skip locked",
        {"p_lease.cursor_id": ("int", 1), "p_lease.lease_no": ("bigint", 25_000)},
    ),
    "events of a lease": Statement(
        "_settle",
        "from trunkline.lease_events e where e.cursor_id = l.cursor_id and e.lease_no = l.lease_no",
        {"l.cursor_id": ("int", 1), "l.lease_no": ("bigint", 25_000)},
    ),
    "newest check": Statement(
        "_check_leases",
        "select * into k from trunkline.lease_checks where cursor_id = p_cursor_id order by check_no desc limit 1",
        {"p_cursor_id": ("int", 1)},
    ),
    "newest lease number": Statement(
        "_check_leases",
        "select max(lease_no) into v_high from trunkline.leases where cursor_id = p_cursor_id",
        {"p_cursor_id": ("int", 1)},
    ),
    "newest position": Statement(
        "_position",
        "select * into v_row from trunkline.positions where cursor_id = c.cursor_id order by state_no desc limit 1",
        {"c.cursor_id": ("int", 3)},
    ),
    "due pending rows": Statement(
        "_claim_retries",
        "select cursor_id, log_offset from trunkline.pending where queue_id = q.queue_id and due_at <= v_now"
        " and (p_labels is null or label = any (p_labels)) order by due_at limit p_want for update skip locked",
        {
            "q.queue_id": ("int", 1),
            "v_now": ("timestamptz", "2000-01-01"),
            "p_labels": ("text[]", None),
            "p_want": ("int", 100),
        },
    ),
    "first pending row of a cursor": Statement(
        "_ordered_turn",
        "select * into v_head from trunkline.pending where cursor_id = c.cursor_id order by log_offset limit 1",
        {"c.cursor_id": ("int", 1)},
    ),
    "messages of an id range": Statement(
        "topic_1_read",
        "from trunkline.topic_1_0_0 where id between p_first_id and p_last_id order by id",
        {"p_first_id": ("bigint", 25_000), "p_last_id": ("bigint", 25_099)},
    ),
    "visible ids": Statement(
        "topic_1_scan",
        "select id from trunkline.topic_1_0_0 where id >= p_from order by id limit 1000",
        {"p_from": ("bigint", 49_000)},
    ),
}


@pytest.fixture
def seeded(conn: Connection) -> Connection:
    seeding.create(conn)
    seeding.fill(conn)
    return conn


def squeeze(text: str) -> str:
    return " ".join(text.split())


def prepare(statement: Statement) -> str:
    """The statement with $1, $2 for its variables and without INTO."""
    text = re.sub(r" into \w+ ", " ", statement.text)
    if text.startswith("from "):
        text = "select * " + text
    for number, name in enumerate(statement.variables, 1):
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w)", f"${number}", text)
    types = ", ".join(kind for kind, _ in statement.variables.values())
    return f"prepare hot ({types}) as {text}"


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def explain(conn: Connection, statement: Statement) -> list[dict[str, Any]]:
    conn.execute("set plan_cache_mode = force_generic_plan")
    conn.execute(prepare(statement))  # type: ignore[arg-type]
    values = ", ".join("null" if value is None else f"'{value}'" for _, value in statement.variables.values())
    [[found]] = conn.execute(f"explain (analyze, format json) execute hot ({values})").fetchall()  # type: ignore[arg-type]
    conn.execute("deallocate hot")
    return list(nodes((json.loads(found) if isinstance(found, str) else found)[0]["Plan"]))


def touched(node: dict[str, Any]) -> float:
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return (node["Actual Rows"] + removed) * node["Actual Loops"]  # type: ignore[no-any-return]


def test_hot_statements_go_by_an_index(seeded: Connection) -> None:
    """Without statistics and with them: the plan may not depend on when the last analyze was."""
    big = seeding.big_tables(seeded)
    for analyzed in (False, True):
        if analyzed:
            seeded.execute("analyze")
        for name, statement in STATEMENTS.items():
            for node in explain(seeded, statement):
                where = f"{name} ({'with' if analyzed else 'without'} statistics): {node}"
                assert not (node["Node Type"] == "Seq Scan" and node["Relation Name"] in big), where
                assert touched(node) <= BOUND, where


def test_hot_statements_are_those_of_the_functions(conn: Connection) -> None:
    """The plans above are those of the functions as they are, not as they once were."""
    conn.execute("select trunkline.create_topic('t')")
    sources: dict[str, str] = dict(
        conn.execute(
            "select proname, string_agg(prosrc, ' ') from pg_proc where pronamespace = 'trunkline'::regnamespace group by 1"
        ).fetchall()
    )
    gone = [name for name, it in STATEMENTS.items() if squeeze(it.text) not in squeeze(sources.get(it.function, ""))]
    assert gone == []
