"""Series of many subjects, the map of a topic, members, deadlines, lists by name, and why a message waits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import (
    call,
    claim,
    commit,
    enqueue,
    fetch,
    passes,
    publish,
    refused,
    rows,
    run_upkeep,
    seal,
    sequence,
    settle,
    settle_all,
    value,
)


def roll_up(conn: Connection) -> None:
    run_upkeep(conn, "sequence")
    passes(conn)
    run_upkeep(conn, "rollups")


def lines(conn: Connection, kind: str, *names: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in call(conn, "rollup_lines", kind, list(names) or None):
        found.setdefault(row.name, []).append(row)
    return found


def test_the_lines_of_a_page_are_those_of_each_subject(conn: Connection, clock: Clock) -> None:
    for name in ("a", "b", "c"):
        call(conn, "create_topic", name)
        call(conn, "create_queue", name)
        call(conn, "create_group", name, "g")
    for n in range(3):
        publish(conn, "a", *range(60 * n))
        enqueue(conn, "b", *range(30))
        settle_all(conn, "ack", claim(conn, "b", 15))
        commit(conn, "a", batch, group="g") if (batch := fetch(conn, "a", "g")) else None
        roll_up(conn)
        clock.advance(60)
    for kind, function, keys in (
        ("topic", "topic_rollups", {"in_per_second": "published_per_second", "bytes": "bytes"}),
        (
            "queue",
            "queue_rollups",
            {"in_per_second": "accepted_per_second", "out_per_second": "acked_per_second", "lag": "ready"},
        ),
    ):
        found = lines(conn, kind)
        assert found.keys() == {"a", "b", "c"}
        for name, points in found.items():
            single = call(conn, function, name, "1 hour")
            assert [point.at for point in points] == [row.at for row in single]
            for line, column in keys.items():
                assert [getattr(point, line) for point in points] == [getattr(row, column) for row in single]
    assert lines(conn, "group", "a/g", "b/g").keys() == {"a/g", "b/g"}
    assert lines(conn, "queue", "b", "unknown").keys() == {"b"}
    assert lines(conn, "queue", "b")["b"][-1].in_per_second > 0
    [system] = lines(conn, "system").values()
    assert all(point.bytes > 0 and point.in_per_second is not None for point in system[1:])


def test_bad_series(conn: Connection) -> None:
    for args in (("x",), ("queue", ["q"] * 1001)):
        with refused("TL001"):
            call(conn, "rollup_lines", *args)
    with refused("TL005"):
        call(conn, "rollup_lines", "queue", p_step="1 second")
    conn.execute("select count(*) from generate_series(1, 200) n cross join lateral trunkline.create_queue('q' || n)")
    with refused("TL001", "more than 200,000 rows"):
        call(conn, "rollup_lines", "queue", p_since="25 hours")


def test_labels_have_lines_that_add_up_to_their_queue(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q", p_history="1 day", p_backoff_base="0", p_backoff_jitter=0)
    roll_up(conn)
    clock.advance(60)
    for label in ("good", "bad"):
        enqueue(conn, "q", *range(10), p_label=label)
    enqueue(conn, "q", 1)
    for delivery in claim(conn, "q", 30):
        settle(conn, "bury" if delivery.label == "bad" else "ack", delivery.receipt)
    clock.advance(1)
    roll_up(conn)
    clock.advance(60)
    roll_up(conn)
    clock.advance(60)
    roll_up(conn)
    found = lines(conn, "label")
    assert found.keys() == {"q/good", "q/bad"}, "messages without a label have none"
    assert [
        row[0]
        for row in conn.execute(
            "select acked + dead from trunkline.rollups where kind = 'label' order by at desc, 1 limit 2"
        ).fetchall()
    ] == [10, 10]
    assert found["q/bad"][-1].failed_per_second == 0, "an idle minute ends the line at zero"
    assert (
        len(
            rows(
                conn, "select from trunkline.rollups where kind = 'label' and at > trunkline.clock() - interval '30 seconds'"
            )
        )
        == 0
    )


def test_endpoints_have_lines_while_they_are_used(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    for name in ("e", "idle"):
        call(conn, "create_endpoint", name, "https://example.com/")
    call(conn, "bind_queue", "q", "e")
    roll_up(conn)
    enqueue(conn, "q", *range(4))
    clock.advance(60)
    conn.execute(
        "insert into trunkline.attempts"
        " (slot, endpoint_id, queue_id, id, attempt, started_at, seconds, status, outcome, dispatcher)"
        " select 0, e.endpoint_id, q.queue_id, gen_random_uuid(), 1, trunkline.clock() - interval '20 seconds', n, 200,"
        " case when n < 4 then 'acked' else 'nacked' end, 'd'"
        " from trunkline.endpoints e, trunkline.queues q, generate_series(1, 4) n where e.name = 'e'"
    )
    roll_up(conn)
    [row] = rows(conn, "select head, acked, returned, work_max from trunkline.rollups where kind = 'endpoint'")
    assert (row.head, row.acked, row.returned, row.work_max) == (4, 3, 1, 4)
    clock.advance(60)
    roll_up(conn)
    clock.advance(60)
    roll_up(conn)
    assert [row.head for row in rows(conn, "select head from trunkline.rollups where kind = 'endpoint' order by at")] == [
        4,
        4,
    ]
    assert lines(conn, "endpoint").keys() == {"e"}


def test_the_size_of_a_topic_is_read_when_it_changes(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t", p_segment_rows=16, p_retention="1 hour")
    publish(conn, "t", *range(40))
    roll_up(conn)
    seal(conn, 3)
    before = call(conn, "topic_rollups", "t")[-1]
    assert before.bytes == sum(row.bytes for row in call(conn, "topic_stats", "t"))
    conn.execute(
        "create or replace function trunkline._topic_bytes(p_topic_id int) returns bigint language sql as 'select -1'"
    )
    clock.advance(60)
    roll_up(conn)
    assert call(conn, "topic_rollups", "t")[-1].bytes == before.bytes, "not read again"
    clock.advance(7200)
    run_upkeep(conn, "retention", 3)
    roll_up(conn)
    after = call(conn, "topic_rollups", "t")[-1]
    assert (after.bytes, after.removed) == (-1, call(conn, "topic_stats", "t")[0].earliest_offset - 1)


def test_the_map_of_a_topic(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t", 2, p_segment_rows=16, p_retention="1 hour", p_hard_retention="1 day")
    call(conn, "create_group", "t", "g")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t", p_start="earliest")
    for n in range(40):
        publish(conn, "t", n, p_key="one partition")
    sequence(conn)
    seal(conn, 3)
    batch = fetch(conn, "t", "g", p_limit=10)
    commit(conn, "t", batch, group="g")
    claim(conn, "q", 5)
    home = batch[0].partition
    found = {row.partition: row for row in call(conn, "topic_map", "t")}
    row, empty = found[home], found[1 - home]
    assert (row.earliest_offset, row.head, empty.head) == (1, 40, 0)
    assert [(each["first_offset"], each["last_offset"]) for each in row.segments][:2] == [(1, 15), (16, 31)]
    assert row.segments[0]["sealed_at"] and row.segments[0]["bytes"] > 0
    assert {each["name"]: each["next_offset"] for each in row.readers} == {"g": 11, "q": 6}
    assert {each["name"]: each["lag"] for each in row.readers} == {"g": 30, "q": 35}
    times = [each["at"] for each in row.times]
    assert times == sorted(times) and row.times[0]["offset"] == 1
    assert row.keeps["last_offset"] == 15
    assert row.unsequenced == 0
    assert (row.archive, empty.times) == ([], [])


def test_members_of_a_group(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "t", 2)
    call(conn, "create_group", "t", "g")
    publish(conn, "t", *range(20))
    assert call(conn, "list_members", "t", "g") == []
    held = {member: {row.partition for row in fetch(conn, "t", "g", member)} for member in ("a", "b")}
    found = call(conn, "list_members", "t", "g")
    assert [row.member for row in found] == ["a", "b"]
    assert {row.member: set(row.partitions) for row in found} == held
    clock.advance(3600)
    assert call(conn, "list_members", "t", "g") == []
    with refused("TL012"):
        call(conn, "list_members", "t", "unknown")


def test_when_a_reader_loses_messages(conn: Connection, clock: Clock) -> None:
    call(conn, "create_topic", "kept", p_segment_rows=16)
    call(conn, "create_topic", "t", p_segment_rows=16, p_retention="1 hour", p_hard_retention="1 day")
    for topic in ("kept", "t"):
        call(conn, "create_group", topic, "g")
        publish(conn, topic, *range(40))
    sequence(conn)
    seal(conn, 3)
    [row] = call(conn, "retention_deadlines")
    assert (row.topic, row.reader, row.next_offset, row.unread) == ("t", "g", 1, 40)
    sealed = value(
        conn,
        "select min(s.sealed_at) from trunkline.segments s join trunkline.logs l using (log)"
        " join trunkline.topics t using (topic_id) where t.name = 't'",
    )
    assert (row.lost_at - sealed).total_seconds() == 86_400
    call(conn, "require_archive", "t")
    assert call(conn, "retention_deadlines", "t")[0].lost_at is None, "retention waits for the archive"
    commit(conn, "t", fetch(conn, "t", "g", p_limit=100), group="g")
    assert call(conn, "retention_deadlines") == []


@pytest.mark.parametrize(("kind", "verb"), [("topic", "list_topics"), ("queue", "list_queues"), ("queue", "queue_stats")])
def test_lists_by_name(conn: Connection, kind: str, verb: str) -> None:
    for name in ("orders.eu", "orders.us", "ordersXeu", "a_b", "aXb"):
        call(conn, f"create_{kind}", name)

    def names(*patterns: str) -> list[str]:
        return [getattr(row, "queue", None) or row.name for row in call(conn, verb, p_names=list(patterns))]

    assert names("orders.*") == ["orders.eu", "orders.us"]
    assert names("*eu", "a_b") == ["a_b", "orders.eu", "ordersXeu"]
    assert names("unknown", "%") == names() == []
    with refused("TL001"):
        names(*["x"] * 1001)


def reader(conn: Connection, id: Any) -> Any:
    return value(conn, "select trunkline.explain_message(%s) -> 'readers' -> 0", id)


def test_why_a_message_waits_and_until_when(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "q")
    ids = enqueue(conn, "q", *range(200), p_label="kind")
    sequence(conn)
    first = reader(conn, ids[50])
    assert (first["cause"], first["ahead"], first["last_claim_at"], first["expected_at"]) == ("no_consumer", 50, None, None)
    for _ in range(7):
        settle_all(conn, "ack", claim(conn, "q", 6))
        clock.advance(60)
        roll_up(conn)
    busy = reader(conn, ids[100])
    assert (busy["cause"], busy["ahead"]) == ("behind", 58)
    # six a minute
    assert abs(busy["rate_per_second"] - 0.1) < 0.02
    wait = value(conn, "select extract(epoch from %s::timestamptz - trunkline.clock())::float8", busy["expected_at"])
    assert 59 / 0.12 - 60 < wait < 59 / 0.08 + 60
    clock.advance(7200)
    idle = reader(conn, ids[100])
    assert idle["cause"] == "no_consumer"
    assert "no consumer has claimed from the queue for 2 h" in idle["reason"]


def test_a_job_waits_for_a_worker_a_limit_or_a_rate(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    [id] = enqueue(conn, "q", 1, p_label="kind")
    sequence(conn)

    def worker(**info: Any) -> dict[str, Any]:
        call(conn, "register_worker", "w", json.dumps({"queues": {"q": 1}, **info}))
        found: dict[str, Any] = reader(conn, id)
        return found

    assert worker(kinds=["other"])["cause"] == "kind_unknown"
    call(conn, "ensure_limit", "l", 1)
    assert worker(kinds=["kind"], limits={"kind": ["l"]})["cause"] == "no_consumer"
    call(conn, "acquire_limit", "other", ["l"], [1])
    full = worker(kinds=["kind"], limits={"kind": ["l"]})
    assert full["cause"] == "limit"
    assert "held by other (1)" in full["reason"]
    conn.execute("update trunkline.job_workers set seen_at = seen_at - interval '1 hour'")
    assert reader(conn, id)["cause"] == "no_worker"


def test_a_lease_says_how_often_it_was_extended(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    [id] = enqueue(conn, "q", 1)
    [delivery] = claim(conn, "q")
    assert reader(conn, id)["extensions"] == 0
    for _ in range(3):
        settle(conn, "extend", delivery.receipt)
    held = reader(conn, id)
    assert (held["state"], held["extensions"]) == ("leased", 3)
    assert "extended 3 times" in held["reason"]
    assert value(conn, "select trunkline.explain_message(%s) ->> 'sequenced_at'", id) is not None


def test_an_endpoint_that_is_slower_than_its_queue(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    call(conn, "create_endpoint", "e", "https://example.com/", p_rate=2)
    call(conn, "bind_queue", "q", "e")
    conn.execute("select trunkline.dispatch_plan('d')")
    ids = enqueue(conn, "q", *range(100))
    sequence(conn)
    found = reader(conn, ids[59])
    assert (found["cause"], found["rate_per_second"]) == ("endpoint_rate", 2)
    wait = value(conn, "select extract(epoch from %s::timestamptz - trunkline.clock())::float8", found["expected_at"])
    assert 20 < wait <= 30
