"""An invalid job is a clear error, or a dead letter with the reason; the worker keeps running.

Elsewhere: old messages and payloads that are too big in test_enqueue, jumps of the clock in test_worker, handlers in
processes in test_worker.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.jobs.conftest import dead, stats
from tests.support.waiting import until
from trunkline.errors import InvalidArgument
from trunkline.jobs import App, Context, JobFailed, UnknownKind, Worker, executor

CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
RELEASE = threading.Event()


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Handlers that cannot be ended are left alone soon, and end with the test."""
    monkeypatch.setattr("trunkline.jobs.worker.LEAVE_SECONDS", 0.2)
    monkeypatch.setattr(executor, "LEAVE_SECONDS", 0.2)
    RELEASE.clear()
    yield
    RELEASE.set()


async def _lives(app: App) -> None:
    """A worker of this app still runs jobs."""

    @app.job(result=True, name="fine")
    async def fine() -> str:
        return "fine"

    async with Worker(app):
        assert await (await fine.enqueue()).result("20s") == "fine"


async def leaves() -> None:
    raise SystemExit(3)


def leaves_a_thread() -> None:
    raise SystemExit(3)


async def interrupts() -> None:
    raise KeyboardInterrupt


async def swallows_cancellation() -> None:
    while not RELEASE.is_set():
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue


def swallows_it_in_a_thread() -> None:
    while not RELEASE.is_set():
        try:
            time.sleep(0.02)
        except BaseException:
            continue


async def never_yields() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (leaves, "SystemExit: 3"),
        (leaves_a_thread, "SystemExit: 3"),
        (interrupts, "KeyboardInterrupt"),
        (swallows_cancellation, "longer than 0.3 s"),
        (swallows_it_in_a_thread, "longer than 0.3 s"),
        (never_yields, "blocked the event loop"),
    ],
)
async def test_a_handler_that(app: App, release: None, handler: Callable[[], Any], error: str) -> None:
    """The job becomes a dead letter with the reason, and the same worker continues."""

    @app.job(result=True)
    async def fine() -> str:
        return "fine"

    hostile = app.job(max_attempts=1, timeout="300ms")(handler)
    async with Worker(app, queues={"default": 2}):
        await hostile.enqueue()
        [letter] = await dead(app)
        assert await (await fine.enqueue()).result("20s") == "fine"
        RELEASE.set()
    assert error in letter.error.splitlines()[0]


@pytest.mark.parametrize("plain", [False, True], ids=["on the loop", "in a thread"])
async def test_a_handler_that_forks_answers_once(app: App, plain: bool) -> None:
    def fork() -> int:
        return 0 if os.fork() == 0 else os.getpid()

    async def fork_on_the_loop() -> int:
        return fork()

    job = app.job(result=True, name="forks")(fork if plain else fork_on_the_loop)
    async with Worker(app):
        assert await (await job.enqueue()).result("20s") == os.getpid()
        assert (await stats(app)).dead == 0


@pytest.mark.parametrize("value", [object(), CIRCLE, {("a", "b"): 1}], ids=["an object", "a circle", "odd keys"])
async def test_a_result_that_cannot_be_stored(app: App, value: Any) -> None:
    @app.job(result=True, max_attempts=1)
    async def answers() -> Any:
        return value

    @app.job
    async def nobody_asks() -> Any:
        return value

    async with Worker(app):
        await nobody_asks.enqueue()
        with pytest.raises(JobFailed, match="the result cannot be stored"):
            await (await answers.enqueue()).result("20s")
        await until(lambda: _acked(app, 1))
    await _lives(app)


async def _acked(app: App, n: int) -> bool:
    return bool((await stats(app)).acked == n)


async def test_an_unknown_kind_is_refused_when_enqueued_and_left_for_others_when_claimed(app: App) -> None:
    @app.job
    async def known() -> None: ...

    with pytest.raises(UnknownKind, match="job 'nobody' does not exist"):
        await app.add("nobody", {})
    await app.setup()
    await app.client.enqueue("default", {}, label="nobody")
    await _lives(app)
    found = await stats(app)
    assert (found.ready, found.dead) == (1, 0)


async def test_a_follow_up_that_is_too_big_fails_its_job(app: App) -> None:
    @app.job(max_attempts=1)
    async def parent(ctx: Context) -> None:
        await child.enqueue("x" * 2_000_000)

    @app.job
    async def child(text: str) -> None: ...

    async with Worker(app):
        await parent.enqueue()
        [letter] = await dead(app)
    assert "payload must have at most 1048576 bytes, got 2000011" in letter.error.splitlines()[0]
    await _lives(app)


async def test_two_schedules_of_one_name(db: str, app: App) -> None:
    """In one program they are an error; of two programs the one that started last holds, and there is one schedule."""

    @app.job
    async def report() -> None: ...

    app.schedule("nightly", "0 3 * * *", report.bind())
    with pytest.raises(ValueError, match="schedule 'nightly' is already defined"):
        app.schedule("nightly", "0 4 * * *", report.bind())
    async with App(db) as other:
        again = other.job(name="report")(report.function)  # type: ignore[arg-type]
        other.schedule("nightly", "0 5 * * *", again.bind())
        await app.setup()
        await other.setup()
    assert [(row.name, row.cron) for row in await app.client.schedules.list()] == [("nightly", "0 5 * * *")]


@pytest.mark.parametrize(
    ("cron", "zone", "words"),
    [
        ("61 * * * *", "UTC", 'cron field minute: "61"'),
        ("* * * *", "UTC", "must have 5 fields"),
        ("0 0 31 2 *", "UTC", "matches no date"),
        ("0 3 * * *", "Mars/Olympus", 'time zone "Mars/Olympus" does not exist'),
    ],
)
async def test_a_schedule_that_is_wrong_is_named(app: App, cron: str, zone: str, words: str) -> None:
    @app.job(name="tidy", cron=cron, timezone=zone)
    async def tidy() -> None: ...

    with pytest.raises(InvalidArgument) as caught:
        async with Worker(app):
            pass
    assert caught.value.message.startswith("schedule 'tidy': ") and words in caught.value.message
    assert caught.value.hint
