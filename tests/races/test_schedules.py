"""Several processes run upkeep: each tick becomes one message, and none waits for a schedule that another one locks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from tests.conftest import Clock
from tests.races.sessions import Session

MakeSession = Callable[[], Session]
RESET = "select setval('trunkline.upkeep_schedules', 0)"


def test_each_tick_fires_once_whoever_runs_upkeep(main: Session, session: MakeSession, clock: Clock) -> None:
    """Eight sessions, each running all of upkeep and the task on its own, over twenty moves of the clock."""
    main.run("select trunkline.create_topic('t')")
    for n in range(5):
        main.run("select trunkline.create_schedule(%s, '* * * * *', 't', p_catch_up => 'all')", f"s{n}")
    start = main.one("select min(next_at) from trunkline.schedules")

    def work(one: Session) -> None:
        one.run(RESET)
        one.run("call trunkline.upkeep()")
        one.run("select trunkline.run_upkeep('schedules')")

    sessions = [session() for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            clock.advance(75)
            list(threads.map(work, sessions))
    main.run("select trunkline.run_upkeep('schedules')")
    now = main.one("select trunkline.clock()")
    fired = Counter(main.run("select headers ->> 'trunkline-schedule', occurred_at from trunkline.read('t', 0, 1, 10000)"))
    expected = [start + timedelta(minutes=n) for n in range(100) if start + timedelta(minutes=n) <= now]
    assert len(expected) >= 24
    assert fired == Counter((f"s{n}", at) for n in range(5) for at in expected)


def test_upkeep_passes_over_a_schedule_that_is_being_changed(main: Session, session: MakeSession, clock: Clock) -> None:
    """And fires it, once, when the other has finished. The task's own lock is not what keeps ticks single."""
    main.run("select trunkline.create_topic('t')")
    for name in ("a", "b"):
        main.run("select trunkline.create_schedule(%s, '* * * * *', 't')", name)
    clock.advance(61)
    holder, other = session(), session()
    with holder.transaction():
        holder.run("select trunkline.run_schedule('a')")
        assert other.one("select trunkline._upkeep_schedules()") == 1
    assert other.one("select trunkline._upkeep_schedules()") == 1
    names = main.column("select headers ->> 'trunkline-schedule' from trunkline.read('t', 0, 1)")
    assert Counter(names) == Counter(["a", "a", "b"])


def test_two_tasks_at_once_without_the_lock_of_the_task(main: Session, session: MakeSession, clock: Clock) -> None:
    """The second finds the rows of the first locked, and after its commit not due any more."""
    main.run("select trunkline.create_topic('t')")
    for n in range(20):
        main.run("select trunkline.create_schedule(%s, '* * * * *', 't')", f"s{n}")
    clock.advance(61)
    first, second = session(), session()
    with first.transaction():
        assert first.one("select trunkline._upkeep_schedules()") == 20
        assert second.one("select trunkline._upkeep_schedules()") == 0
    assert second.one("select trunkline._upkeep_schedules()") == 0
    assert main.one("select trunkline.head('t')") == 20
