"""Every route and rule of pg-messaging."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.http.compat.conftest import CompatServer
from tests.http.servers import problem

PORTS = ("pg-messaging",)


@pytest.fixture
def http(server: CompatServer, place: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base("pg-messaging", place), timeout=40) as client:
        yield client


def test_unknown_topic_is_an_error(http: httpx.Client) -> None:
    problem(http.post("/pubsub/publish", json={"topic_id": "nobody", "payload": 1}), 404, "topic_not_found")
    problem(http.get("/pubsub/consume?group_id=g&topic_id=nobody"), 404, "topic_not_found")
    problem(http.get("/pubsub/consume?group_id=g&topic_id=nobody&member=m"), 404, "topic_not_found")
    problem(http.post("/queue/enqueue", json={"queue": "nobody", "payload": 1}), 404, "queue_not_found")
    problem(http.get("/queue/claim?queue=nobody"), 404, "queue_not_found")
    problem(http.post("/pubsub/publish", json={"topic_id": 0}), 400, "invalid_argument")
    problem(http.get("/pubsub/consume"), 400, "bad_param")


def test_bytes(http: httpx.Client, native: httpx.Client, name: str) -> None:
    native.post("/v1/topics", json={"name": name})
    http.post("/pubsub/publish", json={"topic_id": name, "payload_base64": "AP8="})
    body = http.get(f"/pubsub/consume?group_id=g&topic_id={name}").json()
    assert (body["messages"][0]["payload"], body["messages"][0]["encoding"]) == ("AP8=", "base64")
    problem(http.post("/pubsub/publish", json={"topic_id": name, "payload_base64": "?"}), 400, "invalid_argument")


def test_members_of_a_group_get_disjoint_ranges(http: httpx.Client, native: httpx.Client, name: str) -> None:
    native.post("/v1/topics", json={"name": name})
    http.post("/pubsub/publish", json={"topic_id": name, "payloads": list(range(10))})

    def take(**query: Any) -> tuple[int, int]:
        body = http.get("/pubsub/consume", params={"group_id": "g", "topic_id": name, "max": 4, **query}).json()
        return body["claimed_start_offset"], body["claimed_end_offset"]

    assert [take(), take(), take(), take()] == [(1, 4), (5, 8), (9, 10), (11, 10)]


def test_a_member_is_done_with_its_last_batch_when_it_asks_for_the_next(
    http: httpx.Client, native: httpx.Client, name: str
) -> None:
    native.post("/v1/topics", json={"name": name})
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


def test_job_archive_is_fenced(http: httpx.Client, native: httpx.Client, name: str) -> None:
    native.post("/v1/queues", json={"name": name})
    http.post("/queue/enqueue", json={"queue": name, "payload": {"n": 1}})
    job = http.get(f"/queue/claim?queue={name}").json()["job"]
    assert http.post("/queue/archive", json={"id": job["id"]}).json() == {"result": "done"}
    assert http.post("/queue/archive", json={"id": job["id"]}).json() == {"result": "done"}
    forged = job["id"].rpartition(".")[0] + ".00000000-0000-0000-0000-000000000000"
    problem(http.post("/queue/archive", json={"id": forged}), 409, "lease_lost")
    problem(http.post("/queue/archive", json={"id": "x"}), 404, "message_not_found")
