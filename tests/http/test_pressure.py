"""A resource that is blocked harms requests for this resource only, and every request has an end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg
import pytest

from tests.http.servers import HttpServer, problem
from tests.http.test_waiting import eventually, vanish
from trunkline.errors import OutcomeUnknown, Timeout
from trunkline.server.config import Config
from trunkline.server.limits import LimitedPool, Limits, limited

CROWD = 14
"""More than the server has connections."""


def make_queue(http: httpx.Client, name: str, *payloads: Any, **settings: Any) -> str:
    assert http.post("/v1/queues?ensure=true", json={"name": name, **settings}).status_code == 201
    if payloads:
        answer = http.post(f"/v1/queues/{name}/messages", json=[{"payload": payload} for payload in payloads])
        assert answer.status_code == 201
    return name


def give_offsets(http: httpx.Client, name: str) -> None:
    """Claims and reads must reach the lock, not return because the queue is empty."""
    eventually(lambda: http.get(f"/v1/topics/{name}/messages").json()["data"])
    eventually(lambda: http.get(f"/v1/queues/{name}/peek").json()["data"])


@contextmanager
def holding(db: str, statement: str, *args: Any) -> Iterator[psycopg.Connection[Any]]:
    """An open transaction that has run a statement; rolled back at the end."""
    with psycopg.connect(db) as conn:
        if statement == LOCK_CURSOR:
            conn.execute(statement.encode(), [list(args) if isinstance(args[0], str) else args[0]])
        elif statement != LOCK_TOPIC:
            conn.execute(statement.encode(), args)
        else:
            (number,) = conn.execute("select trunkline.topic_number('topic', %s)", args).fetchone() or (None,)
            conn.execute(f"lock table trunkline.topic_{number} in access exclusive mode".encode())
        yield conn
        conn.rollback()


def waiting_for_locks(db: str) -> int:
    """Return the number of sessions of this database that wait for a lock."""
    with psycopg.connect(db, autocommit=True) as conn:
        row = conn.execute(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        ).fetchone()
        assert row is not None
        return int(row[0])


class Crowd:
    """Requests that are sent at the same time, each on its own connection."""

    def __init__(self, server: HttpServer, size: int, send: Callable[[httpx.Client], httpx.Response]) -> None:
        self._server = server
        self._send = send
        self._start = threading.Barrier(size)
        self._pool = ThreadPoolExecutor(size)
        self.requests: list[Future[httpx.Response]] = [self._pool.submit(self._one) for _ in range(size)]

    def _one(self) -> httpx.Response:
        with httpx.Client(base_url=self._server.url, timeout=60) as client:
            client.get("/healthz")
            self._start.wait(30)
            return self._send(client)

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    @property
    def unanswered(self) -> int:
        return sum(not request.done() for request in self.requests)

    def responses(self) -> list[httpx.Response]:
        return [request.result() for request in self.requests]


LOCK_CURSOR = (
    "select pg_advisory_xact_lock(778005, cursor_id) from trunkline.cursors join trunkline.queues using (queue_id)"
    " where name = any (%s::text[])"
)
"""Keeps every claim away from the messages of some queues: what a claim of ours never holds, but any session can take."""
LOCK_TOPIC = "lock table"
"""Keeps every other session away from the messages of a topic; see `holding`."""
BLOCKED: dict[str, tuple[str, Callable[[str], Callable[[httpx.Client], httpx.Response]]]] = {
    "claims": (
        LOCK_CURSOR,
        lambda name: lambda http: http.post(f"/v1/queues/{name}/claims"),
    ),
    "waiting claims": (
        LOCK_CURSOR,
        lambda name: lambda http: http.post(f"/v1/queues/{name}/claims", json={"wait": 9}),
    ),
    "claims that cannot share a statement": (
        LOCK_CURSOR,
        lambda name: (
            lambda http: http.post(f"/v1/queues/{name}/claims", json={"lease_seconds": 30 + threading.get_ident() % 1000})
        ),
    ),
    "pulls": (
        LOCK_CURSOR,
        lambda name: lambda http: http.get(f"/compat/psqlqueue/v1/queues/{name}/messages"),
    ),
    "purges": (
        "select from trunkline.queues where name = %s for update",
        lambda name: lambda http: http.put(f"/v1/queues/{name}/purge"),
    ),
    "reads": (
        LOCK_TOPIC,
        lambda name: lambda http: http.get(f"/v1/topics/{name}/messages"),
    ),
    "publishes": (
        LOCK_TOPIC,
        lambda name: lambda http: http.post(f"/v1/topics/{name}/messages", json=[{"payload": 1}, {"payload": 2}]),
    ),
    "first fetches": (
        "select trunkline.create_group(%s, 'new')",
        lambda name: lambda http: http.post(f"/v1/topics/{name}/groups/new/fetch"),
    ),
    "seeks": (
        "select id from trunkline.fetch(%s, 'g', 'm')",
        lambda name: lambda http: http.post(f"/v1/topics/{name}/groups/g/seek", json={"to": "latest"}),
    ),
}


@pytest.mark.parametrize("kind", BLOCKED)
def test_a_crowd_at_a_blocked_resource_harms_no_other_request(
    server: HttpServer, http: httpx.Client, module_db: str, name: str, kind: str
) -> None:
    """Requests for something else finish while none of the crowd has its response."""
    make_queue(http, name, 1)
    other = make_queue(http, f"{name}-other", 1)
    http.post("/v1/topics", json={"name": name})
    http.post(f"/v1/topics/{name}/groups", json={"name": "g"})
    http.post(f"/v1/topics/{name}/messages", json={"payload": 1})
    give_offsets(http, name)
    statement, request = BLOCKED[kind]
    with holding(module_db, statement, name) as conn, Crowd(server, CROWD, request(name)) as crowd:
        eventually(lambda: waiting_for_locks(module_db) > 0)
        # more than once: the server opens its connections one after the other
        for _ in range(15):
            assert http.post(f"/v1/queues/{other}/messages", json={"payload": 2}).status_code == 201
        (delivery,) = http.post(f"/v1/queues/{other}/claims").json()["deliveries"]
        acked = http.post(f"/v1/queues/{other}/ack", json={"receipts": [delivery["receipt"]]})
        assert acked.json()["results"][0]["result"] == "done"
        assert http.get(f"/v1/queues/{other}/stats").status_code == 200
        assert crowd.unanswered == CROWD
        conn.rollback()
        assert {response.status_code for response in crowd.responses()} <= {200, 201, 204, 503}


def test_all_queues_blocked_at_once_still_leave_room_to_publish(
    server: HttpServer, http: httpx.Client, module_db: str, name: str
) -> None:
    """A forgotten transaction can block every queue; then no share of a single queue helps."""
    queues = [make_queue(http, f"{name}-{number}", 1) for number in range(CROWD)]
    for queue in queues:
        eventually(lambda queue=queue: http.get(f"/v1/queues/{queue}/peek").json()["data"])
    turn = iter(queues)
    lock = threading.Lock()

    def claim(client: httpx.Client) -> httpx.Response:
        with lock:
            queue = next(turn)
        return client.post(f"/v1/queues/{queue}/claims")

    with holding(module_db, LOCK_CURSOR, queues) as conn, Crowd(server, CROWD, claim) as crowd:
        eventually(lambda: waiting_for_locks(module_db) >= 7)
        assert http.post(f"/v1/queues/{queues[0]}/messages", json={"payload": 2}).status_code == 201
        assert http.get("/v1/topics").status_code == 200
        assert crowd.unanswered == CROWD
        conn.rollback()
        assert {response.status_code for response in crowd.responses()} <= {200, 503}


def test_a_blocked_claim_ends_as_busy_and_leaves_nothing_leased(impatient: HttpServer, module_db: str, name: str) -> None:
    with httpx.Client(base_url=impatient.url, timeout=60) as http:
        queue = make_queue(http, name, 1, 2, 3)
        eventually(lambda: len(http.get(f"/v1/queues/{name}/peek").json()["data"]) == 3)
        with (
            holding(module_db, LOCK_CURSOR, [queue]),
            Crowd(impatient, 6, lambda client: client.post(f"/v1/queues/{queue}/claims")) as crowd,
        ):
            for response in crowd.responses():
                problem(response, 503, "busy")
                assert response.headers["retry-after"] == "1"
        # the statement in the database ends later and finds that its requests are gone
        eventually(lambda: http.get(f"/v1/queues/{queue}/stats").json()["ready"] == 3, 20)
        claimed = http.post(f"/v1/queues/{queue}/claims", json={"limit": 10}).json()["deliveries"]
        assert sorted(row["payload"] for row in claimed) == [1, 2, 3]
        assert {row["attempt"] for row in claimed} == {1}


@pytest.fixture(scope="module")
def impatient(module_db: str) -> Iterator[HttpServer]:
    running = HttpServer(module_db, module="tests.http.serve_impatient")
    try:
        yield running.start()
    finally:
        running.end()


@pytest.mark.parametrize("kind", BLOCKED)
def test_no_request_is_without_an_end(impatient: HttpServer, module_db: str, name: str, kind: str) -> None:
    with httpx.Client(base_url=impatient.url, timeout=60) as http:
        make_queue(http, name, 1)
        http.post("/v1/topics", json={"name": name})
        http.post(f"/v1/topics/{name}/groups", json={"name": "g"})
        http.post(f"/v1/topics/{name}/messages", json={"payload": 1})
        give_offsets(http, name)
        statement, request = BLOCKED[kind]
        with holding(module_db, statement, name), Crowd(impatient, 6, request(name)) as crowd:
            for response in crowd.responses():
                assert response.status_code == 503, response.text
                assert response.json()["error"] in ("busy", "timeout", "outcome_unknown")
                assert response.headers["retry-after"] == "1"
        assert request(name)(http).status_code in (200, 201, 204)


def test_a_seek_that_ended_has_changed_nothing(impatient: HttpServer, module_db: str, name: str) -> None:
    """The limits of routes that change settings are the database's: the response is definite."""
    with httpx.Client(base_url=impatient.url, timeout=60) as http:
        http.post("/v1/topics", json={"name": name})
        http.post(f"/v1/topics/{name}/groups", json={"name": "g"})
        http.post(f"/v1/topics/{name}/messages", json=[{"payload": 1}, {"payload": 2}])
        with holding(module_db, "select id from trunkline.fetch(%s, 'g', 'm')", name):
            problem(http.post(f"/v1/topics/{name}/groups/g/seek", json={"to": "latest"}), 503, "busy")
        assert http.get(f"/v1/topics/{name}/groups/g").json()["partitions"][0]["next_offset"] == 1


