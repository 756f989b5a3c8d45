"""Sessions that a test drives by hand: calls that may wait run in a thread, and the test waits until they really do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.conftest import Connection
from tests.sql.calls import READS, sequence
from tests.support.waiting import wait_until

PATIENCE = 20.0
"""Seconds after which a wait gives up; far above what any of them needs."""

Rows = list[tuple[Any, ...]]


class Session:
    """One connection. `run` waits for the result, `start` leaves the call running. Functions that only read show what has an
    offset, so what was committed gets one before them, as upkeep does it all the time."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.pid = conn.info.backend_pid
        self._thread = ThreadPoolExecutor(1)

    def run(self, query: str, *params: Any) -> Rows:
        if READS.search(query):
            sequence(self.conn)
        cursor = self.conn.execute(query, params)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []

    def one(self, query: str, *params: Any) -> Any:
        [[value]] = self.run(query, *params)
        return value

    def start(self, query: str, *params: Any) -> Future[Rows]:
        return self._thread.submit(self.run, query, *params)

    def column(self, query: str, *params: Any) -> list[Any]:
        return [row[0] for row in self.run(query, *params)]

    @contextmanager
    def transaction(self, end: str = "commit") -> Iterator[None]:
        """A transaction that ends as told."""
        self.run("begin")
        yield
        self.run(end)

    def close(self) -> None:
        self._thread.shutdown()


def wait_blocked(watcher: Session, waiting: Session) -> None:
    """Return once the session waits for a lock that another one holds."""
    wait_for(watcher, "select cardinality(pg_blocking_pids(%s)) > 0", waiting.pid)


def wait_for(watcher: Session, question: str, *params: Any) -> None:
    """Repeat the query until it returns true."""
    wait_until(lambda: watcher.one(question, *params), seconds=PATIENCE, message=f"still not true: {question} {params}")


def answer(call: Future[Rows]) -> Rows:
    return call.result(PATIENCE)


def check_running(calls: Iterable[Future[Any]]) -> None:
    """None of the calls has ended; the error of one that failed is raised."""
    for call in calls:
        if call.done():
            raise AssertionError(f"ended early: {call.result()}")
