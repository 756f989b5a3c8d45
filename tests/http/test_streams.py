"""Streams of lines: all of it or nothing, however it ends, and never in memory as a whole."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from tests.http.servers import HttpServer, problem, serving

NDJSON = {"content-type": "application/x-ndjson"}
# two full batches and a part of a third: the transaction is open long before the stream ends
MANY = 2_500


@pytest.fixture
def topic(http: httpx.Client, name: str) -> str:
    assert http.post("/v1/topics", json={"name": name}).status_code == 201
    return name


def line(number: int) -> bytes:
    return json.dumps({"payload": number}).encode() + b"\n"


def count(http: httpx.Client, topic: str) -> int:
    """Return the number of messages in the topic, after requests in flight have ended."""
    offset: int = http.get(f"/v1/topics/{topic}/offset").json()["offset"]
    return offset - 1


def open_transactions(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as conn:
        row = conn.execute(
            "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'"
        ).fetchone()
    assert row is not None
    found: int = row[0]
    return found


def eventually(condition: Callable[[], Any], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_long_stream_is_one_transaction(http: httpx.Client, module_db: str, topic: str) -> None:
    seen_open: list[int] = []

    def content() -> Iterator[bytes]:
        for number in range(MANY):
            yield line(number)
        eventually(lambda: open_transactions(module_db))
        seen_open.append(count(http, topic))
        yield line(MANY)

    answer = http.post(f"/v1/topics/{topic}/messages", content=content(), headers=NDJSON)
    assert answer.status_code == 201, answer.text
    ids = [row["id"] for row in answer.json()["messages"]]
    assert len(set(ids)) == MANY + 1
    assert seen_open == [0]  # no reader saw a part of it
    rows = http.get(f"/v1/topics/{topic}/messages?start={MANY}&limit=10").json()["data"]
    assert [(row["id"], row["payload"]) for row in rows] == [(ids[MANY - 1], MANY - 1), (ids[MANY], MANY)]


def test_a_stream_into_a_queue_and_a_repeat(http: httpx.Client, name: str) -> None:
    http.post("/v1/queues?ensure=true", json={"name": name})
    headers = {**NDJSON, "idempotency-key": "stream"}
    content = b"".join(map(line, range(MANY)))
    answers = [http.post(f"/v1/queues/{name}/messages", content=content, headers=headers).json() for _ in range(2)]
    first, second = ([row["id"] for row in answer["messages"]] for answer in answers)
    assert first == second and len(first) == MANY
    assert all(row["duplicate"] for row in answers[1]["messages"])
    assert http.get(f"/v1/queues/{name}/stats").json()["ready"] == MANY


def chunked(parts: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def head(topic: str) -> bytes:
    return (
        f"POST /v1/topics/{topic}/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n"
        "transfer-encoding: chunked\r\n\r\n"
    ).encode()


@pytest.mark.parametrize(
    ("lines", "end"),
    [(lines, end) for lines in (10, MANY) for end in ("closed", "reset", "half a line", "garbage")] + [(MANY, "silence")],
)
def test_a_stream_that_breaks_leaves_nothing(
    server: HttpServer, http: httpx.Client, module_db: str, topic: str, lines: int, end: str
) -> None:
    conn = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    conn.sendall(head(topic) + chunked([line(number) for number in range(lines)]))
    if lines == MANY:
        eventually(lambda: open_transactions(module_db))
    if end == "half a line":
        conn.sendall(chunked([b'{"payload": ']))
    elif end == "garbage":
        conn.sendall(b"no chunk\r\n")
    elif end == "reset":
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    if end == "silence":
        assert b" 408 " in conn.recv(1000)
    conn.close()
    eventually(lambda: not open_transactions(module_db))
    # whatever was stored would be in front of this one
    assert http.post(f"/v1/topics/{topic}/messages", json={"payload": "next"}).status_code == 201
    assert [row["payload"] for row in http.get(f"/v1/topics/{topic}/messages").json()["data"]] == ["next"]


@pytest.mark.parametrize("at", [0, 1_700])
def test_a_bad_line_refuses_everything_before_it(http: httpx.Client, topic: str, at: int) -> None:
    content = b"".join(line(number) for number in range(at)) + b'{"payload": 1, "colour": "red"}\n' + line(1)
    answer = http.post(f"/v1/topics/{topic}/messages", content=content, headers=NDJSON)
    assert f"message {at}:" in problem(answer, 400, "unknown_field")["detail"]
    assert count(http, topic) == 0


def test_a_line_without_end_is_not_waited_for(http: httpx.Client, topic: str) -> None:
    def endless() -> Iterator[bytes]:
        yield b'{"payload": "'
        while True:
            yield b"x" * 65536

    try:
        answer = http.post(f"/v1/topics/{topic}/messages", content=endless(), headers=NDJSON)
        problem(answer, 413, "body_too_large")
    except httpx.TransportError:
        pass  # closed while we were still sending
    assert count(http, topic) == 0


def test_kill_9_in_the_middle_of_a_stream(db: str) -> None:
    server = HttpServer(db).start()
    httpx.post(f"{server.url}/v1/topics", json={"name": "t"})
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as conn:
        conn.sendall(head("t") + chunked([line(number) for number in range(MANY)]))
        eventually(lambda: open_transactions(db))
        server.kill()
    eventually(lambda: not open_transactions(db))
    with psycopg.connect(db, autocommit=True) as sql:
        assert sql.execute("select trunkline.head('t', 0)").fetchone() == (0,)
    server.end()


def test_streams_leave_connections_for_others(db: str) -> None:
    """Streams can hold two of four connections; the third stream is refused, and single publishes continue."""
    with serving(db, "--max-connections", "4") as server, httpx.Client(base_url=server.url, timeout=30) as http:
        http.post("/v1/topics", json={"name": "t"})
        held = []
        for number in (1, 2):
            conn = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            conn.sendall(head("t") + chunked([line(one) for one in range(MANY)]))
            held.append(conn)
            eventually(lambda number=number: open_transactions(db) == number)  # type: ignore[misc]
        answer = http.post("/v1/topics/t/messages", content=b"".join(map(line, range(MANY))), headers=NDJSON)
        problem(answer, 503, "overloaded")
        assert answer.headers["retry-after"] == "1"
        assert http.post("/v1/topics/t/messages", json={"payload": 1}).status_code == 201
        held[0].sendall(b"0\r\n\r\n")
        assert b" 201 " in held[0].recv(1000)
        for conn in held:
            conn.close()
        eventually(lambda: not open_transactions(db))
        assert count(http, "t") == MANY + 1


def test_memory_does_not_grow_with_the_stream(db: str) -> None:
    """A body of 32 MiB in, and to clients that do not read it: the server's memory is that of a few batches."""
    text = "x" * 4_000

    def content() -> Iterator[bytes]:
        for number in range(8_000):
            yield json.dumps({"payload": text, "key": str(number)}).encode() + b"\n"

    with serving(db) as server, ExitStack() as stack:
        httpx.post(f"{server.url}/v1/topics", json={"name": "t"})
        assert server.process is not None
        (worker,) = psutil.Process(server.process.pid).children()
        before = worker.memory_info().rss
        answer = httpx.post(f"{server.url}/v1/topics/t/messages", content=content(), headers=NDJSON, timeout=90)
        assert answer.status_code == 201, answer.text[:300]
        assert peak(worker.pid) - before < 24 * 1024 * 1024
        deaf = []
        for _ in range(4):
            conn = stack.enter_context(socket.socket())
            conn.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            conn.connect(("127.0.0.1", server.port))
            conn.sendall(b"GET /v1/topics/t/events?start=earliest HTTP/1.1\r\nhost: localhost\r\n\r\n")
            deaf.append(conn)
        # a client that reads goes through everything meanwhile
        seen = 0
        with httpx.stream("GET", f"{server.url}/v1/topics/t/events?start=earliest", timeout=60) as following:
            for row in following.iter_lines():
                seen += row.startswith("data: ")
                if seen == 8_000:
                    break
        assert peak(worker.pid) - before < 48 * 1024 * 1024


def peak(pid: int) -> int:
    """The most memory that a process ever had, in bytes."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("VmHWM"))


@pytest.mark.parametrize(("target", "line", "status"), [("nobody", b'{"payload": 1}', b"404"), (None, b"{", b"400")])
def test_a_client_that_writes_before_it_reads_gets_the_error(
    server: HttpServer, topic: str, target: str | None, line: bytes, status: bytes
) -> None:
    head = f"POST /v1/topics/{target or topic}/messages HTTP/1.1\r\nhost: localhost\r\n"
    head += "content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
    part = (line + b"\n") * 2000
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as conn:
        conn.sendall(head.encode())
        for _ in range(300):  # more than fits into the buffers of the connection
            conn.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        conn.sendall(b"0\r\n\r\n")
        assert conn.makefile("rb").readline().split()[1] == status
