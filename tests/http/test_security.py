"""Each control has a test that fails without it."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest

from tests.http.servers import HttpServer, free_port, problem, serving
from trunkline.db.calls import tokens
from trunkline.db.calls.tokens import Token
from trunkline.db.pool import connect
from trunkline.server import auth
from trunkline.server.app import create_app
from trunkline.server.auth import IN_BODY, Caller
from trunkline.server.config import COMPAT_APIS, Config
from trunkline.server.openapi import routes
from trunkline.server.problems import Problem

QUEUE = {"lease_seconds": 30, "ttl_seconds": 60}
APIS = (None, *COMPAT_APIS)
Bearer = Callable[..., dict[str, str]]
_BY_RECEIPT = [f"/v1/receipts/{verb}" for verb in ("ack", "nack", "bury", "release", "extend")]
# routes that check a name in the body
_NATIVE_BODIES: dict[str, dict[str, Any]] = {
    "/v1/queues/{queue:str}/dead-letters/{message:uuid}/redrive": {"payload": 1},
    "/v1/runs": {"kind": "redrive", "selector": {"queue": "mine", "all": True}, "expected": 0},
    "/v1/runs/preview": {"kind": "redrive", "selector": {"queue": "mine", "all": True}},
    "/v1/queues": {"name": "mine"},
    "/v1/topics": {"name": "mine"},
    "/v1/subscriptions": {"queue": "mine", "topic": "mine"},
}
_FOREIGN_BODY = {
    "id": "mine", "name": "mine", "topic_id": "mine", "queue_id": "mine", "queue": "mine", "payload": 1, "group_id": "g",
    "offset": 1, "ack_deadline_seconds": 1, "message_retention_seconds": 1,
}  # fmt: skip


def run(url: str, work: Callable[[Any], Any]) -> Any:
    async def connected() -> Any:
        conn = await connect(url)
        try:
            return await work(conn)
        finally:
            await conn.close()

    return asyncio.run(connected())


@pytest.fixture(scope="module")
def bearer(module_db: str) -> Bearer:
    """Create a token; return its Authorization header."""

    def make(*scopes: str, name: str | None = None, expires_at: datetime | None = None) -> dict[str, str]:
        title = name or f"t{time.monotonic_ns()}"
        text, _ = run(module_db, lambda conn: tokens.create_token(conn, title, scopes, expires_at=expires_at))
        return {"authorization": f"Bearer {text}"}

    return make


@pytest.fixture(scope="module")
def server(module_db: str, bearer: Bearer) -> Iterator[HttpServer]:
    bearer("admin:*", name="first")
    with serving(module_db) as running:  # there is a token, so tokens are wanted
        yield running


@pytest.fixture(scope="module")
def admin(server: HttpServer, bearer: Bearer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=bearer("admin:*"), timeout=30) as client:
        # a worker reads the tokens again after a moment
        deadline = time.monotonic() + 10
        while client.get("/v1/stats").status_code == 401:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield client


def soon(client: httpx.Client, headers: dict[str, str], path: str, status: int) -> httpx.Response:
    """Asks until the server has heard of a change to the tokens."""
    deadline = time.monotonic() + 5
    while True:
        answer = client.get(path, headers=headers)
        if answer.status_code == status:
            return answer
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.05)


def test_without_tokens_only_loopback(db: str) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        server = HttpServer(db, "--host", host)
        done = subprocess.run(
            [*server._command], env=server._environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode != 0
        assert "without tokens" in done.stderr
        server.log.unlink()


def test_no_token(http: httpx.Client) -> None:
    for headers in ({}, {"authorization": "Bearer"}, {"authorization": "Basic eDp5"}, {"authorization": "Bearer x"}):
        answer = http.get("/v1/stats", headers=headers)
        problem(answer, 401, "unauthenticated")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert http.get("/v1/stats", params={"token": "tl_0"}).status_code == 401
    for path in ("/healthz", "/readyz", "/compat/psqlqueue/v1/healthz", "/openapi.json", "/docs"):
        assert http.get(path).status_code == 200


def test_wrong_and_unknown_look_alike(http: httpx.Client, bearer: Bearer) -> None:
    good = bearer("read:*")
    soon(http, good, "/v1/stats", 200)
    wrong = {"authorization": good["authorization"][:-4] + "0000"}
    unknown = {"authorization": "Bearer tl_" + "0" * 16 + "_" + "0" * 64}
    one, two = http.get("/v1/stats", headers=wrong), http.get("/v1/stats", headers=unknown)
    assert (one.status_code, one.json()) == (two.status_code, two.json())


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is shown, two digests of equal length are compared by `compare_digest`, and nothing else."""
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, two: bytes) -> bool:
        compared.append((len(one), len(two)))
        return one == two

    class Stored(bytes):
        """A digest that must not be compared in another way."""

        __hash__ = bytes.__hash__

        def __eq__(self, other: object) -> bool:
            return bytes.__eq__(self, other) if compared else pytest.fail("compared without compare_digest")

    monkeypatch.setattr(auth.hmac, "compare_digest", compare)  # type: ignore[attr-defined]
    keeper = auth.Auth(Config(database_url="", require_token=True), None)  # type: ignore[arg-type]
    id, secret = "0" * 16, "a" * 64
    keeper._known = {
        id: Token(
            token_id=id, name="t", hash=Stored(tokens.digest(secret)), old_hash=None, old_until=None, scopes=["read:*"],
            created_at=datetime.now(UTC), expires_at=None, revoked_at=None,
        )
    }  # fmt: skip
    for shown, known in (
        (f"tl_{id}_{secret}", True),
        (f"tl_{id}_{'b' * 64}", False),
        (f"tl_{'1' * 16}_{secret}", False),
        ("tl_nonsense", False),
    ):
        compared.clear()
        scope = {"headers": [(b"authorization", f"Bearer {shown}".encode())]}
        credential = auth._shown(scope)
        if known:
            assert keeper._check(credential).name == "t"
        else:
            with pytest.raises(Problem):
                keeper._check(credential)
        assert compared == [(32, 32), (32, 32)], shown


