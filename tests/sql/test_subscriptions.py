"""Subscriptions: which messages of a topic a queue gets, and from where on."""

from __future__ import annotations

import random
import re

import pytest
from psycopg.types.json import Jsonb

from tests.conftest import Clock, Connection
from tests.sql.calls import (
    assert_conserved,
    call,
    claim,
    claim_all,
    contents,
    fetch,
    passes,
    publish,
    queue_stats,
    refused,
    rows,
    sequence,
    settle,
    value,
)
from trunkline.sql.migrate import migrate

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
    ("user.#", ["user", "user.created", "user.a.b.c", "user.", "user..eu", "user.a."], ["", "users", "users.a", "x.user"]),
    ("#.created", ["created", "user.created", "a.b.created"], ["", "created.x", "xcreated"]),
    ("a.#.z", ["a.z", "a.b.z", "a.b.c.z"], ["a", "z", "az", "a.bz", "ab.z"]),
    ("#.b.#", ["b", "a.b", "b.c", "a.b.c", "a.a.b.c.c"], ["", "a", "ab", "a.c"]),
    ("#.#", ["", "a", "a.b", "a.b.c"], []),
    ("#.*", ["a", "a.b"], [""]),
    ("*.#", ["a", "a.b", "a.b.c"], [""]),
    ("a.*.#", ["a.b", "a.b.c"], ["a", "b.a"]),
    ("#.created", [".created", "..created", "a..created"], ["created.", "."]),
    ("a.#.z", ["a..z", "a.b..z"], ["a.z.", ".a.z"]),
    ("#.*", [".a", "..a"], [".", "a."]),
    ("#.#.#", ["", ".", "a..b", "line\nbreak."], []),
    ("a..b", ["a..b"], ["a.b", "a.x.b"]),
    ("größe.*", ["größe.x"], ["grösse.x", "größe"]),
]


@pytest.mark.parametrize(("pattern", "hits", "misses"), PATTERNS, ids=[row[0] for row in PATTERNS])
def test_patterns(shared_conn: Connection, pattern: str, hits: list[str], misses: list[str]) -> None:
    for key in hits + misses:
        matches = value(shared_conn, "select %s ~ trunkline._pattern_regex(%s)", key, pattern)
        assert matches == (key in hits), key


def matches(words: list[str], pattern: list[str]) -> bool:
    """The rules themselves: * is one word that is not empty, # any number of words."""
    if not pattern:
        return not words
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return any(matches(words[n:], rest) for n in range(len(words) + 1))
    return bool(words) and (first == words[0] or (first == "*" and words[0] != "")) and matches(words[1:], rest)


def former_regex(pattern: str) -> str:
    """The translation of 0.1 before wildcards were limited; right for keys without empty words."""
    regex, can_be_empty = "", False
    for number, word in enumerate(pattern.split(".")):
        if word == "#" and number == 0:
            regex, can_be_empty = r"(?:[^.]+(?:\.[^.]+)*)?", True
        elif word == "#":
            regex += r"(?:(?:^|\.)[^.]+(?:\.[^.]+)*)?" if can_be_empty else r"(?:\.[^.]+)*"
        else:
            regex += "" if number == 0 else r"(?:^|\.)" if can_be_empty else r"\."
            regex += "[^.]+" if word == "*" else re.escape(word)
            can_be_empty = False
    return f"^{regex}$"


def test_patterns_match_as_the_rules_say_and_as_before(shared_conn: Connection) -> None:
    source = random.Random(6)
    pairs = []
    for _ in range(4000):
        pattern = [source.choice(["a", "b", "*", "#", "#", ""]) for _ in range(source.randint(1, 6))]
        words = [source.choice(["a", "b", "ab", ""]) for _ in range(source.randint(0, 6))]
        if pattern != [""]:
            pairs.append((".".join(pattern), ".".join(words)))
    found = rows(
        shared_conn,
        "select p, k, k ~ trunkline._pattern_regex(p) as hit from unnest(%s::text[], %s::text[]) u(p, k)",
        [pattern for pattern, _ in pairs],
        [key for _, key in pairs],
    )
    assert len(found) == len(pairs) and sum(row.hit for row in found) > 500
    for pattern, key, hit in found:
        words = key.split(".")
        # an empty key is no word, or one that is empty
        assert hit == (matches(words, pattern.split(".")) or (key == "" and matches([], pattern.split(".")))), (pattern, key)
        if (key == "" or "" not in words) and "" not in pattern.split("."):
            assert hit == (re.search(former_regex(pattern), key) is not None), (pattern, key)


