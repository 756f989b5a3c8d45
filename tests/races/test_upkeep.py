"""Duties while topics and queues are deleted under them: what is gone is passed by, and the others are looked after."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.races.sessions import Session, answer

MakeSession = Callable[[], Session]
DUTIES = ("expire", "due", "schedules", "sequence", "segments", "retention", "windows", "history", "rotate", "rollups")


@pytest.mark.parametrize("duty", DUTIES)
def test_a_duty_survives_a_deletion(main: Session, session: MakeSession, duty: str) -> None:
    for name in ("gone", "kept"):
        main.run("select trunkline.create_topic(%s)", name)
        main.run("select trunkline.create_queue(%s)", name)
        main.run("select trunkline.subscribe(%s, %s)", name, name)
        main.run("select trunkline.publish(%s, '{}')", name)
        main.run("select trunkline.enqueue(%s, '{}')", name)
    deleter, keeper = session(), session()
    deleter.run("begin")
    deleter.run("select trunkline.delete_queue('gone', true), trunkline.delete_topic('gone', true)")
    call = keeper.start("select trunkline.run_duty(%s)", duty)
    while not (call.done() or main.one("select cardinality(pg_blocking_pids(%s)) > 0", keeper.pid)):
        time.sleep(0.005)
    deleter.run("commit")
    answer(call)
    if duty == "sequence":
        assert main.run("select topic, head from trunkline.topic_stats() where topic = 'kept'") == [("kept", 1)]