def test_every_route_has_a_scope_and_checks_it(server: HttpServer, http: httpx.Client, bearer: Bearer) -> None:
    """A token with a scope on another name reaches no route but the public ones."""
    foreign = [bearer(f"{scope}:elsewhere.*") for scope in ("publish", "consume", "read", "admin")]
    foreign.append(bearer("portal:elsewhere.x"))
    soon(http, foreign[3], "/v1/topics/elsewhere.x", 404)
    soon(http, foreign[4], "/v1/endpoints/elsewhere.x", 404)
    app = create_app(Config(database_url="postgresql://nowhere")).app  # type: ignore[attr-defined]
    values = {
        "queue": "mine",
        "topic": "mine",
        "group": "g",
        "subscription": "s",
        "schedule": "s",
        "endpoint": "mine",
        "message": "0" * 32,
        "offset": "1",
        "job": str(UUID(int=0)),
        "token": "first",
        "alert": "1",
        "run": "1",
        "fingerprint": "f",
        "letter": str(UUID(int=0)),
    }
    count = 0
    for api in APIS:
        prefix = "" if api is None else f"/compat/{api}"
        for path, method, handler in routes(app, api):
            doc = handler.opt["doc"]
            assert doc.scope in ("public", "publish", "consume", "view", "read", "operate", "admin")
            if doc.scope == "public":
                continue
            target = f"{prefix}{path}"
            for name, value in values.items():
                for kind in ("str", "uuid", "int"):
                    target = target.replace(f"{{{name}:{kind}}}", value)
            body = _NATIVE_BODIES.get(path, {}) if api is None else _FOREIGN_BODY
            if path.startswith("/v1/receipts/"):
                body = {"receipts": ["1.1.1.nobody"], **({"lease_seconds": 5} if path.endswith("extend") else {})}
            query = {"topic_id": "mine", "group_id": "g", "queue": "mine"} if api == "pg-messaging" else {}
            for headers in foreign:
                answer = http.request(method, target, headers=headers, json=body, params=query)
                # These name no queue: a receipt that does not exist is unknown.
                # Neither does a run that does not exist; a list of runs has those of the token's queues.
                nameless = {"/queue/archive": 404, **dict.fromkeys(_BY_RECEIPT, 200)}
                nameless |= {"/v1/runs": 200} if method == "GET" else {}
                nameless |= {path: 404} if path.startswith("/v1/runs/{run:int}") else {}
                expected = nameless.get(path, 403) if doc.scope in headers_scope(headers, foreign) else 403
                assert answer.status_code == expected, (method, target, answer.text)
            count += 1
    assert count > 80
    # pages of one topic or queue; tests/console/test_sessions.py has those of many, and the rights of each verb
    for path, method, handler in routes(app, console=True):
        doc = handler.opt["doc"]
        if doc.object in values:
            target = path
            for name, value in values.items():
                for kind in ("str", "uuid", "int"):
                    target = target.replace(f"{{{name}:{kind}}}", value)
            for headers in foreign:
                assert http.request(method, target, headers=headers).status_code == 403, (method, target)


