"""Every route and rule of postgres-backed-pubsub-queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.http.compat.conftest import CompatServer
from tests.http.servers import problem

PORTS = ("pubsub-queue",)


@pytest.fixture
def http(server: CompatServer, place: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base("pubsub-queue", place), timeout=40) as client:
        yield client


@pytest.fixture
def topic(http: httpx.Client, name: str) -> str:
    assert http.post("/api/topics", json={"name": name}).status_code == 201
    return name


def publish(http: httpx.Client, topic: str, *payloads: Any) -> None:
    for payload in payloads:
        answer = http.post(f"/api/topics/{topic}/publish", json={"payload": payload})
        assert answer.status_code == 201, answer.text


def pull(http: httpx.Client, topic: str, **query: Any) -> tuple[list[Any], int]:
    answer = http.get(f"/api/topics/{topic}/pull", params={"group": "g", **query})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return [message["id"] for message in body["messages"]], body["lastAckedId"]


def ack(http: httpx.Client, topic: str, id: int, group: str = "g") -> int:
    answer = http.post(f"/api/topics/{topic}/ack", json={"group": group, "lastAckedId": id})
    assert answer.status_code == 200, answer.text
    acked: int = answer.json()["lastAckedId"]
    return acked


# S0-E1 to E4


def test_create_is_idempotent(http: httpx.Client, native: httpx.Client, topic: str) -> None:
    answer = http.post("/api/topics", json={"name": topic})
    assert (answer.status_code, answer.json()["name"]) == (200, topic)
    problem(http.post("/api/topics", json={}), 400, "invalid_argument")
    problem(http.post("/api/topics", json={"name": "a b"}), 400, "invalid_name")
    # a topic is the same object in every API
    assert native.get(f"/v1/topics/{topic}").json()["name"] == topic


def test_publish(http: httpx.Client, topic: str) -> None:
    payloads: tuple[Any, ...] = ({"a": [1, None]}, [], "text", 0, None, False)
    for number, payload in enumerate(payloads, 1):
        answer = http.post(f"/api/topics/{topic}/publish", json={"payload": payload})
        assert (answer.status_code, answer.json()["id"]) == (201, number)
    messages = http.get(f"/api/topics/{topic}/pull?group=g&batch=10").json()["messages"]
    assert [message["payload"] for message in messages] == [{"a": [1, None]}, [], "text", 0, None, False]
    problem(http.post(f"/api/topics/{topic}/publish", json={}), 400, "invalid_argument")
    problem(http.post("/api/topics/nobody/publish", json={"payload": 1}), 404, "topic_not_found")
    problem(http.post(f"/api/topics/{topic}/publish", json={"payload": "x" * 1_100_000}), 413, "body_too_large")


def test_pull(http: httpx.Client, topic: str) -> None:
    assert pull(http, topic) == ([], 0)
    publish(http, topic, *range(15))
    assert pull(http, topic, group="a") == (list(range(1, 11)), 0)  # ten by default
    assert pull(http, topic, group="b", batch=3) == ([1, 2, 3], 0)  # groups are independent
    problem(http.get(f"/api/topics/{topic}/pull"), 400, "bad_param")
    problem(http.get(f"/api/topics/{topic}/pull?group=g&batch=0"), 400, "bad_param")
    problem(http.get(f"/api/topics/{topic}/pull?group=g&batch=x"), 400, "bad_param")
    problem(http.get("/api/topics/nobody/pull?group=g"), 404, "topic_not_found")


def test_ack_is_cumulative_monotonic_and_idempotent(http: httpx.Client, topic: str) -> None:
    publish(http, topic, *range(5))
    assert pull(http, topic, batch=3) == ([1, 2, 3], 0)
    assert ack(http, topic, 2) == 2
    assert ack(http, topic, 1) == 2  # never back
    assert ack(http, topic, 2) == 2
    assert pull(http, topic)[1] == 2
    assert ack(http, topic, 3) == 3
    assert pull(http, topic) == ([4, 5], 3)
    problem(http.post(f"/api/topics/{topic}/ack", json={"group": "g", "lastAckedId": 6}), 409, "offset_ahead")
    problem(http.post(f"/api/topics/{topic}/ack", json={"group": "g"}), 400, "invalid_argument")
    problem(http.post(f"/api/topics/{topic}/ack", json={"group": "g", "lastAckedId": "1"}), 400, "malformed_body")
    problem(http.post(f"/api/topics/{topic}/ack", json={"group": "g", "lastAckedId": -1}), 400, "malformed_body")
    problem(http.post("/api/topics/nobody/ack", json={"group": "g", "lastAckedId": 1}), 404, "topic_not_found")


def test_messages_stay(http: httpx.Client, topic: str) -> None:
    publish(http, topic, 1, 2)
    assert ack(http, topic, 2, "new") == 2
    assert pull(http, topic, group="later") == ([1, 2], 0)


def test_a_member_sees_its_batch_again(http: httpx.Client, topic: str) -> None:
    publish(http, topic, *range(4))
    assert pull(http, topic, member="m", batch=2) == ([1, 2], 0)
    assert pull(http, topic, member="m", batch=2) == ([1, 2], 0)
    assert ack(http, topic, 2) == 2
    assert pull(http, topic, member="m", batch=2) == ([3, 4], 2)


def test_only_topics_with_one_partition(http: httpx.Client, native: httpx.Client, name: str) -> None:
    native.post("/v1/topics", json={"name": name, "partitions": 2})
    problem(http.get(f"/api/topics/{name}/pull?group=g"), 409, "not_supported")
