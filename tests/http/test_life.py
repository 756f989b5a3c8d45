"""Processes: several workers behind one port, a stop that drains, a database that goes away, too much work."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psycopg
import pytest

from tests.http.servers import HttpServer, free_port, problem, serving
from tests.support.postgres import make_server
from tests.support.waiting import wait_until
from trunkline.sql.migrate import migrate

QUEUE = {"lease_seconds": 30, "ttl_seconds": 3600}


def test_workers_share_a_port_and_their_counters(db: str) -> None:
    with serving(db, "--workers", "2") as server:
        httpx.post(f"{server.url}/v1/queues", json={"name": "q", **QUEUE})

        def one(number: int) -> int:
            return httpx.post(f"{server.url}/v1/queues/q/messages", json={"payload": str(number)}).status_code

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(one, range(60))) == {201}
        assert httpx.get(f"{server.url}/v1/queues/q/stats").json()["ready"] == 60
        assert "\ntrunkline_published_total 60.0\n" in httpx.get(f"{server.url}/metrics").text


def test_a_stop_drains(db: str) -> None:
    server = HttpServer(db).start()
    try:
        httpx.post(f"{server.url}/v1/queues", json={"name": "q", **QUEUE})
        accepted: list[str] = []
        refused = threading.Event()

        def publish() -> None:
            with httpx.Client(base_url=server.url) as client:
                while not refused.is_set():
                    try:
                        answer = client.post("/v1/queues/q/messages", json={"payload": 1})
                    except httpx.TransportError:
                        refused.set()
                        return
                    if answer.status_code == 201:
                        accepted.append(answer.json()["id"])

        waiting = threading.Thread(target=lambda: httpx.post(f"{server.url}/v1/queues/none/claims", timeout=30))
        threads = [threading.Thread(target=publish) for _ in range(4)]
        for thread in (*threads, waiting):
            thread.start()
        wait_until(lambda: len(accepted) >= 20)
        start = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start < 12
        for thread in (*threads, waiting):
            thread.join(10)
        with psycopg.connect(db, autocommit=True) as conn:
            conn.execute("call trunkline.sequence()")
            row = conn.execute("select ready from trunkline.queue_stats('q')").fetchone()
            assert row is not None and row[0] >= len(accepted) > 0
    finally:
        server.end()


def test_waiting_clients_do_not_hold_up_a_stop(db: str) -> None:
    server = HttpServer(db).start()
    try:
        httpx.post(f"{server.url}/v1/queues?ensure=true", json={"name": "q"})
        httpx.post(f"{server.url}/v1/topics", json={"name": "t"})
        answers: list[Any] = []

        def wait() -> None:
            try:
                answers.append(httpx.post(f"{server.url}/v1/queues/q/claims", json={"wait": 30}, timeout=40).json())
            except httpx.TransportError:
                answers.append(None)

        thread = threading.Thread(target=wait)
        thread.start()
        server.wait_in_flight("/v1/queues/{queue}/claims", 1)
        start = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start < 8
        thread.join(10)
        assert answers == [{"deliveries": []}]
    finally:
        server.end()


def test_kill_9_loses_nothing_that_was_answered(db: str) -> None:
    server = HttpServer(db).start()
    httpx.post(f"{server.url}/v1/queues?ensure=true", json={"name": "q"})
    accepted: list[str] = []

    def publish() -> None:
        with httpx.Client(base_url=server.url) as client:
            while True:
                try:
                    answer = client.post("/v1/queues/q/messages", json={"payload": 1})
                except httpx.TransportError:
                    return
                accepted.append(answer.json()["id"])

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(accepted) >= 100)
    server.kill()
    for thread in threads:
        thread.join(10)
    with serving(db) as again, httpx.Client(base_url=again.url) as client:
        seen: set[str] = set()
        while rows := client.post("/v1/queues/q/claims", json={"limit": 1000}).json()["deliveries"]:
            seen.update(row["id"] for row in rows)
    assert set(accepted) <= seen
    assert len(seen) <= len(accepted) + 8  # requests in flight
    server.end()


@pytest.mark.timeout(600)
def test_the_database_goes_away_and_comes_back() -> None:
    database = make_server(18)
    url = database.start()
    migrate(url)
    try:
        with serving(url) as server, httpx.Client(base_url=server.url, timeout=60) as client:
            assert client.post("/v1/topics", json={"name": "t"}).status_code == 201
            database.server.stop()  # type: ignore[union-attr]
            assert client.get("/healthz").status_code == 200
            answer = client.get("/readyz")
            assert answer.status_code == 503
            assert "retry-after" in answer.headers
            assert client.get("/compat/psqlqueue/v1/healthz").json()["code"] == 1
            answer = client.post("/v1/topics/t/messages", json={"payload": 1})
            assert answer.status_code == 503
            assert "password" not in answer.text
            database.server.start()  # type: ignore[union-attr]
            wait_until(lambda: client.post("/v1/topics/t/messages", json={"payload": 1}).status_code == 201)
            assert client.get("/readyz").status_code == 200
    finally:
        database.stop()


def test_too_much_work_is_refused_before_it_piles_up(db: str) -> None:
    with serving(db, "--max-publishing", "4") as server, psycopg.connect(db) as blocker:
        httpx.post(f"{server.url}/v1/topics", json={"name": "t"})
        blocker.execute("lock table trunkline.topic_1 in access exclusive mode")

        def publish(number: int) -> httpx.Response:
            return httpx.post(f"{server.url}/v1/topics/t/messages", json={"payload": number}, timeout=60)

        with ThreadPoolExecutor(12) as pool:
            under_way = [pool.submit(publish, number) for number in range(12)]
            wait_until(lambda: sum(each.done() for each in under_way) >= 8)
            time.sleep(0.5)  # a ninth would have ended by now
            done = [each.result() for each in under_way if each.done()]
            blocker.rollback()
            answers = [each.result() for each in under_way]
        assert len(done) == 8
        assert all(problem(answer, 503, "overloaded") for answer in done)
        assert {answer.headers["retry-after"] for answer in done} == {"1"}
        assert sorted(answer.status_code for answer in answers) == [201] * 4 + [503] * 8


def test_concurrent_publishes_share_statements(db: str) -> None:
    with serving(db) as server:
        httpx.post(f"{server.url}/v1/topics", json={"name": "t"})

        def publish(_: int) -> None:
            with httpx.Client(base_url=server.url) as client:
                for number in range(25):
                    assert client.post("/v1/topics/t/messages", json={"payload": number}).status_code == 201

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(publish, range(16)))
        with psycopg.connect(db, autocommit=True) as conn:
            row = conn.execute("select count(*), count(distinct xmin::text) from trunkline.topic_1").fetchone()
        assert row is not None
        messages, transactions = row
        assert messages == 400 and transactions < messages


def test_logs_are_json_lines(db: str) -> None:
    with serving(db, "--access-log") as server:
        httpx.get(f"{server.url}/v1/topics/x%0ay")
        wait_until(lambda: "/v1/topics/x\\ny" in server.log.read_text())
        lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    entry = next(line for line in lines if line.get("path") == "/v1/topics/x\ny")
    assert {"time", "level", "msg", "method", "status", "seconds"} <= set(entry)


def test_upkeep_tasks_inside(db: str) -> None:
    """A message with an expired lease is redelivered without a claim, because the server runs the upkeep tasks."""
    with serving(db) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        client.post("/v1/queues?ensure=true", json={"name": "q"})
        client.post("/v1/queues/q/messages", json={"payload": 1})
        assert client.post("/v1/queues/q/claims", json={"lease_seconds": 1}).json()["deliveries"]
        with psycopg.connect(db, autocommit=True) as conn:
            wait_until(lambda: conn.execute("select count(*) from trunkline.returns").fetchone() == (1,))


def test_metrics_of_spark_pipelines(db: str) -> None:
    with psycopg.connect(db, autocommit=True) as conn:
        conn.execute("select trunkline.report_pipeline('copy', 'stream', p_lag => 17)")
        conn.execute("select trunkline.report_pipeline('old', 'stream', 'failed', p_lag => 5, p_error => 'no')")
    with serving(db, "--no-upkeep") as server:
        text = httpx.get(f"{server.url}/metrics").text
    assert '\ntrunkline_pipeline_lag{pipeline="copy"} 17.0\n' in text
    assert '\ntrunkline_pipeline_report_age_seconds{pipeline="copy"} ' in text
    assert '\ntrunkline_pipeline_failed{pipeline="old"} 1.0\n' in text
    assert 'lag{pipeline="old"}' not in text


def test_metrics_of_upkeep(db: str) -> None:
    with psycopg.connect(db, autocommit=True) as conn:
        conn.execute("create or replace function trunkline._upkeep_jobs() returns int language sql as 'select 1 / 0'")
        conn.execute("call trunkline.upkeep()")
    with serving(db, "--no-upkeep") as server:
        text = httpx.get(f"{server.url}/metrics").text
    assert '\ntrunkline_upkeep_task_failing{task="jobs"} 1.0\n' in text
    assert '\ntrunkline_upkeep_task_failing{task="delayed"} 0.0\n' in text
    assert '\ntrunkline_upkeep_task_age_seconds{task="jobs"} ' in text


def test_the_service_does_not_depend_on_the_defaults_of_the_database(db: str) -> None:
    with psycopg.connect(db, autocommit=True) as conn:
        conn.execute(f"alter database {conn.info.dbname} set default_transaction_isolation = serializable")
    with serving(db) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        client.post("/v1/queues?ensure=true", json={"name": "q"}).raise_for_status()
        client.post("/v1/queues/q/messages", json={"payload": 1}).raise_for_status()
        [delivery] = client.post("/v1/queues/q/claims").raise_for_status().json()["deliveries"]
        client.post("/v1/queues/q/ack", json={"receipts": [delivery["receipt"]]}).raise_for_status()


def test_a_port_for_metrics_alone(db: str) -> None:
    port = free_port()
    with serving(db, "--workers", "2", "--metrics-port", str(port), "--max-pull", "20") as server:
        httpx.post(f"{server.url}/v1/queues", json={"name": "q", **QUEUE})
        httpx.post(f"{server.url}/v1/queues/q/messages", json=[{"payload": str(number)} for number in range(30)])
        deadline = time.monotonic() + 10
        while True:
            try:
                texts = [httpx.get(f"http://127.0.0.1:{port}{path}").text for path in ("/", "/metrics", "/any")]
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        for text in texts:
            assert 'trunkline_queue_messages{queue="q",state="ready"} 30.0' in text
            assert "http_request_duration_seconds_bucket" in text
        assert len(httpx.get(f"{server.url}/compat/psqlqueue/v1/queues/q/messages?limit=50").json()["data"]) == 20
