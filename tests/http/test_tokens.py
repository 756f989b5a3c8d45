"""Tokens over time: at the start of a server, when the first one is made, when one is revoked, and when one is wrong."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import psycopg
import pytest

from tests.http.servers import HttpServer, problem, serving
from trunkline import Client
from trunkline.db.calls import tokens
from trunkline.db.pool import connect
from trunkline.server.auth import Auth
from trunkline.server.config import Config
from trunkline.server.routing import Doc

# Shorter than the pause between two signs of life of a stream (15 s): a stream that lives on fails the test.
_PATIENCE = 12


def run(url: str, work: Callable[[Any], Any]) -> Any:
    async def connected() -> Any:
        conn = await connect(url)
        try:
            return await work(conn)
        finally:
            await conn.close()

    return asyncio.run(connected())


def make_token(url: str, name: str, *scopes: str, expires_at: datetime | None = None) -> dict[str, str]:
    text, _ = run(url, lambda conn: tokens.create_token(conn, name, scopes, expires_at=expires_at))
    return {"authorization": f"Bearer {text}"}


@pytest.fixture(scope="module")
def admin_headers(module_db: str) -> dict[str, str]:
    return make_token(module_db, "admin", "admin:*")


@pytest.fixture(scope="module")
def server(module_db: str, admin_headers: dict[str, str]) -> Iterator[HttpServer]:
    with serving(module_db) as running:
        yield running


@pytest.fixture
def admin(server: HttpServer, admin_headers: dict[str, str]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=admin_headers, timeout=40) as client:
        yield client


def eventually(check: Callable[[], Any], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def waiting(admin: httpx.Client, handler: str) -> bool:
    """Return true if a request for this route is in flight."""
    return f'http_requests_inflight{{handler="{handler}",service="trunkline"}} 1.0' in admin.get("/metrics").text


async def test_the_first_requests_of_a_worker_wait_for_the_tokens(db: str) -> None:
    async with Client(db) as mq:
        async with mq.connection() as conn:
            text, _ = await tokens.create_token(conn, "t", ["read:*"])
        access = Auth(Config(database_url=db, require_token=True), mq)
        scope = {"headers": [(b"authorization", f"Bearer {text}".encode())], "client": ("127.0.0.1", 1), "path_params": {}}
        await asyncio.gather(*(access.admit(dict(scope), Doc(tag="t", scope="read")) for _ in range(50)))
        access.close()


def test_a_new_token_is_known_at_once(server: HttpServer, module_db: str) -> None:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        for number in range(5):
            headers = make_token(module_db, f"new-{number}", "read:*")
            assert client.get("/v1/stats", headers=headers).status_code == 200


def test_the_first_token_closes_an_open_server(db: str) -> None:
    with serving(db) as server, httpx.Client(base_url=server.url, timeout=_PATIENCE) as client:
        assert client.post("/v1/topics", json={"name": "t"}).status_code == 201
        with client.stream("GET", "/v1/topics/t/events") as stream:
            lines = stream.iter_lines()
            assert next(lines) == ": here"
            headers = make_token(db, "first", "read:*")
            eventually(lambda: client.get("/v1/stats").status_code == 401)
            problem(client.post("/v1/topics", json={"name": "u"}), 401, "unauthenticated")
            assert client.get("/v1/stats", headers=headers).status_code == 200
            assert "event: problem" in list(lines)


def events(lines: Iterator[str]) -> list[tuple[str, Any]]:
    """Kinds and data of the events of a stream, up to its end."""
    seen, kind, quiet = [], "message", 0
    for line in lines:
        quiet += line == ": still here"
        assert quiet < 3, "the stream lives on"
        if line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            seen.append((kind, json.loads(line[6:])))
            kind = "message"
    return seen


@pytest.mark.parametrize("path", ["/v1/topics/{topic}/events", "/v1/topics/{topic}/groups/g/events?commit=auto"])
@pytest.mark.parametrize("ending", ["revoked", "expired"])
def test_a_stream_ends_with_its_token(admin: httpx.Client, module_db: str, name: str, path: str, ending: str) -> None:
    admin.post("/v1/topics", json={"name": name})
    expires_at = datetime.now(UTC) + timedelta(seconds=4) if ending == "expired" else None
    headers = {**dict(admin.headers), **make_token(module_db, name, "consume:*", expires_at=expires_at)}
    with httpx.Client(base_url=admin.base_url, timeout=_PATIENCE, headers=headers) as client:
        with client.stream("GET", path.format(topic=name)) as stream:
            lines = stream.iter_lines()
            assert next(lines) == ": here"
            admin.post(f"/v1/topics/{name}/messages", json={"payload": 1})
            while not next(lines).startswith("data: "):
                pass
            if ending == "revoked":
                run(module_db, lambda conn: tokens.revoke_token(conn, name))
            [(kind, data)] = events(lines)
        assert (kind, data["error"]) == ("problem", f"token_{ending}")
        problem(client.get(path.format(topic=name)), 401, f"token_{ending}")


@pytest.mark.parametrize("what", ["claim", "read", "fetch"])
def test_a_long_poll_ends_with_its_token(admin: httpx.Client, module_db: str, name: str, what: str) -> None:
    admin.post("/v1/queues?ensure=true", json={"name": name})
    admin.post("/v1/topics", json={"name": name})
    admin.post(f"/v1/topics/{name}/groups", json={"name": "g"})
    handler, method, path, body = {
        "claim": ("/v1/queues/{queue}/claims", "POST", f"/v1/queues/{name}/claims", {"wait": 30}),
        "read": ("/v1/topics/{topic}/messages", "GET", f"/v1/topics/{name}/messages?wait=30", None),
        "fetch": ("/v1/topics/{topic}/groups/{group}/fetch", "POST", f"/v1/topics/{name}/groups/g/fetch", {"wait": 30}),
    }[what]
    headers = make_token(module_db, name, "consume:*")
    with ThreadPoolExecutor(1) as pool:
        response = pool.submit(httpx.request, method, f"{admin.base_url}{path}", json=body, headers=headers, timeout=40)
        eventually(lambda: waiting(admin, handler))
        run(module_db, lambda conn: tokens.revoke_token(conn, name))
        problem(response.result(), 401, "token_revoked")
    # nothing was leased for it
    admin.post(f"/v1/queues/{name}/messages", json={"payload": 1})
    assert admin.get(f"/v1/queues/{name}/stats").json()["leased"] == 0


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson", "application/octet-stream"])
def test_a_slow_body_ends_with_its_token(admin: httpx.Client, module_db: str, name: str, kind: str) -> None:
    admin.post("/v1/queues?ensure=true", json={"name": name})
    headers = {**make_token(module_db, name, "publish:*"), "content-type": kind}

    def body() -> Iterator[bytes]:
        time.sleep(1)  # the request is admitted
        yield b'{"payload": 1}\n'
        run(module_db, lambda conn: tokens.revoke_token(conn, name))
        for _ in range(9):
            time.sleep(1)
            yield b"\n"

    path = f"{admin.base_url}/v1/queues/{name}/messages"
    problem(httpx.post(path, content=body(), headers=headers, timeout=40), 401, "token_revoked")
    assert admin.get(f"/v1/queues/{name}/stats").json()["ready"] == 0


def test_wrong_tokens_are_limited_counted_logged_and_audited(db: str) -> None:
    right = make_token(db, "right", "read:*")
    wrong = {"authorization": right["authorization"][:-4] + "0000"}
    with serving(db) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        # together: each waits until the server has read its tokens once more
        with ThreadPoolExecutor(20) as pool:
            found = list(pool.map(lambda _: client.get("/v1/stats", headers=wrong), range(200)))
        refused = [response for response in found if response.status_code == 429]
        assert {response.status_code for response in found} == {401, 429} and len(refused) > 50
        problem(refused[0], 429, "rate_limited")
        # the right one is not refused because of the wrong ones, at the same address
        assert client.get("/v1/stats", headers=right).status_code == 200
        text = client.get("/metrics", headers=right).text
        assert f'trunkline_requests_refused_total{{reason="wrong_tokens"}} {len(refused)}.0' in text
        assert f'trunkline_requests_refused_total{{reason="unauthenticated"}} {len(found) - len(refused)}.0' in text
        lines = [json.loads(line) for line in server.log.read_text().splitlines() if "token refused" in line]
        assert len(lines) == len(found) - len(refused)
        assert (lines[0]["error"], lines[0]["address"], lines[0]["token"]) == ("unauthenticated", "127.0.0.1", "right")
    with psycopg.connect(db) as conn:
        rows = conn.execute("select actor, address, action, object from trunkline.audit").fetchall()
    assert rows == [("unknown", "127.0.0.1", "token refused: unauthenticated", "right")]


def test_requests_without_a_token_are_limited(db: str) -> None:
    make_token(db, "t", "read:*")
    with serving(db) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        assert {client.get("/v1/stats").status_code for _ in range(120)} == {401, 429}
        assert {client.get("/healthz").status_code for _ in range(120)} == {200}
