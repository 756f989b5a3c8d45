"""The catalogue of bad input, HTTP part: each gets a clean refusal, and nothing is stored."""

from __future__ import annotations

import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.http.servers import HttpServer, problem

JSON = {"content-type": "application/json"}
QUEUE = {"lease_seconds": 30, "ttl_seconds": 3600}


@pytest.fixture
def topic(http: httpx.Client, name: str) -> str:
    assert http.post("/v1/topics", json={"name": name}).status_code == 201
    return name


@pytest.fixture
def queue(http: httpx.Client, name: str) -> str:
    assert http.post("/v1/queues", json={"name": name, **QUEUE}).status_code == 201
    return name


def publish(http: httpx.Client, topic: str, content: bytes | str, **headers: str) -> httpx.Response:
    return http.post(f"/v1/topics/{topic}/messages", content=content, headers={**JSON, **headers})


def stored(http: httpx.Client, topic: str) -> list[Any]:
    found: list[Any] = http.get(f"/v1/topics/{topic}/messages?limit=1000").json()["data"]
    return found


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "missing_body"),
        (b"   ", "missing_body"),
        (b"not json", "bad_json"),
        (b'{"payload": 1', "bad_json"),
        (b'{"payload": 1}{"payload": 2}', "bad_json"),
        (b'{"payload": NaN}', "bad_number"),
        (b'{"payload": Infinity}', "bad_number"),
        (b'{"payload": -Infinity}', "bad_number"),
        (b'{"payload": 1e400}', "bad_number"),
        (b'{"payload": ' + b"9" * 5000 + b"}", "bad_number"),
        (b'{"payload": 1, "headers": {"n": 1e400}}', "bad_number"),
        (b'{"payload": 1, "payload": 2}', "duplicate_key"),
        (b'{"payload": 1, "headers": {"a": 1, "a": 2}}', "duplicate_key"),
        (b'{"payload": "' + b"x" * 100 + b'", "key": "a", "key": "b"}', "duplicate_key"),
        (b'{"payload": 1, "key": "\xff"}', "bad_utf8"),
        (b'{"payload": "\xff\xfe"}', "bad_utf8"),
        (b'{"payload": 1, "tenant": "x"}', "unknown_field"),
        (b'{"payload": 1, "offset": 3}', "unknown_field"),
        (b'{"payload": 1, "attempts": 3}', "unknown_field"),
        (b'{"payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "json_too_deep"),
        (b'{"payload": ' + b"[" * 100_000, "json_too_deep"),
        (b'{"payload": ' + b'{"a":' * 70 + b"1" + b"}" * 70 + b"}", "json_too_deep"),
        (b'"\\' * 40_000 + b"[" * 65, "bad_json"),
        (
            b'{"payload": 1, "headers": {' + b",".join(b'"%d":1' % n for n in range(60_000)) + b',"59999":1}}',
            "duplicate_key",
        ),
        (b'{"payload": 1, "payload_base64": ""}', "invalid_argument"),
        (b'{"payload": 1, "delay_seconds": 1, "deliver_at": "2030-01-01T00:00:00Z"}', "invalid_argument"),
        (b'{"payload": 1, "attributes": {}}', "unknown_field"),
        (b'{"payload_base64": "no base64!"}', "invalid_argument"),
    ],
)
def test_bodies(http: httpx.Client, topic: str, body: bytes, error: str) -> None:
    problem(publish(http, topic, body), 400, error)
    assert stored(http, topic) == []


@pytest.mark.parametrize(
    "field",
    [
        '"delay_seconds": -1', '"delay_seconds": 1e18', '"delay_seconds": "infinity"', '"deliver_at": "2026-13-40"',
        '"deliver_at": "2030-01-01T00:00:00"', '"deliver_at": "infinity"', '"deliver_at": 5', '"key": 5',
        '"key": "' + "k" * 1001 + '"', '"label": "' + "l" * 201 + '"', '"id": "no uuid"', '"headers": [1]',
        '"headers": "x"', '"priority": 10', '"priority": -1', '"idempotency_key": ""',
        '"idempotency_key": "' + "x" * 256 + '"',
        '"content_type": ""', '"occurred_at": "yesterday"',
    ],
)  # fmt: skip
def test_fields_of_a_message(http: httpx.Client, topic: str, field: str) -> None:
    problem(publish(http, topic, f'{{"payload": 1, {field}}}'), 400, "malformed_body")
    assert stored(http, topic) == []


