"""Handlers that have to end: what is settled and counted, and what they see."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.jobs.conftest import dead
from tests.support.waiting import until
from trunkline.errors import DatabaseUnavailable
from trunkline.jobs import App, Context, Stop, StopReason, Worker


async def test_a_stalled_handler_counts_as_failed(app: App) -> None:
    @app.job(max_attempts=1, timeout="300ms")
    async def stalls() -> None:
        while True:
            pass

    @app.job(result=True)
    async def fine() -> int:
        return 1

    async with Worker(app) as worker:
        await stalls.enqueue()
        [letter] = await dead(app)
        assert await (await fine.enqueue()).result("20s") == 1
        await until(lambda: not worker.busy)
        assert [(queue_worker.done, queue_worker.failed) for queue_worker in worker._queue_workers] == [(1, 1)]
    assert "blocked the event loop" in letter.error


async def test_a_stalled_job_is_settled_later_if_the_database_fails(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its lease would be extended until the worker stops."""

    def fails(*_: Any, **__: Any) -> None:
        raise DatabaseUnavailable("gone")

    attempts: list[int] = []
    monkeypatch.setattr("trunkline.jobs.worker.sync_calls.nack", fails)

    @app.job(timeout="300ms", result=True)
    async def stalls_once(ctx: Context) -> int:
        attempts.append(ctx.attempt)
        while ctx.attempt == 1:
            pass
        return ctx.attempt

    async with Worker(app):
        assert await (await stalls_once.enqueue()).result("20s") == 2
    assert attempts == [1, 2]


async def test_the_context_has_the_reason_to_stop(app: App) -> None:
    seen: list[Stop | None] = []

    @app.job(max_attempts=1, timeout="200ms")
    async def waits(ctx: Context) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            seen.append(ctx.stopping)

    async with Worker(app):
        await waits.enqueue()
        await dead(app)
    assert seen == [Stop(StopReason.TIMEOUT, "TimeoutError: the handler took longer than 0.2 s")]
