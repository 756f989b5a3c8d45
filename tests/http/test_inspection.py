"""Series, attention, maps, members and search over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import psycopg
import pytest

from tests.http.servers import serving


@pytest.fixture
def topic(http: httpx.Client, name: str) -> str:
    assert http.post("/v1/topics", json={"name": name, "partitions": 2}).status_code == 201
    rows = [{"payload": {"n": n}, "key": f"k{n % 3}", "headers": {"tenant": n % 2}} for n in range(30)]
    assert http.post(f"/v1/topics/{name}/messages", json=rows).status_code == 201
    return name


def found(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def refused(response: httpx.Response, status: int) -> None:
    assert response.status_code == status, response.text
    assert response.json()["detail"]


def test_search_pages_and_says_what_it_did(http: httpx.Client, topic: str) -> None:
    path = f"/v1/topics/{topic}/search"
    seen: list[int] = []
    after = None
    for _ in range(10):
        body = found(http.post(path, json={"selection": {"headers": {"tenant": 1}}, "limit": 4, "after": after}))
        assert body["matched"] == len(body["matches"]) <= 4
        seen += [row["payload"]["n"] for row in body["matches"]]
        after = body["next"]
        if after is None:
            break
        assert body["stopped"] == "limit"
    assert sorted(seen) == list(range(1, 30, 2))
    assert found(http.post(path))["scanned"] == 30, "an empty body searches everything"


def test_the_price_of_a_search(http: httpx.Client, topic: str) -> None:
    path = f"/v1/topics/{topic}/search"
    everything = found(http.post(f"{path}/estimate"))["partitions"]
    assert sum(row["messages"] for row in everything) == 30
    [one] = found(http.post(f"{path}/estimate", json={"selection": {"key": "k1"}}))["partitions"]
    assert found(http.post(path, json={"selection": {"key": "k1"}}))["scanned"] == one["messages"]


@pytest.mark.parametrize(
    "body",
    [
        {"selection": {"regex": "("}}, {"selection": {"body": "$.a ?"}}, {"selection": {"colour": 1}}, {"limit": 0},
        {"limit": 1001}, {"budget_seconds": 61}, {"after": {"x": 1}}, {"after": {"0": -1}}, {"partitions": [2]},
        {"start": "never"}, {"selection": {"key": 1}}, {"colour": 1}, {"selection": {"regex": "a\u0000"}},
    ],
)  # fmt: skip
def test_bad_searches(http: httpx.Client, topic: str, body: Any) -> None:
    refused(http.post(f"/v1/topics/{topic}/search", json=body), 400)


def test_an_expression_without_end_is_ended(http: httpx.Client, name: str) -> None:
    http.post("/v1/topics", json={"name": name})
    http.post(f"/v1/topics/{name}/messages", json={"payload": list(range(60_000))})
    body = {"selection": {"body": "$[*] ? (@ > $[*] + 90000)"}, "budget_seconds": 0.01}
    response = http.post(f"/v1/topics/{name}/search", json=body)
    assert response.status_code in (503, 504), response.text
    assert http.get("/v1/attention").status_code == 200


def test_a_queue_is_searched_and_read_without_a_claim(http: httpx.Client, name: str) -> None:
    http.post("/v1/queues", json={"name": name})
    http.post(f"/v1/queues/{name}/messages", json=[{"payload": n} for n in range(5)])
    assert [row["payload"] for row in found(http.post(f"/v1/queues/{name}/search", json={"limit": 2}))["matches"]] == [4, 3]
    assert found(http.post(f"/v1/queues/{name}/search/estimate"))["partitions"][0]["messages"] == 5
    page = found(http.get(f"/v1/queues/{name}/log?limit=3"))
    assert ([row["payload"] for row in page["data"]], page["next"]) == ([0, 1, 2], 4)
    assert found(http.get(f"/v1/queues/{name}/stats"))["ready"] == 5
    refused(http.get("/v1/queues/unknown/log"), 404)


def test_maps_members_series_and_names(http: httpx.Client, topic: str) -> None:
    http.post(f"/v1/topics/{topic}/groups/g/fetch", json={"member": "m"})
    partitions = found(http.get(f"/v1/topics/{topic}/map"))["partitions"]
    assert sum(row["head"] for row in partitions) == 30
    assert {reader["name"] for row in partitions for reader in row["readers"]} == {"g"}
    [member] = found(http.get(f"/v1/topics/{topic}/groups/g/members"))["data"]
    assert (member["member"], len(member["partitions"])) == ("m", 1)
    refused(http.get(f"/v1/topics/{topic}/groups/unknown/members"), 404)
    assert found(http.get(f"/v1/deadlines?topic={topic}"))["data"] == []
    assert isinstance(found(http.get("/v1/series?kind=topic&name=" + topic))["data"], list)
    refused(http.get("/v1/series"), 400)
    refused(http.get("/v1/series?kind=queue&step_seconds=1"), 400)
    assert [row["name"] for row in found(http.get(f"/v1/topics?name={topic[:-1]}*"))["data"]] == [topic]
    assert found(http.get("/v1/queues?name=no.such.queue"))["data"] == []
    assert found(http.get("/v1/queue-stats?name=no.such.queue"))["data"] == []


def test_attention_names_cause_and_next_step(db: str, conn: psycopg.Connection[Any]) -> None:
    conn.execute("update trunkline.settings set value = '0' where name = 'attention_transaction'")
    with serving(db) as server, psycopg.connect(db) as held, httpx.Client(base_url=server.url, timeout=30) as http:
        held.execute("select txid_current()")
        rows = [row for row in found(http.get("/v1/attention"))["data"] if row["rule"] == "old_transaction"]
        assert str(held.info.backend_pid) in {row["subject"] for row in rows}
        assert all(row["cause"] and row["next_step"] for row in rows)
