"""Defects of other systems, over HTTP."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psycopg
import pytest

from tests.conftest import Clock
from tests.http.servers import HttpServer, problem, serving

QUEUE = {"ack_deadline_seconds": 30, "message_retention_seconds": 3600}


@pytest.fixture
def served(db: str) -> Any:
    """A server on a database of the test's own, for tests that move the clock."""
    with serving(db, "--no-upkeep") as server, httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


def ids(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    return [message["id"] for message in answer.json()["messages"]]


def test_t1_a_late_commit_is_not_skipped(http: httpx.Client, module_db: str, name: str) -> None:
    http.post("/compat/pubsub-queue/api/topics", json={"name": name})
    with psycopg.connect(module_db) as late:
        late.execute("select trunkline.publish(%s, '\"late\"')", (name,))
        http.post(f"/compat/pubsub-queue/api/topics/{name}/publish", json={"payload": "early"})
        first = http.get(f"/compat/pubsub-queue/api/topics/{name}/pull?group=g").json()["messages"]
        assert [message["payload"] for message in first] == ["early"]
        http.post(f"/compat/pubsub-queue/api/topics/{name}/ack", json={"group": "g", "lastAckedId": first[-1]["id"]})
        late.commit()
    second = http.get(f"/compat/pubsub-queue/api/topics/{name}/pull?group=g").json()["messages"]
    assert [message["payload"] for message in second] == ["late"]


def test_t2_two_members_get_disjoint_messages(server: HttpServer, http: httpx.Client, name: str) -> None:
    http.post("/compat/pubsub-queue/api/topics", json={"name": name})
    for number in range(40):
        http.post(f"/compat/pubsub-queue/api/topics/{name}/publish", json={"payload": number})
    seen: list[int] = []
    lock = threading.Lock()

    def member(_: int) -> None:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            while True:
                got = ids(client.get(f"/compat/pubsub-queue/api/topics/{name}/pull?group=g&batch=3&wait=1"))
                if not got:
                    return
                with lock:
                    seen.extend(got)
                client.post(f"/compat/pubsub-queue/api/topics/{name}/ack", json={"group": "g", "lastAckedId": got[-1]})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(member, range(4)))
    assert seen == list(range(1, 41))


def test_t3_what_a_dead_member_held_comes_back(served: httpx.Client, clock: Clock) -> None:
    served.post("/compat/pubsub-queue/api/topics", json={"name": "t"})
    served.post("/compat/pubsub-queue/api/topics/t/publish", json={"payload": 1})
    for door in (
        "/compat/pubsub-queue/api/topics/t/pull?group=a",
        "/compat/pg-messaging/pubsub/consume?group_id=b&topic_id=t&member=m",
    ):
        assert len(served.get(door).json()["messages"]) == 1
    assert served.get("/compat/pubsub-queue/api/topics/t/pull?group=a").json()["messages"] == []
    clock.advance(31)
    assert ids(served.get("/compat/pubsub-queue/api/topics/t/pull?group=a")) == [1]
    assert len(served.get("/compat/pg-messaging/pubsub/consume?group_id=b&topic_id=t&member=other").json()["messages"]) == 1
    # a queue's job likewise
    served.post("/v1/queues", json={"name": "q"})
    served.post("/compat/pg-messaging/queue/enqueue", json={"queue": "q", "payload": 1})
    first = served.get("/compat/pg-messaging/queue/claim?queue=q").json()["job"]
    assert served.get("/compat/pg-messaging/queue/claim?queue=q").json()["job"] is None
    clock.advance(31)
    second = served.get("/compat/pg-messaging/queue/claim?queue=q").json()["job"]
    assert (first["attempt"], second["attempt"]) == (1, 2)


def test_t4_unknown_topic_is_an_error(http: httpx.Client) -> None:
    for path, body in (
        ("/compat/psqlqueue/v1/topics/nobody/messages", {"body": "b"}),
        ("/compat/pubsub-queue/api/topics/nobody/publish", {"payload": 1}),
        ("/compat/pg-messaging/pubsub/publish", {"topic_id": "nobody", "payload": 1}),
    ):
        problem(http.post(path, json=body), 404, "topic_not_found")