def headers_scope(headers: dict[str, str], foreign: list[dict[str, str]]) -> tuple[str, ...]:
    """The scopes that the token of these headers has somewhere."""
    every = ("consume", "publish", "read", "operate", "admin")
    return (("publish",), ("consume",), ("read",), every, ())[foreign.index(headers)]


def test_scopes_by_pattern(admin: httpx.Client, http: httpx.Client, bearer: Bearer) -> None:
    for name in ("orders.eu", "orders.us", "billing"):
        assert admin.post("/v1/topics", json={"name": name}).status_code == 201
    headers = bearer("publish:orders.*", "read:billing")
    soon(http, headers, "/v1/topics/billing", 200)

    def publish(topic: str) -> httpx.Response:
        return http.post(f"/v1/topics/{topic}/messages", json={"payload": 1}, headers=headers)

    assert [publish("orders.eu").status_code, publish("orders.us").status_code] == [201, 201]
    assert "publish:billing" in problem(publish("billing"), 403, "missing_scope")["detail"]
    # The response does not reveal whether an object exists.
    problem(publish("secret"), 403, "missing_scope")
    problem(http.get("/v1/topics/orders.eu", headers=headers), 403, "missing_scope")
    problem(http.delete("/v1/topics/orders.eu", headers=headers), 403, "missing_scope")
    problem(http.get("/v1/topics", headers=headers), 403, "missing_scope")
    problem(http.get("/metrics", headers=headers), 403, "missing_scope")


def test_an_administrator_of_some_names(admin: httpx.Client, http: httpx.Client, bearer: Bearer) -> None:
    headers = bearer("admin:team-*")
    soon(http, headers, "/v1/queues/team-x", 404)
    assert http.post("/v1/queues", json={"name": "team-a", **QUEUE}, headers=headers).status_code == 201
    problem(http.post("/v1/queues", json={"name": "other", **QUEUE}, headers=headers), 403, "missing_scope")
    admin.post("/v1/topics", json={"name": "foreign"})
    answer = http.post("/v1/subscriptions", json={"topic": "foreign", "queue": "team-a"}, headers=headers)
    problem(answer, 403, "missing_scope")
    problem(http.post("/v1/queues/team-a/dead-letters/redrive", json={"to": "other"}, headers=headers), 403, "missing_scope")


def test_a_binding_needs_rights_on_the_queue_and_the_endpoint(
    admin: httpx.Client, http: httpx.Client, bearer: Bearer, module_db: str
) -> None:
    """Otherwise a tenant could send messages with the signature and credentials of another tenant."""
    for tenant in ("a", "b"):
        admin.post("/v1/queues", json={"name": f"bind-{tenant}-q", **QUEUE})
        body = {"name": f"bind-{tenant}-e", "url": "https://example.com/", "headers": {"authorization": "Bearer x"}}
        assert admin.post("/v1/endpoints", json=body).status_code == 201
    headers = bearer("admin:bind-a-*")

    def status(method: str, path: str, **more: Any) -> int:
        return http.request(method, path, headers=headers, **more).status_code

    for endpoint in ("bind-b-e", "bind-b-missing"):
        for method in ("PUT", "DELETE"):
            response = http.request(method, f"/v1/endpoints/{endpoint}/queues/bind-a-q", headers=headers)
            # The response does not reveal whether the endpoint exists.
            assert f"admin:{endpoint}" in problem(response, 403, "missing_scope")["detail"]
    assert status("PUT", "/v1/endpoints/bind-a-e/queues/bind-b-q") == 403
    assert admin.get("/v1/endpoints/bind-b-e").json()["queues"] == []
    # its own
    assert status("PUT", "/v1/endpoints/bind-a-e/queues/bind-a-q") == 204
    assert status("GET", "/v1/endpoints/bind-a-e") == 200
    assert status("PUT", "/v1/endpoints/bind-a-e/pause") == 204
    assert status("DELETE", "/v1/endpoints/bind-a-e/queues/bind-a-q") == 204
    # where requests go is decided by an administrator of everything
    assert status("PATCH", "/v1/endpoints/bind-a-e", json={"url": "https://example.org/"}) == 403
    assert status("POST", "/v1/endpoints", json={"name": "bind-a-new", "url": "https://example.org/"}) == 403


