"""The worker: outcomes, retries, time-outs, cancels, lost leases, stops, and handlers that misbehave."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import Clock, Connection
from tests.jobs.conftest import dead, stats
from tests.support.waiting import until
from trunkline import __version__
from trunkline.jobs import (
    App,
    Backoff,
    Bury,
    Context,
    Done,
    JobFailed,
    Limit,
    Outcome,
    Retry,
    Snooze,
    SyncContext,
    Worker,
    prefetch,
)
from trunkline.jobs.prefetch import Prefetch


async def test_outcomes_are_values(app: App) -> None:
    attempts: list[tuple[str, int]] = []

    @app.job(result=True)
    async def work(ctx: Context, what: str) -> Outcome:
        attempts.append((what, ctx.attempt))
        first = attempts.count((what, ctx.attempt)) == 1
        if what == "retry" and ctx.attempt == 1:
            return Retry(after="0s", error="not yet")
        if what == "snooze" and first:
            return Snooze("10ms")
        if what == "bury":
            return Bury("no such address")
        return Done(what)

    async with Worker(app):
        assert await (await work.enqueue("done")).result("10s") == "done"  # type: ignore[comparison-overlap]
        await (await work.enqueue("retry")).result("10s")
        await (await work.enqueue("snooze")).result("10s")
        with pytest.raises(JobFailed, match="no such address"):
            await (await work.enqueue("bury")).result("10s")
        [letter] = await dead(app)
    assert letter.error == "no such address" and letter.attempts == 1
    assert [n for what, n in attempts if what == "retry"] == [1, 2]
    assert [n for what, n in attempts if what == "snooze"] == [1, 1]


async def test_errors_are_retried_with_their_own_policy_and_end_as_dead_letters(app: App) -> None:
    tried: list[tuple[str, int]] = []

    @app.job(max_attempts=3, backoff=Backoff("10ms", jitter=0), errors={KeyError: None, OSError: Backoff("0s")})
    async def fail(ctx: Context, how: str) -> None:
        tried.append((how, ctx.attempt))
        raise {"value": ValueError, "key": KeyError, "os": OSError}[how](f"because of {how}")

    async with Worker(app):
        for how in ("value", "key", "os"):
            await fail.enqueue(how)
        await fail.options(max_attempts=2).enqueue("value")
        await until(lambda: _count(app, 4))
        letters = await dead(app)
    assert sorted((letter.body["how"], letter.attempts) for letter in letters) == [
        ("key", 1),
        ("os", 3),
        ("value", 2),
        ("value", 3),
    ]
    assert all("because of" in letter.error and "Traceback" in letter.error for letter in letters)


async def _count(app: App, n: int) -> bool:
    return bool((await stats(app)).dead == n)


@pytest.mark.parametrize("text", ["bad byte \0 here", "bad byte \udcff here", "long " * 10_000])
async def test_an_error_is_stored_whatever_it_says(app: App, text: str) -> None:
    @app.job(max_attempts=1, result=True)
    async def fail() -> str:
        raise ValueError(text)

    handle = await fail.enqueue()
    async with Worker(app):
        (row,) = await dead(app)
        with pytest.raises(JobFailed, match=r"ValueError: (bad byte \ufffd here|long )"):
            await handle.result("10s")
    assert "ValueError: " in row.error and "lease" not in row.error.splitlines()[0]


@pytest.mark.parametrize("value", [float("nan"), [1, float("inf")], {"a": {"b": float("-inf")}}])
async def test_a_result_that_json_cannot_hold_is_an_error_not_null(app: App, value: Any) -> None:
    @app.job(result=True)
    async def calculate() -> Any:
        return value

    handle = await calculate.enqueue()
    async with Worker(app):
        with pytest.raises(JobFailed, match=r"the result cannot be stored: \S+ cannot be represented in JSON"):
            await handle.result("10s")


@pytest.mark.parametrize("attempts", [0, -1, 4, 50, 1.5, True, "3"])
def test_attempts_that_the_queue_would_cut_are_refused(attempts: Any) -> None:
    app = App("postgresql:///x", max_attempts=3)

    @app.job()
    async def work() -> None: ...

    with pytest.raises(ValueError, match=r"from 1 to 3, the limit of queue 'default', got"):
        work.options(max_attempts=attempts)
    assert work.options(max_attempts=3) is not None

    @app.job(max_attempts=50)
    async def other() -> None: ...

    assert work.options(max_attempts=50) is not None


def test_backoff_grows_to_its_cap() -> None:
    plain = Backoff("1s", factor=2, cap="10s", jitter=0)
    assert [plain.after(n).total_seconds() for n in (1, 2, 3, 4, 5, 1000)] == [1, 2, 4, 8, 10, 10]
    spread = {Backoff("1s", jitter=0.5).after(1) for _ in range(20)}
    assert len(spread) > 1 and all(timedelta(seconds=0.5) <= pause <= timedelta(seconds=1.5) for pause in spread)


async def test_plain_functions_run_in_threads_and_in_processes(app: App) -> None:
    from tests.jobs import process_jobs

    where: list[int] = []

    @app.job(result=True)
    def plain(ctx: SyncContext, n: int) -> int:
        where.append(threading.get_ident())
        assert ctx.extend("30s") == "done"
        return n * 2

    here = process_jobs.app
    here.url = app.client.url
    async with here, Worker(app), Worker(here, queues={"processes": 1}):
        assert await (await plain.enqueue(21)).result("10s") == 42
        assert where != [threading.get_ident()]
        # one after the other, so that each finds a living process
        assert await (await process_jobs.square.enqueue(7)).result("30s") == 49
        with pytest.raises(JobFailed, match="ended with exit code 3"):
            await (await process_jobs.die.enqueue()).result("30s")
        with pytest.raises(JobFailed, match="SystemExit"):
            await (await process_jobs.leave.enqueue()).result("30s")
        with pytest.raises(JobFailed, match="longer than"):
            await (await process_jobs.hang.enqueue()).result("30s")
        assert await (await process_jobs.square.enqueue(8)).result("30s") == 64


async def test_time_outs(app: App) -> None:
    ended: list[str] = []

    @app.job(timeout="50ms", max_attempts=1)
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("async")

    @app.job(timeout="50ms", max_attempts=1)
    def slow_plain() -> None:
        try:
            while True:
                time.sleep(0.01)
        finally:
            ended.append("thread")

    @app.job(timeout="300ms", result=True)
    async def longer(ctx: Context) -> bool:
        await ctx.extend("20s")
        await asyncio.sleep(0.5)
        return ctx.time_left is not None and ctx.time_left > timedelta(seconds=10)

    async with Worker(app):
        await slow.enqueue()
        await slow_plain.enqueue()
        assert await (await longer.enqueue()).result("10s") is True
        await until(lambda: _count(app, 2))
        letters = await dead(app)
    assert sorted(ended) == ["async", "thread"]
    assert all("longer than 0.05 s" in letter.error for letter in letters)


async def test_cancel_stops_a_running_job_and_keeps_a_waiting_one_from_starting(app: App) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()
    ran: list[int] = []

    @app.job
    async def wait(n: int) -> None:
        ran.append(n)
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    first, second = await wait.enqueue(1), await wait.enqueue(2)
    assert await second.cancel("not wanted") == "requested"
    async with Worker(app):
        await started.wait()
        assert await first.cancel("no longer") == "requested"
        await stopped.wait()
        await until(lambda: _count(app, 2))
        assert await first.cancel() == "dead"
        letters = {letter.id: letter.error for letter in await dead(app)}
    assert ran == [1]
    assert letters[first.id] == "cancelled: no longer"
    assert letters[second.id] == "cancelled before it started: not wanted"
    assert await app.retry(second.id) == "default"


async def test_a_lost_lease_cancels_the_handler_and_it_cannot_settle(app: App, clock: Clock) -> None:
    """J4."""
    started, cancelled = asyncio.Event(), asyncio.Event()

    @app.job
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    app.queue("default", lease="1s")
    async with Worker(app, grace="0s"):
        await work.enqueue()
        await started.wait()
        clock.advance(60)
        started.clear()
        await asyncio.wait_for(cancelled.wait(), 10)
        # It is redelivered, and is not done.
        await asyncio.wait_for(started.wait(), 10)
        assert (await stats(app)).acked == 0


@pytest.mark.parametrize("by", [timedelta(days=2), timedelta(days=-2)])
async def test_the_worker_lives_on_when_the_clock_jumps(app: App, clock: Clock, by: timedelta) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    @app.job(result=True)
    async def slow() -> str:
        started.set()
        await go.wait()
        return "slow"

    @app.job(result=True)
    async def quick(n: int) -> int:
        return n

    async with Worker(app):
        handle = await slow.enqueue()
        await started.wait()
        clock.advance(by)
        assert await (await quick.enqueue(1)).result("20s") == 1
        go.set()
        # forward its lease is over, and it runs again; backward it is not
        assert await handle.result("20s") == "slow"
        clock.advance(-by)
        assert await (await quick.enqueue(2)).result("20s") == 2


async def test_heartbeats_keep_a_job_longer_than_its_lease(app: App) -> None:
    """Also for a handler that does not let the event loop run meanwhile."""
    ran: list[int] = []
    app.queue("default", lease="1s")

    @app.job(result=True)
    async def hog(ctx: Context) -> None:
        ran.append(ctx.attempt)
        time.sleep(1.6)
        await asyncio.sleep(1)

    async with Worker(app):
        await (await hog.enqueue()).result("20s")
    assert ran == [1]


@pytest.mark.parametrize("stops", [True, False])
async def test_what_was_claimed_ahead_goes_back_without_an_attempt(
    app: App, monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    """J6 for a worker that stops. A worker that continues does not hold jobs for long without starting them."""
    monkeypatch.setattr("trunkline.jobs.prefetch._FIRST", 20)  # as if the jobs before had been quick
    go = asyncio.Event()
    attempts: list[int] = []

    @app.job
    async def work(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        await go.wait()

    await app.enqueue_many([work.bind() for _ in range(20)])
    async with Worker(app, queues={"default": 1}) as worker:
        await until(lambda: attempts)
        assert worker.held == 20
        if stops:
            stop = asyncio.create_task(worker.stop())
            await until(lambda: _leased(app, 1))
            go.set()
            await stop
            found = await stats(app)
            assert (found.acked, found.ready, found.leased) == (1, 19, 0)
        else:
            await until(lambda: _leased(app, 1))
            go.set()
            await until(lambda: _acked(app, 20))
    async with Worker(app):
        await until(lambda: _acked(app, 20))
    assert attempts == [1] * 20


async def test_claims_follow_the_pace_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    def soon(seconds: float) -> None:
        for name in ("_ONE_SECONDS", "_FEW_SECONDS", "_MANY_SECONDS"):
            monkeypatch.setattr(prefetch, name, seconds)

    async def turn(limiter: Prefetch) -> None:
        waits = asyncio.create_task(limiter.settle_in())
        await asyncio.sleep(0)
        for _ in range(1000):
            limiter.ended(1.0)
        await waits

    any_number, five = Prefetch(None), Prefetch(5)
    assert any_number.want(0, 10) == 1 and any_number.want(10, 10) == 0
    soon(60)
    for _ in range(10):
        await turn(any_number)
        await turn(five)
    assert (any_number.want(0, 10), any_number.want(1000, 10), any_number.want(500, 10)) == (1000, 0, 510)
    assert five.want(0, 10) == 15
    soon(0)
    for _ in range(10):
        await turn(any_number)
    assert any_number.want(0, 10) == 1 and any_number.want(10, 10) == 0


async def test_slow_jobs_are_claimed_when_they_begin(app: App) -> None:
    """So each attempt that is counted is one that began, whatever `prefetch` allows."""
    go = asyncio.Event()
    begun: list[int] = []

    @app.job
    async def work() -> None:
        begun.append(1)
        await go.wait()

    await app.enqueue_many([work.bind() for _ in range(20)])
    async with Worker(app, queues={"default": 3}, prefetch=10):
        await until(lambda: len(begun) == 3)
        assert (await stats(app)).leased == 3
        go.set()
        await until(lambda: _acked(app, 20))


async def _leased(app: App, n: int) -> bool:
    return bool((await stats(app)).leased == n)


async def _acked(app: App, n: int) -> bool:
    return bool((await stats(app)).acked >= n)


async def test_a_second_signal_releases_at_once(app: App) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @app.job
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    await work.enqueue()
    worker = Worker(app, grace="60s")
    run = asyncio.create_task(worker.run(signals=False))
    await started.wait()
    worker.request_stop()
    worker.request_stop()
    await run
    assert stopped.is_set()
    found = await stats(app)
    assert (found.ready, found.leased, found.dead) == (1, 0, 0)
    [left] = await app.client.queues.peek("default")
    assert left.attempt == 0


async def test_at_most_once_is_acked_before_it_starts(app: App) -> None:
    """J1."""
    seen: list[int] = []

    @app.job(at_most_once=True)
    async def risky() -> None:
        seen.append((await stats(app)).acked)
        raise ValueError("too late to try again")

    async with Worker(app):
        await risky.enqueue()
        await until(lambda: seen)
        await until(lambda: _acked(app, 1))
    found = await stats(app)
    assert seen == [1] and (found.acked, found.dead, found.delayed) == (1, 0, 0)


async def test_order_per_key_in_an_ordered_queue(app: App) -> None:
    app.queue("steps", ordered=True, partitions=4)
    seen: dict[str, list[int]] = {}
    failed: set[str] = set()

    @app.job(queue="steps", key=lambda who, n: who)
    async def step(who: str, n: int) -> None:
        if n == 3 and who not in failed:
            failed.add(who)
            raise ValueError("once")
        await asyncio.sleep(0)
        seen.setdefault(who, []).append(n)

    await app.setup()
    await app.enqueue_many([step.bind(f"k{who}", n) for n in range(10) for who in range(5)])
    async with Worker(app):
        await until(lambda: _acked_steps(app))
    assert seen == {f"k{who}": list(range(10)) for who in range(5)}


async def _acked_steps(app: App) -> bool:
    return bool((await stats(app, "steps")).acked == 50)


async def test_limits_hold_over_all_workers(db: str, app: App) -> None:
    three = Limit("three", running=3)
    rate = Limit("rate", rate=200, burst=5)
    now, most, starts = 0, 0, []
    other = App(db)
    for each in (app, other):

        @each.job(limits=[three])
        async def limited() -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.02)
            now -= 1

        @each.job(limits=[rate])
        async def paced() -> None:
            starts.append(time.monotonic())

        @each.job(concurrency=1)
        async def alone() -> None:
            await asyncio.sleep(0)

    await app.setup()
    await app.enqueue_many(
        [*(limited.bind() for _ in range(30)), *(paced.bind() for _ in range(40)), *(alone.bind() for _ in range(5))]
    )
    async with other, Worker(app), Worker(other):
        await until(lambda: _acked(app, 75))
    assert most <= 3
    assert len(starts) == 40
    # 5 at once, the rest one each 5 ms
    assert max(starts) - min(starts) > 0.1


async def test_middleware_runs_around_handlers(app: App) -> None:
    log: list[str] = []

    @app.middleware
    async def outer(ctx: Context, call: Any) -> Any:
        log.append(f"in {ctx.kind}")
        try:
            return await call()
        finally:
            log.append("out")

    @app.middleware
    async def inner(ctx: Context, call: Any) -> Any:
        return (await call()) + 1

    @app.job(result=True)
    async def work() -> int:
        log.append("work")
        return 1

    async with Worker(app):
        assert await (await work.enqueue()).result("10s") == 2
    assert log == ["in work", "work", "out"]


async def test_the_context_knows_its_job(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.job(result=True, timeout="30s")
    async def who(ctx: Context) -> list[Any]:
        ctx.log.warning("hello")
        assert ctx.deadline is not None and ctx.stopping is None
        return [str(ctx.id), ctx.kind, ctx.attempt, ctx.headers["tenant"], ctx.key, ctx.max_attempts]

    async with Worker(app):
        handle = await who.options(headers={"tenant": "a"}, key="k").enqueue()
        assert await handle.result("10s") == [str(handle.id), "who", 1, "a", "k", 5]
    assert f"who {handle.id}: hello" in caplog.text


async def test_workers_are_listed_and_sign_off(app: App, conn: Connection) -> None:
    @app.job
    async def work(order: int, *, note: str = "") -> None: ...

    async with Worker(app) as worker:
        [(name, info, schemas)] = conn.execute("select worker, info, schemas from trunkline.list_workers()").fetchall()
        assert name == worker.name
        assert info["kinds"] == ["work"] and info["queues"] == {"default": 10}
        assert info["version"] == __version__
        [arguments] = schemas["work"]["$defs"].values()
        assert (arguments["required"], set(arguments["properties"])) == (["order"], {"order", "note"})
    assert conn.execute("select count(*) from trunkline.list_workers()").fetchone() == (0,)