def test_t5_an_open_transaction_stops_nobody(http: httpx.Client, module_db: str, name: str) -> None:
    http.post("/v1/topics", json={"name": name})
    with psycopg.connect(module_db) as open_one:
        open_one.execute("select trunkline.publish(%s, '1')", (name,))
        answers = [http.post(f"/v1/topics/{name}/messages", json={"payload": 2}, timeout=5) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [201] * 5


def test_t6_nack_in_the_body_holds_the_message_back(served: httpx.Client, clock: Clock) -> None:
    served.post("/compat/psqlqueue/v1/queues", json={"id": "q", **QUEUE})
    served.post("/compat/psqlqueue/v1/queues/q/messages", json={"body": "b"})
    id = served.get("/compat/psqlqueue/v1/queues/q/messages").json()["data"][0]["id"]
    served.put(f"/compat/psqlqueue/v1/queues/q/messages/{id}/nack", json={"visibility_timeout_seconds": 30})
    clock.advance(29)
    assert served.get("/compat/psqlqueue/v1/queues/q/messages").json()["data"] == []
    clock.advance(2)
    assert served.get("/compat/psqlqueue/v1/queues/q/messages").json()["data"][0]["id"] == id


def test_t7_an_acked_message_never_returns(server: HttpServer, http: httpx.Client, name: str) -> None:
    http.post("/compat/psqlqueue/v1/queues", json={"id": name, **QUEUE})
    rounds = 1000
    for start in range(0, rounds, 500):
        batch = [{"payload": str(number)} for number in range(start, start + 500)]
        assert http.post(f"/v1/queues/{name}/messages", json=batch).status_code == 201
    with httpx.Client(base_url=server.url) as one, httpx.Client(base_url=server.url) as two, ThreadPoolExecutor(2) as pool:
        acked: set[str] = set()
        for _ in range(rounds // 10):
            for row in http.get(f"/compat/psqlqueue/v1/queues/{name}/messages").json()["data"]:
                assert row["id"] not in acked
                path = f"/compat/psqlqueue/v1/queues/{name}/messages/{row['id']}"
                ack = pool.submit(one.put, f"{path}/ack")
                nack = pool.submit(two.put, f"{path}/nack")
                assert {ack.result().status_code, nack.result().status_code} <= {204, 404}
                if ack.result().status_code == 204:
                    acked.add(row["id"])
        while rows := http.get(f"/compat/psqlqueue/v1/queues/{name}/messages").json()["data"]:
            for row in rows:
                assert row["id"] not in acked
                http.put(f"/compat/psqlqueue/v1/queues/{name}/messages/{row['id']}/ack")
    assert len(acked) > 10


def test_t8_a_late_ack_does_nothing(served: httpx.Client, clock: Clock) -> None:
    served.post("/compat/psqlqueue/v1/queues", json={"id": "q", **QUEUE})
    served.post("/compat/psqlqueue/v1/queues/q/messages", json={"body": "b"})
    old = served.get("/compat/psqlqueue/v1/queues/q/messages").json()["data"][0]
    clock.advance(31)
    new = served.get("/compat/psqlqueue/v1/queues/q/messages").json()["data"][0]
    assert (new["id"], new["delivery_attempts"]) == (old["id"], 2)
    # by receipt the former holder is refused, through every route
    assert served.put(f"/compat/psqlqueue/v1/queues/q/messages/{old['receipt']}/ack").json()["code"] == 6
    assert served.put(f"/compat/psqlqueue/v1/queues/q/messages/{old['receipt']}/nack").json()["code"] == 6
    for verb, more in (("ack", {}), ("nack", {}), ("bury", {}), ("release", {}), ("extend", {"lease_seconds": 60})):
        answer = served.post(f"/v1/queues/q/{verb}", json={"receipts": [old["receipt"]], **more})
        assert answer.json()["results"][0]["result"] == "lost"
    assert served.get("/compat/psqlqueue/v1/queues/q/stats").json()["leased"] == 1
    assert served.put(f"/compat/psqlqueue/v1/queues/q/messages/{new['receipt']}/ack").status_code == 204


def test_t8_after_its_deadline_a_message_cannot_be_acked_by_id(served: httpx.Client, clock: Clock) -> None:
    served.post("/compat/psqlqueue/v1/queues", json={"id": "q", **QUEUE})
    served.post("/compat/psqlqueue/v1/queues/q/messages", json={"body": "b"})
    id = served.get("/compat/psqlqueue/v1/queues/q/messages").json()["data"][0]["id"]
    clock.advance(31)
    assert served.put(f"/compat/psqlqueue/v1/queues/q/messages/{id}/ack").json()["code"] == 6
    assert served.get("/compat/psqlqueue/v1/queues/q/messages").json()["data"][0]["id"] == id


def test_t9_publish_returns_the_id(http: httpx.Client, name: str) -> None:
    http.post("/compat/psqlqueue/v1/queues", json={"id": name, **QUEUE})
    plain = http.post(f"/compat/psqlqueue/v1/queues/{name}/messages", json={"body": "b"})
    asked = http.post(
        f"/compat/psqlqueue/v1/queues/{name}/messages", json={"body": "b"}, headers={"Prefer": "return=representation"}
    )
    native = http.post(f"/v1/queues/{name}/messages", json={"payload": 1})
    batch = http.post(f"/v1/queues/{name}/messages", json=[{"payload": 1}, {"payload": "b"}])
    assert [answer.status_code for answer in (plain, asked, native, batch)] == [204, 201, 201, 201]
    published = [plain.headers["message-id"], asked.json()["id"], native.json()["id"]]
    published += [row["id"] for row in batch.json()["messages"]]
    assert [row["id"] for row in http.get(f"/compat/psqlqueue/v1/queues/{name}/messages").json()["data"]] == published


def test_t30_a_missing_related_object_is_404(http: httpx.Client, name: str) -> None:
    http.post("/compat/psqlqueue/v1/queues", json={"id": name, **QUEUE})
    http.post("/compat/psqlqueue/v1/topics", json={"id": name})
    for topic, queue, code in (("nobody", name, 8), (name, "nobody", 5)):
        answer = http.post("/compat/psqlqueue/v1/subscriptions", json={"id": "s", "topic_id": topic, "queue_id": queue})
        assert (answer.status_code, answer.json()["code"]) == (404, code)
    answer = http.post("/v1/schedules", json={"name": "s", "cron": "* * * * *", "topic": "nobody"})
    assert answer.status_code == 404


def test_settling_by_id_works_through_another_worker(db: str) -> None:
    """No worker depends on what another one remembers."""
    with serving(db) as one, serving(db) as two:
        httpx.post(f"{one.url}/compat/psqlqueue/v1/queues", json={"id": "q", **QUEUE})
        for number in range(3):
            httpx.post(f"{one.url}/compat/psqlqueue/v1/queues/q/messages", json={"body": str(number)})
        rows = httpx.get(f"{one.url}/compat/psqlqueue/v1/queues/q/messages").json()["data"]
        paths = [f"{two.url}/compat/psqlqueue/v1/queues/q/messages/{row['id']}" for row in rows]
        assert httpx.put(f"{paths[0]}/ack").status_code == 204
        assert httpx.put(f"{paths[0]}/ack").status_code == 204
        assert httpx.put(f"{paths[1]}/nack").status_code == 204
        assert httpx.put(f"{paths[1]}/nack").status_code == 404  # no consumer holds it now
        (again,) = httpx.get(f"{two.url}/compat/psqlqueue/v1/queues/q/messages").json()["data"]
        assert (again["id"], again["delivery_attempts"]) == (rows[1]["id"], 2)
        # the first worker remembers an old receipt of it
        assert httpx.put(f"{one.url}/compat/psqlqueue/v1/queues/q/messages/{again['id']}/ack").status_code == 204
        assert httpx.put(f"{paths[1]}/ack").status_code == 204


# Found by trying it as a new user


@pytest.mark.parametrize("verb", ["ack", "nack"])
@pytest.mark.parametrize("again", [False, True])
def test_settling_by_id_in_a_deleted_queue(http: httpx.Client, name: str, verb: str, again: bool) -> None:
    """Also when a queue of the same name was made since: it does not have the message."""
    http.post("/v1/queues", json={"name": name})
    http.post(f"/compat/psqlqueue/v1/queues/{name}/messages", json={"body": "x"})
    (message,) = http.get(f"/compat/psqlqueue/v1/queues/{name}/messages").json()["data"]
    assert http.delete(f"/compat/psqlqueue/v1/queues/{name}").status_code == 204
    if again:
        http.post("/v1/queues", json={"name": name})
    for _ in range(2):
        answer = http.put(f"/compat/psqlqueue/v1/queues/{name}/messages/{message['id']}/{verb}")
        assert (answer.status_code, answer.json()["code"]) == (404, 6 if again else 5)


@pytest.mark.parametrize("verb", ["ack", "nack", "bury", "release", "extend"])
def test_settling_by_receipt_in_a_deleted_queue(http: httpx.Client, name: str, verb: str) -> None:
    http.post("/v1/queues", json={"name": name})
    http.post(f"/v1/queues/{name}/messages", json=[{"payload": 1}, {"payload": 2}])
    one, two = (row["receipt"] for row in http.post(f"/v1/queues/{name}/claims", json={"limit": 2}).json()["deliveries"])
    more = {"lease_seconds": 60} if verb == "extend" else {}
    first = http.post(f"/v1/queues/{name}/{verb}", json={"receipts": [one], **more})
    assert first.json()["results"][0]["result"] == "done"
    assert http.delete(f"/v1/queues/{name}?force=true").status_code == 204
    gone = http.post(f"/v1/queues/{name}/{verb}", json={"receipts": [two], **more})
    problem(gone, 404, "queue_not_found")
    anywhere = http.post(f"/v1/receipts/{verb}", json={"receipts": [two], **more})
    assert anywhere.json()["results"][0]["result"] == "unknown"


@pytest.mark.parametrize("source", ["queue", "topic"])
def test_an_ack_right_after_publishing_says_that_the_message_waits(http: httpx.Client, name: str, source: str) -> None:
    http.post("/v1/queues", json={"name": name})
    path = f"/v1/queues/{name}/messages"
    if source == "topic":
        http.post("/compat/psqlqueue/v1/topics", json={"id": name})
        http.post("/compat/psqlqueue/v1/subscriptions", json={"id": name, "queue_id": name, "topic_id": name})
        path = f"/v1/topics/{name}/messages"
    id = http.post(path, json={"payload": 1}).json()["id"]
    expected = f"message {id} is not leased: it is ready"
    assert http.put(f"/compat/psqlqueue/v1/queues/{name}/messages/{id}/ack").json()["detail"] == expected
    http.get(f"/compat/psqlqueue/v1/queues/{name}/stats")
    assert http.put(f"/compat/psqlqueue/v1/queues/{name}/messages/{id}/ack").json()["detail"] == expected
    # a message of another queue is not in this one
    http.post("/v1/queues", json={"name": f"{name}-other"})
    denied = http.put(f"/compat/psqlqueue/v1/queues/{name}-other/messages/{id}/ack").json()
    assert denied["detail"] == f"queue {name}-other has no message {id}"


def test_an_ack_of_a_delayed_message_says_that_it_is_delayed(http: httpx.Client, name: str) -> None:
    http.post("/v1/queues", json={"name": name})
    id = http.post(f"/v1/queues/{name}/messages", json={"payload": 1, "delay_seconds": 600}).json()["id"]
    detail = http.put(f"/compat/psqlqueue/v1/queues/{name}/messages/{id}/ack").json()["detail"]
    assert detail == f"message {id} is not leased: it is delayed"


def test_a_topic_with_undelivered_messages_is_not_deleted(http: httpx.Client, name: str) -> None:
    http.post("/compat/psqlqueue/v1/topics", json={"id": name})
    http.post("/v1/queues", json={"name": name})
    http.post("/compat/psqlqueue/v1/subscriptions", json={"id": name, "queue_id": name, "topic_id": name})
    http.post(f"/v1/topics/{name}/messages", json={"payload": 1})
    refused = problem(http.delete(f"/compat/psqlqueue/v1/topics/{name}"), 409, "in_use")
    assert refused["detail"] == f'cannot delete topic "{name}": it is read by queue "{name}"'
    (delivery,) = http.post(f"/v1/queues/{name}/claims").json()["deliveries"]
    problem(http.delete(f"/compat/psqlqueue/v1/topics/{name}"), 409, "in_use")
    http.post(f"/v1/queues/{name}/ack", json={"receipts": [delivery["receipt"]]})
    # nothing can be lost now: as psqlqueue does, with its subscriptions
    assert http.delete(f"/compat/psqlqueue/v1/topics/{name}").status_code == 204
    assert http.get(f"/compat/psqlqueue/v1/subscriptions/{name}").status_code == 404
    assert http.get(f"/compat/psqlqueue/v1/queues/{name}").status_code == 200


@pytest.mark.parametrize("user", ["group", "schedule", "delayed message"])
def test_a_topic_in_use_is_deleted_by_force_only(http: httpx.Client, name: str, user: str) -> None:
    http.post("/compat/psqlqueue/v1/topics", json={"id": name})
    http.post("/v1/queues", json={"name": name})
    http.post("/compat/psqlqueue/v1/subscriptions", json={"id": name, "queue_id": name, "topic_id": name})
    if user == "group":
        http.post(f"/v1/topics/{name}/groups", json={"name": "g"})
    elif user == "schedule":
        made = http.post("/v1/schedules", json={"name": name, "topic": name, "cron": "0 0 1 1 *", "payload": 1})
        assert made.status_code == 201, made.text
    else:
        http.post(f"/v1/topics/{name}/messages", json={"payload": 1, "delay_seconds": 600})
    refused = problem(http.delete(f"/compat/psqlqueue/v1/topics/{name}"), 409, "in_use")
    assert f'queue "{name}"' in refused["detail"]
    assert ('group "g"' in refused["detail"]) == (user == "group")
    assert "force" in refused["hint"]
    assert http.delete(f"/compat/psqlqueue/v1/topics/{name}?force=true").status_code == 204