def test_a_receipt_of_another_queue_does_nothing(admin: httpx.Client, http: httpx.Client, bearer: Bearer) -> None:
    for name in ("mine-1", "theirs-1"):
        admin.post("/v1/queues", json={"name": name, **QUEUE})
    admin.post("/v1/queues/theirs-1/messages", json={"payload": 1})
    receipt = admin.post("/v1/queues/theirs-1/claims").json()["deliveries"][0]["receipt"]
    headers = bearer("consume:mine-*")
    soon(http, headers, "/compat/psqlqueue/v1/queues/mine-1/messages", 200)
    answer = http.post("/v1/queues/mine-1/ack", json={"receipts": [receipt]}, headers=headers)
    assert answer.json()["results"] == [{"receipt": receipt, "result": "unknown"}]
    assert http.put(f"/compat/psqlqueue/v1/queues/mine-1/messages/{receipt}/ack", headers=headers).status_code == 404
    problem(http.post("/compat/pg-messaging/queue/archive", json={"id": receipt}, headers=headers), 403, "missing_scope")
    for path in _BY_RECEIPT:
        body = {"receipts": [receipt], **({"lease_seconds": 5} if path.endswith("extend") else {})}
        # Receipts can be enumerated, so tokens for other queues do not get the queue's name.
        assert "theirs" not in problem(http.post(path, json=body, headers=headers), 403, "missing_scope")["detail"]
    assert "theirs" not in http.post("/compat/pg-messaging/queue/archive", json={"id": receipt}, headers=headers).text
    assert admin.get("/v1/queues/theirs-1/stats").json()["leased"] == 1


def test_expiry_revocation_and_rotation(http: httpx.Client, module_db: str, bearer: Bearer) -> None:
    expired = bearer("read:*", expires_at=datetime.now(UTC) + timedelta(seconds=3))
    revoked = bearer("read:*", name="revoked")
    rotated = bearer("read:*", name="rotated")
    for headers in (expired, revoked, rotated):
        soon(http, headers, "/v1/stats", 200)
    run(module_db, lambda conn: tokens.revoke_token(conn, "revoked"))
    text, _ = run(module_db, lambda conn: tokens.rotate_token(conn, "rotated", grace=timedelta(seconds=4)))
    fresh = {"authorization": f"Bearer {text}"}
    problem(soon(http, revoked, "/v1/stats", 401), 401, "token_revoked")
    soon(http, fresh, "/v1/stats", 200)
    assert http.get("/v1/stats", headers=rotated).status_code == 200  # within the grace
    problem(soon(http, expired, "/v1/stats", 401), 401, "token_expired")
    problem(soon(http, rotated, "/v1/stats", 401), 401, "unauthenticated")


def test_no_secret_in_the_database_or_the_log(
    server: HttpServer, http: httpx.Client, module_db: str, bearer: Bearer
) -> None:
    headers = bearer("read:*")
    secret = headers["authorization"].rpartition("_")[2]
    soon(http, headers, "/v1/stats", 200)
    http.get("/v1/stats", params={"token": secret})
    with psycopg.connect(module_db) as conn:
        rows = conn.execute("select t::text from trunkline.tokens t").fetchall()
    assert rows and secret not in str(rows) and secret[:32].encode().hex() not in str(rows)
    assert secret not in server.log.read_text()


def test_the_audit_log_names_what_was_created(admin: httpx.Client, module_db: str) -> None:
    made = [
        ("/v1/endpoints", {"name": "audited-hook", "url": "https://example.com/"}),
        ("/v1/schedules", {"name": "audited-plan", "cron": "@daily", "queue": "audited-queue"}),
    ]
    admin.post("/v1/queues", json={"name": "audited-queue", **QUEUE})
    for path, body in made:
        answer = admin.post(path, json=body)
        assert answer.status_code == 201, answer.text
    entries = run(module_db, lambda conn: tokens.list_audit(conn, limit=1000))
    assert {(f"POST {path}", body["name"]) for path, body in made} <= {(entry.action, entry.object) for entry in entries}


def test_every_audited_route_has_a_name_to_record() -> None:
    count = 0
    app = create_app(Config(database_url="postgresql://nowhere")).app  # type: ignore[attr-defined]
    for path, method, handler in (row for api in APIS for row in routes(app, api)):
        doc = handler.opt["doc"]
        if doc.audit:
            assert "{" in path or doc.object == IN_BODY or doc.audit == "body", (method, path)
            count += 1
    assert count > 20


