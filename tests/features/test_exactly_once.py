"""Exactly-once effects: idempotent work and settling."""

from __future__ import annotations

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import Connect, call, claim, commit, contents, enqueue, fetch, publish, settle, value


def test_an_effect_happens_once(conn: Connection, connect: Connect, clock: Clock) -> None:
    """Key, effect, result and ack in one transaction: a repeat finds the stored result, a loser leaves nothing."""
    conn.execute("create table public.done (key text primary key, result int)")
    conn.execute("create table public.account (balance int)")
    conn.execute("insert into public.account values (0)")
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 10)

    class Lost(Exception):
        """Another consumer owns the lease: the transaction rolls back."""

    def handle(mine: Connection, receipt: str, amount: int) -> tuple[str, int]:
        """Run a handler; return the outcome of the delivery, and the result."""
        with mine.transaction():
            key = f"charge-{amount}"
            first = mine.execute("insert into public.done values (%s, null) on conflict do nothing", (key,)).rowcount
            if first:
                mine.execute("update public.account set balance = balance + %s", (amount,))
                mine.execute("update public.done set result = (select balance from public.account) where key = %s", (key,))
            result = value(mine, "select result from public.done where key = %s", key)
            [answer] = settle(mine, "ack", receipt)
            if answer != "done":
                raise Lost
        return answer, result

    [slow] = claim(conn, "q")
    clock.advance(31)
    [second] = claim(conn, "q")
    with pytest.raises(Lost):
        handle(connect(), slow.receipt, 10)
    assert value(conn, "select balance from public.account") == 0, "who lost the lease has changed nothing"
    assert handle(connect(), second.receipt, 10) == ("done", 10)
    enqueue(conn, "q", 10)
    [repeat] = claim(conn, "q")
    assert handle(connect(), repeat.receipt, 10) == ("done", 10)
    assert value(conn, "select balance from public.account") == 10


def test_a_repeated_ack_returns_the_first_result(conn: Connection, clock: Clock) -> None:
    """A repeat returns the first result, also after the deadline; the same for a group's commit."""
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1)
    publish(conn, "t", 1, 2)
    [delivery] = claim(conn, "q")
    assert [settle(conn, "ack", delivery.receipt) for _ in range(3)] == [["done"]] * 3
    assert settle(conn, "ack", delivery.receipt, delivery.receipt) == ["done", "done"]
    clock.advance(3600)
    assert settle(conn, "ack", delivery.receipt) == ["done"]
    batch = fetch(conn, "t")
    assert [commit(conn, "t", batch) for _ in range(3)] == ["done"] * 3
    assert call(conn, "queue_stats", "q")[0].acked == 1


def test_an_ack_commits_with_the_callers_rows(conn: Connection, connect: Connect) -> None:
    """An ack or a commit counts if and only if the business rows do."""
    conn.execute("create table public.sums (n int)")
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    publish(conn, "t", 1, 2, 3)
    enqueue(conn, "q", 4)
    batch = fetch(conn, "t")
    [delivery] = claim(conn, "q")
    worker = connect()
    for end in ("rollback", "commit"):
        worker.execute("begin")
        worker.execute("insert into public.sums values (%s)", (sum(contents(batch)) + contents([delivery])[0],))
        assert commit(worker, "t", batch) == "done"
        assert settle(worker, "ack", delivery.receipt) == ["done"]
        worker.execute(end)
        done = end == "commit"
        assert value(conn, "select count(*) from public.sums") == done
        assert call(conn, "group_stats", "t", "g")[0].next_offset == (4 if done else 1)
        assert call(conn, "queue_stats", "q")[0].acked == done
    assert value(conn, "select n from public.sums") == 10
