"""Members of a group that rejoin under their own name get their unhandled messages again (guarantee G4)."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.planted import TOPIC, World, commit, fetch, finish_group, publish
from tests.conftest import Clock


def test_member_started_again_gets_what_it_had_not_committed(db: str, clock: Clock, tmp_path: Path) -> None:
    world = World(db, tmp_path, TOPIC, clock.advance)
    before, after = world.session("before"), world.session("after")
    publish(world.main, "a", "b", "c")
    fetch(before, "worker")
    before.drop()
    publish(world.main, "d")
    batch = fetch(after, "worker")
    if batch["rows"]:
        commit(after, batch, batch["rows"][-1][0])
    finish_group(world)
    report = world.verdict()
    assert report.ok, report.table()


def test_member_that_lost_an_answer_gets_it_again(db: str, clock: Clock, tmp_path: Path) -> None:
    world = World(db, tmp_path, TOPIC, clock.advance)
    worker = world.session("worker")
    publish(world.main, "a", "b", "c")
    op = worker.recorder.invoke("fetch", topic="t", group="g", member="worker")
    worker.rows("select count(*) from trunkline.fetch('t', 'g', 'worker', 100, '1 second')")
    worker.recorder.done(op, "info")
    worker.drop()
    publish(world.main, "d")
    batch = fetch(worker)
    if batch["rows"]:
        commit(worker, batch, batch["rows"][-1][0])
    finish_group(world)
    report = world.verdict()
    assert report.ok, report.table()
