"""The SQL verbs as the tests say them: positional and named arguments in, named tuples out."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import md5
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from tests.conftest import Connection

Connect = Callable[[], Connection]
EMPTY = md5(b"", usedforsecurity=False).hexdigest()


# Functions that only read show what has an offset. A service gives offsets all the time; here it is done before each call.
READS = re.compile(
    r"trunkline\.(head|read|offset_at|offset_of|topic_stats|group_stats|queue_stats|audit_queue|peek_queue|poll|list_jobs"
    r"|get_messages|log_heads|log_runs|log_rows|plan_archive|explain_offset)\("
)


def rows(conn: Connection, query: str, *args: Any) -> list[Any]:
    """All rows of a query, as named tuples."""
    if READS.search(query):
        sequence(conn)
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(query, args or None).fetchall()  # type: ignore[call-overload]


def value(conn: Connection, query: str, *args: Any) -> Any:
    """The first column of the first row of a query."""
    return rows(conn, query, *args)[0][0]


def sequence(conn: Connection) -> None:
    """Give offsets to what was committed, as a service does; not inside a transaction, where it cannot run."""
    if conn.autocommit and conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        conn.execute("call trunkline.sequence()")


def call(conn: Connection, verb: str, *args: Any, **named: Any) -> list[Any]:
    """`call(conn, "claim", "mail", p_limit=3)` is `select * from trunkline.claim('mail', p_limit => 3)`."""
    places = ["%s"] * len(args) + [f"{name} => %s" for name in named]
    return rows(conn, f"select * from trunkline.{verb}({', '.join(places)})", *args, *named.values())


def claim(conn: Connection, queue: str, n: int = 10, **named: Any) -> list[Any]:
    return call(conn, "claim", queue, n, **named)


def claim_all(conn: Connection, queue: str) -> list[Any]:
    """Return the results of claims until one is empty."""
    got: list[Any] = []
    while batch := claim(conn, queue, 1000):
        got += batch
    return got


def fetch(conn: Connection, topic: str, group: str = "g", member: str = "m", **named: Any) -> list[Any]:
    return call(conn, "fetch", topic, group, member, **named)


def commit(conn: Connection, topic: str, batch: list[Any], upto: int | None = None, group: str = "g") -> str:
    """Commit the fetched messages, all or up to an offset; return done or lost."""
    last = batch[-1]
    offset = last.log_offset if upto is None else upto
    return str(call(conn, "commit", topic, group, last.partition, last.generation, offset)[0][0])


def settle(conn: Connection, verb: str, *receipts: str, **named: Any) -> list[str]:
    """Return the result per receipt."""
    return [row.result for row in call(conn, verb, list(receipts), **named)]


def settle_all(conn: Connection, verb: str, deliveries: Iterable[Any], **named: Any) -> list[str]:
    return settle(conn, verb, *[delivery.receipt for delivery in deliveries], **named)


def publish(conn: Connection, topic: str, *values: Any, **named: Any) -> list[Any]:
    """Publish one message per JSON value; return the ids."""
    return [call(conn, "publish", topic, json.dumps(item), **named)[0].id for item in values]


def enqueue(conn: Connection, queue: str, *values: Any, **named: Any) -> list[Any]:
    """Enqueue one message per JSON value; return the ids."""
    return [call(conn, "enqueue", queue, json.dumps(item), **named)[0].id for item in values]


def contents(messages: Iterable[Any]) -> list[Any]:
    """The JSON values of messages, in their order."""
    return [json.loads(message.payload) for message in messages]


def offsets(messages: Iterable[Any]) -> list[int]:
    return [message.log_offset for message in messages]


def read(conn: Connection, topic: str, first: int = 1, limit: int = 1000, partition: int = 0) -> list[Any]:
    return call(conn, "read", topic, partition, first, limit)


def head(conn: Connection, topic: str, partition: int = 0) -> int:
    return int(value(conn, "select trunkline.head(%s, %s)", topic, partition))


def run_upkeep(conn: Connection, name: str, times: int = 1) -> list[int | None]:
    """Run one upkeep task; return the result of each run."""
    return [value(conn, "select trunkline.run_upkeep(%s)", name) for _ in range(times)]


def passes(conn: Connection, times: int = 1) -> None:
    """Run passes. What a pass settles itself is counted by the next one, so there is one more."""
    run_upkeep(conn, "pass", times + 1)


def seal(conn: Connection, segments: int) -> None:
    """A segment takes two runs: one notes who may still write to it, the next finds that they are gone."""
    run_upkeep(conn, "segments", segments + 2)


def upkeep(conn: Connection, times: int = 1) -> None:
    """All of upkeep, as if every task were due."""
    for _ in range(times):
        conn.execute(
            "select setval(c.oid, 0) from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname = 'trunkline' and c.relkind = 'S' and c.relname like 'upkeep\\_%'"
        )
        conn.execute("update trunkline.upkeep_tasks set ran_at = 0 where ran_at > 0")
        conn.execute("call trunkline.upkeep()")


def queue_stats(conn: Connection, queue: str) -> Any:
    [stats] = call(conn, "queue_stats", queue)
    return stats


def assert_conserved(conn: Connection, queue: str) -> Any:
    """Every accepted message is in exactly one state (promise Q1)."""
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read")
        [audit] = call(conn, "audit_queue", queue)
    assert audit.accepted == sum(audit[1:]), audit
    return audit


def now(conn: Connection) -> str:
    """The database's time, as a place for seek."""
    return str(value(conn, "select trunkline.clock()::text"))


def run_together(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()


@contextmanager
def refused(sqlstate: str, named: str = "") -> Iterator[None]:
    """Check that the call fails with this code, that the text names the problem, and that our errors have a hint."""
    with pytest.raises(psycopg.Error) as caught:
        yield
    diag = caught.value.diag
    assert caught.value.sqlstate == sqlstate, caught.value
    assert named in f"{diag.message_primary} / {diag.message_hint}"
    if sqlstate.startswith("TL"):
        assert diag.message_hint


def digest(conn: Connection) -> dict[str, str]:
    """Return what every table of the schema holds, as one hash each; without the books of the pass and of upkeep.

    Tables without a page are empty and not read: a query of all tables takes 50 ms to plan, and tests of bad input compare
    digests thousands of times.
    """
    tables = rows(
        conn,
        "select relname, pg_relation_size(oid) > 0 as has_pages from pg_class"
        " where relnamespace = 'trunkline'::regnamespace and relkind = 'r'"
        " and relname !~ '^((passes|cursor_states|later)_|upkeep_tasks$)'",
    )
    queries = [
        f"select '{name}', md5(coalesce(string_agg(t::text, '|' order by t::text), '')) from trunkline.{name} t"
        for name, has_pages in tables
        if has_pages
    ]
    return {table.relname: EMPTY for table in tables} | dict(rows(conn, " union all ".join(queries)))
