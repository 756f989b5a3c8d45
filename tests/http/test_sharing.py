"""Claims and acks that arrive together share a statement, and each request gets what it would have got alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.http.servers import HttpServer, problem
from tests.http.servers import serving as serving_process
from tests.http.test_pressure import LOCK_CURSOR, Crowd, holding, in_progress, make_queue, waiting_for_locks
from tests.http.test_traces import serving
from tests.http.test_waiting import eventually, vanish


def lease_of(delivery: dict[str, Any]) -> str:
    """All of a receipt but the offset: the same for messages of one claim."""
    lease: str = delivery["receipt"].partition(".")[2]
    return lease


def together(
    server: HttpServer, db: str, queue: str, size: int, send: Callable[[httpx.Client], httpx.Response]
) -> list[list[dict[str, Any]]]:
    """Claims that pile up while the queue is blocked, and what each got when the block ended."""
    with holding(db, LOCK_CURSOR, queue) as conn, Crowd(server, size, send) as crowd:
        eventually(lambda: waiting_for_locks(db) > 0)
        conn.rollback()
        found = [response.json() for response in crowd.responses()]
    return [body.get("deliveries") or body.get("data") or [] for body in found]


def test_single_claims_share_a_lease_and_get_a_message_each(
    server: HttpServer, http: httpx.Client, module_db: str, name: str
) -> None:
    queue = make_queue(http, name, *range(12))
    got = together(server, module_db, queue, 12, lambda client: client.post(f"/v1/queues/{queue}/claims"))
    assert sorted(row["payload"] for deliveries in got for row in deliveries) == list(range(12))
    assert {len(deliveries) for deliveries in got} == {1}
    # some went ahead before the others had arrived
    assert len({lease_of(deliveries[0]) for deliveries in got}) < 12
    # settled one by one, although they share a lease
    one, two, *rest = [deliveries[0]["receipt"] for deliveries in got]
    assert http.post(f"/v1/queues/{queue}/ack", json={"receipts": [one]}).json()["results"][0]["result"] == "done"
    assert http.post(f"/v1/queues/{queue}/nack", json={"receipts": [two]}).json()["results"][0]["result"] == "done"
    stats = http.get(f"/v1/queues/{queue}/stats").json()
    assert (stats["leased"], stats["ready"] + stats["delayed"]) == (len(rest), 1)


def test_requests_for_several_messages_keep_their_limit(
    server: HttpServer, http: httpx.Client, module_db: str, name: str
) -> None:
    queue = make_queue(http, name, *range(10))
    claim = {"limit": 4}
    got = together(server, module_db, queue, 5, lambda client: client.post(f"/v1/queues/{queue}/claims", json=claim))
    assert sorted(row["payload"] for deliveries in got for row in deliveries) == list(range(10))
    assert sorted(len(deliveries) for deliveries in got) == [0, 0, 2, 4, 4]


def test_claims_that_differ_are_not_mixed(server: HttpServer, http: httpx.Client, module_db: str, name: str) -> None:
    queue = make_queue(http, name)
    batch = [{"payload": label, "label": label} for label in "aabb"]
    http.post(f"/v1/queues/{queue}/messages", json=batch)
    wanted = iter(["a", "a", "b", "b", "a", "b"])

    def claim(client: httpx.Client) -> httpx.Response:
        label = next(wanted)
        response = client.post(f"/v1/queues/{queue}/claims", json={"labels": [label]})
        for row in response.json()["deliveries"]:
            assert row["payload"] == label
        return response

    got = together(server, module_db, queue, 6, claim)
    rest = http.post(f"/v1/queues/{queue}/claims", json={"limit": 10}).json()["deliveries"]
    assert sorted(row["payload"] for deliveries in (*got, rest) for row in deliveries) == ["a", "a", "b", "b"]


def test_an_ordered_queue_has_one_delivery_at_a_time(server: HttpServer, http: httpx.Client, name: str) -> None:
    """Also when a queue of the same name was there before that was not ordered."""

    def wait() -> list[Any]:
        before = in_progress(http)
        with Crowd(server, 4, lambda client: client.post(f"/v1/queues/{name}/claims", json={"wait": 4})) as crowd:
            eventually(lambda: in_progress(http) >= before + 4)
            http.post(f"/v1/queues/{name}/messages", json=[{"payload": number} for number in range(4)])
            return sorted(row["payload"] for response in crowd.responses() for row in response.json()["deliveries"])

    make_queue(http, name)
    assert wait() == [0, 1, 2, 3]
    assert http.delete(f"/v1/queues/{name}?force=true").status_code == 204
    make_queue(http, name, ordered=True)
    assert wait() == [0]


@pytest.fixture(scope="module")
def logging_server(module_db: str) -> Iterator[HttpServer]:
    with serving_process(module_db, "--access-log") as running:
        yield running


@pytest.mark.parametrize("body", ["", '{"wait": 20}'])
def test_clients_that_leave_a_shared_claim_hold_nothing(
    logging_server: HttpServer, http: httpx.Client, module_db: str, name: str, body: str
) -> None:
    queue = make_queue(http, name, *range(6))
    path = f"/v1/queues/{queue}/claims"
    with holding(module_db, LOCK_CURSOR, queue) as conn:
        leaving = [vanish(logging_server, "POST", path, body) for _ in range(5)]
        with Crowd(logging_server, 1, lambda client: client.post(path)) as crowd:
            eventually(lambda: waiting_for_locks(module_db) > 0)
            for client in leaving:
                client.close()
            eventually(lambda: ended(logging_server, path) == 5)
            conn.rollback()
            (response,) = crowd.responses()
    assert len(response.json()["deliveries"]) == 1
    eventually(lambda: http.get(f"/v1/queues/{queue}/stats").json()["ready"] == 5)
    rest = http.post(path, json={"limit": 10}).json()["deliveries"]
    assert [row["attempt"] for row in rest] == [1] * 5


def ended(server: HttpServer, path: str) -> int:
    """Return the number of completed requests for a path."""
    return sum(path in line for line in server.log.read_text().splitlines())


async def test_a_request_that_is_cancelled_releases_what_it_got(db: str) -> None:
    """Whenever that happens: before its claim, while it runs, or when it has its messages."""
    async with serving(db) as http:
        await http.post("/v1/queues/mail/messages", json=[{"payload": number} for number in range(40)])
        for turns in range(40):
            claim = asyncio.create_task(http.post("/v1/queues/mail/claims"))
            other = asyncio.create_task(http.post("/v1/queues/mail/claims", json={"limit": 1}))
            for _ in range(turns * 3):
                await asyncio.sleep(0)
            claim.cancel()
            results = await asyncio.gather(claim, other, return_exceptions=True)
            got = [result.json()["deliveries"] for result in results if isinstance(result, httpx.Response)]
            receipts = [row["receipt"] for deliveries in got for row in deliveries]
            if receipts:
                await http.post("/v1/queues/mail/release", json={"receipts": receipts})

        async def ready() -> int:
            number: int = (await http.get("/v1/queues/mail/stats")).json()["ready"]
            return number

        async with asyncio.timeout(20):
            while await ready() < 40:
                await asyncio.sleep(0.05)


async def test_a_bad_receipt_spoils_only_its_own_request(db: str) -> None:
    async with serving(db) as http:
        await http.post("/v1/queues/mail/messages", json=[{"payload": number} for number in range(4)])
        claimed = (await http.post("/v1/queues/mail/claims", json={"limit": 4})).json()["deliveries"]
        receipts = [row["receipt"] for row in claimed]
        bad = receipts[0].rpartition(".")[0] + ".\x00"
        answers = await asyncio.gather(
            *(
                http.post("/v1/queues/mail/ack", json={"receipts": [receipt]})
                for receipt in (receipts[0], bad, *receipts[1:])
            )
        )
        assert [answer.status_code for answer in answers] == [200, 400, 200, 200, 200]
        assert (await http.get("/v1/queues/mail/stats")).json()["acked"] == 4


async def test_acks_of_several_requests_keep_their_results_apart(db: str) -> None:
    async with serving(db) as http:
        await http.post("/v1/queues?ensure=true", json={"name": "other"})
        for queue in ("mail", "other"):
            await http.post(f"/v1/queues/{queue}/messages", json=[{"payload": number} for number in range(5)])
        mail = [
            row["receipt"] for row in (await http.post("/v1/queues/mail/claims", json={"limit": 5})).json()["deliveries"]
        ]
        other = [row["receipt"] for row in (await http.post("/v1/queues/other/claims")).json()["deliveries"]]
        batches = [[mail[0], "nonsense", mail[1]], [other[0]], [mail[2]], ["1.2.3.4"], [mail[3], mail[3]]]
        answers = await asyncio.gather(*(http.post("/v1/queues/mail/ack", json={"receipts": batch}) for batch in batches))
        assert [[row["result"] for row in answer.json()["results"]] for answer in answers] == [
            ["done", "unknown", "done"],
            ["unknown"],
            ["done"],
            ["unknown"],
            ["done", "done"],
        ]
        assert (await http.get("/v1/queues/other/stats")).json()["leased"] == 1
        missing = await http.post("/v1/queues/nobody/ack", json={"receipts": [mail[4]]})
        problem(missing, 404, "queue_not_found")
        anywhere = await http.post("/v1/receipts/ack", json={"receipts": [mail[4], "nonsense", other[0]]})
        assert [row["result"] for row in anywhere.json()["results"]] == ["done", "unknown", "done"]
