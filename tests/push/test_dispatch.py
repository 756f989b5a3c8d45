"""Webhooks over real HTTP: requests, and the outcome of each kind of response."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from tests.conftest import Connection
from tests.plans.seeding import Counters
from tests.push.dispatch import dispatching
from tests.push.receivers import Receiver, Seen, receiving
from tests.support.postgres import VERSIONS
from tests.support.waiting import until
from trunkline.push import Verifier


def value(conn: Connection, query: str, *args: Any) -> Any:
    row = conn.execute(query.encode(), args).fetchone()
    return None if row is None else row[0]


def make(conn: Connection, url: str, queue: str = "q", **settings: Any) -> str:
    """Create endpoint `e` with a bound queue; return its secret."""
    of_queue = {
        name: settings.pop(name) for name in ("max_attempts", "backoff_base", "ordered", "lease") if name in settings
    }
    named = "".join(f", p_{name} => %s" for name in settings)
    secret = value(conn, f"select secret from trunkline.create_endpoint('e', %s{named})", url, *settings.values())
    named = "".join(f", p_{name} => %s" for name in of_queue)
    conn.execute(f"select trunkline.create_queue(%s{named})".encode(), (queue, *of_queue.values()))
    conn.execute("select trunkline.bind_queue(%s, 'e')", (queue,))
    return str(secret)


async def test_a_delivery_carries_id_key_headers_attempt_and_signature(
    db: str, conn: Connection, receiver: Receiver
) -> None:
    secret = make(conn, receiver.url, headers='{"authorization": "Bearer x"}')
    conn.execute("select trunkline.create_topic('orders'), trunkline.subscribe('q', 'orders')")
    id = value(
        conn,
        "select id from trunkline.publish('orders', %s, p_key => 'käse', p_routing_key => 'order.created', p_label => 'l',"
        " p_headers => %s)",
        '{"n": 1}',
        '{"a": "b", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}',
    )
    async with dispatching(db):
        seen = (await asyncio.to_thread(receiver.wait, bool))[0]
        await until(lambda: value(conn, "select acked = 1 from trunkline.queue_stats('q')"))
    assert seen.headers["authorization"] == "Bearer x"
    assert seen.headers["traceparent"].startswith("00-0af765")
    got = Verifier(secret).verify(seen.headers, seen.body)
    assert (got.id, got.json(), got.topic, got.queue) == (str(id), {"n": 1}, "orders", "q")
    assert (got.routing_key, got.key, got.label, got.attempt, got.headers["a"]) == ("order.created", "käse", "l", 1, "b")
    attempt = conn.execute(
        "select queue, id, attempt, status, outcome, snippet from trunkline.list_attempts('e')"
    ).fetchone()
    assert attempt == ("q", id, 1, 200, "acked", "status 200")


@pytest.mark.parametrize("answer", [500, 404, 302, "reset", "half", "hang"])
async def test_anything_but_2xx_is_tried_again_and_then_dead(db: str, conn: Connection, answer: int | str) -> None:
    def reply(seen: Seen) -> Any:
        if answer == 302:
            return web.Response(status=302, headers={"location": "/elsewhere"})
        return answer

    with receiving(reply) as receiver:
        make(conn, receiver.url, timeout="0.3 seconds", max_attempts=2, backoff_base="10 milliseconds")
        conn.execute("select trunkline.enqueue('q', '1')")
        async with dispatching(db):
            await until(lambda: value(conn, "select dead = 1 from trunkline.queue_stats('q')"))
        assert [seen.headers["trunkline-attempt"] for seen in receiver.seen] == ["1", "2"]
        assert {seen.path for seen in receiver.seen} == {"/hook"}
        assert len({seen.id for seen in receiver.seen}) == 1
    error = value(conn, "select error from trunkline.list_dead_letters('q')")
    words = {500: "HTTP 500", 404: "HTTP 404", 302: "redirects are not followed", "reset": "lost", "half": "incomplete"}
    assert words.get(answer, "no complete response in 0.3 s") in error


async def test_retry_after_is_honoured_and_holds_the_endpoint(db: str, conn: Connection) -> None:
    with receiving(lambda seen: web.Response(status=429, headers={"retry-after": "1000"})) as receiver:
        make(conn, receiver.url)
        conn.execute("select trunkline.enqueue('q', '1')")
        async with dispatching(db):
            await until(lambda: value(conn, "select delayed = 1 from trunkline.queue_stats('q')"))
            await until(lambda: value(conn, "select held_until > now() + interval '900 s' from trunkline.list_endpoints()"))
        due = value(
            conn, "select extract(epoch from due_at - now())::float8 from trunkline._returned(trunkline.queue_number('q'))"
        )
        assert 900 < due <= 1000


async def test_410_disables_the_endpoint_and_keeps_the_message(db: str, conn: Connection) -> None:
    answers = [410]
    with receiving(lambda seen: answers[0]) as receiver:
        make(conn, receiver.url)
        conn.execute("select trunkline.enqueue('q', '1')")
        async with dispatching(db):
            await until(lambda: value(conn, "select state = 'disabled' from trunkline.list_endpoints()"))
            assert "410" in value(conn, "select reason from trunkline.list_endpoints()")
            answers[0] = 200
            conn.execute("select trunkline.resume_endpoint('e')")
            await until(lambda: value(conn, "select acked = 1 from trunkline.queue_stats('q')"))
        assert [seen.headers["trunkline-attempt"] for seen in receiver.seen] == ["1", "1"]


async def test_a_receiver_can_bury_a_message(db: str, conn: Connection) -> None:
    with receiving(lambda seen: web.Response(status=422, headers={"trunkline-outcome": "bury"})) as receiver:
        make(conn, receiver.url)
        conn.execute("select trunkline.enqueue('q', '1')")
        async with dispatching(db):
            await until(lambda: value(conn, "select dead = 1 from trunkline.queue_stats('q')"))
        assert value(conn, "select reason from trunkline.list_dead_letters('q')") == "buried"


async def test_pause_and_resume(db: str, conn: Connection, receiver: Receiver) -> None:
    make(conn, receiver.url)
    conn.execute("select trunkline.pause_endpoint('e', 'maintenance')")
    conn.execute("select trunkline.enqueue('q', '1')")
    async with dispatching(db):
        test = value(conn, "select trunkline.test_endpoint('e')")
        # A test request is sent although the endpoint is paused: the dispatcher has seen the pause by then.
        await until(lambda: value(conn, "select outcome = 'tested' from trunkline.list_attempts('e', %s)", test))
        assert [seen.headers.get("trunkline-test") for seen in receiver.seen] == ["true"]
        conn.execute("select trunkline.resume_endpoint('e')")
        await asyncio.to_thread(receiver.wait, lambda seen: len(seen) == 2)


async def test_batches_have_an_outcome_per_item(db: str, conn: Connection) -> None:
    def reply(seen: Seen) -> web.Response:
        results = []
        for item in json.loads(seen.body):
            if item["body"] % 3 == 1 and item["attempt"] == 1:
                results.append({"id": item["id"], "outcome": "retry", "retry_after": 0, "error": "not yet"})
            elif item["body"] % 3 == 2:
                results.append({"id": item["id"], "outcome": "bury", "error": "never"})
            else:
                results.append({"id": item["id"]})
        return web.json_response({"results": results})

    with receiving(reply) as receiver:
        secret = make(conn, receiver.url, mode="batch", batch_size=10)
        conn.execute("select trunkline.enqueue('q', to_jsonb(n)) from generate_series(0, 29) n")
        async with dispatching(db):
            await until(lambda: value(conn, "select acked = 20 and dead = 10 from trunkline.queue_stats('q')"))
        for seen in receiver.seen:
            Verifier(secret).verify(seen.headers, seen.body)
        assert max(len(json.loads(seen.body)) for seen in receiver.seen) == 10
    assert value(conn, "select count(*) from trunkline.list_attempts('e', p_limit => 1000)") == 40


async def test_an_ordered_queue_is_sent_in_order_per_key(db: str, conn: Connection) -> None:
    failed: set[bytes] = set()

    def reply(seen: Seen) -> int:
        if seen.body in (b"3", b"7") and seen.body not in failed:
            failed.add(seen.body)
            return 500
        return 200

    with receiving(reply) as receiver:
        make(conn, receiver.url, ordered=True, backoff_base="10 milliseconds")
        conn.execute("select trunkline.enqueue('q', to_jsonb(n), p_key => 'k') from generate_series(0, 11) n")
        async with dispatching(db):
            await until(lambda: value(conn, "select acked = 12 from trunkline.queue_stats('q')"))
        numbers = [int(seen.body) for seen in receiver.seen]
    assert numbers == [0, 1, 2, 3, 3, 4, 5, 6, 7, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("pg_version", VERSIONS)
async def test_replay_of_one_delivery_and_of_a_time_range(db: str, conn: Connection, receiver: Receiver) -> None:
    make(conn, receiver.url)
    conn.execute("select trunkline.enqueue('q', to_jsonb(n)) from generate_series(1, 5) n")
    async with dispatching(db):
        seen = await asyncio.to_thread(receiver.wait, lambda seen: len(seen) == 5)
        await until(lambda: value(conn, "select acked = 5 from trunkline.queue_stats('q')"))
        middle = value(conn, "select now()")
        assert value(conn, "select trunkline.replay('q', array[%s]::uuid[])", seen[0].id) == 1
        again = await asyncio.to_thread(receiver.wait, lambda seen: len(seen) == 6)
        assert (again[5].id, again[5].body) == (seen[0].id, seen[0].body)
        assert value(conn, "select trunkline.replay('q', p_from => '2000-01-01', p_to => %s)", middle) == 5
        await asyncio.to_thread(receiver.wait, lambda seen: len(seen) == 11)
        assert value(conn, "select trunkline.replay('q', p_from => now() + interval '1 hour')") == 0


@pytest.mark.parametrize("pg_version", VERSIONS)
async def test_the_breaker_opens_probes_and_closes(db: str, conn: Connection) -> None:
    answers = [500]
    with receiving(lambda seen: answers[0]) as receiver:
        make(conn, receiver.url, backoff_base="10 milliseconds", max_attempts=100)
        conn.execute("select trunkline.enqueue('q', to_jsonb(n)) from generate_series(1, 100) n")
        async with dispatching(db):
            await until(lambda: value(conn, "select breaker = 'open' from trunkline.list_endpoints()"))
            # Twenty failures, requests in flight with the last of them, and perhaps a probe.
            assert len(receiver.seen) <= 20 + 8 + 2
            await until(lambda: value(conn, "select openings >= 2 from trunkline.endpoints"))
            answers[0] = 200
            await until(lambda: value(conn, "select acked = 100 from trunkline.queue_stats('q')"))
            await until(lambda: value(conn, "select breaker = 'closed' from trunkline.list_endpoints()"))
        assert len(receiver.seen) < 140


async def test_secrets_can_be_rotated_under_way(db: str, conn: Connection, receiver: Receiver) -> None:
    old = make(conn, receiver.url)
    new = value(conn, "select trunkline.rotate_secret('e')")
    conn.execute("select trunkline.enqueue('q', '1')")
    async with dispatching(db):
        seen = (await asyncio.to_thread(receiver.wait, bool))[0]
    for secret in (old, new):
        Verifier(secret).verify(seen.headers, seen.body)


async def test_deliveries_only_append(db: str, conn: Connection, receiver: Receiver) -> None:
    """No update and no delete whose number grows with the messages; the rate is a sequence, which changes in place."""
    make(conn, receiver.url, rate=1000)
    counters = Counters(conn)
    async with dispatching(db):
        conn.execute("select trunkline.enqueue('q', to_jsonb(n)) from generate_series(1, 600) n")
        await until(lambda: value(conn, "select acked = 600 from trunkline.queue_stats('q')"))
    changed = {name: counts[3] for name, counts in counters.since().items() if counts[3]}
    # the dispatcher's own row, every few seconds
    assert sum(changed.values()) <= 20, changed
    assert value(conn, "select count(*) from trunkline.attempts") == 600