@pytest.mark.parametrize("removed", ["audit_id >= %s - 1", "audit_id > 0", "audit_id = %s"])
@pytest.mark.parametrize("after", [0, 1])
def test_removing_the_last_entries_is_noticed(db: str, removed: str, after: int) -> None:
    with psycopg.connect(db, autocommit=True) as conn:
        for number in range(5):
            conn.execute("select trunkline._record_audit('me', '127.0.0.1', 'PUT', %s)", (str(number),))
        assert conn.execute("select trunkline._verify_audit()").fetchone() == (None,)
        gone = conn.execute(
            f"delete from trunkline.audit where {removed} returning audit_id".encode(), (5,) if "%s" in removed else ()
        ).fetchall()
        for _ in range(after):
            # a new entry does not take the place of those
            conn.execute("select trunkline._record_audit('me', '127.0.0.1', 'PUT', 'later')")
        first = min(row[0] for row in gone)
        assert conn.execute("select trunkline._verify_audit()").fetchone() == (6 if after else first,)


def test_the_head_of_the_audit_log_is_checked(db: str) -> None:
    with psycopg.connect(db, autocommit=True) as conn:
        assert conn.execute("select trunkline._verify_audit()").fetchone() == (None,)
        for number in range(3):
            conn.execute("select trunkline._record_audit('me', null, 'PUT', %s)", (str(number),))
        conn.execute("update trunkline.audit_head set hash = 'x'")
        assert conn.execute("select trunkline._verify_audit()").fetchone() == (3,)
        conn.execute("delete from trunkline.audit_head")
        assert conn.execute("select trunkline._verify_audit()").fetchone() == (3,)
        conn.execute("set role trunkline_owner")
        conn.execute("select trunkline._record_audit('me', null, 'PUT', 'as a member of trunkline_owner')")
        for forbidden in (
            "delete from trunkline.audit",
            "update trunkline.audit set actor = 'x'",
            "truncate trunkline.audit",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(forbidden)


def test_audit(admin: httpx.Client, module_db: str) -> None:
    admin.post("/v1/queues", json={"name": "audited", **QUEUE})
    admin.put("/v1/queues/audited/purge")
    admin.delete("/v1/queues/audited")
    entries = run(module_db, lambda conn: tokens.list_audit(conn, limit=1000))
    ours = [(entry.action, entry.object) for entry in entries if entry.object == "audited"]
    assert ours == [
        ("POST /v1/queues", "audited"),
        ("PUT /v1/queues/{queue}/purge", "audited"),
        ("DELETE /v1/queues/{queue}", "audited"),
    ]
    assert entries[-1].address == "127.0.0.1"
    assert run(module_db, tokens.verify_audit) is None
    for change, back in (
        ("update trunkline.audit set actor = 'nobody' where audit_id = 2", None),
        ("delete from trunkline.audit where audit_id = 2", None),
    ):
        with psycopg.connect(module_db) as conn:
            conn.execute(change)
            row = conn.execute("select trunkline._verify_audit()").fetchone()
            assert row is not None and row[0] in (2, 3), back
            conn.rollback()


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("*", "anything", True), ("a*", "a", True), ("a*", "ba", False), ("*a", "ba", True), ("a*c", "abc", True),
        ("a*c", "ac", True), ("a*a", "a", False), ("a*b*c", "a-b-c", True), ("a*b*c", "a-c-b", False), ("a.b", "aXb", False),
    ],
)  # fmt: skip
def test_patterns(pattern: str, name: str, fits: bool) -> None:
    assert Caller("c", (f"read:{pattern}",)).may("read", name) is fits


def test_patterns_are_linear() -> None:
    start = time.perf_counter()
    assert not Caller("c", ("read:" + "a*" * 90 + "b",)).may("read", "a" * 200)
    assert time.perf_counter() - start < 0.5


# Without tokens, in front of a browser


@pytest.fixture(scope="module")
def open_server(servers: Any, module_db: str) -> Iterator[HttpServer]:
    with serving(module_db, "--no-require-token") as running:
        yield running


@pytest.mark.parametrize(
    ("headers", "status", "error"),
    [
        ({"origin": "https://evil.example"}, 403, "cross_origin"),
        ({"origin": "null"}, 403, "cross_origin"),
        ({"sec-fetch-site": "cross-site"}, 403, "cross_origin"),
        ({"host": "evil.example"}, 421, "wrong_host"),
        ({"host": "127.0.0.1.evil.example:80"}, 421, "wrong_host"),
    ],
)
def test_a_web_page_cannot_use_an_open_server(
    open_server: HttpServer, headers: dict[str, str], status: int, error: str
) -> None:
    problem(httpx.post(f"{open_server.url}/v1/topics", content=b'{"name": "evil"}', headers=headers), status, error)
    ours = {"origin": open_server.url, "sec-fetch-site": "same-origin"}
    assert httpx.get(f"{open_server.url}/v1/stats", headers=ours).status_code == 200