@pytest.mark.parametrize("field", ["key", "routing_key", "label", "idempotency_key"])
def test_nul_and_lone_surrogates_in_fields(http: httpx.Client, topic: str, field: str) -> None:
    for text in ("\\u0000", "\\ud800"):
        answer = publish(http, topic, f'{{"payload": 1, "{field}": "a{text}b"}}')
        assert answer.status_code == 400, answer.text
    for body in ('{"payload": 1, "headers": {"a": "\\u0000"}}', '{"payload": 1, "headers": {"\\u0000": "a"}}'):
        assert publish(http, topic, body).status_code == 400
    assert stored(http, topic) == []


def test_payloads_are_kept_byte_for_byte(http: httpx.Client, topic: str) -> None:
    odd = [b'{"b":1,"a":2, "a":3}', b'"\\u0000"', b"1.50", b"[1,\n2 ]", b'"</script>"', b"12345678901234567890123"]
    for raw in odd:
        assert publish(http, topic, b'{"payload": ' + raw + b"}").status_code == 201
    # text that is no Unicode only as it is, not inside an envelope
    assert publish(http, topic, b'{"payload": "\\ud800"}').status_code == 400
    http.post(f"/v1/topics/{topic}/messages?raw=true", content=b'"\\ud800"', headers=JSON)
    everything = bytes(range(256))
    http.post(f"/v1/topics/{topic}/messages", content=everything, headers={"content-type": "application/octet-stream"})
    http.post(f"/v1/topics/{topic}/messages?raw=true", content=b'{"not": "an envelope"}', headers=JSON)
    http.post(f"/v1/topics/{topic}/messages?raw=true", content=b"", headers={"content-type": "text/plain"})
    shown = stored(http, topic)
    assert [(row["encoding"], row["content_type"]) for row in shown[-3:]] == [
        ("base64", "application/octet-stream"), ("json", "application/json"), ("text", "text/plain")
    ]  # fmt: skip
    text = http.get(f"/v1/topics/{topic}/messages").text
    for raw in (*odd, b'"\\ud800"'):
        assert raw.decode() in text


def test_sizes(http: httpx.Client, topic: str) -> None:
    large = b"x" * (1024 * 1024 + 1)
    raw = {"content-type": "application/octet-stream"}
    problem(http.post(f"/v1/topics/{topic}/messages", content=large, headers=raw), 413, "body_too_large")
    problem(http.post(f"/v1/topics/{topic}/messages", content=iter([large]), headers=raw), 413, "body_too_large")
    problem(publish(http, topic, b'{"payload": "' + large + b'"}'), 413, "body_too_large")
    problem(http.post("/v1/queues", content=large), 413, "body_too_large")
    problem(publish(http, topic, b"[" + b" " * (8 * 1024 * 1024) + b"]"), 413, "body_too_large")
    assert http.post(f"/v1/topics/{topic}/messages", content=large[:-1], headers=raw).status_code == 201
    problem(publish(http, topic, b"{}", **{"content-encoding": "gzip"}), 415, "unsupported_encoding")


def test_batches(http: httpx.Client, topic: str) -> None:
    problem(http.post(f"/v1/topics/{topic}/messages", json=[]), 400, "empty_batch")
    problem(http.post(f"/v1/topics/{topic}/messages", json=[{"payload": 1}] * 1001), 413, "batch_too_large")
    bad = [{"payload": 1}, {"payload": 2, "colour": "red"}, {"payload": 3}]
    assert "message 1:" in problem(http.post(f"/v1/topics/{topic}/messages", json=bad), 400, "unknown_field")["detail"]
    for wrong in ([1], [None], [[]], [{"payload": 1, "key": "k" * 1001}]):  # type: ignore[var-annotated]
        assert http.post(f"/v1/topics/{topic}/messages", json=wrong).status_code == 400
    lines = {"content-type": "application/x-ndjson"}
    problem(http.post(f"/v1/topics/{topic}/messages", content=b'{"payload": 1}\nx\n', headers=lines), 400, "bad_json")
    problem(http.post(f"/v1/topics/{topic}/messages", content=b"\n\n", headers=lines), 400, "empty_batch")
    assert stored(http, topic) == []
    answer = http.post(f"/v1/topics/{topic}/messages", content=b'{"payload": 1}\n\n{"payload": 2}\r\n', headers=lines)
    assert answer.status_code == 201, answer.text
    assert [row["payload"] for row in stored(http, topic)] == [1, 2]


