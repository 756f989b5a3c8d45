"""Searching a log: what matches, where it continues, what it keeps."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import call, enqueue, publish, refused, run_upkeep, seal, sequence, value


def search(conn: Connection, name: str, selection: dict[str, Any] | None = None, **named: Any) -> tuple[list[Any], Any]:
    """Return the matches and the last row."""
    sequence(conn)
    *matches, last = call(conn, "search_log", name, json.dumps(selection or {}), **named)
    assert last.id is None and last.matched == len(matches)
    return matches, last


def bodies(matches: list[Any]) -> list[Any]:
    return [json.loads(match.payload) for match in matches]


@pytest.fixture
def log(conn: Connection) -> Connection:
    """Forty messages of four keys in one partition: n from 0 to 39."""
    call(conn, "create_topic", "t")
    for n in range(40):
        publish(
            conn, "t", {"n": n, "tags": ["even" if n % 2 == 0 else "odd"]}, p_key=f"k{n % 4}",
            p_routing_key=f"order.{n % 3}", p_label="last" if n == 39 else None, p_headers=json.dumps({"tenant": n % 5}),
        )  # fmt: skip
    return conn


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"key": "k1"}, range(1, 40, 4)),
        ({"routing": "order.2"}, range(2, 40, 3)),
        ({"routing": "*.#"}, range(40)),
        ({"label": "last"}, [39]),
        ({"label": ["last", "other"]}, [39]),
        ({"headers": {"tenant": 3}}, range(3, 40, 5)),
        ({"headers": {"tenant": [3, 4]}, "key": "k0"}, [4, 8, 24, 28]),
        ({"body": "$.n ? (@ > 37)"}, [38, 39]),
        ({"body": ["$.n ? (@ > 30)", '$.tags[*] ? (@ == "odd")']}, [31, 33, 35, 37, 39]),
        ({"body": "strict $.missing"}, []),
        ({"text": '"n": 3,'}, [3]),
        ({"regex": '"n": ?1[0-2]'}, [10, 11, 12]),
        ({"key": "unknown"}, []),
        ({}, range(40)),
    ],
)
def test_what_matches(log: Connection, selection: dict[str, Any], expected: Any) -> None:
    matches, last = search(log, "t", selection, p_backwards=False, p_limit=1000)
    assert [body["n"] for body in bodies(matches)] == list(expected)
    assert (last.scanned, last.stopped, last.next) == (40, "end", None)
    backwards, _ = search(log, "t", selection, p_limit=1000)
    assert [row.id for row in backwards] == [row.id for row in reversed(matches)]


@pytest.mark.parametrize("backwards", [False, True])
def test_pages_join_without_gap_or_repetition(conn: Connection, backwards: bool) -> None:
    call(conn, "create_topic", "t", 3)
    ids = publish(conn, "t", *range(60), p_label="x")
    ids += [publish(conn, "t", n, p_key=str(n))[0] for n in range(60)]
    sequence(conn)
    seen: list[Any] = []
    after, scanned = None, 0
    for _ in range(40):
        matches, last = search(conn, "t", {}, p_limit=7, p_backwards=backwards, p_next=after)
        seen += matches
        scanned += last.scanned
        if last.next is None:
            break
        assert (last.stopped, len(matches)) == ("limit", 7)
        after = json.dumps(last.next)
    assert sorted(row.id for row in seen) == sorted(ids)
    assert (len(seen), scanned) == (120, 120)
    for partition in range(3):
        offsets = [row.log_offset for row in seen if row.partition == partition]
        assert offsets == sorted(offsets, reverse=backwards)


def test_a_key_is_searched_in_its_partition(conn: Connection) -> None:
    call(conn, "create_topic", "t", 4)
    for n in range(40):
        publish(conn, "t", n, p_key=f"k{n % 8}")
    sequence(conn)
    matches, last = search(conn, "t", {"key": "k3"})
    assert bodies(matches) == [35, 27, 19, 11, 3]
    [home] = {row.partition for row in matches}
    assert last.scanned == value(conn, "select trunkline.head('t', %s)", home) < 40
    [price] = call(conn, "estimate_search", "t", json.dumps({"key": "k3"}))
    assert (price.partition, price.messages) == (home, last.scanned)
    assert search(conn, "t", {"key": "k3"}, p_partitions=[(home + 1) % 4])[0] == []


def test_the_estimate_is_what_is_read(log: Connection) -> None:
    sequence(log)
    [price] = call(log, "estimate_search", "t", "{}", p_from="11", p_to="20")
    assert (price.first_offset, price.last_offset, price.messages) == (11, 20, 10)
    size = value(log, "select avg(octet_length(payload)) from trunkline.read('t', 0, 1)")
    assert 10 * size < price.bytes < 10 * (size + 300)
    assert search(log, "t", p_from="11", p_to="20", p_limit=100)[1].scanned == 10
    [nothing] = call(log, "estimate_search", "t", "{}", p_from="latest")
    assert (nothing.messages, nothing.bytes) == (0, 0)


def test_a_range_of_times(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t")
    started = value(conn, "select trunkline.clock()")
    for n in range(4):
        publish(conn, "t", n)
        sequence(conn)
        clock.advance(60)
    matches, _ = search(conn, "t", p_from=str(started + timedelta(seconds=50)), p_to=str(started + timedelta(seconds=170)))
    assert bodies(matches) == [2, 1]


@pytest.mark.parametrize(("named", "stopped"), [({"p_scan": 15}, "rows"), ({"p_limit": 3}, "limit")])
def test_why_it_stopped(log: Connection, named: dict[str, Any], stopped: str) -> None:
    _, last = search(log, "t", **named)
    assert last.stopped == stopped
    assert last.next == {"0": 40 - last.scanned}


def test_the_budget_ends_a_search_between_two_pages(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    for _ in range(20):
        conn.execute("select count(*) from trunkline.publish_many('t', array_fill('{\"n\": 1}'::bytea, array[1000]))")
    _, last = search(conn, "t", {"body": "$.n ? (@ > 1)", "regex": "(a|b)*c"}, p_budget="10 milliseconds")
    assert last.stopped == "time"
    assert 0 < last.scanned < 20_000
    assert last.next == {"0": 20_000 - last.scanned}


def test_matches_are_at_most_eight_megabytes(conn: Connection) -> None:
    call(conn, "create_topic", "t", p_max_payload=4_000_000)
    for n in range(5):
        publish(conn, "t", str(n) * 3_000_000)
    matches, last = search(conn, "t")
    assert [row.log_offset for row in matches] == [5, 4, 3]
    assert (last.stopped, last.next) == ("bytes", {"0": 2})
    matches, last = search(conn, "t", p_next=json.dumps(last.next))
    assert [row.log_offset for row in matches] == [2, 1]


def test_payloads_of_any_kind_are_searched(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    odd = [b"\xff\xfe\x00", b"", b'{"a": "\\u0000"}', b"[" * 50_000, b"not json \xe2\x82\xac", b'{"n": 1e400}']
    conn.execute("select count(*) from trunkline.publish_many('t', %s::bytea[])", (odd,))
    assert len(search(conn, "t")[0]) == len(odd)
    assert search(conn, "t", {"body": "$.n"})[1].stopped == "end"
    assert [bytes(row.payload) for row in search(conn, "t", {"regex": "€"})[0]] == [odd[4]]
    assert [bytes(row.payload) for row in search(conn, "t", {"text": "json €"})[0]] == [odd[4]]


def test_a_hostile_expression_ends_with_the_statement(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    publish(conn, "t", list(range(20_000)))
    sequence(conn)
    conn.execute("set statement_timeout = '300ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        call(conn, "search_log", "t", json.dumps({"body": "$[*] ? (@ > $[*] + 30000)"}))


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ({"regex": "("}, "regex of a selection is not valid"),
        ({"body": "$.a ?"}, "body of a selection is not a JSON path"),
        ({"colour": "red"}, 'selection has no field "colour"'),
        ({"key": 7}, "key of a selection must be a string"),
        ({"headers": [1]}, "header filter must be a JSON object"),
        ({"routing": "a*"}, "wildcards of a pattern must be whole words"),
        ({"regex": "x" * 1001}, "regex must have at most 1,000 characters"),
        ([], "selection must be a JSON object"),
    ],
)
def test_bad_selections(conn: Connection, selection: Any, words: str) -> None:
    call(conn, "create_topic", "t")
    for verb in ("search_log", "estimate_search"):
        with refused("TL001", words):
            call(conn, verb, "t", json.dumps(selection))


def test_bad_arguments(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    for named in (
        {"p_limit": 0},
        {"p_limit": 1001},
        {"p_scan": 0},
        {"p_next": '{"x": 1}'},
        {"p_kind": "x"},
        {"p_partitions": [1]},
    ):
        with refused("TL001"):
            call(conn, "search_log", "t", **named)
    with refused("TL005"):
        call(conn, "search_log", "t", p_budget="2 minutes")
    with refused("TL010"):
        call(conn, "search_log", "unknown")
    with refused("TL011"):
        call(conn, "search_log", "unknown", p_kind="queue")


def test_what_retention_removed_is_left_out(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t", p_segment_rows=16, p_retention="1 hour")
    publish(conn, "t", *range(40))
    sequence(conn)
    seal(conn, 3)
    clock.advance(7200)
    run_upkeep(conn, "retention", 3)
    lowest = call(conn, "topic_stats", "t")[0].earliest_offset
    assert lowest > 1
    matches, last = search(conn, "t", p_from="1", p_limit=100)
    assert (last.scanned, len(matches)) == (41 - lowest, 41 - lowest)


def test_the_own_log_of_a_queue(conn: Connection) -> None:
    call(conn, "create_queue", "q", p_priorities=3)
    for priority in range(3):
        enqueue(conn, "q", {"p": priority}, p_priority=priority, p_key="k")
    sequence(conn)
    matches, last = search(conn, "q", {"key": "k"}, p_kind="queue")
    assert sorted(body["p"] for body in bodies(matches)) == [0, 1, 2]
    assert last.scanned == 3
    [row] = call(conn, "read_queue", "q", 2)
    assert (json.loads(row.payload), row.partition, row.log_offset) == ({"p": 2}, 2, 1)
    assert call(conn, "read_queue", "q", 2, 2) == []
    for bad in ((3, 1), (0, 0)):
        with refused("TL001"):
            call(conn, "read_queue", "q", *bad)
    with refused("TL011"):
        call(conn, "read_queue", "unknown")


def test_a_consumed_message_is_found_with_its_bytes(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    body = b'{"id": 9007199254740993, "x": 1e400, "a": "</script>"}'
    conn.execute("select trunkline.enqueue_bytes('q', %s)", (body,))
    [delivery] = call(conn, "claim", "q")
    call(conn, "ack", [delivery.receipt])
    [row] = call(conn, "read_queue", "q")
    assert bytes(row.payload) == body
    assert bytes(search(conn, "q", {"text": "</script>"}, p_kind="queue")[0][0].payload) == body
    assert row.created_at < datetime.now(UTC) + timedelta(hours=1)