async def test_limits_do_not_stay_in_a_session(db: str) -> None:
    """A session may be shared through a pooler: what is set for one transaction ends with it."""
    pool = LimitedPool(Config(database_url=db, max_connections=1, lock_seconds=3, admin_seconds=7))
    show = "select current_setting('lock_timeout'), current_setting('statement_timeout')"
    try:
        with limited(Limits(in_database=True, seconds=7)):
            async with pool.connection() as conn:
                assert await (await conn.execute(show)).fetchone() == ("3s", "7s")
        async with pool.connection() as conn:
            assert await (await conn.execute(show)).fetchone() == ("0", "0")
    finally:
        await pool.close()


async def test_a_statement_without_limits_in_the_database_ends_too(db: str) -> None:
    pool = LimitedPool(Config(database_url=db, max_connections=1, statement_seconds=0.2))
    try:
        with pytest.raises(Timeout):
            async with pool.connection() as conn:
                await conn.execute("select pg_sleep(60)")
        with pytest.raises(OutcomeUnknown):
            async with pool.connection(writing=True) as conn:
                await conn.execute("select pg_sleep(60)")
        # the connection was not lost by it
        async with pool.connection() as conn:
            assert await (await conn.execute("select 1")).fetchone() == (1,)
    finally:
        await pool.close()


