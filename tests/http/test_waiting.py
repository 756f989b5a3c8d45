"""Long-polls and server-sent events: woken at once, resumed where they ended, and nothing leased when clients vanish."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.http.servers import HttpServer, problem

CLAIMS = "/v1/queues/{queue}/claims"
FETCH = "/v1/topics/{topic}/groups/{group}/fetch"


def eventually(check: Any, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def vanish(server: HttpServer, method: str, path: str, body: str = "") -> socket.socket:
    """A request on a connection that the test can break."""
    conn = socket.create_connection(("127.0.0.1", server.port))
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    conn.sendall((head + body).encode())
    return conn


@pytest.fixture
def queue(http: httpx.Client, name: str) -> str:
    assert http.post("/v1/queues?ensure=true", json={"name": name}).status_code == 201
    return name


@pytest.fixture
def topic(http: httpx.Client, name: str) -> str:
    assert http.post("/v1/topics", json={"name": name}).status_code == 201
    return name


def leased(http: httpx.Client, queue: str) -> int:
    n: int = http.get(f"/v1/queues/{queue}/stats").json()["leased"]
    return n


def test_a_claim_waits_for_a_message(server: HttpServer, http: httpx.Client, queue: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(http.post, f"/v1/queues/{queue}/claims", json={"wait": 30})
        server.wait_in_flight(CLAIMS, 1)
        http.post(f"/v1/queues/{queue}/messages", json={"payload": 1})
        (delivery,) = waiting.result().json()["deliveries"]
        assert delivery["payload"] == 1


def test_the_wait_ends(http: httpx.Client, queue: str) -> None:
    start = time.monotonic()
    assert http.post(f"/v1/queues/{queue}/claims", json={"wait": 0.3}).json() == {"deliveries": []}
    assert http.get(f"/compat/psqlqueue/v1/queues/{queue}/messages?wait=0.3").json() == {"data": [], "limit": 10}
    assert time.monotonic() - start >= 0.6


@pytest.mark.parametrize("door", ["claims", "messages", "claim"])
def test_who_disconnects_while_waiting_holds_nothing(server: HttpServer, http: httpx.Client, queue: str, door: str) -> None:
    requests = {
        "claims": ("POST", f"/v1/queues/{queue}/claims", '{"wait": 30}'),
        "messages": ("GET", f"/compat/psqlqueue/v1/queues/{queue}/messages?wait=30", ""),
        "claim": ("GET", f"/compat/pg-messaging/queue/claim?queue={queue}&wait=30", ""),
    }
    handlers = {
        "claims": CLAIMS,
        "messages": "/compat/psqlqueue/v1/queues/{queue}/messages",
        "claim": "/compat/pg-messaging/queue/claim",
    }
    gone = [vanish(server, *requests[door]) for _ in range(5)]
    server.wait_in_flight(handlers[door], 5)
    for conn in gone:
        conn.close()
    server.wait_in_flight(handlers[door], 0)
    http.post(f"/v1/queues/{queue}/messages", json=[{"payload": number} for number in range(3)])
    eventually(lambda: http.get(f"/v1/queues/{queue}/stats").json()["ready"] == 3)
    assert leased(http, queue) == 0
    assert len(http.post(f"/v1/queues/{queue}/claims", json={"limit": 10}).json()["deliveries"]) == 3


def test_many_waiters_get_one_message_each(server: HttpServer, http: httpx.Client, queue: str) -> None:
    def wait(_: int) -> list[Any]:
        answer = httpx.post(f"{server.url}/v1/queues/{queue}/claims", json={"wait": 20}, timeout=40)
        found: list[Any] = answer.json()["deliveries"]
        return found

    with ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(wait, number) for number in range(20)]
        server.wait_in_flight(CLAIMS, 20)
        http.post(f"/v1/queues/{queue}/messages", json=[{"payload": number} for number in range(20)])
        got = [each.result() for each in waiting]
    assert sorted(row["payload"] for deliveries in got for row in deliveries) == list(range(20))
    assert {len(deliveries) for deliveries in got} == {1}


def test_who_comes_back_while_others_wait_gets_its_turn(server: HttpServer, http: httpx.Client, queue: str) -> None:
    """While a queue is known to be empty, new clients wait without another query; later messages reach all of them."""

    def wait(seconds: float) -> list[Any]:
        answer = httpx.post(f"{server.url}/v1/queues/{queue}/claims", json={"wait": seconds}, timeout=40)
        found: list[Any] = answer.json()["deliveries"]
        return found

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(wait, 20)
        assert [wait(0.2) for _ in range(3)] == [[], [], []]
        second = pool.submit(wait, 20)
        server.wait_in_flight(CLAIMS, 2)
        http.post(f"/v1/queues/{queue}/messages", json=[{"payload": number} for number in range(2)])
        assert sorted(row["payload"] for each in (first, second) for row in each.result()) == [0, 1]
    # No client is left: the next one queries itself, or joins one that is still waiting.
    http.post(f"/v1/queues/{queue}/messages", json={"payload": 2})
    assert [row["payload"] for row in wait(10)] == [2]


def test_a_queue_that_is_deleted_ends_the_wait(server: HttpServer, http: httpx.Client, queue: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(http.post, f"/v1/queues/{queue}/claims", json={"wait": 30})
        server.wait_in_flight(CLAIMS, 1)
        assert http.delete(f"/v1/queues/{queue}").status_code == 204
        problem(waiting.result(), 404, "queue_not_found")


def test_fetch_waits_and_lets_go(server: HttpServer, http: httpx.Client, topic: str) -> None:
    path = f"/v1/topics/{topic}/groups/g/fetch"
    conn = vanish(server, "POST", path, '{"wait": 30, "member": "gone"}')
    server.wait_in_flight(FETCH, 1)
    conn.close()
    server.wait_in_flight(FETCH, 0)
    http.post(f"/v1/topics/{topic}/messages", json={"payload": 1})
    answer = http.post(path, json={"wait": 10, "member": "here"}).json()
    assert [message["payload"] for message in answer["messages"]] == [1]
    done = http.post(
        f"/v1/topics/{topic}/groups/g/commit", json={"generation": answer["generation"], "offset": answer["last_offset"]}
    )
    assert done.json() == {"partition": 0, "next_offset": 2}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(http.post, path, json={"wait": 20, "member": "here"})
        server.wait_in_flight(FETCH, 1)
        http.post(f"/v1/topics/{topic}/messages", json={"payload": 2})
        assert [message["payload"] for message in waiting.result().json()["messages"]] == [2]


def test_read_waits(server: HttpServer, http: httpx.Client, topic: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(http.get, f"/v1/topics/{topic}/messages?wait=20")
        server.wait_in_flight("/v1/topics/{topic}/messages", 1)
        http.post(f"/v1/topics/{topic}/messages", json={"payload": 1})
        assert waiting.result().json()["next"] == 2


# Server-sent events


class Stream:
    """Events of one connection, read in a thread."""

    def __init__(self, server: HttpServer, path: str, headers: dict[str, str] | None = None) -> None:
        self.events: list[dict[str, str]] = []
        self.ready = threading.Event()
        self._client = httpx.Client(base_url=server.url, timeout=40)
        self._manager = self._client.stream("GET", path, headers=headers or {})
        self._answer = self._manager.__enter__()
        assert self._answer.status_code == 200, self._answer.read()
        assert self._answer.headers["content-type"].startswith("text/event-stream")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self.ready.wait(10)

    def _read(self) -> None:
        event: dict[str, str] = {}
        try:
            for line in self._lines():
                if line.startswith(":"):
                    self.ready.set()
                elif line:
                    key, _, value = line.partition(": ")
                    event[key] = value
                elif event:
                    self.events.append(event)
                    event = {}
        except (httpx.HTTPError, RuntimeError):
            return

    def _lines(self) -> Iterator[str]:
        yield from self._answer.iter_lines()

    def close(self) -> None:
        for stream in (self._answer.extensions["network_stream"].get_extra_info("socket"),):
            stream.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._client.close()

    def payloads(self) -> list[Any]:
        return [json.loads(event["data"])["payload"] for event in self.events]


def send(http: httpx.Client, topic: str, *payloads: Any) -> None:
    answer = http.post(f"/v1/topics/{topic}/messages", json=[{"payload": payload} for payload in payloads])
    assert answer.status_code == 201, answer.text


def test_follow_a_topic_and_resume(server: HttpServer, http: httpx.Client, topic: str) -> None:
    send(http, topic, "before")
    path = f"/v1/topics/{topic}/events"
    one, two = Stream(server, path), Stream(server, path)
    send(http, topic, 1, 2, 3)
    eventually(lambda: one.payloads() == two.payloads() == [1, 2, 3])
    one.close()
    send(http, topic, 4)
    eventually(lambda: two.payloads() == [1, 2, 3, 4])
    assert two.events[1]["id"] == "0:3"
    again = Stream(server, path, {"Last-Event-ID": two.events[1]["id"]})
    eventually(lambda: again.payloads() == [3, 4])
    whole = Stream(server, f"{path}?start=earliest")
    eventually(lambda: whole.payloads() == ["before", 1, 2, 3, 4])
    for stream in (two, again, whole):
        stream.close()


def test_follow_several_partitions(server: HttpServer, http: httpx.Client, name: str) -> None:
    http.post("/v1/topics", json={"name": name, "partitions": 3})
    stream = Stream(server, f"/v1/topics/{name}/events")
    batch = [{"payload": number, "key": str(number)} for number in range(30)]
    http.post(f"/v1/topics/{name}/messages", json=batch)
    eventually(lambda: len(stream.events) == 30)
    assert sorted(stream.payloads()) == list(range(30))
    stream.close()
    half = Stream(server, f"/v1/topics/{name}/events", {"Last-Event-ID": stream.events[14]["id"]})
    eventually(lambda: len(half.events) >= 15)
    assert set(half.payloads()) >= set(stream.payloads()[15:])
    half.close()


def test_a_partition_that_is_added_is_followed(server: HttpServer, http: httpx.Client, topic: str) -> None:
    stream = Stream(server, f"/v1/topics/{topic}/events")
    assert http.patch(f"/v1/topics/{topic}", json={"partitions": 4}).status_code == 200
    batch = [{"payload": number, "key": str(number)} for number in range(20)]
    http.post(f"/v1/topics/{topic}/messages", json=batch)
    eventually(lambda: sorted(stream.payloads()) == list(range(20)))
    stream.close()


def test_a_topic_that_is_deleted_ends_its_streams(server: HttpServer, http: httpx.Client, topic: str) -> None:
    stream = Stream(server, f"/v1/topics/{topic}/events")
    assert http.delete(f"/v1/topics/{topic}?force=true").status_code == 204
    eventually(lambda: [event.get("event") for event in stream.events] == ["problem"])
    assert json.loads(stream.events[0]["data"])["error"] == "topic_not_found"
    stream.close()


def test_bad_streams(http: httpx.Client, topic: str) -> None:
    problem(http.get("/v1/topics/nobody/events"), 404, "topic_not_found")
    problem(http.get("/v1/topics/nobody/groups/g/events"), 404, "topic_not_found")
    problem(http.get(f"/v1/topics/{topic}/events", headers={"Last-Event-ID": "x"}), 400, "bad_header")
    problem(http.get(f"/v1/topics/{topic}/events", headers={"Last-Event-ID": "9" * 30}), 400, "bad_header")


def test_a_group_stream_goes_on_after_a_commit(server: HttpServer, http: httpx.Client, topic: str) -> None:
    stream = Stream(server, f"/v1/topics/{topic}/groups/g/events?limit=2")
    send(http, topic, 1, 2, 3, 4)

    def seen() -> list[Any]:
        return [json.loads(event["data"])["message"]["payload"] for event in stream.events]

    eventually(lambda: seen() == [1, 2])
    time.sleep(0.3)
    assert seen() == [1, 2]
    event = json.loads(stream.events[-1]["data"])
    http.post(f"/v1/topics/{topic}/groups/g/commit", json={"generation": event["generation"], "offset": 2})
    eventually(lambda: seen() == [1, 2, 3, 4])
    stream.close()
    # gone: another member gets what was not committed at once
    answer: dict[str, Any] = {}

    def free() -> bool:
        answer.update(http.post(f"/v1/topics/{topic}/groups/g/fetch", json={"member": "other"}).json())
        return bool(answer["messages"])

    eventually(free, 5)
    assert [message["payload"] for message in answer["messages"]] == [3, 4]


def test_a_group_stream_resumes(server: HttpServer, http: httpx.Client, topic: str) -> None:
    send(http, topic, 1, 2, 3)
    stream = Stream(server, f"/v1/topics/{topic}/groups/g/events")
    eventually(lambda: len(stream.events) == 3)
    stream.close()
    again = Stream(server, f"/v1/topics/{topic}/groups/g/events", {"Last-Event-ID": stream.events[1]["id"]})
    eventually(lambda: len(again.events) == 1)
    assert again.events[0]["id"] == "0:3"
    assert http.get(f"/v1/topics/{topic}/groups/g").json()["partitions"][0]["next_offset"] == 3
    again.close()


def test_a_group_stream_that_commits_by_itself(server: HttpServer, http: httpx.Client, topic: str) -> None:
    stream = Stream(server, f"/v1/topics/{topic}/groups/g/events?commit=auto&limit=2")
    send(http, topic, *range(6))
    eventually(lambda: len(stream.events) == 6)
    eventually(lambda: http.get(f"/v1/topics/{topic}/groups/g").json()["lag"] == 0)
    stream.close()
