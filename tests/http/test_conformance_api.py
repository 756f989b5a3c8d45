"""Every route and rule of the other two documents: /api, /pubsub and /queue."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.http.servers import problem


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


def test_create_is_idempotent(http: httpx.Client, topic: str) -> None:
    answer = http.post("/api/topics", json={"name": topic})
    assert (answer.status_code, answer.json()["name"]) == (200, topic)
    problem(http.post("/api/topics", json={}), 400, "invalid_argument")
    problem(http.post("/api/topics", json={"name": "a b"}), 400, "invalid_name")
    # a topic is the same object in every API
    assert http.get(f"/v1/topics/{topic}").json()["id"] == topic


def test_publish(http: httpx.Client, topic: str) -> None:
    for number, payload in enumerate(({"a": [1, None]}, [], "text", 0, None, False), 1):
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


def test_only_topics_with_one_partition(http: httpx.Client, name: str) -> None:
    http.post("/v1/topics", json={"id": name, "partitions": 2})
    problem(http.get(f"/api/topics/{name}/pull?group=g"), 409, "not_supported")


# S2: the sketched routes


def test_unknown_topic_is_an_error(http: httpx.Client) -> None:
    problem(http.post("/pubsub/publish", json={"topic_id": "nobody", "payload": 1}), 404, "topic_not_found")
    problem(http.get("/pubsub/consume?group_id=g&topic_id=nobody"), 404, "topic_not_found")
    problem(http.get("/pubsub/consume?group_id=g&topic_id=nobody&member=m"), 404, "topic_not_found")
    problem(http.post("/queue/enqueue", json={"queue": "nobody", "payload": 1}), 404, "queue_not_found")
    problem(http.get("/queue/claim?queue=nobody"), 404, "queue_not_found")
    problem(http.post("/pubsub/publish", json={"topic_id": 0}), 400, "invalid_argument")
    problem(http.get("/pubsub/consume"), 400, "bad_param")


def test_bytes(http: httpx.Client, name: str) -> None:
    http.post("/api/topics", json={"name": name})
    http.post("/pubsub/publish", json={"topic_id": name, "payload_base64": "AP8="})
    body = http.get(f"/pubsub/consume?group_id=g&topic_id={name}").json()
    assert (body["messages"][0]["payload"], body["messages"][0]["encoding"]) == ("AP8=", "base64")
    problem(http.post("/pubsub/publish", json={"topic_id": name, "payload_base64": "?"}), 400, "invalid_argument")


def test_members_of_a_group_get_disjoint_ranges(http: httpx.Client, name: str) -> None:
    http.post("/api/topics", json={"name": name})
    http.post("/pubsub/publish", json={"topic_id": name, "payloads": list(range(10))})

    def take(**query: Any) -> tuple[int, int]:
        body = http.get("/pubsub/consume", params={"group_id": "g", "topic_id": name, "max": 4, **query}).json()
        return body["claimed_start_offset"], body["claimed_end_offset"]

    assert [take(), take(), take(), take()] == [(1, 4), (5, 8), (9, 10), (11, 10)]


def test_a_member_is_done_with_its_last_batch_when_it_asks_for_the_next(http: httpx.Client, name: str) -> None:
    http.post("/api/topics", json={"name": name})
    http.post("/pubsub/publish", json={"topic_id": name, "payloads": list(range(5))})

    def take(member: str) -> list[int]:
        body = http.get("/pubsub/consume", params={"group_id": "g", "topic_id": name, "max": 2, "member": member}).json()
        return [message["c_offset"] for message in body["messages"]]

    assert take("a") == [1, 2]
    assert take("b") == []  # leased to a
    assert take("a") == [3, 4]
    answer = http.post("/pubsub/commit", json={"group_id": "g", "topic_id": name, "offset": 4})
    assert answer.json() == {"next_offset": 5}
    assert take("b") == [5]


def test_job_archive_is_fenced(http: httpx.Client, name: str) -> None:
    http.post("/v1/queues?ensure=true", json={"id": name})
    http.post("/queue/enqueue", json={"queue": name, "payload": {"n": 1}})
    job = http.get(f"/queue/claim?queue={name}").json()["job"]
    assert http.post("/queue/archive", json={"id": job["id"]}).json() == {"result": "done"}
    assert http.post("/queue/archive", json={"id": job["id"]}).json() == {"result": "done"}
    forged = job["id"].rpartition(".")[0] + ".00000000-0000-0000-0000-000000000000"
    problem(http.post("/queue/archive", json={"id": forged}), 409, "lease_lost")
    problem(http.post("/queue/archive", json={"id": "x"}), 404, "message_not_found")
