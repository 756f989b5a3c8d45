"""Jobs, limits, delayed messages, pipelines, upkeep, alerts, tokens and audit over HTTP, and who may see them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest

from tests.http.servers import problem, serving
from trunkline.db.calls import tokens
from trunkline.db.pool import connect

Bearer = Callable[..., dict[str, str]]


@pytest.fixture
def sql(module_db: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(module_db, autocommit=True) as conn:
        yield conn


def job(http: httpx.Client, queue: str, kind: str = "mail", **fields: Any) -> str:
    http.post("/v1/queues?ensure=true", json={"name": queue})
    body = {"payload": {"to": "a@example.com"}, "label": kind, **fields}
    return str(http.post(f"/v1/queues/{queue}/messages", json=body).json()["id"])


def wait_until(check: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (found := check()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def states(http: httpx.Client, queue: str, **query: Any) -> dict[str, str]:
    return {row["id"]: row["state"] for row in http.get(f"/v1/queues/{queue}/jobs", params=query).json()["data"]}


def test_the_life_of_a_job(http: httpx.Client, name: str) -> None:
    id = job(http, name)
    wait_until(lambda: states(http, name) == {id: "ready"})
    shown = http.get(f"/v1/jobs/{id}").json()
    assert (shown["state"], shown["kind"], shown["payload"], shown["encoding"]) == (
        "ready", "mail", {"to": "a@example.com"}, "json",
    )  # fmt: skip
    assert http.post(f"/v1/jobs/{id}/cancel", json={"reason": "typo"}).json() == {"id": id, "result": "requested"}
    assert http.get(f"/v1/jobs/{id}").json()["cancel"] == "typo"
    assert http.delete(f"/v1/jobs/{id}/cancel").json()["result"] == "withdrawn"
    assert http.delete(f"/v1/jobs/{id}/cancel").json()["result"] == "ready"
    [delivery] = http.post(f"/v1/queues/{name}/claims").json()["deliveries"]
    assert states(http, name, state="running") == {id: "running"}
    http.post(f"/v1/queues/{name}/bury", json={"receipts": [delivery["receipt"]], "error": "broken"})
    assert states(http, name, kind="mail") == {id: "dead"}
    assert states(http, name, kind="other") == {}
    assert http.post(f"/v1/jobs/{id}/retry").json() == {"id": id, "queue": name}
    problem(http.get(f"/v1/jobs/{uuid4()}"), 404, "job_not_found")
    problem(http.get("/v1/queues/nowhere/jobs"), 404, "queue_not_found")
    problem(http.get("/v1/jobs", params={"state": "odd"}), 400, "bad_param")
    problem(http.get("/v1/jobs", params={"after": "odd"}), 400, "invalid_argument")


def test_pages_of_jobs(http: httpx.Client, name: str) -> None:
    ids = {job(http, name) for _ in range(5)}
    wait_until(lambda: len(states(http, name)) == 5)
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        body = http.get(f"/v1/queues/{name}/jobs", params=query).json()
        seen += [row["id"] for row in body["data"]]
        if "next" not in body:
            break
        query["after"] = body["next"]
    assert sorted(seen) == sorted(ids)


def test_workers_and_limits(http: httpx.Client, sql: psycopg.Connection[Any]) -> None:
    sql.execute("""select trunkline.register_worker('w', '{"version": "1"}', '{"mail": {"type": "object"}}')""")
    sql.execute("select trunkline.ensure_limit('db', 2)")
    sql.execute("select trunkline.acquire_limit('w', '{db}', '{3}', '1 minute')")
    [worker] = http.get("/v1/workers").json()["data"]
    assert (worker["worker"], worker["info"]["version"], worker["schemas"]) == ("w", "1", {"mail": {"type": "object"}})
    [limit] = http.get("/v1/limits").json()["data"]
    assert (limit["name"], limit["running"], limit["waiting"]) == ("db", 2, 1)
    assert limit["holders"][0]["worker"] == "w"


def test_delayed_messages_and_consumers(http: httpx.Client, name: str) -> None:
    http.post("/v1/topics", json={"name": name})
    job(http, name)
    http.post(f"/v1/queues/{name}/messages", json={"payload": "secret text", "delay_seconds": 3600, "key": "k"})
    http.post(f"/v1/topics/{name}/messages", json={"payload": 1, "delay_seconds": 3600})
    [delivery] = wait_until(lambda: http.post(f"/v1/queues/{name}/claims", json={"consumer": "me"}).json()["deliveries"])
    http.post(f"/v1/queues/{name}/nack", json={"receipts": [delivery["receipt"]], "delay_seconds": 60, "error": "later"})
    path = f"/v1/queues/{name}/delayed"
    rows = wait_until(lambda: len(found := http.get(path).json()["data"]) == 2 and found)
    assert [(row["state"], row["attempt"], row["error"], row["key"]) for row in rows] == [
        ("delayed", 1, "later", None), ("delayed", 0, None, "k"),
    ]  # fmt: skip
    assert "secret" not in http.get(path).text
    first = http.get(path, params={"limit": 1}).json()
    assert http.get(path, params={"after": first["next"]}).json()["data"] == rows[1:]
    assert len(wait_until(lambda: http.get(f"/v1/topics/{name}/delayed").json()["data"])) == 1
    [consumer] = http.get(f"/v1/queues/{name}/consumers").json()["data"]
    assert (consumer["consumer"], consumer["settled"], consumer["failed"]) == ("me", 1, 1)


def test_fires_of_a_schedule(http: httpx.Client, name: str) -> None:
    http.post("/v1/queues", json={"name": name})
    made = http.post("/v1/schedules", json={"name": name, "cron": "0 3 * * 1-5", "queue": name}).json()
    assert made["words"] == "at 03:00 from Monday to Friday"
    id = http.post(f"/v1/schedules/{name}/run").json()["id"]
    [fire] = http.get(f"/v1/schedules/{name}/fires").json()["data"]
    assert (fire["outcome"], fire["id"]) == ("manual", id)
    problem(http.get("/v1/schedules/none/fires"), 404, "schedule_not_found")


def attempt(sql: psycopg.Connection[Any], endpoint: str, status: int, outcome: str, queue: str) -> None:
    sql.execute(
        "select trunkline.settle_attempts('host:1', array[e.endpoint_id], array[q.queue_id], array[null::text],"
        " array[trunkline.new_id()], '{1}', '{1}', '{0.1}', array[%s::int], array[%s::text], array[null::interval],"
        " '{why}', '{body}')"
        " from trunkline.endpoints e, trunkline.queues q where e.name = %s and q.name = %s",
        (status, outcome, endpoint, queue),
    )


def test_attempts_and_events_of_an_endpoint(http: httpx.Client, sql: psycopg.Connection[Any], name: str) -> None:
    http.post("/v1/queues", json={"name": name})
    http.post("/v1/endpoints", json={"name": name, "url": "https://example.com/"})
    for status, outcome in ((200, "acked"), (503, "nacked"), (404, "buried")):
        attempt(sql, name, status, outcome, name)

    def found(**query: Any) -> list[int]:
        return sorted(row["status"] for row in http.get(f"/v1/endpoints/{name}/attempts", params=query).json()["data"])

    assert found() == [200, 404, 503]
    assert found(status="5xx") == found(outcome="nacked") == [503]
    assert found(status="404") == [404]
    assert found(status="none") == found(start="2999-01-01T00:00:00Z") == []
    for bad in ({"status": "6xx"}, {"after": "x"}, {"outcome": "odd"}):
        assert http.get(f"/v1/endpoints/{name}/attempts", params=bad).status_code == 400
    page = http.get(f"/v1/endpoints/{name}/attempts", params={"limit": 2}).json()
    rest = http.get(f"/v1/endpoints/{name}/attempts", params={"limit": 2, "after": page["next"]}).json()
    assert sorted(row["status"] for row in page["data"] + rest["data"]) == [200, 404, 503]
    http.put(f"/v1/endpoints/{name}/pause")
    http.put(f"/v1/endpoints/{name}/resume")
    events = http.get(f"/v1/endpoints/{name}/events").json()["data"]
    assert [row["event"] for row in events] == ["enabled", "paused"]


def test_pipelines(http: httpx.Client, sql: psycopg.Connection[Any], name: str) -> None:
    sql.execute("select trunkline.report_pipeline('copy:x', 'copy', p_batch => 1, p_rows => 5)")
    sql.execute("select trunkline.report_pipeline('copy:x', 'copy', 'failed', p_error => 'broken')")
    sql.execute("insert into trunkline.sink_commits values ('w', 1, 10, now())")
    [row] = http.get("/v1/pipelines", params={"state": "failed"}).json()["data"]
    assert (row["name"], row["rows"], row["error"]) == ("copy:x", 5, "broken")
    assert http.get("/v1/pipelines", params={"name": "other"}).json()["data"] == []
    reports = http.get("/v1/pipeline-progress", params={"name": "copy:x"}).json()["data"]
    assert [row["state"] for row in reports] == ["failed", "running"]
    [commit] = http.get("/v1/pipeline-commits", params={"writer": "w"}).json()["data"]
    assert (commit["version"], commit["rows"]) == (1, 10)
    http.post("/v1/topics", json={"name": name})
    sql.execute("select trunkline.ensure_archive(%s, '/tmp/archive')", (name,))
    assert [row["topic"] for row in http.get("/v1/archives").json()["data"]] == [name]
    assert http.get(f"/v1/topics/{name}/archive").json()["data"][0]["location"] == "/tmp/archive"
    assert http.get(f"/v1/topics/{name}/archive/files").json()["data"] == []


def test_the_system(http: httpx.Client, sql: psycopg.Connection[Any], name: str) -> None:
    assert {"schema", "fsync"} <= {row["check"] for row in http.get("/v1/doctor").json()["data"]}
    tasks = {row["task"]: row for row in http.get("/v1/upkeep").json()["data"]}
    assert tasks["pass"]["every_seconds"] == 0.2
    http.post("/v1/topics", json={"name": name})
    segments = http.get("/v1/segments", params={"topic": name, "limit": 1}).json()
    assert segments["data"][0]["name"] == name
    rest = http.get("/v1/segments", params={"topic": name, "after": segments["next"]}).json()["data"]
    assert all(row["segment"] > segments["data"][0]["segment"] for row in rest)
    problem(http.get("/v1/segments", params={"after": "x"}), 400, "invalid_argument")
    assert "log" in {row["part"] for row in http.get("/v1/sizes").json()["data"]}
    sql.execute("insert into trunkline.alerts (at, kind, detail) values (now(), 'k', '{}')")
    [alert] = http.get("/v1/alerts").json()["data"]
    assert http.post(f"/v1/alerts/{alert['alert_id']}/close").json() == {"closed": True}
    assert http.get("/v1/alerts").json()["data"] == []
    assert http.get("/v1/alerts", params={"all": True}).json()["data"][0]["done_by"] == "local"
    problem(http.post("/v1/alerts/999999/close"), 400, "invalid_argument")
    with psycopg.connect(sql.info.dsn, password=sql.info.password or None) as other:
        other.execute("select pg_current_xact_id()")
        sessions = http.get("/v1/sessions", params={"age": 0}).json()["data"]
        assert other.info.backend_pid in {row["pid"] for row in sessions}


# Who may


@pytest.fixture
def bearer(db: str) -> Bearer:
    def make(*scopes: str, name: str | None = None) -> dict[str, str]:
        async def work() -> str:
            conn = await connect(db)
            try:
                return (await tokens.create_token(conn, name or f"t{time.monotonic_ns()}", scopes))[0]
            finally:
                await conn.close()

        return {"authorization": f"Bearer {asyncio.run(work())}"}

    return make


@pytest.fixture
def admin(db: str, bearer: Bearer) -> Iterator[httpx.Client]:
    headers = bearer("admin:*", name="root")
    with serving(db) as server, httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
        wait_until(lambda: client.get("/v1/stats").status_code == 200)
        yield client


def test_a_token_for_some_queues_sees_only_their_jobs(admin: httpx.Client, bearer: Bearer) -> None:
    mine, other = job(admin, "mine"), job(admin, "other")
    some = bearer("admin:mine")

    def ask(method: str, path: str) -> httpx.Response:
        return admin.request(method, path, headers=some)

    wait_until(lambda: ask("GET", "/v1/queues/mine/jobs").status_code == 200)
    wait_until(lambda: ask("GET", f"/v1/jobs/{mine}").status_code == 200)
    assert ask("POST", f"/v1/jobs/{mine}/cancel").status_code == 200
    nowhere = str(UUID(int=7))
    for id in (other, nowhere):
        # the same response whether or not the job exists
        for method, path in (("GET", ""), ("POST", "/cancel"), ("DELETE", "/cancel"), ("POST", "/retry")):
            assert problem(ask(method, f"/v1/jobs/{id}{path}"), 403, "missing_scope")["detail"].endswith(":*")
    for path in ("/v1/jobs", "/v1/workers", "/v1/limits", "/v1/queues/other/jobs", "/v1/queues/other/delayed"):
        problem(ask("GET", path), 403, "missing_scope")
    assert admin.get(f"/v1/jobs/{other}").json()["cancel"] is None
    # the audit log names the jobs that were changed, not those that were refused
    entries = admin.get("/v1/audit", params={"action": "cancel"}).json()["data"]
    assert [entry["object"] for entry in entries] == [mine]


def test_a_portal_token_sees_one_endpoint(admin: httpx.Client, db: str, bearer: Bearer) -> None:
    admin.post("/v1/queues", json={"name": "internal-queue"})
    for name in ("mine", "other"):
        admin.post("/v1/endpoints", json={"name": name, "url": "https://example.com/"})
    admin.put("/v1/endpoints/mine/queues/internal-queue")
    with psycopg.connect(db, autocommit=True) as conn:
        attempt(conn, "mine", 503, "nacked", "internal-queue")
    portal = bearer("portal:mine")

    def ask(method: str, path: str, **options: Any) -> httpx.Response:
        return admin.request(method, path, headers=portal, **options)

    shown = wait_until(lambda: (found := ask("GET", "/v1/endpoints/mine")).status_code == 200 and found)
    attempts = ask("GET", "/v1/endpoints/mine/attempts")
    assert attempts.json()["data"][0]["status"] == 503
    for response in (shown, attempts):
        assert "internal-queue" not in response.text
        assert "host:1" not in response.text
    for verb in ("pause", "resume"):
        assert ask("PUT", f"/v1/endpoints/mine/{verb}").status_code == 204
    assert ask("GET", "/v1/endpoints/mine/events").json()["data"]
    assert ask("POST", "/v1/endpoints/mine/rotate").json()["secret"].startswith("whsec_")
    assert ask("POST", "/v1/endpoints/mine/test", params={"wait": 0}).json()["data"] == []
    for method, path in (
        ("GET", "/v1/endpoints"),
        ("GET", "/v1/endpoints/other"),
        ("GET", "/v1/endpoints/other/attempts"),
        ("POST", "/v1/endpoints/other/rotate"),
        ("PUT", "/v1/endpoints/other/pause"),
        ("PATCH", "/v1/endpoints/mine"),
        ("DELETE", "/v1/endpoints/mine"),
        ("PUT", "/v1/endpoints/mine/queues/internal-queue"),
        ("GET", "/v1/queues/mine"),
        ("GET", "/v1/stats"),
        ("GET", "/metrics"),
        ("GET", "/v1/audit"),
    ):
        problem(ask(method, path), 403, "missing_scope")


def test_a_portal_scope_has_no_wildcard(admin: httpx.Client) -> None:
    for scope in ("portal:*", "portal:a*", "portal:", "view:x y"):
        problem(admin.post("/v1/tokens", json={"name": "t", "scopes": [scope]}), 400, "invalid_argument")


def test_tokens_and_the_audit_log(admin: httpx.Client) -> None:
    made = admin.post("/v1/tokens", json={"name": "shop", "scopes": ["read:*"], "expires_seconds": 3600}).json()
    problem(admin.post("/v1/tokens", json={"name": "shop", "scopes": ["read:*"]}), 409, "already_exists")
    shop = {"authorization": f"Bearer {made['token']}"}
    assert admin.get("/v1/queues", headers=shop).status_code == 200
    for path in ("/v1/tokens", "/v1/audit", "/v1/doctor", "/v1/sessions"):
        problem(admin.get(path, headers=shop), 403, "missing_scope")

    def token(name: str) -> dict[str, Any]:
        [found] = [row for row in admin.get("/v1/tokens").json()["data"] if row["name"] == name]
        return dict(found)

    used = wait_until(lambda: token("shop")["last_used_at"])
    admin.get("/v1/queues", headers=shop)
    assert token("shop")["last_used_at"] == used
    assert token("shop")["made_by"] == "root"
    assert set(token("shop")) & {"hash", "old_hash", "token_id"} == set()
    again = admin.post("/v1/tokens/shop/rotate", json={"grace_seconds": 60}).json()["token"]
    assert again != made["token"]
    assert again.split("_")[2] not in admin.get("/v1/tokens").text
    assert admin.delete("/v1/tokens/shop").status_code == 204
    assert token("shop")["revoked_at"] is not None
    problem(admin.delete("/v1/tokens/none"), 404, "token_not_found")

    def audit(**query: Any) -> list[tuple[str, str]]:
        rows = admin.get("/v1/audit", params=query).json()["data"]
        return [(row["action"].split()[0], row["object"]) for row in rows]

    assert audit(object="shop")[:2] == [("DELETE", "shop"), ("POST", "shop")]
    assert audit(actor="nobody") == audit(start="2999-01-01T00:00:00Z") == []
    assert audit(action="delete", object="shop") == [("DELETE", "shop")]
    first = admin.get("/v1/audit", params={"limit": 1}).json()
    assert admin.get("/v1/audit", params={"limit": 1, "after": first["next"]}).json()["data"] != first["data"]
    assert admin.get("/v1/audit/verification").json() == {"intact": True, "first_changed": None}
