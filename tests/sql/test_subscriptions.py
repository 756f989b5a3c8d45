"""Subscriptions: which messages of a topic a queue gets, and from where on."""

from __future__ import annotations

import pytest
from psycopg.types.json import Jsonb

from tests.conftest import Clock, Connection
from tests.sql.verbs import (
    assert_conserved,
    call,
    claim,
    claim_all,
    contents,
    publish,
    queue_stats,
    refused,
    rows,
    run_upkeep,
    settle,
    value,
)

PATTERNS = [
    ("user.created", ["user.created"], ["user.deleted", "user", "user.created.now", "xuser.created", "User.created"]),
    ("user_created", ["user_created"], ["userXcreated", "user.created"]),
    ("100%", ["100%"], ["100x", "100", "1000"]),
    ("a+b(c)[d]{2}^$|\\", ["a+b(c)[d]{2}^$|\\"], ["aab", "ab(c)"]),
    ("*", ["user", "x"], ["", "user.created"]),
    ("user.*", ["user.created"], ["user", "user.", "user.a.b", "xuser.a"]),
    ("*.created", ["user.created"], ["created", ".created", "a.b.created"]),
    ("user.*.done", ["user.x.done"], ["user.done", "user.x.y.done"]),
    ("#", ["", "user", "user.created", "a.b.c.d"], []),
    ("user.#", ["user", "user.created", "user.a.b.c"], ["", "users", "users.a", "x.user"]),
    ("#.created", ["created", "user.created", "a.b.created"], ["", "created.x", "xcreated"]),
    ("a.#.z", ["a.z", "a.b.z", "a.b.c.z"], ["a", "z", "az", "a.bz", "ab.z"]),
    ("#.b.#", ["b", "a.b", "b.c", "a.b.c", "a.a.b.c.c"], ["", "a", "ab", "a.c"]),
    ("#.#", ["", "a", "a.b", "a.b.c"], []),
    ("#.*", ["a", "a.b"], [""]),
    ("*.#", ["a", "a.b", "a.b.c"], [""]),
    ("a.*.#", ["a.b", "a.b.c"], ["a", "b.a"]),
    ("größe.*", ["größe.x"], ["grösse.x", "größe"]),
]


@pytest.mark.parametrize(("pattern", "hits", "misses"), PATTERNS, ids=[row[0] for row in PATTERNS])
def test_patterns(shared_conn: Connection, pattern: str, hits: list[str], misses: list[str]) -> None:
    for key in hits + misses:
        matches = value(shared_conn, "select %s ~ trunkline._pattern_regex(%s)", key, pattern)
        assert matches == (key in hits), key


FILTERS = [
    ({}, {}, True),
    ({}, {"a": 1}, True),
    ({"a": 1}, {"a": 1, "b": 2}, True),
    ({"a": 1}, {"a": 2}, False),
    ({"a": 1}, {"a": "1"}, False),
    ({"a": 1}, {}, False),
    ({"a": ["x", "y"]}, {"a": "y"}, True),
    ({"a": ["x", "y"]}, {"a": "z"}, False),
    ({"a": ["x", "y"]}, {"a": ["x", "y"]}, False),
    ({"a": []}, {"a": 1}, False),
    ({"a": "x", "b": ["y"]}, {"a": "x", "b": "y"}, True),
    ({"a": "x", "b": ["y"]}, {"a": "x"}, False),
    ({"a": None}, {"a": None}, True),
    ({"a": None}, {}, False),
    ({"a": True}, {"a": "true"}, False),
    ({"a": {"n": 1}}, {"a": {"n": 1}}, True),
]


@pytest.mark.parametrize(("wanted", "headers", "hit"), FILTERS)
def test_filters_need_every_key_with_any_of_its_values(
    shared_conn: Connection, wanted: dict[str, object], headers: dict[str, object], hit: bool
) -> None:
    answer = value(shared_conn, "select trunkline._filter_matches(%s, %s)", Jsonb(wanted), Jsonb(headers))
    assert answer is hit


