"""The native API: every noun and verb, end to end."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.http.servers import HttpServer, problem


@pytest.fixture
def topic(http: httpx.Client, name: str) -> str:
    assert http.post("/v1/topics", json={"name": name}).status_code == 201
    return name


@pytest.fixture
def queue(http: httpx.Client, name: str) -> str:
    assert http.post("/v1/queues?ensure=true", json={"name": name}).status_code == 201
    return name


def ok(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def claim(http: httpx.Client, queue: str, **body: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(http.post(f"/v1/queues/{queue}/claims", json=body))["deliveries"]
    return found


def settle(http: httpx.Client, queue: str, verb: str, receipts: list[str], **more: Any) -> list[str]:
    body = ok(http.post(f"/v1/queues/{queue}/{verb}", json={"receipts": receipts, **more}))
    return [row["result"] for row in body["results"]]


@pytest.mark.parametrize("error", [r"a\u0000b", r"a\udcffb", r"\ud83d", r"\\ud83d \ud83d\ude00", "x" * 20_000])
@pytest.mark.parametrize("path", ["/v1/queues/{}", "/v1/receipts"])
def test_an_error_text_is_cleaned_not_refused(http: httpx.Client, queue: str, path: str, error: str) -> None:
    ok(http.post(f"/v1/queues/{queue}/messages", json={"payload": 1}), 201)
    (delivery,) = claim(http, queue)
    body = f'{{"receipts": ["{delivery["receipt"]}"], "error": "{error}"}}'
    assert ok(http.post(f"{path.format(queue)}/bury", content=body))["results"][0]["result"] == "done"
    stored = ok(http.get(f"/v1/queues/{queue}/dead-letters"))
    (dead,) = next(rows for rows in stored.values() if isinstance(rows, list))
    clean = json.loads(f'"{error}"').replace("\0", "\ufffd")
    expected = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in clean)
    assert dead["error"] == expected[:10_000]


def test_topics(http: httpx.Client, name: str) -> None:
    settings = {"partitions": 2, "retention_seconds": 3600, "retention_bytes": 10**9, "hard_retention_seconds": 7200}
    made = ok(http.post("/v1/topics", json={"name": name, **settings, "max_payload": 1000}), 201)
    assert {key: made[key] for key in settings} == settings
    assert ok(http.post("/v1/topics?ensure=true", json={"name": name})) == made
    assert ok(http.patch(f"/v1/topics/{name}", json={"max_payload": 10}))["max_payload"] == 10
    problem(http.post(f"/v1/topics/{name}/messages", json={"payload": "x" * 20}), 413, "payload_too_large")
    assert len(ok(http.get(f"/v1/topics/{name}/stats"))["partitions"]) == 2
    assert ok(http.get(f"/v1/topics/{name}/offset?at=latest")) == {"partition": 0, "offset": 1}
    problem(http.get(f"/v1/topics/{name}/offset?partition=2"), 400, "invalid_argument")


def test_publish_with_everything(http: httpx.Client, topic: str) -> None:
    message = {
        "payload": {"n": [1, 2.5, None, "ü"]}, "key": "k", "routing_key": "a.b", "label": "l", "headers": {"h": {"deep": 1}},
        "id": "01890a5d-ac96-774b-bcce-b302099a8057", "occurred_at": "2024-01-02T03:04:05Z",
    }  # fmt: skip
    answer = http.post(f"/v1/topics/{topic}/messages", json=message)
    assert ok(answer, 201) == {"id": message["id"], "duplicate": False}
    (row,) = ok(http.get(f"/v1/topics/{topic}/messages"))["data"]
    assert {key: row[key] for key in message} == message
    assert (row["offset"], row["encoding"], row["content_type"]) == (1, "json", "application/json")


def test_raw_bytes(http: httpx.Client, topic: str) -> None:
    answer = http.post(
        f"/v1/topics/{topic}/messages",
        params={"key": "k", "routing_key": "a.b", "label": "l"},
        content=b"\x00\xff",
        headers={"content-type": "image/png", "trunkline-header-colour": "red", "traceparent": "00-ab-cd-01"},
    )
    ok(answer, 201)
    (row,) = ok(http.get(f"/v1/topics/{topic}/messages"))["data"]
    assert (row["payload"], row["encoding"], row["content_type"]) == ("AP8=", "base64", "image/png")
    assert (row["key"], row["routing_key"], row["label"]) == ("k", "a.b", "l")
    assert row["headers"] == {"colour": "red", "traceparent": "00-ab-cd-01"}


def test_delay(http: httpx.Client, queue: str) -> None:
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    for body in ({"payload": 1, "delay_seconds": 3600}, {"payload": 2, "deliver_at": later}):
        ok(http.post(f"/v1/queues/{queue}/messages", json=body), 201)
    ok(
        http.post(
            f"/v1/queues/{queue}/messages", params={"delay_seconds": 3600}, content=b"x", headers={"content-type": "a/b"}
        ),
        201,
    )
    assert claim(http, queue, limit=10) == []
    assert ok(http.get(f"/v1/queues/{queue}/stats"))["delayed"] == 3


def test_priorities(http: httpx.Client, name: str) -> None:
    ok(http.post("/v1/queues?ensure=true", json={"name": name, "priorities": 3}), 201)
    for priority in (0, 2):
        ok(http.post(f"/v1/queues/{name}/messages", json={"payload": priority, "priority": priority}), 201)
    assert len(claim(http, name, limit=10)) == 2
    assert http.post(f"/v1/queues/{name}/messages", json={"payload": 1, "priority": 3}).status_code == 400
    http.post("/v1/topics", json={"name": name})
    assert http.post(f"/v1/topics/{name}/messages", json={"payload": 1, "priority": 1}).status_code == 400


def test_queue_life(http: httpx.Client, queue: str) -> None:
    ok(
        http.post(
            f"/v1/queues/{queue}/messages", json=[{"payload": number, "label": "ab"[number % 2]} for number in range(6)]
        ),
        201,
    )
    rows = ok(http.get(f"/v1/queues/{queue}/peek?limit=2"))["data"]
    assert [row["payload"] for row in rows] == [0, 1]
    first = claim(http, queue, limit=2, labels=["b"], lease_seconds=60)
    assert [(row["payload"], row["attempt"], row["queue"]) for row in first] == [(1, 1, queue), (3, 1, queue)]
    rest = claim(http, queue, limit=10)
    receipts = [row["receipt"] for row in rest]
    assert [row["payload"] for row in rest] == [0, 2, 4, 5]
    assert settle(http, queue, "ack", [row["receipt"] for row in first]) == ["done", "done"]
    assert settle(http, queue, "extend", receipts, lease_seconds=100) == ["done"] * 4
    assert settle(http, queue, "nack", receipts[:1], delay_seconds=1000, error="later") == ["done"]
    assert settle(http, queue, "bury", receipts[1:2], error="bad") == ["done"]
    assert settle(http, queue, "release", receipts[2:3]) == ["done"]
    stats = ok(http.get(f"/v1/queues/{queue}/stats"))
    numbers = {key: stats[key] for key in ("ready", "delayed", "leased", "dead", "acked")}
    assert numbers == {"ready": 1, "delayed": 1, "leased": 1, "dead": 1, "acked": 2}
    assert http.put(f"/v1/queues/{queue}/pause").status_code == 204
    assert claim(http, queue) == []
    assert http.put(f"/v1/queues/{queue}/resume").status_code == 204
    (again,) = claim(http, queue)
    assert (again["payload"], again["attempt"]) == (4, 1)


def test_dead_letters(http: httpx.Client, queue: str) -> None:
    ok(http.post(f"/v1/queues/{queue}/messages", json=[{"payload": number} for number in range(4)]), 201)
    receipts = [row["receipt"] for row in claim(http, queue, limit=4)]
    settle(http, queue, "bury", receipts, error="no")
    page = ok(http.get(f"/v1/queues/{queue}/dead-letters?limit=3"))
    letters = page["data"]
    assert [(row["payload"], row["error"], row["reason"]) for row in letters] == [(n, "no", "buried") for n in range(3)]
    last = ok(http.get(f"/v1/queues/{queue}/dead-letters", params={"after": page["next"], "limit": 3}))
    assert ([row["payload"] for row in last["data"]], "next" in last) == ([3], False)
    one = ok(http.get(f"/v1/queues/{queue}/dead-letters/{letters[0]['id']}"))
    assert one == letters[0]
    assert ok(http.post(f"/v1/queues/{queue}/dead-letters/redrive", json={"ids": [one["id"]]})) == {"redriven": 1, "left": 3}
    assert [row["payload"] for row in claim(http, queue, limit=9)] == [0]
    assert ok(http.post(f"/v1/queues/{queue}/dead-letters/purge", json={"limit": 1})) == {"purged": 1, "left": 2}
    assert ok(http.post(f"/v1/queues/{queue}/dead-letters/redrive")) == {"redriven": 2, "left": 0}
    assert ok(http.get(f"/v1/queues/{queue}/dead-letters"))["data"] == []
    problem(http.get(f"/v1/queues/{queue}/dead-letters/{one['id']}"), 404, "dead_letter_not_found")
    problem(http.post("/v1/queues/nobody/dead-letters/purge"), 404, "queue_not_found")


def test_groups(http: httpx.Client, topic: str) -> None:
    ok(http.post(f"/v1/topics/{topic}/messages", json=[{"payload": number} for number in range(5)]), 201)
    path = f"/v1/topics/{topic}/groups"
    assert ok(http.post(path, json={"name": "g", "start": "latest"}), 201)["name"] == "g"
    problem(http.post(path, json={"name": "g"}), 409, "already_exists")
    ok(http.post(f"{path}?ensure=true", json={"name": "g"}))
    assert [row["name"] for row in ok(http.get(f"{path}?limit=9"))["data"]] == ["g"]
    assert ok(http.post(f"{path}/g/fetch"))["messages"] == []
    assert ok(http.post(f"{path}/g/seek", json={"to": 3})) == {"next_offsets": {"0": 3}}
    batch = ok(http.post(f"{path}/g/fetch", json={"member": "a", "limit": 2}))
    assert ([row["payload"] for row in batch["messages"]], batch["last_offset"]) == ([2, 3], 4)
    assert ok(http.post(f"{path}/g/fetch", json={"member": "b"}))["messages"] == []
    again = ok(http.post(f"{path}/g/fetch", json={"member": "a", "generation": batch["generation"], "limit": 2}))
    assert [row["payload"] for row in again["messages"]] == [2, 3]
    assert ok(http.post(f"{path}/g/heartbeat", json={"member": "a"})) == {"partitions": 1}
    assert ok(http.post(f"{path}/g/commit", json={"generation": batch["generation"], "offset": 3}))["next_offset"] == 4
    stats = ok(http.get(f"{path}/g"))
    assert (stats["lag"], stats["partitions"][0]["member"]) == (2, "a")
    assert ok(http.post(f"{path}/g/leave", json={"member": "a"})) == {"partitions": 1}
    problem(http.post(f"{path}/g/commit", json={"generation": batch["generation"], "offset": 4}), 409, "lease_lost")
    assert [row["payload"] for row in ok(http.post(f"{path}/g/fetch", json={"member": "b"}))["messages"]] == [3, 4]
    assert http.delete(f"{path}/g").status_code == 204
    problem(http.get(f"{path}/g"), 404, "group_not_found")


def test_subscriptions_by_pattern(http: httpx.Client, queue: str) -> None:
    http.post("/v1/topics", json={"name": queue})
    body = {"name": queue, "topic": queue, "queue": queue, "pattern": "orders.*", "start": "earliest"}
    http.post(f"/v1/topics/{queue}/messages", json={"payload": "early", "routing_key": "orders.new"})
    assert ok(http.post("/v1/subscriptions", json=body), 201)["pattern"] == "orders.*"
    http.post(f"/v1/topics/{queue}/messages", json={"payload": "other", "routing_key": "bills.new"})
    assert [(row["payload"], row["topic"]) for row in claim(http, queue, limit=9)] == [("early", queue)]
    readers = ok(http.get(f"/v1/topics/{queue}/readers?routing_key=orders.x"))["data"]
    assert [(row["name"], row["matches"]) for row in readers] == [(queue, True)]


def test_schedules(http: httpx.Client, queue: str) -> None:
    body = {"name": queue, "cron": "0 3 * * *", "queue": queue, "payload": {"a": 1}, "timezone": "Europe/Berlin"}
    made = ok(http.post("/v1/schedules", json=body), 201)
    assert {key: made[key] for key in body} == body
    problem(http.post("/v1/schedules", json=body), 409, "already_exists")
    assert ok(http.post("/v1/schedules?ensure=true", json={**body, "cron": "0 4 * * *"}), 201)["cron"] == "0 4 * * *"
    fired = ok(http.post(f"/v1/schedules/{queue}/run"))["id"]
    assert [(row["id"], row["payload"]) for row in claim(http, queue)] == [(fired, {"a": 1})]
    assert http.put(f"/v1/schedules/{queue}/pause").status_code == 204
    assert ok(http.get(f"/v1/schedules/{queue}"))["paused"] is True
    assert http.put(f"/v1/schedules/{queue}/resume").status_code == 204
    assert queue in [row["name"] for row in ok(http.get("/v1/schedules?limit=99"))["data"]]
    assert len(ok(http.get("/v1/next-runs", params={"cron": "*/5 * * * *", "limit": 3}))["data"]) == 3
    assert http.get("/v1/next-runs", params={"cron": "nonsense"}).status_code == 400
    assert http.delete(f"/v1/schedules/{queue}").status_code == 204
    problem(http.get(f"/v1/schedules/{queue}"), 404, "schedule_not_found")


def test_explain_and_stats(http: httpx.Client, queue: str) -> None:
    id = ok(http.post(f"/v1/queues/{queue}/messages", json={"payload": 1}), 201)["id"]
    claim(http, queue)
    found = ok(http.get(f"/v1/messages/{id}/explanation"))
    assert found["readers"][0]["state"] == "leased"
    problem(http.get("/v1/messages/01890a5d-ac96-774b-bcce-b302099a8058/explanation"), 404, "message_not_found")
    http.post("/v1/topics", json={"name": queue})
    http.post(f"/v1/topics/{queue}/messages", json={"payload": 1})
    http.get(f"/v1/topics/{queue}/messages")
    assert ok(http.get(f"/v1/topics/{queue}/messages/1/explanation"))["state"] == "in_log"
    assert queue in [row["queue"] for row in ok(http.get("/v1/stats"))["queues"]]


def test_metrics_of_everything(server: HttpServer, http: httpx.Client, topic: str, queue: str) -> None:
    http.post(f"/v1/topics/{topic}/messages", json={"payload": 1})
    http.post(f"/v1/topics/{topic}/groups", json={"name": "g"})
    text = http.get("/metrics").text
    names = (
        "trunkline_queue_messages", "trunkline_queue_oldest_ready_age_seconds", "trunkline_topic_head_offset",
        "trunkline_topic_messages_per_second", "trunkline_group_lag_messages", "trunkline_group_lag_seconds",
        "trunkline_published_total", "http_request_duration_seconds_count", "http_response_size_bytes_count",
        "trunkline_oldest_transaction_age_seconds", "trunkline_unsequenced_age_seconds",
    )  # fmt: skip
    for name in names:
        assert f"\n{name}" in text, name