@pytest.mark.parametrize("id", ["", "a" * 201, "a/b", "a b", "a ", "ä", "\u200f", "🐰", "a\x00b", ";drop", "%2e"])
def test_names(http: httpx.Client, id: str) -> None:
    for noun in ("topics", "queues"):
        answer = http.post(f"/v1/{noun}", json={"name": id})
        assert answer.status_code == 400 and answer.json()["error"] in ("invalid_argument", "invalid_name")


@pytest.mark.parametrize(
    "field",
    [{"partitions": 0}, {"partitions": -1}, {"partitions": 1.5}, {"partitions": "8"}, {"partitions": 10**9},
     {"partitions": True},
     {"retention_seconds": -1}, {"retention_seconds": 1e300}, {"retention_seconds": "7d"}, {"max_payload": 0}],
)  # fmt: skip
def test_settings(http: httpx.Client, name: str, field: dict[str, Any]) -> None:
    assert http.post("/v1/topics", json={"name": name, **field}).status_code == 400
    assert http.get(f"/v1/topics/{name}").status_code == 404


def test_partitions_are_never_removed(http: httpx.Client, name: str) -> None:
    http.post("/v1/topics", json={"name": name, "partitions": 2})
    assert http.patch(f"/v1/topics/{name}", json={"partitions": 3}).json()["partitions"] == 3
    assert http.patch(f"/v1/topics/{name}", json={"partitions": 1}).status_code in (400, 409)
    problem(http.post("/v1/topics?ensure=true", json={"name": name, "partitions": 5}), 409, "already_exists")
    assert http.post("/v1/topics?ensure=true", json={"name": name, "partitions": 3}).status_code == 200


def test_idempotency(http: httpx.Client, server: HttpServer, topic: str) -> None:
    for key in ("", "x" * 256):
        answer = publish(http, topic, b'{"payload": 1}', **{"idempotency-key": key})
        assert answer.status_code == 400

    def repeat(_: int) -> str:
        with httpx.Client(base_url=server.url) as client:
            answer = publish(client, topic, b'{"payload": 1}', **{"idempotency-key": "once"})
            assert answer.status_code == 201, answer.text
            id: str = answer.json()["id"]
            return id

    with ThreadPoolExecutor(20) as pool:
        assert len(set(pool.map(repeat, range(100)))) == 1
    assert len(stored(http, topic)) == 1
    problem(publish(http, topic, b'{"payload": 2}', **{"idempotency-key": "once"}), 409, "idempotency_conflict")
    # a batch under one key: each message has its own place
    for _ in range(2):
        answer = http.post(
            f"/v1/topics/{topic}/messages", json=[{"payload": 1}, {"payload": 2}], headers={"idempotency-key": "batch"}
        )
        assert answer.status_code == 201
    assert [row["duplicate"] for row in answer.json()["messages"]] == [True, True]
    assert len(stored(http, topic)) == 3


@pytest.mark.parametrize(
    "body",
    [{"lease_seconds": 0}, {"lease_seconds": -5}, {"lease_seconds": 0.001}, {"lease_seconds": 46_800}, {"limit": 0},
     {"limit": -1}, {"limit": 10**9}, {"wait": 1e9}, {"wait": -1}, {"labels": "x"}, {"colour": "red"}],
)  # fmt: skip
def test_claims(http: httpx.Client, queue: str, body: dict[str, Any]) -> None:
    assert http.post(f"/v1/queues/{queue}/claims", json=body).status_code == 400


def test_settlements(http: httpx.Client, queue: str) -> None:
    http.post(f"/v1/queues/{queue}/messages", json=[{"payload": number} for number in range(5)])
    got = http.post(f"/v1/queues/{queue}/claims", json={"limit": 5}).json()["deliveries"]
    receipts = [row["receipt"] for row in got]
    assert http.post(f"/v1/queues/{queue}/release", json={"receipts": receipts[3:]}).status_code == 200
    mixed = [*receipts, "x", "1.2.3", "99999999999999999999.1.1.x"]
    answer = http.post(f"/v1/queues/{queue}/ack", json={"receipts": mixed})
    assert [row["result"] for row in answer.json()["results"]] == ["done"] * 3 + ["lost"] * 2 + ["unknown"] * 3
    again = http.post(f"/v1/queues/{queue}/ack", json={"receipts": receipts[:3]})
    assert [row["result"] for row in again.json()["results"]] == ["done"] * 3
    for body in ({}, {"receipts": []}, {"receipts": "x"}, {"receipts": [1]}, {"receipts": ["x"], "more": 1}):  # type: ignore[var-annotated]
        assert http.post(f"/v1/queues/{queue}/ack", json=body).status_code == 400
    problem(http.post("/v1/queues/nobody/ack", json={"receipts": ["x"]}), 404, "queue_not_found")