def test_a_queue_gets_what_pattern_and_filter_let_through(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t", "user.*", '{"region": ["eu", "us"]}')
    for key in ("user.created", "order.created", None):
        for region in ("eu", "asia", None):
            headers = None if region is None else Jsonb({"region": region})
            publish(conn, "t", [key, region], p_routing_key=key, p_headers=headers)
    assert contents(claim(conn, "q")) == [["user.created", "eu"]]
    assert claim(conn, "q") == []
    audit = assert_conserved(conn, "q")
    assert (audit.accepted, audit.leased) == (1, 1)


def test_a_filter_that_lets_little_through_still_finds_it(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t", "rare")
    for batch in range(5):
        keys = ["rare" if n == 999 and batch == 4 else "common" for n in range(1000)]
        call(conn, "publish_many", "t", [b"1"] * 1000, p_routing_keys=keys)
    assert [delivery.log_offset for delivery in claim(conn, "q")] == [5000]
    assert rows(conn, "select sum(skipped) from trunkline.leases where lease_no = 1") == [(4999,)]


def test_start_positions(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t")
    publish(conn, "t", 1, 2)
    clock.advance(60)
    middle = value(conn, "select trunkline.clock()::text")
    publish(conn, "t", 3, 4)
    starts = {"earliest": [1, 2, 3, 4, 5], "latest": [5], "2": [2, 3, 4, 5], middle: [3, 4, 5], "5": [5]}
    for n, start in enumerate(starts):
        call(conn, "create_queue", f"q{n}")
        call(conn, "subscribe", f"q{n}", "t", p_start=start)
    publish(conn, "t", 5)
    for n, expected in enumerate(starts.values()):
        assert contents(claim_all(conn, f"q{n}")) == expected
        assert_conserved(conn, f"q{n}")


def test_a_queue_can_be_subscribed_more_than_once_under_other_names(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t", "a.#", p_name="as")
    call(conn, "subscribe", "q", "t", "b.#", p_name="bs")
    with refused("TL020", "'as'"):
        call(conn, "subscribe", "q", "t", p_name="as")
    listed = [(row.name, row.topic, row.pattern) for row in call(conn, "list_subscriptions", "q")]
    assert listed == [("as", "t", "a.#"), ("bs", "t", "b.#")]
    publish(conn, "t", "a", p_routing_key="a.x")
    publish(conn, "t", "b", p_routing_key="b.x")
    publish(conn, "t", "c", p_routing_key="c.x")
    assert sorted(contents(claim(conn, "q"))) == ["a", "b"]


def test_a_topic_may_be_called_inbox(conn: Connection) -> None:
    call(conn, "create_topic", "inbox")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "inbox")
    publish(conn, "inbox", 1)
    assert contents(claim(conn, "q")) == [1]
    call(conn, "unsubscribe", "q", "inbox")
    with refused("TL013", "'inbox'"):
        call(conn, "unsubscribe", "q", "inbox")
    call(conn, "enqueue", "q", "2")
    assert contents(claim(conn, "q")) == [2]


@pytest.mark.parametrize("retried", [False, True])
@pytest.mark.parametrize("leave", ["unsubscribe", "delete_topic"])
def test_unsubscribing_forgets_what_is_out_and_hurts_nobody(
    conn: Connection, clock: Clock, leave: str, retried: bool
) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t")
    publish(conn, "t", 1, 2)
    call(conn, "enqueue", "q", '"mine"')
    deliveries = claim(conn, "q")
    if retried:
        settle(conn, "nack", *[delivery.receipt for delivery in deliveries], p_delay="0")
        deliveries = claim(conn, "q")
    if leave == "unsubscribe":
        call(conn, "unsubscribe", "q", "t")
    else:
        call(conn, "delete_topic", "t", True)
    forgotten = [delivery.receipt for delivery in deliveries if delivery.topic == "t"]
    assert settle(conn, "nack", forgotten[0], p_delay="0") != ["done"]
    clock.advance(31)
    run_upkeep(conn, "expire", 2)
    assert contents(claim(conn, "q")) == ["mine"]
    assert settle(conn, "ack", forgotten[1]) != ["done"]
    assert queue_stats(conn, "q").leased == 1


def test_ten_subscriptions_each_get_everything_once(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    for n in range(10):
        call(conn, "create_queue", f"q{n}")
        call(conn, "subscribe", f"q{n}", "t")
    publish(conn, "t", *range(5))
    for n in range(10):
        assert contents(claim(conn, f"q{n}")) == list(range(5))
    assert value(conn, "select count(*) from trunkline.topic_1") == 5
