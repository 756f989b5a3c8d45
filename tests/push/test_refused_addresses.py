"""A dispatcher whose egress guard refuses an address: no attempt is spent, others may send, and it can be seen why."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest

from tests.conftest import Connection
from tests.push.dispatch import dispatching
from tests.push.receivers import Receiver
from tests.push.test_dispatch import make, value
from tests.push.test_egress import Names, post
from tests.support.waiting import until
from trunkline.push.egress import Guard
from trunkline.push.sender import Sender

REMEDY = "--push-allow 127.0.0.0/8 or TRUNKLINE_PUSH_ALLOW=127.0.0.0/8"


class Addresses(Names):
    """A name with several addresses."""

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_INET) -> list[Any]:
        found = [await Names(each).resolve(host, port, family) for each in self.answers]
        return [each for one in found for each in one]


async def test_what_a_dispatcher_may_not_send_waits_for_one_that_may(
    db: str, conn: Connection, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    # one request at a time over all dispatchers: a share for the one that cannot use it would stop the other
    make(conn, receiver.url, max_in_flight=1, max_attempts=1)
    ids = [row[0] for row in conn.execute("select (trunkline.enqueue('q', to_jsonb(n))).id from generate_series(1, 20) n")]
    async with dispatching(db, allow=()):
        await until(lambda: value(conn, "select reason from trunkline.list_endpoints()"))
        reason = value(conn, "select reason from trunkline.list_endpoints()")
        assert reason.startswith("egress denied on all dispatchers: the address is in 127.0.0.0/8") and REMEDY in reason
        await until(lambda: value(conn, "select ready = 20 from trunkline.queue_stats('q')"))
        why = [value(conn, "select trunkline.explain_message(%s) ->> 'reason'", id) for id in (ids[0], ids[-1])]
        assert all('endpoint "e": egress denied on all dispatchers' in each for each in why), why
        assert "released without counting an attempt" in why[0]
        async with dispatching(db):
            await until(lambda: value(conn, "select acked = 20 from trunkline.queue_stats('q')"))
            assert "1 of 2 dispatchers" in value(conn, "select reason from trunkline.list_endpoints()")
    assert {seen.headers["trunkline-attempt"] for seen in receiver.seen} == {"1"}
    assert len(receiver.seen) == 20
    refused = conn.execute(
        "select outcome, status from trunkline.list_attempts('e') where error like 'the address is in%'"
    ).fetchall()
    assert refused and set(refused) == {("released", None)}
    warnings = [each for each in caplog.records if each.levelno >= logging.WARNING and REMEDY in each.getMessage()]
    assert len(warnings) == 1
    # they are gone, and what is known of them too
    assert value(conn, "select count(*) from trunkline.egress_denials") == 0
    assert value(conn, "select trunkline._not_sent(queue_id) from trunkline.queues").startswith("no dispatcher is running")


async def test_a_new_url_is_tried_at_once(db: str, conn: Connection, receiver: Receiver) -> None:
    make(conn, "http://10.0.0.1/", max_attempts=1)
    conn.execute("select trunkline.enqueue('q', to_jsonb(n)) from generate_series(1, 30) n")
    async with dispatching(db):
        await until(lambda: value(conn, "select reason like '%%10.0.0.0/8%%' from trunkline.list_endpoints()"))
        conn.execute("select trunkline.alter_endpoint('e', %s)", (receiver.url,))
        await until(lambda: value(conn, "select acked = 30 from trunkline.queue_stats('q')"))
        await until(lambda: value(conn, "select reason is null from trunkline.list_endpoints()"))
    assert {seen.headers["trunkline-attempt"] for seen in receiver.seen} == {"1"}


async def test_where_requests_never_go_the_attempts_end(db: str, conn: Connection) -> None:
    """No dispatcher can ever send it: waiting for another would be waiting for ever."""
    make(conn, "http://inside.example/", max_attempts=2, backoff_base="10 milliseconds")
    conn.execute("select trunkline.enqueue('q', '1')")
    async with dispatching(db, resolver=Names("169.254.169.254")):
        await until(lambda: value(conn, "select dead = 1 from trunkline.queue_stats('q')"))
    error = "the address is in 169.254.0.0/16, where requests never go"
    assert value(conn, "select error from trunkline.list_dead_letters('q')") == error


async def test_one_of_several_addresses_is_enough(receiver: Receiver) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = taken.getsockname()[1]
        cases: list[tuple[tuple[str, ...], int, tuple[int | None, bool, str | None]]] = [
            (("10.0.0.1", "127.0.0.1"), receiver.port, (200, False, None)),
            # Sent without a response: that is a failure of the receiver.
            (("127.0.0.1", "10.0.0.1"), closed, (None, False, "could not connect")),
            (("10.0.0.1", "192.168.0.1"), closed, (None, True, "the address is in 10.0.0.0/8")),
            (("169.254.169.254", "10.0.0.1"), closed, (None, True, "the address is in 10.0.0.0/8")),
            (("169.254.169.254", "::"), closed, (None, False, "the address is in 169.254.0.0/16")),
        ]
        for addresses, port, (status, refused, words) in cases:
            sender = Sender(Guard(["127.0.0.0/8"]), resolver=Addresses(*addresses))
            try:
                answer = await post(sender, f"http://several.example:{port}/")
            finally:
                await sender.close()
            assert (answer.status, answer.refused) == (status, refused), addresses
            assert (answer.error or "").startswith(words or ""), addresses


def plan(conn: Connection, dispatcher: str) -> tuple[int, int, int]:
    row = conn.execute(
        "select share, held_for, cardinality(tests) from trunkline.dispatch_plan(%s)", (dispatcher,)
    ).fetchone()
    assert row is not None
    return row[0], round(row[1] or 0), row[2] or 0


def bar(conn: Connection, dispatcher: str, probing: bool = False) -> int:
    query = "select trunkline.deny_egress(%s, endpoint_id, 'why', %s) from trunkline.endpoints"
    return round(value(conn, query, dispatcher, probing))


def test_pauses_grow_and_shares_go_to_the_others(conn: Connection, clock: Any) -> None:
    make(conn, "http://10.0.0.1/", max_in_flight=5)
    for name in ("a", "b", "c"):
        plan(conn, name)
    assert bar(conn, "a") == 10
    assert bar(conn, "a") == 10  # a second request in flight
    assert plan(conn, "a")[:2] == (0, 10)
    assert [plan(conn, name)[0] for name in ("b", "c")] == [3, 2]
    clock.advance(8)
    # the others make room before it tries again
    assert [plan(conn, name)[0] for name in ("a", "b", "c")] == [0, 2, 1]
    clock.advance(2)
    assert plan(conn, "a")[:2] == (2, 0)
    assert bar(conn, "a") == 20
    conn.execute("select trunkline.test_endpoint('e')")
    assert plan(conn, "a")[2] == 0  # for one that may send it
    assert plan(conn, "b")[2] == 1
    for name in ("b", "c"):
        bar(conn, name)
    conn.execute("select trunkline.test_endpoint('e')")
    assert plan(conn, "a")[2] == 1  # no dispatcher is allowed to: then any of them reports it
    assert value(conn, "select reason from trunkline.list_endpoints()") == "egress denied on all dispatchers: why"
    conn.execute("select trunkline.allow_egress('b', endpoint_id) from trunkline.endpoints")
    assert value(conn, "select reason from trunkline.list_endpoints()") == "egress denied on 2 of 3 dispatchers: why"
    for again in ("resume_endpoint('e')", "alter_endpoint('e', 'http://10.0.0.2/')"):
        bar(conn, "a")
        conn.execute(f"select trunkline.{again}".encode())
        assert value(conn, "select reason from trunkline.list_endpoints()") is None
        assert plan(conn, "a")[1] == 0


def test_a_probe_that_could_not_be_sent_is_free_for_others(conn: Connection, clock: Any) -> None:
    make(conn, "http://10.0.0.1/")
    plan(conn, "a")
    conn.execute("select trunkline.open_breaker(endpoint_id, 0) from trunkline.endpoints")
    clock.advance(5)
    probe = "select trunkline.acquire_probe(endpoint_id) from trunkline.endpoints"
    assert [value(conn, probe), value(conn, probe)] == [True, False]
    bar(conn, "a", probing=True)
    assert value(conn, probe) is True


async def test_a_test_request_is_sent_by_a_dispatcher_that_may(db: str, conn: Connection, receiver: Receiver) -> None:
    async with dispatching(db, allow=()), dispatching(db):
        await until(lambda: value(conn, "select count(*) = 2 from trunkline.dispatchers"))
        for n in range(8):  # which of the two gets a test first is a matter of chance
            conn.execute("select trunkline.create_endpoint(%s, %s)", [f"e{n}", receiver.url])
        ids = [value(conn, "select trunkline.test_endpoint(%s)", f"e{n}") for n in range(8)]
        attempts = "select array_agg(status) from trunkline.list_attempts() where id = any (%s)"
        statuses = await until(lambda: (found := value(conn, attempts, ids)) and len(found) == 8 and found)
    assert statuses == [200] * 8


async def test_a_test_request_says_what_would_allow_it(db: str, conn: Connection, receiver: Receiver) -> None:
    make(conn, receiver.url)
    async with dispatching(db, allow=()):
        id = value(conn, "select trunkline.test_endpoint('e')")
        error = await until(lambda: value(conn, "select error from trunkline.list_attempts('e', %s)", id))
    assert REMEDY in error
    assert receiver.seen == []
