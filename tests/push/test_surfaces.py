"""Endpoints from Python (async and sync), HTTP and the command line; the routing tester; roles; refusals."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import psycopg
import pytest

from tests.conftest import Connection
from tests.docs.shells import as_url
from tests.http.servers import problem, serving
from tests.push.dispatch import dispatching
from tests.push.receivers import Receiver
from tests.push.test_dispatch import value
from trunkline import Client, SyncClient
from trunkline.errors import AlreadyExists, EndpointNotFound, InUse, InvalidArgument
from trunkline.push.signing import public_key
from trunkline.settings import Settings


async def test_python(db: str, receiver: Receiver) -> None:
    async with Client(db) as mq:
        made = await mq.endpoints.create("e", receiver.url, rate=50, timeout="2s", headers={"x-a": "b"})
        assert made.secret.startswith("whsec_")
        assert made.needs_allow == "127.0.0.0/8"
        await mq.queues.ensure("q")
        await mq.endpoints.bind("q", "e")
        with pytest.raises(AlreadyExists):
            await mq.endpoints.create("e", receiver.url)
        with pytest.raises(InUse):
            await mq.endpoints.delete("e")
        found = await mq.endpoints.get("e")
        assert (found.rate, found.burst, found.headers, found.queues, found.secrets) == (50, 5, ["x-a"], ["q"], 1)
        changed = await mq.endpoints.alter("e", rate=0, mode="batch", batch_size=7)
        assert (changed.rate, changed.mode, changed.batch_size, changed.timeout.total_seconds()) == (None, "batch", 7, 2)
        await mq.endpoints.alter("e", mode="single")
        async with dispatching(db):
            tested = await mq.endpoints.test("e")
            assert tested is not None and tested.status == 200 and tested.outcome == "tested"
            sent = await mq.enqueue("q", {"n": 1})
            await asyncio.to_thread(receiver.wait, lambda seen: len(seen) == 2)
            while not await mq.endpoints.attempts("e", id=sent.id):
                await asyncio.sleep(0.02)
            assert await mq.endpoints.replay("q", ids=[sent.id]) == 1
            await asyncio.to_thread(receiver.wait, lambda seen: len(seen) == 3)
        await mq.endpoints.pause("e", reason="why")
        assert [(each.state, each.reason) for each in await mq.endpoints.list()] == [("paused", "why")]
        await mq.endpoints.resume("e")
        assert await mq.endpoints.secrets("e") == [made.secret]
        new = await mq.endpoints.rotate("e")
        assert await mq.endpoints.secrets("e") == [new, made.secret]
        only = await mq.endpoints.rotate("e", keep=False)
        assert await mq.endpoints.secrets("e") == [only]
        await mq.endpoints.unbind("q")
        await mq.endpoints.delete("e")
        with pytest.raises(EndpointNotFound):
            await mq.endpoints.get("e")


def test_sync_twin(db: str) -> None:
    with SyncClient(db) as mq:
        mq.endpoints.create("e", "https://example.com/")
        mq.queues.ensure("q")
        mq.endpoints.bind("q", "e")
        assert [each.queues for each in mq.endpoints.list()] == [["q"]]
        assert mq.endpoints.test("e", timeout="100ms") is None
        assert mq.endpoints.replay("q", start=datetime(2020, 1, 1, tzinfo=UTC)) == 0


async def test_http(db: str, receiver: Receiver) -> None:
    with serving(db) as server:
        async with httpx.AsyncClient(base_url=f"{server.url}/v1", timeout=40) as http, dispatching(db):
            made = await http.post("/endpoints", json={"name": "e", "url": receiver.url, "rate": 100, "headers": {"x": "y"}})
            assert made.status_code == 201 and made.json()["secret"].startswith("whsec_")
            problem(await http.post("/endpoints", json={"name": "e", "url": receiver.url}), 409, "already_exists")
            problem(await http.post("/endpoints", json={"name": "f", "url": "ftp://x/"}), 400, "invalid_argument")
            problem(await http.post("/endpoints", json={"name": "f", "url": "http://169.254.1.1/"}), 400, "invalid_argument")
            assert made.json()["needs_allow"] == "127.0.0.0/8"
            problem(await http.get("/endpoints/nobody"), 404, "endpoint_not_found")
            assert (await http.post("/queues?ensure=true", json={"name": "q"})).is_success
            assert (await http.put("/endpoints/e/queues/q")).status_code == 204
            shown = (await http.get("/endpoints/e")).json()
            assert (shown["queues"], shown["headers"], shown["state"]) == (["q"], ["x"], "enabled")
            tested = (await http.post("/endpoints/e/test")).json()["data"]
            assert [each["status"] for each in tested] == [200]
            assert (await http.post("/queues/q/messages", json={"payload": {"n": 1}})).is_success
            await asyncio.to_thread(receiver.wait, lambda seen: len(seen) >= 2)
            while len(rows := (await http.get("/endpoints/e/attempts")).json()["data"]) < 2:
                await asyncio.sleep(0.02)
            assert {each["outcome"] for each in rows} == {"acked", "tested"}
            numbers = (await http.get(f"{server.url}/metrics")).text
            for outcome in ("acked", "tested"):
                assert f'trunkline_endpoint_recent_deliveries{{endpoint="e",outcome="{outcome}"}} 1.0' in numbers
            for name in ("enabled{", "breaker{", "leased_messages{", "oldest_ready_age_seconds{", "request_seconds{"):
                assert f'trunkline_endpoint_{name}endpoint="e"' in numbers
            answer = await http.post("/queues/q/replay", json={"start": "2020-01-01T00:00:00Z"})
            assert answer.json() == {"replayed": 1}
            problem(await http.post("/queues/q/replay", json={"start": "2020-01-01T00:00:00"}), 400, "invalid_argument")
            assert (await http.patch("/endpoints/e", json={"rate": 0})).json()["rate"] is None
            for verb, state in (("pause", "paused"), ("resume", "enabled")):
                assert (await http.put(f"/endpoints/e/{verb}")).status_code == 204
                assert (await http.get("/endpoints", params={"limit": 10})).json()["data"][0]["state"] == state
            assert (await http.post("/endpoints/e/rotate")).json()["secret"].startswith("whsec_")
            problem(await http.delete("/endpoints/e"), 409, "in_use")
            assert (await http.delete("/endpoints/e/queues/q")).status_code == 204
            assert (await http.delete("/endpoints/e")).status_code == 204
            # the routing tester, with headers
            assert (await http.post("/topics?ensure=true", json={"name": "t"})).is_success
            filters = {"region": ["eu"]}
            body = {"name": "s", "topic": "t", "queue": "q", "pattern": "a.*", "headers": filters}
            assert (await http.post("/subscriptions", json=body)).status_code == 201
            for headers, hit in (('{"region": "eu"}', True), ('{"region": "us"}', False)):
                found = await http.get("/topics/t/readers", params={"routing_key": "a.b", "headers": headers})
                assert [each["matches"] for each in found.json()["data"]] == [hit]
            problem(await http.get("/topics/t/readers", params={"headers": "[]"}), 400, "invalid_argument")


def trunkline(db: str, *arguments: str, code: int = 0) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", "from trunkline.cli.main import main; main()", *arguments, "-o", "json"],
        env={**os.environ, "TRUNKLINE_DATABASE_URL": as_url(db)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else done.stderr


def test_command_line(db: str, conn: Connection) -> None:
    made = trunkline(db, "endpoint", "create", "e", "https://example.com/h", "--rate", "10", "-H", "a=b", "--ed25519")
    assert public_key(made["secret"]) == made["public_key"]
    conn.execute("select trunkline.create_queue('q')")
    trunkline(db, "endpoint", "bind", "q", "e")
    assert trunkline(db, "endpoint", "alter", "e", "--rate", "0", "--request-timeout", "2s")["rate"] is None
    trunkline(db, "endpoint", "pause", "e", "--reason", "r")
    assert [(each["state"], each["queues"]) for each in trunkline(db, "endpoint", "list")] == [("paused", ["q"])]
    trunkline(db, "endpoint", "resume", "e")
    assert trunkline(db, "endpoint", "show", "e")["secrets"] == 1
    assert trunkline(db, "endpoint", "rotate", "e")["secret"].startswith("whsec_")
    assert len(trunkline(db, "endpoint", "secrets", "e")["secrets"]) == 2
    assert trunkline(db, "endpoint", "attempts", "e") == []
    assert trunkline(db, "endpoint", "replay", "q", "--from", "1h") == {"queue": "q", "replayed": 0}
    assert "no dispatcher" in trunkline(db, "endpoint", "test", "e", "--wait", "200ms", code=5)
    trunkline(db, "endpoint", "delete", "e", "--dry-run", code=4)
    trunkline(db, "endpoint", "delete", "e", "--yes", code=4)
    trunkline(db, "endpoint", "unbind", "q")
    trunkline(db, "endpoint", "delete", "e", "--yes")
    trunkline(db, "endpoint", "show", "e", code=3)


def test_settings_name_networks() -> None:
    assert Settings.load({"push_allow": "10.0.0.0/8, fd00::/8"}, env={}).push_allow == ("10.0.0.0/8", "fd00::/8")


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "ftp://example.com/"},
        {"url": "https://user:secret@example.com/"},
        {"url": "https://example.com/ x"},
        {"url": "https://example.com/#f"},
        {"url": "https://"},
        {"url": "example.com"},
        {"url": "https://e.com/" + "x" * 2000},
        {"rate": -1.0},
        {"rate": float("nan")},
        {"rate": 1e9},
        {"burst": 0},
        {"max_in_flight": 0},
        {"max_in_flight": 1001},
        {"batch_size": 0},
        {"mode": "both"},
        {"headers": {"host": "x"}},
        {"headers": {"Content-Length": "1"}},
        {"headers": {"webhook-signature": "x"}},
        {"headers": {"trunkline-queue": "x"}},
        {"headers": {"a": "b\r\nhost: evil"}},
        {"headers": {"a b": "c"}},
        {"headers": {"a": "x" * 9000}},
        {"secret": "hunter2"},
        {"secret": "whsec_AAAA"},
    ],
    ids=str,
)
async def test_refusals(db: str, settings: dict[str, Any]) -> None:
    async with Client(db) as mq:
        with pytest.raises(InvalidArgument) as refused:
            await mq.endpoints.create("e", **{"url": "https://example.com/", **settings})
        assert "secret" not in str(refused.value) or "secret" in settings
        assert "hunter2" not in str(refused.value)
        assert await mq.endpoints.list() == []


def test_roles_see_no_secrets(conn: Connection, connect: Callable[[], Connection]) -> None:
    conn.execute("select trunkline.create_endpoint('e', 'https://example.com/', p_headers => '{\"authorization\": \"x\"}')")
    other = connect()
    other.execute("set role trunkline_reader")
    row = other.execute("select headers, secrets from trunkline.list_endpoints()").fetchone()
    assert row == (["authorization"], 1)
    for call in ("endpoint_secrets('e')", "dispatch_plan('x')", "create_endpoint('f', 'https://example.com/')"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            other.execute(f"select trunkline.{call}".encode())
    assert value(conn, "select count(*) from trunkline.list_attempts()") == 0


def test_max_in_flight_is_shared_out_exactly(conn: Connection) -> None:
    conn.execute("select trunkline.create_endpoint('e', 'https://example.com/', p_max_in_flight => 5)")
    conn.execute("select trunkline.create_queue('q'), trunkline.bind_queue('q', 'e')")

    def share(name: str) -> tuple[int, float]:
        row = conn.execute("select share, wait from trunkline.dispatch_plan(%s)", (name,)).fetchone()
        assert row is not None
        return row[0], row[1]

    assert share("a") == (5, 0)
    assert share("b")[0] == 2
    assert share("b")[1] > 0  # until a has made room
    shares = [share(name)[0] for name in ("a", "b", "c", "d", "e", "f", "g", "a", "b", "c", "d", "e", "f", "g")][-7:]
    assert sorted(shares) == [0, 0, 1, 1, 1, 1, 1]
    conn.execute("select trunkline.leave_dispatch(x) from unnest(array['a','b','c','d','e','f']) x")
    assert share("g")[0] == 5


def test_attempts_are_kept_for_their_time_and_then_removed(conn: Connection, clock: Any) -> None:
    """For three days, and at most a third longer while upkeep runs."""
    conn.execute("select trunkline.create_endpoint('e', 'https://example.com/')")
    settle = (
        "select trunkline.settle_attempts('d', array[endpoint_id], null, null, array[gen_random_uuid()], array[1],"
        " array[0.1], array[0.1], array[200], array['tested'], null, null, null) from trunkline.endpoints"
    )
    counts = []
    conn.execute(settle.encode())
    for _ in range(12):
        clock.advance(12 * 3600)
        conn.execute("select trunkline.run_upkeep('attempts')")
        counts.append(value(conn, "select count(*) from trunkline.attempts"))
    assert counts[:6] == [1] * 6, "kept for three days"
    assert counts[-1] == 0
    conn.execute(settle.encode())
    clock.advance(-10 * 86400)
    for _ in range(12):
        conn.execute("select trunkline.run_upkeep('attempts')")
        clock.advance(12 * 3600)
    assert value(conn, "select count(*) from trunkline.attempts") == 0, "also when the clock was set back"
