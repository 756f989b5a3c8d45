"""Every route, default, limit and error code of psqlqueue."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.conftest import Clock
from tests.http.compat.conftest import CompatServer
from tests.http.servers import serving

PORTS = ("psqlqueue",)
QUEUE = {"ack_deadline_seconds": 30, "message_retention_seconds": 60}
# of GET lists: what is printed, and ours
QUEUE_FIELDS = {
    "id", "ack_deadline_seconds", "message_retention_seconds", "delivery_delay_seconds", "created_at", "updated_at"
}  # fmt: skip
CODES = {
    1: "internal server error",
    2: "malformed request body",
    3: "request validation failed",
    4: "queue already exists",
    5: "queue not found",
    6: "message not found",
    7: "topic already exists",
    8: "topic not found",
    9: "subscription already exists",
    10: "subscription not found",
}


def refused(answer: httpx.Response, status: int, code: int, details: str | None = None) -> None:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert (body["code"], body["message"]) == (code, CODES[code]), body
    assert ("details" in body) == (code == 3)
    if details is not None:
        assert body["details"] == details


@pytest.fixture
def http(server: CompatServer, place: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base("psqlqueue", place), timeout=40) as client:
        yield client


@pytest.fixture
def queue(http: httpx.Client, name: str) -> str:
    assert http.post("/v1/queues", json={"id": name, **QUEUE}).status_code == 201
    return name


@pytest.fixture
def topic(http: httpx.Client, name: str) -> str:
    assert http.post("/v1/topics", json={"id": name}).status_code == 201
    return name


def put(http: httpx.Client, queue: str, body: str = "b", **fields: Any) -> str:
    answer = http.post(f"/v1/queues/{queue}/messages", json={"body": body, **fields})
    assert answer.status_code == 204, answer.text
    assert answer.content == b""
    return answer.headers["message-id"]


def take(http: httpx.Client, queue: str, **query: Any) -> list[dict[str, Any]]:
    answer = http.get(f"/v1/queues/{queue}/messages", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


# E1 to E8: queues


def test_create_queue(http: httpx.Client, name: str) -> None:
    answer = http.post("/v1/queues", json={"id": name, **QUEUE})
    assert answer.status_code == 201
    body = answer.json()
    assert set(body) >= QUEUE_FIELDS
    assert (body["id"], body["ack_deadline_seconds"], body["message_retention_seconds"]) == (name, 30, 60)
    assert body["delivery_delay_seconds"] == 0  # the default
    assert body["created_at"] == body["updated_at"]
    refused(http.post("/v1/queues", json={"id": name, **QUEUE}), 400, 4)


@pytest.mark.parametrize(
    ("body", "details"),
    [
        ({}, "ack_deadline_seconds: cannot be blank; id: cannot be blank; message_retention_seconds: cannot be blank."),
        ({"id": "a b", **QUEUE}, "id: must be in a valid format."),
        ({"id": "é", **QUEUE}, "id: must be in a valid format."),
        ({"id": "q", "ack_deadline_seconds": 0, "message_retention_seconds": 1}, "ack_deadline_seconds: cannot be blank."),
        ({"id": "q", "ack_deadline_seconds": 1}, "message_retention_seconds: cannot be blank."),
        ({"id": "q", "ack_deadline_seconds": 99_999, "message_retention_seconds": 1}, None),
        ({"id": "q" * 201, **QUEUE}, "id: must be in a valid format."),
    ],
)
def test_create_queue_is_validated(http: httpx.Client, body: Any, details: str | None) -> None:
    refused(http.post("/v1/queues", json=body), 400, 3, details)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b'"text"', b'{"id": 1, "ack_deadline_seconds": 1, "message_retention_seconds": 1}',
        b'{"id": "q", "ack_deadline_seconds": "1", "message_retention_seconds": 1}',
        b'{"id": "q", "ack_deadline_seconds": -1, "message_retention_seconds": 1}',
        b'{"id": "q", "ack_deadline_seconds": 1, "message_retention_seconds": 99999999999}',
    ],
)  # fmt: skip
def test_malformed_body(http: httpx.Client, content: bytes) -> None:
    refused(http.post("/v1/queues", content=content), 400, 2)


def test_unknown_fields_and_content_types_are_ignored(http: httpx.Client, name: str) -> None:
    body = f'{{"id": "{name}", "ack_deadline_seconds": 1, "message_retention_seconds": 1, "colour": "red"}}'
    for number, kind in enumerate(("text/plain", "application/x-www-form-urlencoded", "application/json", None)):
        headers = {} if kind is None else {"content-type": kind}
        answer = http.post("/v1/queues", content=body.replace(name, f"{name}{number}"), headers=headers)
        assert answer.status_code == 201, answer.text


def test_update_queue(http: httpx.Client, queue: str) -> None:
    before = http.get(f"/v1/queues/{queue}").json()
    settings = {"ack_deadline_seconds": 5, "message_retention_seconds": 70, "delivery_delay_seconds": 3}
    answer = http.put(f"/v1/queues/{queue}", json={**settings, "id": "another"})
    assert answer.status_code == 200
    after = answer.json()
    assert {field: after[field] for field in settings} == settings
    assert (after["id"], after["created_at"]) == (queue, before["created_at"])
    assert after["updated_at"] > before["updated_at"]
    # a full replacement: what is left out goes back to its default
    assert http.put(f"/v1/queues/{queue}", json=QUEUE).json()["delivery_delay_seconds"] == 0
    refused(http.put(f"/v1/queues/{queue}", json={}), 400, 3)
    refused(http.put(f"/v1/queues/{queue}", content=b"{"), 400, 2)
    refused(http.put("/v1/queues/nobody", json=QUEUE), 404, 5)


def test_get_and_delete_queue(http: httpx.Client, queue: str) -> None:
    assert http.get(f"/v1/queues/{queue}").json()["id"] == queue
    put(http, queue)
    assert http.delete(f"/v1/queues/{queue}").status_code == 204
    for answer in (
        http.get(f"/v1/queues/{queue}"),
        http.delete(f"/v1/queues/{queue}"),
        http.get(f"/v1/queues/{queue}/stats"),
        http.put(f"/v1/queues/{queue}/purge"),
        http.put(f"/v1/queues/{queue}/cleanup"),
        http.post(f"/v1/queues/{queue}/messages", json={"body": "b"}),
        http.get(f"/v1/queues/{queue}/messages"),
        http.get(f"/v1/queues/{queue}/messages?limit=0"),
        http.put(f"/v1/queues/{queue}/messages/01a1e21d-c09b-7d4a-b352-b5b6f8f1aafa/ack"),
        http.put(f"/v1/queues/{queue}/messages/01a1e21d-c09b-7d4a-b352-b5b6f8f1aafa/nack"),
    ):
        refused(answer, 404, 5)


@pytest.mark.parametrize("noun", ["queues", "topics", "subscriptions"])
def test_lists(http: httpx.Client, name: str, noun: str) -> None:
    ids = [f"0-{name}-{number}" for number in range(3)]
    for id in ids:
        if noun != "topics":
            assert http.post("/v1/queues", json={"id": id, **QUEUE}).status_code == 201
        if noun != "queues":
            assert http.post("/v1/topics", json={"id": id}).status_code == 201
        if noun == "subscriptions":
            assert http.post("/v1/subscriptions", json={"id": id, "topic_id": id, "queue_id": id}).status_code == 201

    def listed(**query: Any) -> dict[str, Any]:
        body: dict[str, Any] = http.get(f"/v1/{noun}", params=query).json()
        body["data"] = [row["id"] for row in body["data"]]
        return body

    everything = listed(limit=1000)["data"]
    assert everything == sorted(everything)
    start = everything.index(ids[0])
    assert everything[start : start + 3] == ids
    # psqlqueue returns one by default, without saying that there are more; offset 0 is omitted
    assert listed()["data"] == everything[:100]
    assert listed(offset=start, limit=2) == {
        "data": ids[:2],
        "limit": 2,
        **({"offset": start} if start else {}),
        "next": start + 2,
    }
    last = len(everything) - 1
    assert listed(offset=last, limit=1) == {"data": everything[last:], "limit": 1, "offset": last}
    # a page after another, until there is none
    found: list[Any] = []
    following: int | None = 0
    while following is not None:
        part = listed(offset=following, limit=2)
        found += part["data"]
        following = part.get("next")
    assert found == everything
    assert listed(limit=0) == {"data": [], "limit": 0}
    assert listed(offset=100_000)["data"] == []
    # bad values never fail
    assert listed(limit="many", offset="-3") == listed()


def test_stats_count_what_can_be_delivered_now(http: httpx.Client, queue: str) -> None:
    def stats() -> tuple[int, int]:
        body = http.get(f"/v1/queues/{queue}/stats").json()
        assert isinstance(body["oldest_unacked_message_age_seconds"], int)
        return body["num_undelivered_messages"], body["oldest_unacked_message_age_seconds"]

    assert stats() == (0, 0)
    for _ in range(3):
        put(http, queue)
    assert stats()[0] == 3
    (delivery,) = take(http, queue, limit=1)
    assert stats()[0] == 2  # leased ones are not counted
    http.put(f"/v1/queues/{queue}/messages/{delivery['id']}/nack", json={"visibility_timeout_seconds": 100})
    assert stats()[0] == 2  # nor delayed ones


def test_purge_takes_leased_ones_too(http: httpx.Client, queue: str) -> None:
    for _ in range(3):
        put(http, queue)
    (delivery,) = take(http, queue, limit=1)
    assert http.put(f"/v1/queues/{queue}/purge").status_code == 204
    assert take(http, queue) == []
    body = http.get(f"/v1/queues/{queue}/stats").json()
    assert (body["ready"], body["delayed"], body["leased"]) == (0, 0, 0)
    refused(http.put(f"/v1/queues/{queue}/messages/{delivery['id']}/nack"), 404, 6)
    assert take(http, queue) == []


def test_cleanup_keeps_what_is_not_done(http: httpx.Client, queue: str) -> None:
    put(http, queue, "one")
    put(http, queue, "two")
    (one,) = take(http, queue, limit=1)
    assert http.put(f"/v1/queues/{queue}/messages/{one['id']}/ack").status_code == 204
    assert http.put(f"/v1/queues/{queue}/cleanup").status_code == 204
    assert [row["body"] for row in take(http, queue)] == ["two"]


# E9 to E12: messages


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", 2), (b"{", 2), (b'{"body": 1}', 2), (b'{"body": "b", "attributes": {"a": 1}}', 2),
        (b'{"body": "b", "label": 1}', 2),
        (b"{}", 3), (b'{"body": ""}', 3), (b'{"body": null}', 3), (b'{"label": "l"}', 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("noun", ["queues", "topics"])
def test_messages_are_validated(http: httpx.Client, name: str, noun: str, content: bytes, code: int) -> None:
    http.post(f"/v1/{noun}", json={"id": name, **QUEUE})
    answer = http.post(f"/v1/{noun}/{name}/messages", content=content)
    refused(answer, 400, code, "body: cannot be blank." if code == 3 else None)


def test_message_fields(http: httpx.Client, queue: str) -> None:
    id = put(http, queue, "text ü", label="l", attributes={"a": "1"}, unknown="ignored")
    (delivery,) = take(http, queue)
    shown = {field: delivery[field] for field in ("id", "queue_id", "label", "body", "attributes", "delivery_attempts")}
    assert shown == {
        "id": id, "queue_id": queue, "label": "l", "body": "text ü", "attributes": {"a": "1"}, "delivery_attempts": 1
    }  # fmt: skip
    put(http, queue)
    (bare,) = take(http, queue)
    assert (bare["label"], bare["attributes"]) == (None, None)


def test_pull_limits(http: httpx.Client, queue: str) -> None:
    def limit(**query: Any) -> tuple[int, int]:
        body = http.get(f"/v1/queues/{queue}/messages", params=query).json()
        return len(body["data"]), body["limit"]

    for _ in range(32):
        put(http, queue)
    assert limit(limit=0) == (0, 0)
    assert limit() == (10, 10)  # the default
    assert limit(limit=50) == (10, 10)  # the largest
    assert limit(limit="x") == (10, 10)
    assert limit(limit=3) == (2, 3)


def test_pull_by_label(http: httpx.Client, queue: str) -> None:
    for label in ("a", "b", "a", "A"):
        put(http, queue, label, label=label)
    assert [row["body"] for row in take(http, queue, label="a")] == ["a", "a"]
    assert [row["body"] for row in take(http, queue, label="c")] == []
    assert [row["body"] for row in take(http, queue)] == ["b", "A"]


def test_oldest_first(http: httpx.Client, queue: str) -> None:
    for number in range(5):
        put(http, queue, str(number))
    assert [row["body"] for row in take(http, queue)] == ["0", "1", "2", "3", "4"]
    assert take(http, queue) == []


def test_ack_twice_and_nack_after_ack(http: httpx.Client, queue: str) -> None:
    put(http, queue)
    (delivery,) = take(http, queue)
    path = f"/v1/queues/{queue}/messages/{delivery['id']}"
    assert [http.put(f"{path}/ack").status_code for _ in range(2)] == [204, 204]
    assert http.put(f"{path}/nack").status_code == 204
    assert take(http, queue) == []


def test_unknown_message(http: httpx.Client, queue: str) -> None:
    for id in ("01a1e21d-c09b-7d4a-b352-b5b6f8f1aafa", "01HJVRCQVAD9VBT10MCS74T0EN", "x", "1.1.1.nothing"):
        for verb in ("ack", "nack"):
            refused(http.put(f"/v1/queues/{queue}/messages/{id}/{verb}"), 404, 6)


@pytest.mark.parametrize("how", ["body", "query", "both"])
def test_nack_again_at_once_by_default(http: httpx.Client, queue: str, how: str) -> None:
    put(http, queue)
    (first,) = take(http, queue)
    path = f"/v1/queues/{queue}/messages/{first['id']}/nack"
    assert http.put(path).status_code == 204
    (second,) = take(http, queue)
    assert (second["id"], second["delivery_attempts"]) == (first["id"], 2)
    seconds = {"visibility_timeout_seconds": 100}
    answer = http.put(path, json=seconds if how != "query" else None, params=seconds if how != "body" else None)
    assert answer.status_code == 204
    assert take(http, queue) == []
    refused(http.put(path, content=b'{"visibility_timeout_seconds": -1}'), 400, 2)
    # a query parameter that cannot be read counts as not given
    assert http.put(path, params={"visibility_timeout_seconds": "soon"}).status_code == 404


# E13 to E17: topics


def test_topics(http: httpx.Client, name: str) -> None:
    answer = http.post("/v1/topics", json={"id": name})
    assert answer.status_code == 201
    assert answer.json()["id"] == name
    refused(http.post("/v1/topics", json={"id": name}), 400, 7)
    refused(http.post("/v1/topics", json={"id": "a/b"}), 400, 3, "id: must be in a valid format.")
    refused(http.post("/v1/topics", json={}), 400, 3, "id: cannot be blank.")
    refused(http.post("/v1/topics", content=b"x"), 400, 2)
    assert http.get(f"/v1/topics/{name}").json()["id"] == name
    # unread: allowed
    assert http.post(f"/v1/topics/{name}/messages", json={"body": "b"}).status_code == 204
    assert http.delete(f"/v1/topics/{name}").status_code == 204
    refused(http.get(f"/v1/topics/{name}"), 404, 8)
    refused(http.delete(f"/v1/topics/{name}"), 404, 8)
    refused(http.post(f"/v1/topics/{name}/messages", json={"body": "b"}), 404, 8)


# E18 to E21: subscriptions


def test_subscriptions(http: httpx.Client, queue: str) -> None:
    topic = queue
    http.post("/v1/topics", json={"id": topic})
    one = {"id": f"{queue}-sub", "topic_id": topic, "queue_id": queue, "message_filters": {"a": ["1", "2"], "b": ["x"]}}
    answer = http.post("/v1/subscriptions", json=one)
    assert answer.status_code == 201
    assert {**answer.json(), **one} == answer.json()
    refused(http.post("/v1/subscriptions", json=one), 400, 9)
    refused(http.post("/v1/subscriptions", json={**one, "id": "other"}), 400, 9)  # the pair
    http.post("/v1/queues", json={"id": f"{queue}2", **QUEUE})
    refused(http.post("/v1/subscriptions", json={**one, "queue_id": f"{queue}2"}), 400, 9)  # the id
    refused(
        http.post("/v1/subscriptions", json={}),
        400,
        3,
        "id: cannot be blank; queue_id: cannot be blank; topic_id: cannot be blank.",
    )
    refused(http.post("/v1/subscriptions", json={**one, "message_filters": {"a": "1"}}), 400, 2)
    assert http.get(f"/v1/subscriptions/{one['id']}").json() == answer.json()
    # every key must be there (and), with one of its values (or)
    for attributes in ({"a": "1", "b": "x"}, {"a": "2", "b": "x", "c": "y"}, {"a": "3", "b": "x"}, {"a": "1"}, {}):
        http.post(f"/v1/topics/{topic}/messages", json={"body": str(sorted(attributes.values())), "attributes": attributes})
    assert [row["body"] for row in take(http, queue)] == ["['1', 'x']", "['2', 'x', 'y']"]
    assert http.delete(f"/v1/subscriptions/{one['id']}").status_code == 204
    refused(http.get(f"/v1/subscriptions/{one['id']}"), 404, 10)
    refused(http.delete(f"/v1/subscriptions/{one['id']}"), 404, 10)


def test_a_later_subscription_gets_no_history(http: httpx.Client, queue: str) -> None:
    http.post("/v1/topics", json={"id": queue})
    http.post(f"/v1/topics/{queue}/messages", json={"body": "before"})
    http.post("/v1/subscriptions", json={"id": queue, "topic_id": queue, "queue_id": queue})
    http.post(f"/v1/topics/{queue}/messages", json={"body": "after", "label": "l", "attributes": {"a": "b"}})
    (delivery,) = take(http, queue)
    assert (delivery["body"], delivery["label"], delivery["attributes"]) == ("after", "l", {"a": "b"})


def test_deleting_a_topic_or_queue_takes_its_subscriptions(http: httpx.Client, queue: str) -> None:
    for noun in ("topics", "queues"):
        name = f"{queue}-{noun}"
        http.post("/v1/topics", json={"id": name})
        http.post("/v1/queues", json={"id": name, **QUEUE})
        assert http.post("/v1/subscriptions", json={"id": name, "topic_id": name, "queue_id": name}).status_code == 201
        assert http.delete(f"/v1/{noun}/{name}").status_code == 204
        refused(http.get(f"/v1/subscriptions/{name}"), 404, 10)


# E22, E23 and the rest


def test_health_and_page(http: httpx.Client) -> None:
    answer = http.get("/v1/healthz")
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert "text/html" in http.get("/v1/swagger/index.html").headers["content-type"]


def test_unknown_paths(http: httpx.Client) -> None:
    assert http.get("/v1/nothing").status_code == 404
    assert http.get("/v2/queues").status_code == 404
    # we are more exact than a plain 404 here
    assert http.patch("/v1/healthz").status_code == 405


def test_trailing_slash(http: httpx.Client, queue: str) -> None:
    assert http.get(f"/v1/queues/{queue}/").status_code == 200
    assert http.post(f"/v1/queues/{queue}/messages/", json={"body": "b"}).status_code == 204


def test_metrics(server: CompatServer, http: httpx.Client, queue: str) -> None:
    put(http, queue)
    text = httpx.get(f"{server.url}/metrics").text
    labels = 'code="204",handler="/compat/psqlqueue/v1/queues/{queue}/messages"'
    assert f'http_request_duration_seconds_bucket{{{labels},le="0.005",method="POST",service="trunkline"}}' in text
    assert f'http_response_size_bytes_bucket{{{labels},le="1e+09"' in text
    assert 'http_requests_inflight{handler="/metrics",service="trunkline"} 1.0' in text
    # statistics are cached for a moment
    deadline = time.monotonic() + 10
    while f'trunkline_queue_messages{{queue="{queue}",state="ready"}} 1.0' not in text:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        text = httpx.get(f"{server.url}/metrics").text


def test_size_buckets(server: CompatServer, http: httpx.Client, queue: str) -> None:
    """A hundred bytes, and eight times ten times more; durations from 5 ms to 10 s."""
    put(http, queue)
    text = httpx.get(f"{server.url}/metrics").text
    row = 'code="204",handler="/compat/psqlqueue/v1/queues/{queue}/messages",le="'
    sizes = re.findall(rf"http_response_size_bytes_bucket\{{{re.escape(row)}([^\"]+)", text)
    assert [float(size) for size in sizes] == [100.0 * 10**power for power in range(8)] + [float("inf")]
    spans = re.findall(rf"http_request_duration_seconds_bucket\{{{re.escape(row)}([^\"]+)", text)
    assert (float(spans[0]), float(spans[-2])) == (0.005, 10.0)


def test_pulls_at_one_time_get_different_messages(server: CompatServer, http: httpx.Client, queue: str) -> None:
    for number in range(40):
        put(http, queue, str(number))

    def pull(_: int) -> list[str]:
        with httpx.Client(base_url=http.base_url, timeout=30) as client:
            return [row["body"] for row in take(client, queue, limit=5)]

    with ThreadPoolExecutor(8) as pool:
        got = [body for bodies in pool.map(pull, range(8)) for body in bodies]
    assert sorted(got, key=int) == [str(number) for number in range(40)]


def test_times_of_a_queue(db: str, clock: Clock) -> None:
    """B1, B4 and E8: the delivery delay, the deadline, the retention, and what cleanup removes."""
    with serving(db) as own, httpx.Client(base_url=f"{own.url}/compat/psqlqueue", timeout=30) as http:
        settings = {"ack_deadline_seconds": 30, "message_retention_seconds": 100, "delivery_delay_seconds": 20}
        assert http.post("/v1/queues", json={"id": "q", **settings}).status_code == 201
        put(http, "q")
        assert take(http, "q") == []
        assert http.get("/v1/queues/q/stats").json()["num_undelivered_messages"] == 0
        clock.advance(21)
        (first,) = take(http, "q")
        assert take(http, "q") == []
        clock.advance(31)
        assert http.get("/v1/queues/q/stats").json()["oldest_unacked_message_age_seconds"] >= 0
        (second,) = take(http, "q")
        assert (second["id"], second["delivery_attempts"]) == (first["id"], 2)
        # the retention runs from the publish on
        clock.advance(60)
        assert take(http, "q") == []
        assert http.put("/v1/queues/q/cleanup").status_code == 204
        stats = http.get("/v1/queues/q/stats").json()
        assert (stats["num_undelivered_messages"], stats["leased"], stats["expired"]) == (0, 0, 1)
        refused(http.put("/v1/queues/q/messages/01a1e21d-c09b-7d4a-b352-b5b6f8f1aafa/ack"), 404, 6)
