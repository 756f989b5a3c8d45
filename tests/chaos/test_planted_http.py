"""Bugs planted in the HTTP server: the checker detects each through HTTP alone, and reports nothing without it."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.chaos.hasty import BUGS
from tests.chaos.http_actors import HttpTailReader, HttpTailReaderSpec, text
from tests.chaos.http_session import HttpSession
from tests.chaos.planted import QUEUE, TOPIC, Background, World, enqueue, finish_group, finish_queue, publish
from tests.conftest import Clock
from tests.http.servers import HttpServer
from tests.support.waiting import wait_until

MANY = 1_500
_OPEN = (
    "select count(*) from pg_stat_activity"
    " where datname = current_database() and xact_start is not null and pid <> pg_backend_pid()"
)


class HttpWorld(World):
    """A world with an HTTP server in it."""

    def __init__(self, server: HttpServer, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.server = server

    def client(self, name: str) -> HttpSession:
        session = HttpSession(self.url, self._directory, name, 0, [self.server.url])
        self._sessions.append(session)
        return session


def answered_then_killed(world: HttpWorld) -> None:
    """The server dies right after it has responded."""
    client = world.client("publisher")
    op = client.recorder.invoke("publish", parts=[{"target": "topic:t", "values": ["a"]}])
    assert client.ask(op, "POST", "/v1/topics/t/messages", json=text("a")) is not None
    world.server.kill()
    client.recorder.done(op, "ok")
    finish_group(world)


def acked_then_killed(world: HttpWorld) -> None:
    client = world.client("consumer")
    enqueue(world.main, "a")
    rows = client.claim("q", 1, 5.0)
    assert rows
    assert client.settle("ack", [rows[0][0]]) == ["done"]
    world.server.kill()
    world.advance(6)
    finish_queue(world)


def repeated_with_a_key(world: HttpWorld) -> None:
    """The client did not receive the first response."""
    client = world.client("publisher")
    op = client.recorder.invoke("publish", parts=[{"target": "topic:t", "values": ["a"]}])
    for _ in range(2):
        request = {"json": text("a"), "headers": {"idempotency-key": "once"}}
        assert client.ask(op, "POST", "/v1/topics/t/messages", **request) is not None  # type: ignore[arg-type]
    client.recorder.done(op, "ok")
    finish_group(world)


def followed_in_two_parts(world: HttpWorld) -> None:
    publish(world.main, *"abcdef")
    reader = HttpTailReader(world.client("reader"), HttpTailReaderSpec("t", 1))
    reader.follow(3)
    with suppress(httpx.ReadTimeout):
        reader.follow(400)
    finish_group(world)


def stream_that_breaks(world: HttpWorld) -> None:
    """More than one batch of lines, and then nothing."""
    client = world.client("publisher")
    values = [f"v{number}" for number in range(MANY)]
    op = client.recorder.invoke("publish", parts=[{"target": "topic:t", "values": values}])
    lines = [json.dumps(text(value)).encode() + b"\n" for value in values]
    head = b"POST /v1/topics/t/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n"
    with socket.create_connection(("127.0.0.1", world.server.port), timeout=30) as conn:
        conn.sendall(head + b"transfer-encoding: chunked\r\n\r\n")
        conn.sendall(b"".join(b"%x\r\n%s\r\n" % (len(line), line) for line in lines))
        # the first batch is on its way to the database
        wait_until(lambda: client.rows("select last_value > 900 from trunkline.topic_1_0_ids")[0][0])
    client.recorder.done(op, "fail")
    # until the server has noticed
    wait_until(lambda: client.rows(_OPEN)[0][0] == 0)
    publish(world.main, "end")
    finish_group(world)


def several_who_wait(world: HttpWorld) -> None:
    """Repeat a few times: a claim in flight when a message arrives may get that message alone."""
    sessions = [world.client(f"waits{number}") for number in range(5)]
    line = f'http_requests_inflight{{handler="/v1/queues/{{queue}}/claims",service="trunkline"}} {len(sessions)}.0'
    for value in "abc":
        calls = [Background(lambda session=session: session.claim("q", 1, 5.0, wait=2)) for session in sessions]  # type: ignore[misc]
        wait_until(lambda: line in httpx.get(f"{world.server.url}/metrics").text)
        # known to the server, and perhaps not yet among those that wait
        time.sleep(0.3)
        enqueue(world.main, value)
        for call in calls:
            call.join()
    # far beyond the lease and any delay before the next attempt
    world.advance(60)
    finish_queue(world)


SCRIPTS = {
    "publish_answered_early": (TOPIC, answered_then_killed, "lost"),
    "ack_answered_early": (QUEUE, acked_then_killed, "acked_redelivered"),
    "key_ignored": (TOPIC, repeated_with_a_key, "duplicate"),
    "resume_skips_one": (TOPIC, followed_in_two_parts, "gap"),
    "stream_stored_in_parts": (TOPIC, stream_that_breaks, "unexpected"),
    "delivery_for_two": (QUEUE, several_who_wait, "double_lease"),
}


def test_every_bug_has_a_script() -> None:
    assert SCRIPTS.keys() == BUGS.keys()


@pytest.mark.parametrize("planted", [True, False], ids=["planted", "clean"])
@pytest.mark.parametrize("bug", list(SCRIPTS))
def test_bug_in_the_http_server_is_seen(
    bug: str, planted: bool, db: str, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, script, rule = SCRIPTS[bug]
    if planted:
        monkeypatch.setenv("TRUNKLINE_PLANTED", bug)
    server = HttpServer(db, "--no-upkeep", module="tests.chaos.hasty").start()
    try:
        world = HttpWorld(server, db, tmp_path, workload, clock.advance)
        script(world)
        report = world.verdict()
    finally:
        server.end()
    assert bool(report.counts[rule]) is planted, report.table()
    assert planted or report.ok, report.table()
