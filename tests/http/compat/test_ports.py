"""Ports of other systems' APIs: what they serve, and the command line."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.http.compat.conftest import CompatServer
from tests.http.servers import HttpServer, free_port, serving

PORTS = ("psqlqueue", "pubsub-queue", "pg-messaging")


@pytest.fixture
def psqlqueue(server: CompatServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base("psqlqueue", "port"), timeout=40) as client:
        yield client


def ok(response: httpx.Response) -> Any:
    assert response.status_code in (200, 201, 204), response.text
    return response.json() if response.content else None


def test_an_object_is_the_same_in_every_api(server: CompatServer, native: httpx.Client, name: str) -> None:
    psqlqueue, pubsub, messaging = (server.base(api, "port") for api in PORTS)
    ok(httpx.post(f"{pubsub}/api/topics", json={"name": name}))
    ok(httpx.post(f"{pubsub}/api/topics/{name}/publish", json={"payload": {"by": "pubsub-queue"}}))
    ok(httpx.post(f"{messaging}/pubsub/publish", json={"topic_id": name, "payload": {"by": "pg-messaging"}}))
    ok(native.post(f"/v1/topics/{name}/messages", json={"payload": {"by": "v1"}}))
    ok(httpx.post(f"{psqlqueue}/v1/topics/{name}/messages", json={"body": "text", "attributes": {"a": "b"}}))
    payloads = [row["payload"] for row in ok(native.get(f"/v1/topics/{name}/messages"))["data"]]
    assert payloads == [{"by": "pubsub-queue"}, {"by": "pg-messaging"}, {"by": "v1"}, "text"]
    pulled = ok(httpx.get(f"{pubsub}/api/topics/{name}/pull?group=g"))["messages"]
    assert [row["payload"] for row in pulled] == payloads
    lag = ok(native.get(f"/v1/topics/{name}/groups/g"))["lag"]
    ok(httpx.post(f"{messaging}/pubsub/commit", json={"group_id": "g", "topic_id": name, "offset": 2}))
    assert lag - ok(native.get(f"/v1/topics/{name}/groups/g"))["lag"] == 2
    ok(native.post("/v1/queues", json={"name": name}))
    ok(httpx.post(f"{messaging}/queue/enqueue", json={"queue": name, "payload": [1]}))
    (row,) = ok(httpx.get(f"{psqlqueue}/v1/queues/{name}/messages"))["data"]
    assert row["body"] == "[1]"


def test_the_native_api_has_none_of_their_names(native: httpx.Client, name: str) -> None:
    for body in ({"id": name}, {"name": name, "ack_deadline_seconds": 30}, {"name": name, "message_retention_seconds": 60}):
        assert native.post("/v1/queues", json=body).status_code == 400
    ok(native.post("/v1/queues", json={"name": name}))
    ok(native.post("/v1/topics", json={"name": name}))
    for body in ({"body": "text"}, {"payload": 1, "attributes": {"a": "b"}}):
        assert native.post(f"/v1/queues/{name}/messages", json=body).status_code == 400
    for subscription in ({"topic_id": name, "queue_id": name}, {"topic": name, "queue": name, "message_filters": {}}):
        assert native.post("/v1/subscriptions", json=subscription).status_code == 400
    assert native.get(f"/v1/queues/{name}/messages").status_code == 405
    assert native.put(f"/v1/queues/{name}", json={}).status_code == 405
    for path in ("/v1/healthz", "/v1/swagger/index.html", "/api/topics", "/pubsub/consume", "/queue/claim"):
        assert native.get(path).status_code == 404
    refused = native.get("/v1/queues/nobody").json()
    assert refused["error"] == "queue_not_found"
    assert not {"code", "message", "details"} & set(refused)


def test_a_port_serves_only_its_api(server: CompatServer, psqlqueue: httpx.Client) -> None:
    for path in ("/v1/stats", "/healthz", "/metrics", "/compat/psqlqueue/v1/queues", "/api/topics/t/pull?group=g"):
        assert psqlqueue.get(path).status_code == 404, path
    assert psqlqueue.get("/v1/queues").status_code == 200
    assert httpx.get(f"{server.base('pubsub-queue', 'port')}/v1/queues").status_code == 404
    for path in ("/../../v1/stats", "/v1/../../../v1/stats", "/%2e%2e/%2e%2e/v1/stats"):
        with socket.create_connection(("127.0.0.1", server.ports["psqlqueue"])) as conn:
            conn.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
            assert conn.makefile("rb").readline().split()[1] == b"404", path


@pytest.mark.parametrize("api", PORTS)
def test_each_api_has_a_page_and_a_document(server: CompatServer, place: str, api: str) -> None:
    base = server.base(api, place)
    root = f"/compat/{api}" if place == "prefix" else ""
    document = ok(httpx.get(f"{base}/openapi.json"))
    assert document["servers"] == [{"url": root or "/"}]
    assert len(document["paths"]) >= 4 + 4  # and the page itself
    page = httpx.get(f"{base}/docs").text
    assert f'src="{root}/docs.js"' in page and f'data-root="{root}"' in page
    for name in ("docs.js", "docs.css"):
        assert httpx.get(f"{base}/{name}").status_code == 200
    # the paths lead somewhere
    for path in document["paths"]:
        assert httpx.options(f"{base}{path.replace('{', '').replace('}', '')}").status_code == 204, path


def test_psqlqueues_page_is_at_its_address(psqlqueue: httpx.Client) -> None:
    page = psqlqueue.get("/v1/swagger/index.html")
    assert page.headers["content-type"].startswith("text/html") and 'src="/docs.js"' in page.text


def test_worker_processes_share_their_metrics(server: CompatServer, psqlqueue: httpx.Client, native: httpx.Client) -> None:
    psqlqueue.get("/v1/queues").raise_for_status()
    counter = 'http_request_duration_seconds_count{code="200",handler="/compat/psqlqueue/v1/queues"'
    assert counter in native.get("/metrics").text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compat-port", "rabbit=1"], "'rabbit' is not one of psqlqueue, pubsub-queue, pg-messaging"),
        (["--compat-port", "psqlqueue"], "'' is not a port; write API=PORT, such as psqlqueue=8000"),
        (["--compat-port", "psqlqueue=99999"], "'99999' is not a port"),
        (["--compat-port", "psqlqueue=0", "--compat-port", "psqlqueue=0"], "given twice for psqlqueue"),
    ],
)
def test_wrong_options(db: str, arguments: list[str], message: str) -> None:
    server = HttpServer(db, *arguments)
    done = subprocess.run(
        [*server._command], env=server._environment, capture_output=True, text=True, timeout=60, check=False
    )
    server.log.unlink()
    assert done.returncode == 2 and message in " ".join(done.stderr.split()), done.stderr


def test_a_port_in_use_is_an_error_before_anything_starts(db: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = HttpServer(db, f"--compat-port=psqlqueue={taken.getsockname()[1]}")
        done = subprocess.run(
            [*server._command], env=server._environment, capture_output=True, text=True, timeout=60, check=False
        )
        server.log.unlink()
    assert done.returncode != 0
    assert "Choose another with --compat-port" in str(done.stderr), done.stderr


def test_stop_drains_every_port(db: str) -> None:
    port = free_port()
    with serving(db, f"--compat-port=psqlqueue={port}") as server:
        assert server.process is not None
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        assert server.stop() == 0
        for each in (server.port, port):
            with pytest.raises(httpx.TransportError):
                httpx.get(f"http://127.0.0.1:{each}/")


_SESSION = """
set -e
ip link set lo up
{python} -m trunkline up --data {data} --port 8080 --compat-port psqlqueue=8000 --compat-port pubsub-queue=4000 >{log} 2>&1 &
up=$!
trap 'kill $up; wait $up' EXIT
for try in $(seq 600); do grep -q 'Ctrl-C stops' {log} && break; kill -0 $up; sleep 0.1; done
set -x
curl -sSf --location 'http://localhost:8000/v1/queues' \\
--header 'Content-Type: application/json' \\
--data '{{
"id": "my-new-queue",
"ack_deadline_seconds": 30,
"message_retention_seconds": 1209600,
"delivery_delay_seconds": 0
}}'
curl -sSf -X POST localhost:4000/api/topics -H 'Content-Type: application/json' -d '{{"name":"events"}}'
curl -sSf localhost:8080/v1/queues/my-new-queue
curl -sSf localhost:8080/v1/topics/events
"""


def _has_network_namespaces() -> bool:
    if not shutil.which("unshare") or not shutil.which("ip"):
        return False
    return (
        subprocess.run(["unshare", "--net", "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode
        == 0
    )


@pytest.mark.skipif(not _has_network_namespaces(), reason="needs a network of its own, for fixed ports")
def test_up_serves_the_documented_ports(tmp_path: Any) -> None:
    """In a network namespace, so that the ports are free."""
    script = _SESSION.format(python=sys.executable, data=tmp_path / "data", log=tmp_path / "log")
    done = subprocess.run(
        ["unshare", "--net", "bash", "-c", script], capture_output=True, text=True, timeout=200, check=False
    )
    log = (tmp_path / "log").read_text()
    assert done.returncode == 0, (done.stdout, done.stderr, log)
    assert done.stdout.count("my-new-queue") == 2 and done.stdout.count('"events"') == 2
    assert "The API of psqlqueue is on http://127.0.0.1:8000" in log
