"""The sample sessions of three documents, run with curl as they are printed there; only the port and ids differ."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import httpx
import pytest

from tests.conftest import Clock, Connection
from tests.http.compat.conftest import CompatServer

PORTS = ("psqlqueue", "pubsub-queue", "pg-messaging")


class Shell:
    """Runs a printed command against the port of an API."""

    def __init__(self, server: CompatServer, printed: str, api: str) -> None:
        self._printed = printed
        self._address = f"127.0.0.1:{server.ports[api]}"

    def __call__(self, command: str, **names: str) -> Any:
        """Return the JSON output of the command; None if it prints nothing."""
        for name, value in names.items():
            command = command.replace(name, value)
        command = command.replace(self._printed, self._address)
        command = command.replace("curl ", "curl --silent --show-error --fail-with-body --noproxy '*' ", 1)
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return json.loads(done.stdout) if done.stdout else None


def has(answer: Any, printed: Any) -> None:
    """Check that the response contains all printed values; it may contain more."""
    if isinstance(printed, dict):
        assert isinstance(answer, dict)
        for key, value in printed.items():
            assert key in answer
            has(answer[key], value)
    elif isinstance(printed, list):
        assert len(answer) == len(printed)
        for one, other in zip(answer, printed, strict=True):
            has(one, other)
    elif printed is not Ellipsis:
        assert (type(answer), answer) == (type(printed), printed)


def test_topic_log(server: CompatServer, native: httpx.Client) -> None:
    """The first document: a log with groups under /api."""
    sh = Shell(server, "localhost:4000", "pubsub-queue")
    has(
        sh("curl -X POST localhost:4000/api/topics -H 'Content-Type: application/json' -d '{\"name\":\"events\"}'"),
        {"name": "events"},
    )
    sh(
        """curl -X POST localhost:4000/api/topics/events/publish \\
  -H 'Content-Type: application/json' \\
  -d '{"payload":{"seq":0,"event":"boot"}}'"""
    )
    has(
        sh('curl "localhost:4000/api/topics/events/pull?group=worker-a&batch=10"'),
        {"messages": [{"id": 1, "payload": {"seq": 0, "event": "boot"}}], "lastAckedId": 0},
    )
    sh(
        """curl -X POST localhost:4000/api/topics/events/ack \\
  -H 'Content-Type: application/json' \\
  -d '{"group":"worker-a","lastAckedId":1}'"""
    )
    has(
        sh('curl "localhost:4000/api/topics/events/pull?group=worker-a&batch=10"'),
        {"messages": [], "lastAckedId": 1},
    )
    # the bodies that its table of routes shows
    sh("curl -X POST localhost:4000/api/topics -H 'Content-Type: application/json' -d '{ \"name\": \"orders\" }'")
    sh(
        "curl -X POST localhost:4000/api/topics/orders/publish -H 'Content-Type: application/json'"
        ' -d \'{ "payload": { "orderId": 42, "event": "created" } }\''
    )
    has(
        sh('curl "localhost:4000/api/topics/orders/pull?group=analytics&batch=10"'),
        {"messages": [{"id": 1, "payload": {"orderId": 42, "event": "created"}}]},
    )
    # The same object in another API; the next document needs the name.
    assert native.delete("/v1/topics/orders?force=true").status_code == 204


QUEUE = """curl --location 'http://localhost:8000/v1/queues' \\
--header 'Content-Type: application/json' \\
--data '{
"id": "NAME",
"ack_deadline_seconds": 30,
"message_retention_seconds": 1209600,
"delivery_delay_seconds": 0
}'"""
DELIVERY = {
    "data": [
        {
            "id": ...,
            "queue_id": "my-new-queue",
            "label": "my-label",
            "body": "message body",
            "attributes": {"attribute1": "attribute1", "attribute2": "attribute2"},
            "delivery_attempts": 1,
            "created_at": ...,
        }
    ],
    "limit": 1,
}


@pytest.fixture
def clock(module_db: str) -> Any:
    import psycopg

    with psycopg.connect(module_db, autocommit=True) as conn:
        moved: Connection = conn
        yield Clock(moved)
        conn.execute("create or replace function trunkline.clock() returns timestamptz language sql volatile as"
                     " $$ select clock_timestamp() $$")  # fmt: skip


def test_queue_basics(server: CompatServer, clock: Clock) -> None:
    """The second document, first half: create, publish, consume, nack for 30 seconds, ack, cleanup."""
    sh = Shell(server, "localhost:8000", "psqlqueue")
    has(
        sh(QUEUE, NAME="my-new-queue"),
        {
            "id": "my-new-queue",
            "ack_deadline_seconds": 30,
            "message_retention_seconds": 1209600,
            "delivery_delay_seconds": 0,
            "created_at": ...,
            "updated_at": ...,
        },
    )
    assert (
        sh("""curl --location 'http://localhost:8000/v1/queues/my-new-queue/messages' \\
--header 'Content-Type: application/json' \\
--data '{
"body": "message body",
"label": "my-label",
"attributes": {"attribute1": "attribute1", "attribute2": "attribute2"}
}'""")
        is None
    )
    consume = "curl --location 'http://localhost:8000/v1/queues/my-new-queue/messages?limit=1'"
    first = sh(consume)
    has(first, DELIVERY)
    id = first["data"][0]["id"]
    sh(
        """curl --location --request PUT 'http://localhost:8000/v1/queues/my-new-queue/messages/ID/nack' \\
--header 'Content-Type: application/json' \\
--data '{
"visibility_timeout_seconds": 30
}'""",
        ID=id,
    )
    assert sh(consume) == {"data": [], "limit": 1}
    clock.advance(29)
    assert sh(consume) == {"data": [], "limit": 1}
    clock.advance(2)
    again = sh(consume)
    has(again, {**DELIVERY, "data": [{**DELIVERY["data"][0], "id": id, "delivery_attempts": 2}]})  # type: ignore[index]
    assert sh("curl --location --request PUT 'http://localhost:8000/v1/queues/my-new-queue/messages/ID/ack'", ID=id) is None
    # with the slash that is printed there
    assert sh("curl --location 'http://localhost:8000/v1/queues/my-new-queue/messages/?limit=1'") == {"data": [], "limit": 1}
    clock.advance(100)
    assert sh(consume) == {"data": [], "limit": 1}
    assert sh("curl --location --request PUT 'http://localhost:8000/v1/queues/my-new-queue/cleanup'") is None
    page = subprocess.run(
        ["curl", "-s", f"http://127.0.0.1:{server.ports['psqlqueue']}/v1/swagger/index.html"], capture_output=True, text=True
    )
    assert "<html" in page.stdout