def drip(conn: socket.socket) -> bytes:
    """Send a byte of a body now and then until there is a response, and return its beginning."""
    conn.settimeout(0.1)
    for _ in range(300):
        conn.sendall(b" ")
        try:
            return conn.recv(1000)
        except TimeoutError:
            continue
    return b""


def test_a_body_that_drips_has_an_end(impatient: HttpServer, name: str) -> None:
    with httpx.Client(base_url=impatient.url, timeout=60) as http:
        make_queue(http, name)
    with socket.create_connection(("127.0.0.1", impatient.port)) as conn:
        conn.sendall(
            f"POST /v1/queues/{name}/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n".encode()
        )
        answer = drip(conn)
        assert answer.startswith(b"HTTP/1.1 408"), answer


def test_a_body_that_drips_behind_a_refusal_has_an_end(impatient: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port)) as conn:
        conn.sendall(b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 60000\r\n\r\n")
        answer = drip(conn)
        assert answer.startswith(b"HTTP/1.1 404") and b"connection: close" in answer, answer


@pytest.mark.parametrize("kind", ["claim", "pull", "fetch", "read", "api"])
def test_long_polls_hold_no_connection(impatient: HttpServer, module_db: str, name: str, kind: str) -> None:
    """More clients wait than the server has connections, and a publish passes them."""
    with httpx.Client(base_url=impatient.url, timeout=60) as http:
        queue, other = make_queue(http, name), make_queue(http, f"{name}-other")
        http.post("/v1/topics", json={"name": name})
        http.post(f"/v1/topics/{name}/groups", json={"name": "g"})
        sends: dict[str, Callable[[httpx.Client], httpx.Response]] = {
            "claim": lambda client: client.post(f"/v1/queues/{queue}/claims", json={"wait": 20}),
            "pull": lambda client: client.get(f"/compat/psqlqueue/v1/queues/{queue}/messages?wait=20"),
            "fetch": lambda client: client.post(f"/v1/topics/{name}/groups/g/fetch", json={"wait": 20}),
            "read": lambda client: client.get(f"/v1/topics/{name}/messages?wait=20"),
            "api": lambda client: client.get(f"/compat/pubsub-queue/api/topics/{name}/pull?group=g&wait=20"),
        }
        with Crowd(impatient, 10, sends[kind]) as crowd:
            eventually(lambda: in_progress(http) >= 10)
            for _ in range(20):
                assert http.post(f"/v1/queues/{other}/messages", json={"payload": 1}).status_code == 201
            assert crowd.unanswered == 10
            if kind in ("claim", "pull"):
                http.post(f"/v1/queues/{queue}/messages", json=[{"payload": number} for number in range(100)])
            else:
                http.post(f"/v1/topics/{name}/messages", json={"payload": 1})
            # one member has the only partition, the others wait to the end
            if kind in ("claim", "pull", "read"):
                assert {response.status_code for response in crowd.responses()} == {200}
            else:
                eventually(lambda: crowd.unanswered < 10)


def in_progress(http: httpx.Client) -> float:
    lines = http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("http_requests_inflight{"))


def test_a_client_that_reads_nothing_blocks_no_other(server: HttpServer, http: httpx.Client, name: str) -> None:
    """The response of a large claim waits for its client in the server, not in the database."""
    queue = make_queue(http, name, *["x" * 300_000] * 3)
    frozen = vanish(server, "POST", f"/v1/queues/{queue}/claims", '{"limit": 3}')
    eventually(lambda: http.get(f"/v1/queues/{queue}/stats").json()["leased"] == 3)
    http.post(f"/v1/queues/{queue}/messages", json={"payload": 1})
    assert [row["payload"] for row in http.post(f"/v1/queues/{queue}/claims").json()["deliveries"]] == [1]
    frozen.close()
