"""Dead letters: a full copy with its last error, and the way back (promises Q7, Q8)."""

from __future__ import annotations

from uuid import uuid4

from psycopg.types.json import Jsonb

from tests.conftest import Connection
from tests.sql.calls import (
    Connect,
    assert_conserved,
    call,
    claim,
    contents,
    enqueue,
    publish,
    queue_stats,
    refused,
    settle,
    settle_all,
    value,
)


def bury(conn: Connection, queue: str, n: int = 10, error: str = "broken") -> None:
    assert set(settle(conn, "bury", *[d.receipt for d in claim(conn, queue, n)], p_error=error)) == {"done"}


def test_a_dead_letter_keeps_everything_and_outlives_the_log(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t")
    fields = {"p_key": "k", "p_routing_key": "a.b", "p_label": "job", "p_headers": Jsonb({"h": 1})}
    [message] = call(conn, "publish_bytes", "t", b"\x00\xff", "x/y", p_occurred_at="2020-01-01 00:00+00", **fields)
    bury(conn, "q")
    call(conn, "delete_topic", "t", True)
    [dead] = call(conn, "list_dead_letters", "q")
    assert (dead.id, dead.topic, dead.log_offset, dead.key, dead.routing_key) == (message.id, "t", 1, "k", "a.b")
    assert (dead.label, dead.headers, dead.payload, dead.content_type) == ("job", {"h": 1}, b"\x00\xff", "x/y")
    assert (dead.attempts, dead.error, dead.reason, dead.occurred_at.year) == (1, "broken", "buried", 2020)
    assert dead.created_at <= dead.dead_at
    assert call(conn, "get_dead_letter", "q", message.id) == [dead]


def test_listing_pages_by_dead_id(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    enqueue(conn, "q", *range(5))
    bury(conn, "q")
    first = call(conn, "list_dead_letters", "q", 0, 3)
    second = call(conn, "list_dead_letters", "q", first[-1].dead_id, 3)
    assert contents(first + second) == list(range(5))
    assert call(conn, "list_dead_letters", "q", second[-1].dead_id) == []
    with refused("TL014", "no dead letter"):
        call(conn, "get_dead_letter", "q", uuid4())


def test_redrive_delivers_the_same_message_with_fresh_attempts(conn: Connection) -> None:
    call(conn, "create_queue", "q", p_max_attempts=1)
    given = {"p_key": "k", "p_label": "job", "p_headers": Jsonb({"h": 1})}
    [id_] = enqueue(conn, "q", {"n": 1}, **given)
    [delivery] = claim(conn, "q")
    settle(conn, "nack", delivery.receipt)
    assert value(conn, "select trunkline.redrive('q')") == 1
    assert value(conn, "select trunkline.redrive('q')") == 0
    [again] = claim(conn, "q")
    assert (again.id, again.attempt, again.payload) == (id_, 1, b'{"n": 1}')
    assert (again.key, again.label, again.headers) == ("k", "job", {"h": 1})
    assert queue_stats(conn, "q").dead == 0
    settle(conn, "ack", again.receipt)
    assert_conserved(conn, "q")


def test_redrive_some_in_bounded_batches_and_in_order(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    ids = enqueue(conn, "q", *range(10))
    bury(conn, "q")
    assert value(conn, "select trunkline.redrive('q', %s)", [ids[7], ids[2], uuid4()]) == 2
    assert contents(claim(conn, "q")) == [2, 7]
    assert value(conn, "select trunkline.redrive('q', '{}')") == 0
    steps = [value(conn, "select trunkline.redrive('q', p_limit => 3)") for _ in range(4)]
    assert steps == [3, 3, 2, 0]
    assert contents(claim(conn, "q")) == [0, 1, 3, 4, 5, 6, 8, 9]


def test_redrive_elsewhere(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    call(conn, "create_queue", "repair")
    enqueue(conn, "q", 1)
    bury(conn, "q")
    with refused("TL011", '"nowhere"'):
        call(conn, "redrive", "q", p_to="nowhere")
    assert queue_stats(conn, "q").dead == 1
    assert value(conn, "select trunkline.redrive('q', p_to => 'repair')") == 1
    assert claim(conn, "q") == []
    assert contents(claim(conn, "repair")) == [1]


def test_a_redriven_message_from_a_topic_comes_back_to_its_queue_only(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    for queue in ("q", "other"):
        call(conn, "create_queue", queue)
        call(conn, "subscribe", queue, "t")
    publish(conn, "t", 1)
    bury(conn, "q")
    call(conn, "redrive", "q")
    assert contents(claim(conn, "q")) == [1]
    assert contents(claim(conn, "other")) == [1]


def test_a_redrive_rolled_back_loses_and_doubles_nothing(conn: Connection, connect: Connect) -> None:
    call(conn, "create_queue", "q")
    enqueue(conn, "q", *range(5))
    bury(conn, "q")
    other = connect()
    other.execute("begin")
    assert value(other, "select trunkline.redrive('q', p_limit => 3)") == 3
    assert value(conn, "select trunkline.redrive('q')") == 2, "the others are somebody else's now"
    other.execute("rollback")
    assert sorted(contents(claim(conn, "q"))) == [3, 4]
    assert value(conn, "select trunkline.redrive('q')") == 3
    assert sorted(contents(claim(conn, "q"))) == [0, 1, 2]


def test_purge_some_or_all(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    ids = enqueue(conn, "q", *range(6))
    bury(conn, "q")
    assert value(conn, "select trunkline.purge_dead_letters('q', %s)", ids[:1]) == 1
    assert value(conn, "select trunkline.purge_dead_letters('q', p_limit => 3)") == 3
    assert contents(call(conn, "list_dead_letters", "q")) == [4, 5]
    assert value(conn, "select trunkline.purge_dead_letters('q')") == 2
    assert_conserved(conn, "q")


def test_a_long_error_is_cut(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1)
    bury(conn, "q", error="e" * 20_000)
    assert len(call(conn, "list_dead_letters", "q")[0].error) == 10_000


def test_a_notice_says_how_many_dead_letters_are_left(conn: Connection) -> None:
    notices: list[tuple[str | None, str | None]] = []
    conn.add_notice_handler(lambda notice: notices.append((notice.message_primary, notice.message_hint)))
    call(conn, "create_queue", "q")
    ids = enqueue(conn, "q", *range(6))
    bury(conn, "q")
    hint = "repeat the call until it returns 0"
    assert (call(conn, "redrive", "q", p_limit=2)[0].redrive, notices) == (2, [("queue q has 4 more dead letters", hint)])
    assert (call(conn, "purge_dead_letters", "q", p_limit=1)[0][0], notices[1:]) == (
        1,
        [("queue q has 3 more dead letters", hint)],
    )
    assert (call(conn, "redrive", "q", ids[3:4])[0].redrive, notices[2:]) == (1, [])  # the caller knows which
    assert (call(conn, "redrive", "q")[0].redrive, notices[2:]) == (2, [])


def test_dead_letters_are_listed_and_redriven(conn: Connection) -> None:
    """DLQ list and redrive."""
    call(conn, "create_queue", "q", p_max_attempts=1)
    ids = enqueue(conn, "q", 1, 2)
    settle_all(conn, "nack", claim(conn, "q"), p_error="no")
    dead = call(conn, "list_dead_letters", "q")
    assert [(letter.id, letter.error) for letter in dead] == [(ids[0], "no"), (ids[1], "no")]
    assert value(conn, "select trunkline.redrive('q', %s)", [ids[1]]) == 1
    assert [delivery.id for delivery in claim(conn, "q")] == [ids[1]]
    assert value(conn, "select trunkline.redrive('q')") == 1
    assert [delivery.id for delivery in claim(conn, "q")] == [ids[0]]