def test_queue_pubsub(server: CompatServer) -> None:
    """The second document, second half: a topic that feeds two queues, one of them filtered."""
    sh = Shell(server, "localhost:8000", "psqlqueue")
    has(
        sh("""curl --location 'http://localhost:8000/v1/topics' \\
--header 'Content-Type: application/json' \\
--data '{
"id": "orders"
}'"""),
        {"id": "orders", "created_at": ...},
    )
    for queue in ("all-orders", "processed-orders"):
        has(sh(QUEUE, NAME=queue), {"id": queue, "ack_deadline_seconds": 30, "message_retention_seconds": 1209600})
    has(
        sh("""curl --location 'http://localhost:8000/v1/subscriptions' \\
--header 'Content-Type: application/json' \\
--data '{
"id": "orders-to-all-orders",
"topic_id": "orders",
"queue_id": "all-orders"
}'"""),
        {
            "id": "orders-to-all-orders",
            "topic_id": "orders",
            "queue_id": "all-orders",
            "message_filters": None,
            "created_at": ...,
        },
    )
    has(
        sh("""curl --location 'http://localhost:8000/v1/subscriptions' \\
--header 'Content-Type: application/json' \\
--data '{
"id": "orders-to-processed-orders",
"topic_id": "orders",
"queue_id": "processed-orders",
"message_filters": {"status": ["processed"]}
}'"""),
        {
            "id": "orders-to-processed-orders",
            "topic_id": "orders",
            "queue_id": "processed-orders",
            "message_filters": {"status": ["processed"]},
            "created_at": ...,
        },
    )
    for status in ("created", "processed"):
        sh(
            """curl --location 'http://localhost:8000/v1/topics/orders/messages' \\
--header 'Content-Type: application/json' \\
--data '{
"body": "body-of-the-order",
"attributes": {"status": "STATUS"}
}'""",
            STATUS=status,
        )

    def printed(queue: str, status: str) -> dict[str, Any]:
        return {
            "id": ...,
            "queue_id": queue,
            "label": None,
            "body": "body-of-the-order",
            "attributes": {"status": status},
            "delivery_attempts": 1,
            "created_at": ...,
        }

    has(
        sh("curl --location 'http://localhost:8000/v1/queues/all-orders/messages'"),
        {"data": [printed("all-orders", "created"), printed("all-orders", "processed")], "limit": 10},
    )
    has(
        sh("curl --location 'http://localhost:8000/v1/queues/processed-orders/messages'"),
        {"data": [printed("processed-orders", "processed")], "limit": 10},
    )


def test_recipes(server: CompatServer) -> None:
    """The third document sketches four routes and no bodies: its example, topic 0 and a group, through them."""
    sh = Shell(server, "localhost:8000", "pg-messaging")
    send = "curl -X POST http://localhost:8000/pubsub/publish -H 'Content-Type: application/json' -d"
    assert len(sh(f'{send} \'{{"topic_id": 0, "payloads": [{{"n": 1}}, {{"n": 2}}]}}\'')["ids"]) == 2
    sh(f'{send} \'{{"payload": {{"n": 3}}}}\'')
    take = "curl 'http://localhost:8000/pubsub/consume?group_id=my-consumer-group&topic_id=0&max=2'"
    has(
        sh(take),
        {
            "claimed_start_offset": 1,
            "claimed_end_offset": 2,
            "messages": [{"c_offset": 1, "payload": {"n": 1}, "created_at": ...}, {"c_offset": 2, "payload": {"n": 2}}],
        },
    )
    has(sh(take), {"claimed_start_offset": 3, "claimed_end_offset": 3, "messages": [{"c_offset": 3, "payload": {"n": 3}}]})
    has(sh(take), {"claimed_start_offset": 4, "claimed_end_offset": 3, "messages": []})
    sh(
        "curl -X POST http://localhost:8000/queue/enqueue -H 'Content-Type: application/json'"
        ' -d \'{"payload": {"job": 1}}\''
    )
    job = sh("curl http://localhost:8000/queue/claim")
    has(job, {"job": {"id": ..., "payload": {"job": 1}, "created_at": ...}})
    assert sh("curl http://localhost:8000/queue/claim") == {"job": None}
    done = sh(
        "curl -X POST http://localhost:8000/queue/archive -H 'Content-Type: application/json' -d '{\"id\": \"ID\"}'",
        ID=job["job"]["id"],
    )
    assert done == {"result": "done"}
