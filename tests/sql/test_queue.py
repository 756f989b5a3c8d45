"""Queues: claim, settle, come back, die, return."""

from __future__ import annotations

from tests.conftest import Clock, Connection


def claim(conn: Connection, queue: str, n: int = 10) -> list[tuple[str, int, bytes]]:
    return conn.execute("select receipt, attempt, payload from trunkline.claim(%s, %s)", (queue, n)).fetchall()  # type: ignore[return-value]


def settle(conn: Connection, verb: str, *receipts: str) -> list[str]:
    rows = conn.execute(f"select result from trunkline.{verb}(%s)", (list(receipts),)).fetchall()  # type: ignore[arg-type]
    return [row[0] for row in rows]


def test_message_goes_from_enqueue_to_ack(conn: Connection) -> None:
    conn.execute("select trunkline.create_queue('mail')")
    conn.execute("select trunkline.enqueue('mail', '{\"n\": 1}')")
    [(receipt, attempt, payload)] = claim(conn, "mail")
    assert (attempt, payload) == (1, b'{"n": 1}')
    assert claim(conn, "mail") == []
    assert settle(conn, "ack", receipt) == ["done"]
    assert settle(conn, "ack", receipt) == ["done"]
    assert settle(conn, "nack", receipt) == ["lost"]


def test_expired_lease_can_do_nothing_and_message_returns(conn: Connection, clock: Clock) -> None:
    conn.execute("select trunkline.create_queue('mail')")
    conn.execute("select trunkline.enqueue('mail', '1')")
    [(old, _, _)] = claim(conn, "mail")
    clock.advance(31)
    assert settle(conn, "ack", old) == ["lost"]
    [(new, attempt, _)] = claim(conn, "mail")
    assert attempt == 2
    assert settle(conn, "extend", old) == ["lost"]
    assert settle(conn, "ack", old, new) == ["lost", "done"]
    clock.advance(3600)
    assert claim(conn, "mail") == []
