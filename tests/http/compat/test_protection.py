"""Tokens, browser protection, limits and the audit log hold on the ports of other systems' APIs as on our own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.http.compat.conftest import CompatServer, wait_for_port
from tests.http.servers import free_port, problem, serving
from trunkline.db.calls import tokens
from trunkline.db.pool import connect
from trunkline.server.app import create_app
from trunkline.server.config import COMPAT_APIS, Config
from trunkline.server.openapi import routes

BODY = {
    "id": "mine", "name": "mine", "topic_id": "mine", "queue_id": "mine", "queue": "mine", "payload": 1, "group_id": "g",
    "offset": 1, "ack_deadline_seconds": 1, "message_retention_seconds": 1,
}  # fmt: skip
QUERY = {"topic_id": "mine", "group_id": "g", "queue": "mine"}


def run(url: str, work: Callable[[Any], Any]) -> Any:
    async def connected() -> Any:
        conn = await connect(url)
        try:
            return await work(conn)
        finally:
            await conn.close()

    return asyncio.run(connected())


def bearer(url: str, *scopes: str) -> dict[str, str]:
    text, _ = run(url, lambda conn: tokens.create_token(conn, f"t{time.monotonic_ns()}", scopes))
    return {"authorization": f"Bearer {text}"}


@pytest.fixture(scope="module")
def server(module_db: str) -> Iterator[CompatServer]:
    """A server that needs tokens, and allows each 5 requests per second."""
    bearer(module_db, "admin:*")
    ports = {api: free_port() for api in COMPAT_APIS}
    with serving(module_db, *(f"--compat-port={api}={port}" for api, port in ports.items())) as running:
        for port in ports.values():
            wait_for_port(port)
        yield CompatServer(running, ports)


@pytest.fixture(scope="module")
def open_server(module_db: str) -> Iterator[CompatServer]:
    ports = {api: free_port() for api in COMPAT_APIS}
    arguments = [f"--compat-port={api}={port}" for api, port in ports.items()]
    with serving(module_db, "--no-require-token", *arguments) as running:
        for port in ports.values():
            wait_for_port(port)
        yield CompatServer(running, ports)


def requests(api: str) -> Iterator[tuple[str, str, str]]:
    """Yield scope, method and path of each route of an API."""
    app = create_app(Config(database_url="postgresql://nowhere")).app  # type: ignore[attr-defined]
    for path, method, handler in routes(app, api):
        for name, value in (("queue", "mine"), ("topic", "mine"), ("subscription", "s"), ("message", "0" * 32)):
            path = path.replace(f"{{{name}:str}}", value)
        yield handler.opt["doc"].scope, method, path


@pytest.mark.parametrize("api", COMPAT_APIS)
def test_every_route_needs_a_token_with_its_scope(server: CompatServer, module_db: str, place: str, api: str) -> None:
    base = server.base(api, place)
    foreign = bearer(module_db, *(f"{scope}:elsewhere.*" for scope in ("publish", "consume", "read", "admin")))
    count = 0
    for scope, method, path in requests(api):
        if scope == "public":
            assert httpx.request(method, f"{base}{path}").status_code == 200, path
            continue
        if not count:  # for each route, the limit of wrong tokens would be reached
            problem(httpx.request(method, f"{base}{path}", json=BODY, params=QUERY), 401, "unauthenticated")
        refused = httpx.request(method, f"{base}{path}", json=BODY, params=QUERY, headers=foreign)
        # a job id names no queue
        assert refused.status_code == (404 if path == "/queue/archive" else 403), (method, path, refused.text)
        count += 1
    assert count >= 4


def test_a_token_of_one_queue_works_on_it_alone(server: CompatServer, module_db: str, place: str) -> None:
    base = server.base("psqlqueue", place)
    admin = bearer(module_db, "admin:*")
    for name in (f"mine-{place}", f"theirs-{place}"):
        body = {"id": name, "ack_deadline_seconds": 30, "message_retention_seconds": 60}
        assert httpx.post(f"{base}/v1/queues", json=body, headers=admin).status_code == 201
    headers = bearer(module_db, f"publish:mine-{place}", f"consume:mine-{place}")
    path = f"{base}/v1/queues/mine-{place}/messages"
    assert httpx.post(path, json={"body": "b"}, headers=headers).status_code == 204
    (row,) = httpx.get(path, headers=headers).json()["data"]
    assert httpx.put(f"{path}/{row['id']}/ack", headers=headers).status_code == 204
    for method, sent in (("POST", {"body": "b"}), ("GET", None)):
        response = httpx.request(method, f"{base}/v1/queues/theirs-{place}/messages", headers=headers, json=sent)
        problem(response, 403, "missing_scope")
    actions = [entry.action for entry in run(module_db, lambda conn: tokens.list_audit(conn, limit=1000))]
    assert "POST /compat/psqlqueue/v1/queues" in actions


@pytest.mark.parametrize("api", COMPAT_APIS)
@pytest.mark.parametrize(
    ("headers", "status", "error"),
    [
        ({"origin": "https://evil.example"}, 403, "cross_origin"),
        ({"sec-fetch-site": "cross-site"}, 403, "cross_origin"),
        ({"host": "evil.example"}, 421, "wrong_host"),
        ({"user-agent": "Mozilla/5.0 (Windows NT 6.1; Trident/7.0; rv:11.0) like Gecko"}, 403, "cross_origin"),
    ],
)
def test_a_web_page_cannot_use_an_open_server(
    open_server: CompatServer, place: str, api: str, headers: dict[str, str], status: int, error: str
) -> None:
    base = open_server.base(api, place)
    for scope, method, path in requests(api):
        if scope in ("publish", "consume", "admin"):
            problem(httpx.request(method, f"{base}{path}", json=BODY, params=QUERY, headers=headers), status, error)
    ours = {"origin": "/".join(base.split("/")[:3]), "sec-fetch-site": "same-origin"}
    assert httpx.get(f"{base}/openapi.json", headers=ours).status_code == 200


def test_limits(open_server: CompatServer, place: str) -> None:
    base = open_server.base("psqlqueue", place)
    body = {"id": f"limits-{place}", "ack_deadline_seconds": 30, "message_retention_seconds": 60}
    assert httpx.post(f"{base}/v1/queues", json=body).status_code == 201
    path = f"{base}/v1/queues/limits-{place}/messages"
    problem(httpx.post(path, json={"body": "x" * 1_100_000}), 413, "body_too_large")
    deep = b'{"body": "b", "attributes": ' + b"[" * 100 + b"]" * 100 + b"}"
    assert problem(httpx.post(path, content=deep), 400, "json_too_deep")["code"] == 2
    problem(httpx.get(path, headers={"x": "y" * 9000}), 431, "headers_too_large")
    problem(httpx.get(f"{path}?label={'x' * 9000}"), 414, "uri_too_long")
    problem(httpx.get(path.replace("/queues/", "//queues/")), 400, "bad_path")
    assert httpx.head(path).status_code == 405  # would claim messages and lose them


def test_the_rate_of_a_token_is_limited(db: str) -> None:
    port = free_port()
    with serving(db, "--no-require-token", "--rate", "2", f"--compat-port=psqlqueue={port}"):
        wait_for_port(port)
        statuses = {httpx.get(f"http://127.0.0.1:{port}/v1/queues").status_code for _ in range(20)}
    assert statuses == {200, 429}


def test_without_tokens_a_port_is_on_loopback_only(db: str) -> None:
    port = free_port()
    with serving(db, f"--compat-port=psqlqueue={port}"):
        wait_for_port(port)
        with open("/proc/net/tcp") as table:
            listening = [line.split()[1] for line in table if line.split()[3] == "0A"]
    assert [address for address in listening if address.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]