def test_a_hint_is_a_request_that_helps(http: httpx.Client, name: str) -> None:
    """The hint names the request that creates the missing object; the test sends it unchanged."""
    steps = [
        (f"/v1/queues/{name}", "queue_not_found"),
        (f"/v1/topics/{name}", "topic_not_found"),
        (f"/v1/topics/{name}/groups/{name}", "group_not_found"),
    ]
    for path, code in steps:
        hint = problem(http.get(path), 404, code)["hint"]
        found = re.fullmatch(r"Create it with (\S+) (\S+) (\{.*?\}).*", hint)
        assert found is not None, hint
        assert http.request(found[1], found[2], content=found[3]).status_code == 201
        assert http.get(path).status_code == 200
    for noun in ("queues", "topics"):
        taken = problem(http.post(f"/v1/{noun}", json={"name": name}), 409, "already_exists")
        assert taken["hint"] == f"Use another name, or POST /v1/{noun}?ensure=true to update the existing {noun[:-1]}."


def test_offsets(http: httpx.Client, topic: str) -> None:
    publish(http, topic, b'{"payload": 1}')
    path = f"/v1/topics/{topic}/messages"
    for query in (
        "start=-1",
        "start=0",
        "start=10000000000000000000",
        "start=x",
        "limit=0",
        "limit=1001",
        "wait=31",
        "partition=-1",
    ):
        problem(http.get(f"{path}?{query}"), 400, "bad_param")
    assert http.get(f"{path}?partition=1").status_code == 400
    assert http.get(f"{path}?start=2").json() == {"data": [], "next": 2}
    assert http.get(f"{path}?start=100").json() == {"data": [], "next": 100}
    for query in ("start=1&start=2", "unknown=1", "limit="):
        problem(http.get(f"{path}?{query}"), 400, "bad_param")


def test_commits(http: httpx.Client, topic: str) -> None:
    http.post(f"/v1/topics/{topic}/messages", json=[{"payload": number} for number in range(4)])
    path = f"/v1/topics/{topic}/groups/g"
    batch = http.post(f"{path}/fetch", json={"member": "m", "limit": 2}).json()
    generation = batch["generation"]
    problem(http.post(f"{path}/commit", json={"generation": generation, "offset": 3}), 409, "offset_ahead")
    assert http.post(f"{path}/commit", json={"generation": generation, "offset": 2}).json()["next_offset"] == 3
    assert http.post(f"{path}/commit", json={"generation": generation, "offset": 1}).json()["next_offset"] == 3
    problem(http.post(f"{path}/commit", json={"generation": "0" * 32, "offset": 2}), 409, "lease_lost")
    other = f"/v1/topics/{topic}/groups/other/commit"
    problem(http.post(other, json={"generation": generation, "offset": 2}), 404, "group_not_found")
    for body in ({"offset": 1}, {"generation": "x", "offset": 1}, {"generation": generation, "offset": -1}):
        assert http.post(f"{path}/commit", json=body).status_code == 400
    problem(http.post(f"{path}/seek", json={"to": 100}), 409, "offset_ahead")
    for place in ("nowhere", "", "x" * 101, -5):
        assert http.post(f"{path}/seek", json={"to": place}).status_code in (400, 416)
    assert http.post(f"{path}/seek", json={"to": "earliest"}).json() == {"next_offsets": {"0": 1}}


def test_deleting_what_is_in_use(http: httpx.Client, topic: str) -> None:
    http.post(f"/v1/topics/{topic}/groups", json={"name": "g"})
    problem(http.delete(f"/v1/topics/{topic}"), 409, "in_use")
    assert http.delete(f"/v1/topics/{topic}?force=true").status_code == 204
    http.post("/v1/queues?ensure=true", json={"name": topic})
    http.post(f"/v1/queues/{topic}/messages", json={"payload": 1})
    receipt = http.post(f"/v1/queues/{topic}/claims").json()["deliveries"][0]["receipt"]
    http.post(f"/v1/queues/{topic}/bury", json={"receipts": [receipt]})
    problem(http.delete(f"/v1/queues/{topic}"), 409, "in_use")
    assert http.delete(f"/v1/queues/{topic}?force=true").status_code == 204


# The protocol