def test_an_old_browser_cannot_take_messages_of_an_open_server(open_server: HttpServer, admin: httpx.Client) -> None:
    """It says neither which origin nor which site a GET or a form is for; forms and some GETs take messages."""
    admin.post("/v1/queues", json={"name": "browsed", **QUEUE})
    admin.post("/v1/queues/browsed/messages", json={"payload": 1})
    old = {"user-agent": "Mozilla/5.0 (Windows NT 6.1; Trident/7.0; rv:11.0) like Gecko"}
    for path in ("/compat/pg-messaging/queue/claim?queue=browsed", "/compat/psqlqueue/v1/queues/browsed/messages"):
        problem(httpx.get(f"{open_server.url}{path}", headers=old), 403, "cross_origin")
    form = {**old, "content-type": "application/x-www-form-urlencoded"}
    for path in ("/v1/queues/browsed/claims", "/v1/queues/browsed/messages", "/v1/queues"):
        problem(httpx.post(f"{open_server.url}{path}", content=b"{}", headers=form), 403, "cross_origin")
    assert admin.get("/v1/queues/browsed/stats").json()["leased"] == 0
    ours = {**old, "sec-fetch-site": "same-origin"}
    assert httpx.get(f"{open_server.url}/compat/psqlqueue/v1/queues/browsed/messages", headers=ours).status_code == 200
    assert httpx.get(f"{open_server.url}/docs", headers=old).status_code == 200
    shell = {"user-agent": "Mozilla/5.0 (Windows NT; Windows NT 10.0; en-US) WindowsPowerShell/5.1.19041.1"}
    assert httpx.post(f"{open_server.url}/v1/queues/browsed/claims", headers=shell).status_code == 200


def test_a_web_page_cannot_read_the_metrics_port(db: str) -> None:
    port = free_port()
    with serving(db, "--metrics-port", str(port)):
        url = f"http://127.0.0.1:{port}/metrics"
        assert "trunkline_" in httpx.get(url).text
        for headers, status in (
            ({"host": "evil.example"}, 421),
            ({"host": f"evil.example:{port}"}, 421),
            ({"origin": "https://evil.example"}, 403),
            ({"sec-fetch-site": "cross-site"}, 403),
        ):
            response = httpx.get(url, headers=headers)
            assert (response.status_code, "trunkline_" in response.text) == (status, False)


def test_cors_is_off(open_server: HttpServer, http: httpx.Client) -> None:
    for url in (open_server.url, str(http.base_url)):
        answer = httpx.options(
            f"{url}/v1/topics", headers={"origin": "https://evil.example", "access-control-request-method": "POST"}
        )
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert httpx.get(f"{open_server.url}/healthz").headers["x-content-type-options"] == "nosniff"


def test_the_page_loads_nothing_from_elsewhere(open_server: HttpServer) -> None:
    answer = httpx.get(f"{open_server.url}/docs")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for path in ("/docs", "/docs.js", "/docs.css"):
        text = httpx.get(f"{open_server.url}{path}").text
        assert "http://" not in text and "https://" not in text and "innerHTML" not in text


def test_rate(db: str) -> None:
    with serving(db, "--rate", "5") as server, httpx.Client(base_url=server.url) as client:
        answers = [client.get("/v1/stats") for _ in range(20)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert len(refused) >= 10
        problem(refused[0], 429, "rate_limited")
        assert int(refused[0].headers["retry-after"]) >= 1
        assert client.get("/healthz").status_code == 200


def test_tls(db: str, tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    port = free_port()
    server = HttpServer(db, "--tls-cert", str(cert), "--tls-key", str(key), port=port)
    server.url = f"https://127.0.0.1:{port}"
    import ssl

    context = ssl.create_default_context(cafile=str(cert))
    with server.log.open("ab") as log:
        server.process = subprocess.Popen(
            server._command, env=server._environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                assert httpx.get(f"{server.url}/healthz", verify=context).status_code == 200
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline, server.log.read_text()
                time.sleep(0.1)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/healthz")  # no CA has signed this certificate
    finally:
        server.end()
