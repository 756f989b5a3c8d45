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


# Between two passes: the numbers of transactions that are running now or have not begun.
SINCE: dict[str, tuple[str, object]] = {"r.lo": ("xid8", 9_999_999), "r.hi": ("xid8", 10_000_000), "p.own": ("xid8", 1)}

STATEMENTS = {
    "newest tick": Statement(
        "_tick_of",
        "select x from trunkline.ticks x where x.log = p_log order by x.first_offset desc limit 1",
        {"p_log": ("int", 64)},
    ),
    "tick of an offset": Statement(
        "_tick_of",
        "select x from trunkline.ticks x where x.log = p_log and x.first_offset <= p_offset"
        " order by x.first_offset desc limit 1",
        {"p_log": ("int", 64), "p_offset": ("bigint", 25_000)},
    ),
    "newest lease of an ordered partition": Statement(
        "_ordered_state",
        "select x from trunkline.leases x where x.cursor_id = c.cursor_id order by x.first desc limit 1",
        {"c.cursor_id": ("int", 1)},
    ),
    "lease of a receipt": Statement(
        "_lock_lease",
        "select * into l from trunkline.leases_0 where cursor_id = p_cursor_id and first = p_first for key share",
        {"p_cursor_id": ("int", 1), "p_first": ("bigint", 25_000)},
    ),
    "lease of a single ack": Statement(
        "_ack_range",
        "select token, deadline, taken, n into l from trunkline.leases_0 where cursor_id = p_cursor_id and first = p_first"
        " for key share skip locked",
        {"p_cursor_id": ("int", 1), "p_first": ("bigint", 25_000)},
    ),
    "lease of one message": Statement(
        "ack",
        "from trunkline.leases_0 l\n"
        "            where l.cursor_id = r[2]::int and l.first = r[1]::bigint and l.n = 1 and l.token::text = r[5]"
        " and l.deadline > trunkline.clock()\n            for update skip locked",
        {"r[2]::int": ("int", 1), "r[1]::bigint": ("bigint", 25_000), "r[5]": ("text", "x")},
    ),
    "tick of the next position": Statement(
        "claim",
        "from trunkline.ticks t where t.log = v_logs[v_i] and t.first_offset <= v_next order by t.first_offset desc limit 1",
        {"v_logs[v_i]": ("int", 64), "v_next": ("bigint", 25_000)},
    ),
    "messages of a run": Statement(
        "claim",
        "from trunkline.store_0 r where r.id between v_id and v_last_id order by r.id",
        {"v_id": ("bigint", 25_000), "v_last_id": ("bigint", 25_001)},
    ),
    "what is settled of a lease": Statement(
        "_settled_of",
        "select * from trunkline.settled_0 where cursor_id = l.cursor_id and pos >= l.first and pos < l.first + l.n",
        {"l.cursor_id": ("int", 1), "l.first": ("bigint", 25_000), "l.n": ("int", 100)},
    ),
    "extensions of a lease": Statement(
        "_extended",
        "from trunkline.extensions_0 where cursor_id = l.cursor_id and first = l.first and until > p_now",
        {"l.cursor_id": ("int", 1), "l.first": ("bigint", 25_000), "p_now": ("timestamptz", "2000-01-01")},
    ),
    "what came back": Statement(
        "_returns_at",
        "select * from trunkline.returns_0 where cursor_id = p_cursor_id and pos between p_first and p_last",
        {"p_cursor_id": ("int", 2), "p_first": ("bigint", 25_000), "p_last": ("bigint", 25_099)},
    ),
    "newest pass": Statement("_since_pass", "select x from trunkline.passes x order by x.pass desc limit 1", {}),
    "state of a cursor": Statement(
        "_cursor_state",
        "select * into s from trunkline.cursor_states where cursor_id = c.cursor_id order by pass desc limit 1",
        {"c.cursor_id": ("int", 1)},
    ),
    "leases around a draw": Statement(
        "_unleased",
        "select x.first, x.n from trunkline.leases x where x.cursor_id = p_cursor_id and x.first < lower(r)"
        " order by x.first desc limit 1",
        {"p_cursor_id": ("int", 1), "r": ("int8range", "[25000,25010)")},
    ),
    "leases since the last pass": Statement(
        "_new_leases",
        "select * from trunkline.leases l where l.xid >= r.lo and l.xid < r.hi and l.xid <> p.own",
        SINCE,
    ),
    "settles since the last pass": Statement(
        "_new_settled",
        "select * from trunkline.settled s where s.xid >= r.lo and s.xid < r.hi and s.xid <> p.own",
        SINCE,
    ),
    "how much is due": Statement(
        "_pass",
        "select d.due from trunkline.later d where d.due > (p.before).walked and d.due <= p.now"
        " order by d.due offset 5000 limit 1",
        {"(p.before).walked": ("timestamptz", "now"), "p.now": ("timestamptz", "now")},
    ),
    "what is due": Statement(
        "_do_due",
        "from trunkline.later d where d.due > (p.before).walked and d.due <= p.upto and d.kind = 'r' and d.due_at > p.now",
        {"(p.before).walked": ("timestamptz", "now"), "p.upto": ("timestamptz", "now"), "p.now": ("timestamptz", "now")},
    ),
    "when a queue has to wait": Statement(
        "poll",
        "select d.due from trunkline.later d where d.queue_id = q.queue_id and d.due > v_now order by d.due limit 1",
        {"q.queue_id": ("int", 1), "v_now": ("timestamptz", "now")},
    ),
    "newest position": Statement(
        "_position",
        "select x from trunkline.positions x where x.cursor_id = c.cursor_id order by x.state_no desc limit 1",
        {"c.cursor_id": ("int", 4)},
    ),
    "messages of an id range": Statement(
        "topic_1_read",
        "from trunkline.topic_1_0_0 where id between p_first_id and p_last_id order by id",
        {"p_first_id": ("bigint", 25_000), "p_last_id": ("bigint", 25_099)},
    ),
    "visible ids": Statement(
        "topic_1_scan",
        "select id from trunkline.topic_1_0_0 where xid >= r.lo and xid < r.hi",
        {"r.lo": ("xid8", 9_999_999), "r.hi": ("xid8", 10_000_000)},
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
    return f"prepare hot{f' ({types})' if types else ''} as {text}"


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def explain(conn: Connection, statement: Statement) -> list[dict[str, Any]]:
    conn.execute("set plan_cache_mode = force_generic_plan")
    conn.execute(prepare(statement))  # type: ignore[arg-type]
    values = ", ".join("null" if value is None else f"'{value}'" for _, value in statement.variables.values())
    execute = f"execute hot ({values})" if values else "execute hot"
    [[found]] = conn.execute(f"explain (analyze, format json) {execute}").fetchall()  # type: ignore[arg-type]
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