def talk(server: HttpServer, request: bytes, *, seconds: float = 15, more: float = 0) -> bytes:
    """Return the response to a raw request, until the server closes or sends nothing more."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as conn:
        conn.sendall(request)
        got = b""
        try:
            while chunk := conn.recv(65536):
                got += chunk
                if more:
                    conn.settimeout(more)
        except (TimeoutError, ConnectionResetError):
            pass
        return got


def test_a_body_that_does_not_come(server: HttpServer, topic: str) -> None:
    start = time.monotonic()
    head = f"POST /v1/topics/{topic}/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n12345".encode()
    assert b" 408 " in talk(server, head, more=1).partition(b"\r\n")[0]
    assert time.monotonic() - start < 14


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
def test_a_refused_request_with_a_late_body_keeps_its_connection(server: HttpServer, method: str) -> None:
    head = f"{method} /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=15) as conn:
        for _ in range(3):
            conn.sendall(head)
            time.sleep(0.05)  # the server has the head by now, and not the body
            conn.sendall(b"0123456789")
            assert b" 404 " in conn.recv(65536).partition(b"\r\n")[0]


@pytest.mark.parametrize("header", ["content-length: 10000000", "transfer-encoding: chunked"])
def test_a_refused_request_with_a_large_body_is_told_of_the_close(server: HttpServer, header: str) -> None:
    head = f"POST /nowhere HTTP/1.1\r\nhost: localhost\r\n{header}\r\n\r\n".encode()
    answer = talk(server, head).lower()
    assert b" 404 " in answer.partition(b"\r\n")[0]
    assert b"connection: close" in answer


def test_a_head_that_does_not_come(server: HttpServer) -> None:
    start = time.monotonic()
    talk(server, b"GET /healthz HTTP/1.1\r\nhost: loc", seconds=20)
    assert time.monotonic() - start < 19


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/topics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST /v1/topics HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost : localhost\r\n\r\n",
        b"GET /healthz\x00 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
def test_ambiguous_requests(server: HttpServer, head: bytes) -> None:
    got = talk(server, head, more=0.5, seconds=5)
    assert got == b"" or got.split(b" ")[1][:1] == b"4", got[:200]


def test_length_and_chunks_together_are_not_two_requests(server: HttpServer) -> None:
    smuggled = (
        b"POST /v1/topics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /v1/smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n"
    )
    got = talk(server, smuggled, more=0.5, seconds=5)
    # read as one chunked request with a second behind it, or refused; never the other way round
    assert got.count(b"HTTP/1.1 ") <= 2


def test_pipelined_requests_are_answered_in_order(server: HttpServer) -> None:
    one = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\nGET /v1/nothing HTTP/1.1\r\nhost: localhost\r\n\r\n"
    got = talk(server, one * 50, more=2, seconds=20)
    assert re.findall(rb"HTTP/1\.1 (\d+)", got) == [b"200", b"404"] * 50


def test_methods_and_paths(http: httpx.Client, server: HttpServer) -> None:
    for method in ("TRACE", "PATCH", "DELETE"):
        answer = http.request(method, "/v1/stats")
        problem(answer, 405, "method_not_allowed")
    answer = http.post("/v1/stats", headers={"x-http-method-override": "GET"})
    assert answer.status_code == 405
    for path in (
        "//v1/stats",
        "/v1//stats",
        "/v1/../v1/stats/..",
        "/v1/%00",
        "/v1/topics/%ff",
        "/v1/topics/..%2f..",
        "/%c0%ae",
    ):
        raw = talk(server, f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode(), more=1)
        assert raw.split(b" ")[1] in (b"400", b"404"), (path, raw[:100])
    answer = http.get("/v1/topics/<img src=x onerror=alert(1)>", headers={"accept": "text/html"})
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_headers(http: httpx.Client, topic: str) -> None:
    problem(http.get("/healthz", headers={"x": "y" * 9000}), 431, "headers_too_large")
    problem(http.get("/healthz", headers=[(f"x-{number}", "y") for number in range(70)]), 431, "headers_too_large")
    problem(http.get("/v1/topics?limit=" + "1" * 9000), 414, "uri_too_long")
    twice = [("idempotency-key", "a"), ("idempotency-key", "b"), ("content-type", "application/json")]
    problem(http.post(f"/v1/topics/{topic}/messages", content=b'{"payload": 1}', headers=twice), 400, "bad_header")


def test_odd_payloads_are_only_text(http: httpx.Client, topic: str) -> None:
    evil = "<script>alert(1)</script>\r\nx: y\x1b[31m"
    answer = http.post(f"/v1/topics/{topic}/messages", json={"payload": evil, "key": evil, "headers": {"h": evil}})
    assert answer.status_code == 201
    (row,) = stored(http, topic)
    assert (row["payload"], row["key"], row["headers"]) == (evil, evil, {"h": evil})
