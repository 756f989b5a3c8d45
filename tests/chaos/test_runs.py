"""Runs redrive each dead letter once: beside other sessions, and through kill -9 of Postgres. The checker reads the logs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.chaos.planted import QUEUE, Change, World, enqueue, finish_queue
from tests.chaos.redrives import redrive
from tests.chaos.scripts import crash_now
from tests.chaos.session import Session
from tests.conftest import Clock
from trunkline.embedded.server import EmbeddedServer
from trunkline.sql.migrate import migrate

SECONDS = 60.0


def bury_all(session: Session) -> None:
    while rows := session.claim("q", 1000, 10.0):
        session.settle("bury", [row[0] for row in rows])


def letters(session: Session) -> list[list[Any]]:
    rows = session.rows(
        "select convert_from(d.payload, 'UTF8'), d.attempts, d.reason, d.topic || '/' || d.partition, d.log_offset"
        " from trunkline.dead_letters d order by d.dead_id"
    )
    return [list(row) for row in rows]


class Run:
    """A run of all dead letters that there are, recorded as one redrive of them."""

    def __init__(self, session: Session, options: str = "{}") -> None:
        self.session = session
        self.letters = letters(session)
        self.op = session.recorder.invoke("redrive", queue="q", letters=self.letters)
        self.id = session.rows(
            'select trunkline.start_run(\'redrive\', \'{"queue": "q", "all": true}\', %s, %s)', (len(self.letters), options)
        )[0][0]

    @property
    def state(self) -> str:
        return str(self.session.rows("select state from trunkline.runs where run_id = %s", (self.id,))[0][0])

    @property
    def done(self) -> int:
        return int(self.session.rows("select done from trunkline.runs where run_id = %s", (self.id,))[0][0])

    def end(self) -> None:
        self.session.recorder.done(self.op, "ok", count=self.done)


def step(session: Session) -> None:
    session.rows("select trunkline.run_upkeep('runs')")


def dies_again(world: World) -> Run:
    """Messages of the first step are dead letters again before the last one."""
    enqueue(world.main, *[f"v{n}" for n in range(1000)])
    enqueue(world.main, *[f"w{n}" for n in range(1000)])
    world.sequence()
    bury_all(world.main)
    run = Run(world.main)
    step(world.main)
    bury_all(world.main)
    for _ in range(5):
        step(world.main)
    run.end()
    finish_queue(world)
    return run


def beside_locked_letters(world: World) -> Run:
    """Another session has locked some dead letters when the run comes to them; it redrives half of them itself."""
    enqueue(world.main, *[f"v{n}" for n in range(20)])
    world.sequence()
    bury_all(world.main)
    run = Run(world.main)
    other = world.session("other")
    other.connect().execute("begin")
    other.rows("select dead_id from trunkline.dead_letters order by dead_id limit 5 for update")
    for _ in range(4):
        step(world.main)
    other.connect().execute("rollback")
    for _ in range(4):
        step(world.main)
    run.end()
    finish_queue(world)
    return run


def two_upkeeps(world: World) -> Run:
    """Upkeep of two processes, an upkeep by hand and a redrive by hand at once."""
    enqueue(world.main, *[f"v{n}" for n in range(300)])
    world.sequence()
    bury_all(world.main)
    run = Run(world.main, '{"rate": 1000000}')
    sessions = [world.session(f"upkeep{n}") for n in range(3)]

    def work(session: Session) -> None:
        for _ in range(30):
            session.connect().execute("select setval('trunkline.upkeep_runs', 0)")
            session.rows("select trunkline._upkeep_runs()")

    threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    for _ in range(3):
        step(world.main)
    run.end()
    finish_queue(world)
    return run


@dataclass(frozen=True)
class Bug:
    changes: tuple[Change, ...]
    script: Callable[[World], Run]
    rules: tuple[str, ...]


BUGS = {
    "no upper bound": Bug(
        (
            Change("_take_for_run", "d.dead_id <= $2", "true"),
            Change("_left_for_run", "d.dead_id <= $2", "true"),
        ),
        dies_again,
        ("duplicate", "lost", "conservation"),
    ),
    "locked dead letters forgotten": Bug(
        (Change("_step_dead", "and not trunkline._left_for_run(r, 0)", ""),),
        beside_locked_letters,
        ("duplicate", "lost", "conservation"),
    ),
    "messages appended again by each step": Bug(
        (
            Change(
                "_take_for_run",
                "delete from trunkline.dead_letters d using (select dead_id,",
                "update trunkline.dead_letters d set error = null from (select dead_id,",
            ),
            Change("_step_dead", "coalesce(v_last, position)", "0"),
        ),
        dies_again,
        ("duplicate", "lost", "conservation"),
    ),
}


@pytest.mark.parametrize("name", list(BUGS))
def test_planted_bug_is_seen(name: str, db: str, clock: Clock, tmp_path: Path) -> None:
    world = World(db, tmp_path, QUEUE, clock.advance)
    world.change(*BUGS[name].changes)
    BUGS[name].script(world)
    report = world.verdict()
    assert any(report.counts[rule] for rule in BUGS[name].rules), report.table()


@pytest.mark.parametrize("script", [dies_again, beside_locked_letters, two_upkeeps], ids=lambda script: script.__name__)
def test_without_a_bug_each_letter_is_redriven_once(
    script: Callable[[World], Run], db: str, clock: Clock, tmp_path: Path
) -> None:
    world = World(db, tmp_path, QUEUE, clock.advance)
    assert script(world).state == "done"
    report = world.verdict()
    assert report.ok, report.table()


@pytest.fixture
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server to kill."""
    with EmbeddedServer(tmp_path_factory.mktemp("pg") / "data") as server:
        yield server


def test_a_run_goes_through_kill_9_of_postgres(doomed: EmbeddedServer, tmp_path: Path) -> None:
    migrate(doomed.url)
    world = World(doomed.url, tmp_path, QUEUE)
    enqueue(world.main, *[f"v{n}" for n in range(600)])
    world.sequence()
    bury_all(world.main)
    run = Run(world.main, '{"rate": 400}')
    ended = threading.Event()
    upkeep = world.session("upkeep")

    def work() -> None:
        while not ended.is_set():
            try:
                upkeep.connect().execute("call trunkline.upkeep()")
            except psycopg.Error:
                upkeep.drop()
            time.sleep(0.02)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        deadline = time.monotonic() + SECONDS
        for part in (100, 250, 400):
            while run.done < part:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            crash_now(doomed, world)
        while run.state != "done":
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        ended.set()
        thread.join(SECONDS)
    run.end()
    redrive(world.session("late"), "q", limit=10)
    finish_queue(world)
    report = world.verdict()
    assert report.ok, report.table()
    assert report.totals["redriven"] == 600
