"""A crash of Postgres: what was promised is still there, and no id is handed out twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import psycopg
import pytest

from tests.races.sessions import PATIENCE
from tests.support.postgres import WheelServer
from trunkline.sql.migrate import migrate


@pytest.fixture
def own_server() -> Iterator[WheelServer]:
    """A server that the test may kill."""
    server = WheelServer(18)
    server.start()
    yield server
    server.stop()


def publish_until_it_breaks(url: str, started: threading.Event, stop: threading.Event) -> list[UUID]:
    promised: list[UUID] = []
    with psycopg.connect(url, autocommit=True) as conn:
        while not stop.is_set():
            try:
                [row] = conn.execute("select id from trunkline.publish('t', '1')").fetchall()
            except psycopg.OperationalError:
                return promised
            promised.append(row[0])
            started.set()
    return promised


def crash(server: WheelServer) -> None:
    """kill -9 of the postmaster, and the next start."""
    os.kill(server.server.postmaster_pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while server.server.alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    server.start()


def test_ids_after_kill_9_never_collide_with_committed_ones(own_server: WheelServer) -> None:
    """Every acknowledged message is in the log once; offsets seen before the crash keep their content (P1, G1)."""
    url = own_server.server.url
    migrate(url)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("select trunkline.create_topic('t', p_segment_rows => 64)")
    promised: list[UUID] = []
    seen: dict[int, UUID] = {}
    for _ in range(3):
        started = [threading.Event() for _ in range(4)]
        stop = threading.Event()
        with ThreadPoolExecutor(4) as threads:
            publishers = [threads.submit(publish_until_it_breaks, url, event, stop) for event in started]
            try:
                assert all(event.wait(PATIENCE) for event in started)
                with psycopg.connect(url, autocommit=True) as conn:
                    conn.execute("call trunkline.sequence()")
                    seen |= dict(conn.execute("select log_offset, id from trunkline.read('t', 0, 1, 100000)").fetchall())
                crash(own_server)
            finally:
                stop.set()
            promised += [message for publisher in publishers for message in publisher.result(PATIENCE)]
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("call trunkline.sequence()")
        found = dict(conn.execute("select log_offset, id from trunkline.read('t', 0, 1, 100000)").fetchall())  # type: ignore[var-annotated]
    assert sorted(found) == list(range(1, len(found) + 1))
    assert max(Counter(found.values()).values()) == 1
    assert set(promised) <= set(found.values())
    assert seen.items() <= found.items()
