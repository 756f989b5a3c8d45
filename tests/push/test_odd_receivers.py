"""Answers, payloads, secrets and ends that are out of the ordinary: nothing gets stuck, is lost, or spoils it for others."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from uuid import UUID

import psycopg
import pytest
from aiohttp import web

from tests.conftest import Connection
from tests.push.dispatch import dispatching
from tests.push.receivers import Receiver, Seen, receiving
from tests.push.test_dispatch import make, value
from tests.support.waiting import until
from trunkline.push.dispatcher import PLAN_SECONDS
from trunkline.push.outcomes import Reply, judge, judge_batch, pause_asked_for

ID = UUID("019a8b3e-0000-7000-8000-000000000000")


def answered(body: bytes, status: int = 200, **headers: str) -> Reply:
    return Reply(status, {name.replace("_", "-"): text for name, text in headers.items()}, body, None, 0.1)


@pytest.mark.parametrize(
    "text", ["Mon, 1 Jan 2026 00:00:00 +99999999999999", "Mon, 01 Jan 0001 00:00:00 +2359", "1e400", "-5", "\x00", "9" * 400]
)
def test_any_retry_after_can_be_read_or_is_passed_over(text: str) -> None:
    answer = answered(b"", 429, retry_after=text)
    pause = pause_asked_for(answer, 1.8e9)
    assert pause is None or 0 <= pause.total_seconds() <= 86400
    assert judge(answer, 1.8e9).outcome == "nacked"


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (b"thanks", "acked"),
        (b'{"ok": true}', "acked"),
        (b'{"results": [{"id": "%s"}]}' % str(ID).encode(), "acked"),
        # An unknown effect on messages was intended here.
        (b'{"results": [{"id": "7", "outcome": "retry"}]}', "nacked"),
        (b'{"results": [{"id": "%s", "outcome": "failed"}]}' % str(ID).encode(), "nacked"),
        (b'{"results": [{"id": "%s", "outco' % str(ID).encode(), "nacked"),
        (b'{"results": ' + b"[" * 100_000, "nacked"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_results_that_cannot_be_read_ack_nothing(body: bytes, outcome: str) -> None:
    assert [each.outcome for each in judge_batch(answered(body), [ID], 0.0)] == [outcome]


async def test_words_that_postgres_cannot_store_spoil_no_settlement(db: str, conn: Connection) -> None:
    def reply(seen: Seen) -> web.Response:
        items = json.loads(seen.body)
        return web.json_response({"results": [{"id": each["id"], "outcome": "bury", "error": "a\0b"} for each in items]})

    with receiving(reply) as receiver:
        make(conn, receiver.url, mode="batch")
        conn.execute("select trunkline.enqueue('q', '1')")
        async with dispatching(db):
            await until(lambda: value(conn, "select dead = 1 from trunkline.queue_stats('q')"))
    assert value(conn, "select error from trunkline.list_dead_letters('q')") == "a\ufffdb"


async def test_a_payload_that_says_it_is_json_may_be_anything(db: str, conn: Connection, receiver: Receiver) -> None:
    make(conn, receiver.url, mode="batch")
    deep = b"[" * 100_000 + b"]" * 100_000
    conn.execute("select trunkline.enqueue_bytes('q', %s, p_content_type => 'application/json')", (deep,))
    conn.execute("select trunkline.enqueue('q', '1')")
    async with dispatching(db):
        await until(lambda: value(conn, "select acked = 2 from trunkline.queue_stats('q')"))
    items = [each for seen in receiver.seen for each in json.loads(seen.body)]
    assert sorted("body_base64" in each for each in items) == [False, True]


@pytest.mark.parametrize("secret", ["whsec_" + "A" * 33, "whsk_" + "A" * 40, "whsec_" + "A" * 35 + "=="])
def test_a_secret_that_cannot_sign_is_refused(conn: Connection, secret: str) -> None:
    conn.execute("select trunkline.create_endpoint('there', 'https://example.com/')")
    for call in ("create_endpoint('e', 'https://example.com/', p_secret => %s)", "rotate_secret('there', %s)"):
        with pytest.raises(psycopg.Error) as refused:
            conn.execute(f"select trunkline.{call}".encode(), (secret,))
        assert refused.value.sqlstate == "TL001"


async def test_what_is_cut_off_when_a_queue_is_unbound_comes_back(db: str, conn: Connection) -> None:
    """A request that outlives the grace time: its lease must not be renewed by a dispatcher that has given it up."""
    with receiving(lambda seen: "hang") as receiver:
        make(conn, receiver.url, timeout="60 seconds", backoff_base="10 milliseconds", lease="30 seconds")
        conn.execute("select trunkline.enqueue('q', '1')")
        async with dispatching(db, grace=0.1):
            await asyncio.to_thread(receiver.wait, bool)
            conn.execute("select trunkline.unbind_queue('q')")
            await until(lambda: value(conn, "select ready = 1 from trunkline.queue_stats('q')"), seconds=20)
        assert value(conn, "select error from trunkline.list_attempts('e')") == "no response before the dispatcher stopped"


async def test_what_waits_for_a_permit_goes_back_at_the_end_without_an_attempt(db: str, conn: Connection) -> None:
    with receiving() as receiver:
        make(conn, receiver.url, rate=0.01, burst=1)
        conn.execute("select trunkline.enqueue('q', to_jsonb(n)) from generate_series(1, 2) n")
        async with dispatching(db):
            await until(lambda: value(conn, "select acked = 1 and leased = 1 from trunkline.queue_stats('q')"))
        assert value(conn, "select ready from trunkline.queue_stats('q')") == 1
        assert value(conn, "select attempt from trunkline.claim('q', 10)") == 1


async def test_what_is_in_hand_of_a_queue_that_is_unbound_goes_back(db: str, conn: Connection) -> None:
    """Also if the endpoint keeps other queues: after an unbind, nothing more of the queue is sent there."""
    with receiving(lambda seen: "hang") as receiver:
        make(conn, receiver.url, timeout="60 seconds", max_in_flight=1)
        conn.execute("select trunkline.create_queue('other'), trunkline.bind_queue('other', 'e')")
        conn.execute("select trunkline.enqueue('q', '1')")
        async with dispatching(db, grace=0.1):
            await asyncio.to_thread(receiver.wait, bool)
            conn.execute("select trunkline.enqueue('other', '1') from generate_series(1, 3)")
            await until(lambda: value(conn, "select leased > 0 from trunkline.queue_stats('other')"))
            conn.execute("select trunkline.unbind_queue('other')")
            await until(lambda: value(conn, "select ready = 3 from trunkline.queue_stats('other')"), seconds=20)
        assert len(receiver.seen) == 1


async def test_a_batch_in_hand_is_sent_one_by_one_when_the_mode_changes(
    db: str, conn: Connection, receiver: Receiver
) -> None:
    make(conn, receiver.url, mode="batch", batch_size=10, rate=0.01, burst=1)
    async with dispatching(db):
        conn.execute("select trunkline.enqueue('q', '0')")
        await until(lambda: value(conn, "select acked = 1 from trunkline.queue_stats('q')"))
        conn.execute("select trunkline.enqueue('q', to_jsonb(n)) from generate_series(1, 10) n")
        # together in one run, which waits for a permit
        await until(lambda: value(conn, "select leased > 1 from trunkline.queue_stats('q')"))
        conn.execute("select trunkline.alter_endpoint('e', p_mode => 'single')")
        await asyncio.sleep(3 * PLAN_SECONDS)
        # the wait that was computed from the old rate, 120 seconds, ends with it
        conn.execute("select trunkline.alter_endpoint('e', p_rate => 100)")
        await until(lambda: value(conn, "select acked = 11 from trunkline.queue_stats('q')"), seconds=30)
    assert sorted(int(seen.body) for seen in receiver.seen[1:]) == list(range(1, 11))


async def test_very_many_go_back_together(db: str, conn: Connection) -> None:
    """More than one statement may settle, of one outcome: when an endpoint is paused with a large stock in hand."""
    with receiving(lambda seen: "hang") as receiver:
        make(conn, receiver.url, mode="batch", batch_size=1000, timeout="60 seconds", lease="10 minutes")
        thousand = "select trunkline.enqueue_many('q', array(select '1'::bytea from generate_series(1, 1000)))"
        for _ in range(30):
            conn.execute(thousand.encode())
        async with dispatching(db, grace=0.1):
            await until(lambda: value(conn, "select leased >= 25000 from trunkline.queue_stats('q')"))
            conn.execute("select trunkline.pause_endpoint('e')")
            await until(lambda: value(conn, "select leased <= 8000 from trunkline.queue_stats('q')"), seconds=20)


def test_a_raised_rate_holds_at_once(conn: Connection) -> None:
    make(conn, "https://example.com/", rate=0.001, burst=50)

    def permits(want: int) -> tuple[int, float]:
        query = (
            "select cardinality(p.delays), p.wait from trunkline.endpoints e, trunkline.acquire_permits(e.endpoint_id, %s) p"
        )
        row = conn.execute(query, (want,)).fetchone()
        assert row is not None
        return row[0], row[1]

    assert permits(50)[0] > 40
    assert permits(1)[1] > 100
    conn.execute("select trunkline.alter_endpoint('e', p_rate => 100, p_burst => 10)")
    count, wait = permits(1)
    assert count == 1 or wait < 1


@pytest.mark.parametrize("answer", [web.Response(status=429, headers={"retry-after": "1000"}), 410], ids=["429", "410"])
async def test_a_plan_from_before_does_not_undo_what_an_answer_said(db: str, conn: Connection, answer: Any) -> None:
    """The plan is read while the response arrives: it must not resend what the receiver has just asked not to send."""
    with receiving(lambda seen: answer) as receiver:
        make(conn, receiver.url)
        async with dispatching(db) as dispatcher:
            [sender] = await until(lambda: list(dispatcher._senders.values()))
            plan, asked_at = sender._planned, time.monotonic()
            conn.execute("select trunkline.enqueue('q', '1')")
            await until(lambda: value(conn, "select held_until is not null or state = 'disabled' from trunkline.endpoints"))
            sender.update(plan, asked_at)
            assert not sender._may_send()
        assert len(receiver.seen) == 1
