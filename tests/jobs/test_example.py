"""Typed jobs by example, behaviour by behaviour: enqueue, a worker with a map of handlers, retries, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.conftest import Clock, Connection
from tests.jobs.conftest import dead, stats
from tests.support.waiting import until
from trunkline.jobs import App, Backoff, Context, InvalidArguments, Worker


class SendEmail(msgspec.Struct):
    to: str
    subject: str


class ProcessImage(msgspec.Struct):
    path: str
    output: str


@pytest.fixture
async def queue(db: str) -> AsyncIterator[App]:
    queue = App(db, queue="jobs", backoff=Backoff("1s", jitter=0))
    yield queue
    await queue.close()


WELCOME = SendEmail(to="ann@example.com", subject="Welcome")
KEY = "email:ann@example.com:welcome"


async def test_the_example(queue: App) -> None:
    email = queue.kind("send-email", SendEmail)
    queue.kind("process-image", ProcessImage)
    sent: list[str] = []

    async def on_email(payload: SendEmail, ctx: Context) -> None:
        async def send() -> None:
            sent.append(f"email to {payload.to}")

        await ctx.run_once("email", send)
        if ctx.attempt == 1:
            raise ConnectionError("after the effect")

    async def on_image(payload: ProcessImage) -> None:
        sent.append(f"image {payload.path}")

    first = await queue.add(email, WELCOME, idempotency_key=KEY, max_attempts=5)
    again = await queue.add("send-email", WELCOME, idempotency_key=KEY, max_attempts=5)
    assert (again.id, again.duplicate) == (first.id, True)
    await queue.add("process-image", ProcessImage("a.png", "b.png"))
    with pytest.raises(InvalidArguments, match="Expected `str`"):
        await queue.add("send-email", {"to": 5, "subject": ""})
    async with Worker(queue, handlers={email: on_email, "process-image": on_image}):
        await until(lambda: _acked(queue, 2))
    # run twice, sent once
    assert sorted(sent) == ["email to ann@example.com", "image a.png"]


async def _acked(app: App, n: int) -> bool:
    return bool((await stats(app, "jobs")).acked == n)


async def test_retries_back_off_in_the_database_and_end_in_the_dead_letters(queue: App, clock: Clock) -> None:
    """Backoff of 1, 2, 4 ... seconds; after max_attempts a dead letter with the last error, which can be redriven."""
    attempts: list[int] = []
    broken = True

    async def fail(payload: Any, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if broken:
            raise ValueError(f"attempt {ctx.attempt}")

    async with Worker(queue.handlers({"work": fail})):
        handle = await queue.add("work", [1, "top-level list"], max_attempts=3)
        for seconds in (1, 2):
            await until(lambda: _delayed(queue))
            before = len(attempts)
            clock.advance(timedelta(seconds=seconds - 0.5))
            assert len(attempts) == before
            clock.advance(0.6)
            await until(lambda before=before: len(attempts) == before + 1)  # type: ignore[misc]
        [letter] = await dead(queue, "jobs")
        assert attempts == [1, 2, 3] and letter.error.startswith("ValueError: attempt 3") and letter.id == handle.id
        assert letter.body == [1, "top-level list"]
        broken = False
        assert await queue.retry(handle.id) == "jobs"
        await until(lambda: _acked(queue, 1))


async def _delayed(app: App) -> bool:
    return bool((await stats(app, "jobs")).delayed)


async def test_run_once_is_for_one_job_and_its_failure_may_run_again(queue: App) -> None:
    calls: list[tuple[str, int]] = []

    async def work(payload: str, ctx: Context) -> None:
        async def effect() -> None:
            calls.append((payload, ctx.attempt))
            if ctx.attempt == 1:
                raise OSError("did not happen")

        await ctx.run_once("e", effect)

    async with Worker(queue.handlers({"work": work})):
        await queue.add("work", "a")
        await queue.add("work", "b")
        await until(lambda: _acked(queue, 2))
    assert sorted(calls) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


async def test_jobs_wait_until_a_worker_comes(queue: App, conn: Connection) -> None:
    queue.kind("work", int)
    await queue.add("work", 1)
    done = asyncio.Event()

    async def work(payload: int) -> None:
        done.set()

    async with Worker(queue, handlers={"work": work}):
        await done.wait()
        await until(lambda: _acked(queue, 1))


@pytest.mark.parametrize("thrown", [KeyError(), ValueError("text"), Exception(None)])
async def test_whatever_is_thrown_is_kept(queue: App, thrown: Exception) -> None:
    async def work(payload: Any) -> None:
        raise thrown

    async with Worker(queue.handlers({"work": work})):
        await queue.add("work", None, max_attempts=1)
        [letter] = await dead(queue, "jobs")
    assert letter.error.startswith(type(thrown).__name__) and letter.payload == b"null"