def test_spark_reads_the_same_in_a_pattern(shared_conn: Connection) -> None:
    """Its tasks filter with RE2."""
    pc = pytest.importorskip("pyarrow.compute")
    pa = pytest.importorskip("pyarrow")
    keys = ["", ".", "a", "a.", ".a", "a..b", "a.b", "a\n.b", "\n", "a.\n", "ä.b"]
    for pattern in ("#", "*", "a.#", "#.a", "a.#.b", "#.*.#", "*.b", "a..b"):
        regex = value(shared_conn, "select trunkline.pattern_regex(%s)", pattern)
        ours = [value(shared_conn, "select %s ~ %s", key, regex) for key in keys]
        assert pc.match_substring_regex(pa.array(keys), regex).to_pylist() == ours, pattern


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("#.a." * 20 + "*", "pattern must have at most 20 wildcards, got 21"),
        ("*." * 20 + "*", "pattern must have at most 20 wildcards, got 21"),
        ("a." * 100 + "a", "pattern must have at most 100 words, got 101"),
    ],
    ids=["both", "words", "length"],
)
def test_patterns_have_limits(shared_conn: Connection, pattern: str, said: str) -> None:
    with refused("TL001", said):
        value(shared_conn, "select trunkline._pattern_regex(%s)", pattern)


def test_neighbouring_wildcards_are_one(shared_conn: Connection) -> None:
    """499 of them took half a minute to compile."""
    for pattern, same in (("#." * 499 + "b", "#.b"), ("a" + ".#" * 400, "a.#"), ("#.#.#", "#"), ("#.##.#", None)):
        if same is None:
            with refused("TL001", "wildcards of a pattern must be whole words"):
                value(shared_conn, "select trunkline._pattern_regex(%s)", pattern)
        else:
            made = "select trunkline._pattern_regex(%s)"
            assert value(shared_conn, made, pattern) == value(shared_conn, made, same)


def test_an_upgrade_translates_patterns_again(db: str, conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t", "order.#")
    call(conn, "create_group", "t", "g", p_pattern="order.#")
    for table in ("subscriptions", "cursors"):
        conn.execute(
            f"update trunkline.{table} set pattern_regex = '^order(?:\\.[^.]+)*$' where pattern_regex is not null".encode()
        )
    conn.execute("update trunkline.function_files set checksum = 'of an older release'")
    migrate(db)
    publish(conn, "t", 1, p_routing_key="order..eu")
    assert contents(claim(conn, "q")) == [1]
    assert contents(fetch(conn, "t", "g")) == [1]


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
    assert rows(conn, "select sum(skipped) from trunkline.leases") == [(4999,)]


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
    with refused("TL020", '"as"'):
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
    with refused("TL013", '"inbox"'):
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
    passes(conn, 2)
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


def test_one_claim_draws_from_a_hundred_partitions_at_most(conn: Connection) -> None:
    """Each draw is shown in the lock table until the transaction ends."""
    call(conn, "create_queue", "q")
    for topic in ("a", "b"):
        call(conn, "create_topic", topic, p_partitions=64)
        call(conn, "subscribe", "q", topic)
        for number in range(400):
            publish(conn, topic, number, p_key=str(number))
    sequence(conn)
    first = claim(conn, "q", 1000)
    assert len({(row.topic, row.partition) for row in first}) == 100
    rest = claim(conn, "q", 1000)
    assert len(first) + len(rest) == 800


def test_an_underscore_in_a_pattern_is_literal(conn: Connection) -> None:
    """Binding `user_created` does not match `userXcreated`."""
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t", "user_created")
    for key in ("userXcreated", "user_created", "user.created"):
        publish(conn, "t", key, p_routing_key=key)
    assert contents(claim_all(conn, "q")) == ["user_created"]
