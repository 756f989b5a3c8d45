"""The catalogue of bad HTTP input, row by row: which test has it, and here those that no other file has."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.conftest import Clock
from tests.http.servers import HttpServer, find_test, problem, serving

# number in the catalogue: (input, tests)
ROWS: dict[int, tuple[str, str]] = {
    1: ("no or malformed Authorization", "security.no_token security.wrong_and_unknown_look_alike"),
    2: ("token in the query string", "security.no_token security.no_secret_in_the_database_or_the_log"),
    3: ("scope is missing", "security.scopes_by_pattern"),
    4: ("expired or revoked token", "security.expiry_revocation_and_rotation"),
    5: (
        "not JSON, other content type",
        "bad_input.bodies psqlqueue.unknown_fields_and_content_types_are_ignored",
    ),
    6: ("empty body", "bad_input.bodies"),
    7: ("body one byte too large, also in chunks", "bad_input.sizes catalogue.a_body_without_end_is_cut_off"),
    8: ("half a body, then silence", "bad_input.a_body_that_does_not_come"),
    9: ("heads that come byte by byte", "bad_input.a_head_that_does_not_come catalogue.slow_heads_stop_nobody"),
    10: ("compressed body", "bad_input.sizes"),
    11: ("JSON nested 100,000 deep", "bad_input.bodies"),
    12: ("number of 5,000 digits", "bad_input.bodies"),
    13: ("NaN, Infinity, 1e400", "bad_input.bodies"),
    14: ("duplicate keys", "bad_input.bodies"),
    15: ("NUL in names, keys, headers", "bad_input.nul_and_lone_surrogates_in_fields"),
    16: ("lone surrogate", "bad_input.nul_and_lone_surrogates_in_fields bad_input.payloads_are_kept_byte_for_byte"),
    17: ("invalid UTF-8", "bad_input.bodies"),
    18: ("unknown field", "bad_input.bodies"),
    19: ("bad names", "bad_input.names catalogue.more_names"),
    20: ("names that differ in case", "catalogue.case_matters"),
    21: ("topic does not exist", "defects.t4_unknown_topic_is_an_error"),
    22: ("create what is there", "bad_input.partitions_are_never_removed psqlqueue.topics"),
    23: ("bad numbers of partitions", "bad_input.settings"),
    24: ("fewer partitions", "bad_input.partitions_are_never_removed"),
    25: ("one bad message in a batch", "bad_input.batches streams.a_bad_line_refuses_everything_before_it"),
    26: ("batch of 0 and of 1,001", "bad_input.batches"),
    27: ("bad idempotency keys", "bad_input.idempotency bad_input.nul_and_lone_surrogates_in_fields"),
    28: ("100 repeats at one time", "bad_input.idempotency"),
    29: ("same key, other body", "bad_input.idempotency"),
    30: ("bad delays and times", "bad_input.fields_of_a_message"),
    31: ("bad leases", "bad_input.claims catalogue.bad_extensions"),
    32: ("bad limits and waits", "bad_input.claims bad_input.offsets"),
    33: ("acks that are not right", "bad_input.settlements security.a_receipt_of_another_queue_does_nothing"),
    34: ("good and stale acks together", "bad_input.settlements"),
    35: ("nack beyond the ttl", "catalogue.a_nack_beyond_the_ttl"),
    36: ("offsets out of range", "bad_input.offsets catalogue.below_retention"),
    37: ("commits ahead, backwards, of another group", "bad_input.commits"),
    38: ("seek without the scope", "security.every_route_has_a_scope_and_checks_it"),
    39: ("two members with one name", "catalogue.two_members_with_one_name"),
    44: ("patterns", "catalogue.patterns"),
    46: ("smuggled requests", "bad_input.length_and_chunks_together_are_not_two_requests catalogue.ambiguous_framing"),
    47: ("odd methods", "bad_input.methods_and_paths catalogue.odd_methods"),
    48: ("odd hosts", "security.a_web_page_cannot_use_an_open_server catalogue.hosts"),
    49: (
        "HTTP/1.0, pipelines",
        "bad_input.pipelined_requests_are_answered_in_order catalogue.http_1_0 catalogue.long_pipeline",
    ),
    50: ("odd paths", "bad_input.methods_and_paths catalogue.more_paths"),
    51: ("repeated, unknown and empty parameters", "bad_input.offsets"),
    52: ("errors are never HTML", "bad_input.methods_and_paths"),
    53: ("preflight from elsewhere", "security.cors_is_off"),
    54: ("POST from another site", "security.a_web_page_cannot_use_an_open_server"),
    55: ("payloads that look like markup", "bad_input.odd_payloads_are_only_text"),
    56: ("places that were made up", "waiting.bad_streams catalogue.places_that_were_made_up"),
    57: ("too many requests", "security.rate"),
    58: ("gone in the middle of a long poll", "waiting.who_disconnects_while_waiting_holds_nothing"),
    59: ("times of the client", "catalogue.times_of_the_client"),
    60: ("deletion of what is in use", "bad_input.deleting_what_is_in_use security.audit"),
}
ELSEWHERE = {
    40: "endpoints of push: this service has no route that takes one",
    41: "endpoints of push",
    42: "endpoints of push",
    43: "endpoints of push",
    45: "no route takes a regular expression",
}


def test_every_row_is_here() -> None:
    assert sorted([*ROWS, *ELSEWHERE]) == list(range(1, 61))


@pytest.mark.parametrize("row", list(ROWS))
def test_row(row: int) -> None:
    for place in ROWS[row][1].split():
        assert callable(find_test(place))


@pytest.fixture
def topic(http: httpx.Client, name: str) -> str:
    assert http.post("/v1/topics", json={"name": name}).status_code == 201
    return name


@pytest.fixture
def queue(http: httpx.Client, name: str) -> str:
    assert http.post("/v1/queues?ensure=true", json={"name": name}).status_code == 201
    return name


def talk(server: HttpServer, request: bytes, *, seconds: float = 5) -> bytes:
    """Return the response to a raw request, until the server closes or is silent for a moment after sending data."""
    got = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as conn, suppress(OSError):
        conn.sendall(request)
        while chunk := conn.recv(65536):
            got += chunk
            conn.settimeout(0.5)
    return got


def statuses(answer: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d{3})", answer)]


def test_a_body_without_end_is_cut_off(server: HttpServer, topic: str) -> None:
    """After the limit 64 MiB more are read, so that a client that writes all of its body sees the 413; then it is closed."""
    head = f"POST /v1/topics/{topic}/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    part = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    sent = 0
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as conn:
        conn.sendall(head)
        with suppress(OSError):
            while sent < 256 * 1024 * 1024:
                conn.sendall(part)
                sent += 65536
    assert sent < 128 * 1024 * 1024


def test_slow_heads_stop_nobody(server: HttpServer, http: httpx.Client) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20)) for _ in range(300)]
        for conn in slow:
            conn.sendall(b"GET /healthz HTTP/1.1\r\nhost:")
        for _ in range(20):
            assert http.get("/v1/stats").status_code == 200


@pytest.mark.parametrize(
    "id", [".", "..", "%2e%2e", "\u0430", "\uff41", "x\u202ey", "a\tb", "a\n", "a?b", "a#b", "a\\b", "a:b"]
)
def test_more_names(http: httpx.Client, id: str) -> None:
    for noun in ("topics", "queues"):
        problem(http.post(f"/v1/{noun}?ensure=true", json={"name": id}), 400, "invalid_name")


def test_case_matters(http: httpx.Client, name: str) -> None:
    """Names are compared as they are: two that differ in case are two things, never one by accident."""
    for id in (name.lower(), name.upper()):
        assert http.post("/v1/topics", json={"name": id}).status_code == 201
    http.post(f"/v1/topics/{name.lower()}/messages", json={"payload": 1})
    assert http.get(f"/v1/topics/{name.upper()}/messages").json()["data"] == []


@pytest.mark.parametrize("lease", [0, -5, 0.001, 46_800, "30s", None])
def test_bad_extensions(http: httpx.Client, queue: str, lease: Any) -> None:
    body = {"receipts": ["1.1.1.x"], "lease_seconds": lease}
    assert http.post(f"/v1/queues/{queue}/extend", json=body).status_code == 400


def test_a_nack_beyond_the_ttl(db: str, clock: Clock) -> None:
    """The message expires first: it is never delivered again, and counted as expired."""
    with serving(db) as server, httpx.Client(base_url=server.url, timeout=30) as http:
        http.post("/v1/queues", json={"name": "q", "lease_seconds": 30, "ttl_seconds": 60})
        http.post("/v1/queues/q/messages", json={"payload": 1})
        receipt = http.post("/v1/queues/q/claims").json()["deliveries"][0]["receipt"]
        answer = http.post("/v1/queues/q/nack", json={"receipts": [receipt], "delay_seconds": 3600})
        assert answer.json()["results"][0]["result"] == "done"
        clock.advance(4000)
        assert http.post("/v1/queues/q/claims").json()["deliveries"] == []
        deadline = time.monotonic() + 20
        while http.get("/v1/queues/q/stats").json()["expired"] != 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_below_retention(db: str, conn: Any, clock: Clock) -> None:
    conn.execute("select from trunkline.create_topic('t', p_segment_rows => 16, p_retention => '1 hour')")
    for _ in range(3):
        conn.execute("select count(*) from trunkline.publish_many('t', array_fill('x'::bytea, array[20]))")
        conn.execute("select trunkline.head('t', 0)")
        conn.execute("select trunkline.run_upkeep('segments')")
    clock.advance(7200)
    conn.execute("select trunkline.run_upkeep('segments')")
    conn.execute("select trunkline.run_upkeep('retention')")
    with serving(db, "--no-upkeep") as server, httpx.Client(base_url=server.url, timeout=30) as http:
        lowest = http.get("/v1/topics/t/offset?at=earliest").json()["offset"]
        assert lowest > 1
        for path in ("/v1/topics/t/messages?start=1",):
            assert str(lowest) in problem(http.get(path), 416, "offset_out_of_range")["detail"]
        answer = http.get("/v1/topics/t/events", headers={"last-event-id": "0:0"})
        problem(answer, 416, "offset_out_of_range")
        http.post("/v1/topics/t/groups", json={"name": "g"})
        problem(http.post("/v1/topics/t/groups/g/seek", json={"to": 1}), 416, "offset_out_of_range")
        assert len(http.get(f"/v1/topics/t/messages?start={lowest}").json()["data"]) == 61 - lowest


def test_two_members_with_one_name(http: httpx.Client, topic: str) -> None:
    """A member that joins under an existing name takes over: the former generation can no longer commit."""
    http.post(f"/v1/topics/{topic}/messages", json=[{"payload": number} for number in range(3)])
    path = f"/v1/topics/{topic}/groups/g"
    first = http.post(f"{path}/fetch", json={"member": "m"}).json()
    http.post(f"{path}/leave", json={"member": "m"})
    second = http.post(f"{path}/fetch", json={"member": "m"}).json()
    assert [row["offset"] for row in second["messages"]] == [1, 2, 3]
    assert first["generation"] != second["generation"]
    problem(http.post(f"{path}/commit", json={"generation": first["generation"], "offset": 3}), 409, "lease_lost")
    assert http.post(f"{path}/commit", json={"generation": second["generation"], "offset": 3}).status_code == 200


def test_patterns(http: httpx.Client, queue: str) -> None:
    """Wildcards mean something in a subscription only; a long pattern is refused or matched in time."""
    http.post("/v1/topics", json={"name": queue})
    body = {"name": queue, "topic": queue, "queue": queue}
    for pattern in (".".join(["#"] * 1000), ""):
        assert http.post("/v1/subscriptions", json={**body, "pattern": pattern}).status_code == 400
    hard = ".".join(["#", "a"] * 100)
    assert http.post("/v1/subscriptions", json={**body, "pattern": hard}).status_code in (201, 400)
    key = ".".join(["a"] * 400)
    assert http.post(f"/v1/topics/{queue}/messages", json={"payload": 1, "routing_key": key}).status_code == 201
    assert http.post(f"/v1/queues/{queue}/claims").status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"transfer-encoding: \x0bchunked", b"transfer-encoding: xchunked", b"transfer-encoding: chunked, identity",
        b"content-length: 5\r\ncontent-length: 6", b"content-length: 5, 6", b"content-length: -1", b"content-length: +5",
        b"content-length: 0x5", b"content-length: 99999999999999999999",
    ],
)  # fmt: skip
def test_ambiguous_framing(server: HttpServer, head: bytes) -> None:
    """Refused or closed: the remaining bytes are never read as a separate request that succeeds."""
    request = b"POST /v1/topics HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n\r\n"
    request += b"0\r\n\r\nGET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    assert 200 not in statuses(talk(server, request))


def test_lines_that_end_otherwise(server: HttpServer) -> None:
    for request in (
        b"GET /healthz HTTP/1.1\nhost: localhost\n\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: a\n b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: a\x00b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n x: folded\r\n\r\n",
    ):
        assert statuses(talk(server, request)) in ([], [200], [400])
    # A response like this one requires a complete head.
    assert statuses(talk(server, b"\r\n\r\nnonsense\r\n\r\n")) in ([], [400])


@pytest.mark.parametrize("size", [200_000, 2_000_000])
def test_a_line_that_is_too_long(server: HttpServer, http: httpx.Client, size: int) -> None:
    for request in (
        b"GET /" + b"x" * size + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * size + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * (size // 6) + b"\r\n",
        b"x" * size,
    ):
        got = statuses(talk(server, request))
        assert got == [] or got[0] in (400, 414, 431)
    assert http.get("/healthz").status_code == 200


def test_odd_methods(server: HttpServer) -> None:
    for method in (b"TRACE", b"CONNECT", b"PROPFIND", b"get", b"G\x00T", b"A" * 5000):
        target = b"localhost:80" if method == b"CONNECT" else b"/v1/stats"
        got = statuses(talk(server, method + b" " + target + b" HTTP/1.1\r\nhost: localhost\r\n\r\n"))
        assert got == [] or got[0] in (400, 404, 405, 501), (method[:10], got)


def test_hosts(server: HttpServer) -> None:
    def ask(lines: bytes, target: bytes = b"/healthz", version: bytes = b"1.1") -> list[int]:
        return statuses(
            talk(server, b"GET " + target + b" HTTP/" + version + b"\r\n" + lines + b"connection: close\r\n\r\n")
        )

    assert ask(b"host: localhost\r\n") == [200]
    assert ask(b"host: localhost\r\nhost: evil.example\r\n") in ([400], [421])
    assert ask(b"host: evil.example\r\n") == [421]
    assert ask(b"host: localhost@evil.example\r\n") == [421]
    assert ask(b"host: localhost.evil.example:8080\r\n") == [421]
    # with an absolute target it is the target that counts; both must be ours
    assert ask(b"host: evil.example\r\n", b"http://localhost/healthz") in ([400], [404], [421])
    assert ask(b"host: localhost\r\n", b"http://evil.example/healthz") in ([200], [400], [404], [421])


def test_http_1_0(server: HttpServer) -> None:
    one = b"GET /healthz HTTP/1.0\r\nhost: localhost\r\n"
    assert statuses(talk(server, one + b"\r\n")) == [200]
    assert statuses(talk(server, (one + b"connection: keep-alive\r\n\r\n") * 3)) in ([200], [200] * 3)
    assert b"chunked" not in talk(server, one.replace(b"/healthz", b"/metrics") + b"\r\n").partition(b"\r\n\r\n")[0].lower()
    assert statuses(talk(server, b"GET /healthz HTTP/3.0\r\nhost: localhost\r\n\r\n")) in ([], [400], [505])


def test_long_pipeline(server: HttpServer, topic: str) -> None:
    """A thousand concurrent requests, each of which must get its own response."""
    count = 1000
    requests = [
        f"GET /v1/topics/{topic}/messages?start={number} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        for number in range(1, count + 1)
    ]
    got = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as conn:
        threading.Thread(target=lambda: conn.sendall(b"".join(requests)), daemon=True).start()
        while got.count(b'"next"') < count and (chunk := conn.recv(65536)):
            got += chunk
    assert [int(place) for place in re.findall(rb'"next":(\d+)', got)] == list(range(1, count + 1))


def test_garbage_behind_a_request(server: HttpServer, http: httpx.Client) -> None:
    good = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    got = statuses(talk(server, good + bytes(range(256)) * 20 + good))
    assert got in ([200], [200, 400])
    assert http.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/v1/../v1/stats", "/v1/./stats", "/v1/%2e%2e/v1/stats", "/v1%2fstats", "/v1/stats%00", "/v1/topics/%00", "/v1/stats;x",
     "/%2e%2e/%2e%2e/etc/passwd", "/v1/topics/a%2fb", "/v1/topics/%c0%af", "/v1/topics/%", "/v1/topics/%zz", "/\\v1\\stats",
     "*", "v1/stats", "/v1/topics/..%2f..%2fetc"],
)  # fmt: skip
def test_more_paths(server: HttpServer, path: str) -> None:
    got = statuses(talk(server, f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()))
    assert got == [] or got[0] in (400, 404), got


def test_places_that_were_made_up(http: httpx.Client, queue: str) -> None:
    for value in ("x", "-1", "1e3", "9" * 30, "1;drop", "%00"):
        assert http.get(f"/v1/queues/{queue}/dead-letters?after={value}").status_code == 400
    assert http.get(f"/v1/queues/{queue}/dead-letters?after=123456").json()["data"] == []


def test_times_of_the_client(http: httpx.Client, queue: str) -> None:
    """Client timestamps are data: the database's clock decides."""
    for moment in ("1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z"):
        answer = http.post(
            f"/v1/queues/{queue}/messages",
            content=json.dumps({"payload": moment, "occurred_at": moment}),
            headers={"date": "Thu, 01 Jan 1970 00:00:00 GMT", "x-timestamp": "0"},
        )
        assert answer.status_code == 201, answer.text
    rows = http.post(f"/v1/queues/{queue}/claims", json={"limit": 10}).json()["deliveries"]
    assert [row["payload"][:4] for row in rows] == ["1970", "9999"]
    for row in rows:
        assert abs(datetime.fromisoformat(row["created_at"]) - datetime.now(UTC)) < timedelta(minutes=5)


def test_an_encoded_slash_in_a_parameter_is_data(http: httpx.Client, topic: str) -> None:
    answer = http.post(f"/v1/topics/{topic}/messages?raw=true&key=a%2Fb%2fc", content=b"x")
    assert answer.status_code == 201, answer.text
    assert http.get(f"/v1/topics/{topic}/messages").json()["data"][0]["key"] == "a/b/c"
