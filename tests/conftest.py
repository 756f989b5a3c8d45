"""Fixtures: a server per version and session, a fresh migrated database per test, and a clock that tests can move."""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Generator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support.postgres import VERSIONS, make_server, missing
from trunkline.sql.migrate import migrate

Connection = psycopg.Connection[tuple[Any, ...]]

# A run in the background of a shell ignores Ctrl-C, and so would the programs that tests start and then interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Spark in tests runs for seconds: code that is compiled quickly, not well, halves the work of its Java machines.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
# Kept classes (`make test` has them made) halve the start of each Java machine; outside of make, Spark starts without.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parents[1] / ".cache")
# Sessions of Spark would each have their classes kept in the background, beside the tests.
os.environ.setdefault("TRUNKLINE_SPARK_KEEP_CLASSES", "off")
_numbers = itertools.count()
# What takes half a minute or more, longest first.
_LONG = [
    re.compile(each)
    for each in (
        r"tests/spark/",
        r"test_chaos|property/",
        r"docs/how-to/spark|word_count|test_held_xmin|plans/test_calls|http/test_life|test_exactly_once|e2e/test_(setup|wheel)",
    )
]


class Servers:
    """Starts a server of a version when first asked, with a migrated template database."""

    def __init__(self) -> None:
        self._running: dict[int, Any] = {}
        self._urls: dict[int, str] = {}

    def url(self, version: int) -> str:
        if version not in self._urls:
            server = make_server(version)
            url = server.start()
            self._running[version] = server
            with psycopg.connect(url, autocommit=True) as conn:
                conn.execute("create database tl_template")
            migrate(make_conninfo(url, dbname="tl_template"))
            with psycopg.connect(make_conninfo(url, dbname="tl_template"), autocommit=True) as conn:
                sequence_at_once(conn)
            self._urls[version] = url
        return self._urls[version]

    def stop(self) -> None:
        for server in self._running.values():
            server.stop()


def sequence_at_once(conn: Connection) -> None:
    """Let a claim or fetch give offsets itself at once, not after a second without a pass."""
    conn.execute("update trunkline.settings set value = '0' where name = 'sequence_alone_after'")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file together that share a fixture, and start what takes longest first.

    Otherwise each process of xdist would start the server of each file, and one would be left alone at the end.
    """
    for item in items:
        if _shares(item) and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem + "-" + item.path.parent.name))
    items.sort(key=_rank)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in captured output: xdist encodes reports as UTF-8, and one would end its process."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


def _shares(item: pytest.Item) -> bool:
    """Return true if a test uses a module-scoped fixture."""
    fixtures: dict[str, Any] = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    return any(definitions[-1].scope == "module" for definitions in fixtures.values())


def _rank(item: pytest.Item) -> int:
    long = next((rank for rank, pattern in enumerate(_LONG) if pattern.search(item.nodeid)), None)
    return long if long is not None else len(_LONG) + (item.get_closest_marker("xdist_group") is None)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.stop()


@pytest.fixture
def pg_version() -> int:
    """The server version of a test; folders that test several override this."""
    return VERSIONS[0]


@pytest.fixture
def empty_db(servers: Servers, pg_version: int) -> Iterator[str]:
    """URL of a database without our schema."""
    yield from _database(servers, pg_version, "template1")


@pytest.fixture
def db(servers: Servers, pg_version: int) -> Iterator[str]:
    """URL of a migrated database of the test's own."""
    yield from _database(servers, pg_version, "tl_template")


def _database(servers: Servers, version: int, template: str) -> Iterator[str]:
    if reason := missing(version):
        pytest.skip(reason)
    url = servers.url(version)
    name = f"t{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"create database {name} template {template} strategy file_copy")
    yield make_conninfo(url, dbname=name)
    drop_database(url, name)


def drop_database(url: str, name: str) -> None:
    """Drop a database and end its sessions.

    `drop database` with sessions that are about to exit sleeps 100 ms before it tries again, so wait for them here.
    """
    sessions = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = %s"
    with psycopg.connect(url, autocommit=True) as admin:
        deadline = time.monotonic() + 10
        while admin.execute(sessions, (name,)).fetchone() != (0,) and time.monotonic() < deadline:
            time.sleep(0.002)
        admin.execute(f"drop database {name} with (force)")


@pytest.fixture
def connect(db: str) -> Iterator[Callable[[], Connection]]:
    """Makes autocommit connections to the test's database; all are closed at the end."""
    made: list[Connection] = []

    def make() -> Connection:
        made.append(psycopg.connect(db, autocommit=True))
        return made[-1]

    yield make
    for conn in made:
        conn.close()


@pytest.fixture
def conn(connect: Callable[[], Connection]) -> Connection:
    return connect()


class Clock:
    """The database's clock, moved by hand: all sessions of the test's database see it."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        conn.execute("create table public.test_clock (skew interval not null)")
        conn.execute("insert into public.test_clock values ('0')")
        # clock() runs with the rights of its caller
        conn.execute("grant select on public.test_clock to public")
        conn.execute(
            "create or replace function trunkline.clock() returns timestamptz language sql volatile as"
            " $$ select clock_timestamp() + (select skew from public.test_clock) $$"
        )

    def advance(self, by: timedelta | float) -> None:
        """Forward by a duration, or by seconds."""
        if not isinstance(by, timedelta):
            by = timedelta(seconds=by)
        self._conn.execute("update public.test_clock set skew = skew + %s", (by,))


@pytest.fixture
def clock(conn: Connection) -> Clock:
    return Clock(conn)
